"""Arrays that compiled code finds by one address.

*Why.* Each array that is passed to compiled code costs time: to look at its type and take it apart
with every call from Python, to hand it on from function to function, and to translate all that.
Here one word is passed instead: where it is written down where the arrays are.

*How.* `words` writes a named tuple as integers of 64 bits, field after field: an integer as it is,
an array as its address and its shape. A kernel gets the address of the first word. `at_address`
makes the function that turns this address into the tuple again; for numba that is a value of the
type `_Addressed`, which is nothing but the address in machine code. Four things are said to numba,
each by one of its extension points (numba's documentation, "Low-level extension API"):

- `_Addressed`, the type: of each field its first word, its type, and the bytes of an item;
- `_Model`, what a value is in machine code: a pointer to words (``register_model``);
- `_Fields`, that ``s.field`` has the type of the field (``infer_getattr``);
- `_read`, how ``s.field`` is read: load the words, make an array of them
  (``lower_getattr_generic``).

*What must hold.* The words are right as long as no array is replaced: whoever replaces one writes
new words (`FluidNetwork._write_words`, `Core.state`) and keeps tuple and words alive, since
compiled code counts no references. Fields have the types and dimensions of those of the example.

*If another release of numba breaks it.* ``tests/plain_kernels.py`` finds arrays by their address in
plain Python, in twenty lines, and runs all kernels so; a test compares them with the compiled ones
bit for bit. The words are right if that still works; then what is wrong is in `_read` (compare it
with what numba/np/arrayobj.py does with `make_array` and `populate_array`) or in one of the three
registrations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core.typing import templates
from numpy.typing import NDArray

T = TypeVar("T", bound=tuple[Any, ...])
# what is taken from numba has no types
_Type: Any = types.Type
_Attributes: Any = templates.AttributeTemplate
_Primitive: Any = extending.models.PrimitiveModel
_intrinsic: Any = extending.intrinsic
_reader_of: Any = extending.lower_getattr_generic
_typeof: Any = numba.typeof
WORD: Any = ir.IntType(64)


def words(values: Any) -> NDArray[np.int64]:
    """A named tuple of integers and arrays as compiled code reads it: every integer, and of every
    array its address and its shape. It holds for as long as the tuple is kept.

    Raises:
        ValueError: an array is not C-contiguous.
    """
    out: list[int] = []
    for name, value in zip(values._fields, values, strict=True):
        if not isinstance(value, np.ndarray):
            out.append(value)
        elif value.flags.c_contiguous:
            out += [value.ctypes.data, *value.shape]
        else:
            raise ValueError(f"the array '{name}' must be C-contiguous")
    return np.array(out, np.int64)


class _Addressed(_Type):  # type: ignore[misc]
    """The type of a named tuple that is written down as `words`.

    Attributes:
        fields: by name, which word is the first, the type of the value, and the bytes of an item.
    """

    def __init__(self, example: Any) -> None:
        super().__init__(f"Addressed{type(example).__module__}.{type(example).__name__}")
        self.fields: dict[str, tuple[int, Any, int]] = {}
        at = 0
        for name, value in zip(example._fields, example, strict=True):
            self.fields[name] = at, _typeof(value), np.asarray(value).itemsize
            at += 1 + np.ndim(value)


@extending.register_model(_Addressed)
class _Model(_Primitive):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: _Addressed) -> None:
        super().__init__(manager, kind, WORD.as_pointer())


@extending.infer_getattr
class _Fields(_Attributes):  # type: ignore[misc]
    key = _Addressed

    def generic_resolve(self, kind: _Addressed, name: str) -> Any:
        return kind.fields[name][1] if name in kind.fields else None


@_reader_of(_Addressed)  # type: ignore[untyped-decorator]
def _read(context: Any, builder: Any, kind: _Addressed, value: Any, name: str) -> Any:
    from numba.np import arrayobj  # noqa: PLC0415 - for compiling alone

    arrays: Any = arrayobj
    first, item, size = kind.fields[name]

    def word(offset: int) -> Any:
        loaded = builder.load(builder.gep(value, [WORD(first + offset)]))
        # nobody writes these words while compiled code runs
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if not isinstance(item, types.Array):
        return word(0)
    array = arrays.make_array(item)(context, builder)
    shape = [word(1 + axis) for axis in range(item.ndim)]
    # C-contiguous: the last index is one item away, the one before it as many as the last axis has
    strides = [WORD(size)]
    for length in shape[:0:-1]:
        strides.insert(0, builder.mul(strides[0], length))
    data = builder.inttoptr(word(0), array.data.type)
    arrays.populate_array(array, data, shape, strides, WORD(size), None)
    return array._getvalue()


def at_address(example: Callable[[], T]) -> Callable[[int], T]:
    """A function for compiled code, which takes the address of `words` and returns the tuple that
    they stand for; its fields have the types of those of ``example()``."""

    @_intrinsic  # type: ignore[untyped-decorator]
    def found(_: Any, address: Any) -> Any:
        kind = _Addressed(example())

        def code(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return kind(address), code

    return cast(Callable[[int], T], found)
