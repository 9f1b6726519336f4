"""Arrays that compiled code finds by one address.

Each array that is passed to compiled code costs time: to look at its type and take it apart with
every call from Python, to hand it on from function to function, and to translate all that. Here one
word is passed instead: where it is written down where the arrays are.
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
_Model: Any = extending.models.PrimitiveModel
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


class _Held(_Type):  # type: ignore[misc]
    """The type of a named tuple that is held as `words`.

    Attributes:
        fields: by name, which word is the first, the type of the value, and the bytes of an item.
    """

    def __init__(self, example: Any) -> None:
        super().__init__(f"Held{type(example).__module__}.{type(example).__name__}")
        self.fields: dict[str, tuple[int, Any, int]] = {}
        at = 0
        for name, value in zip(example._fields, example, strict=True):
            self.fields[name] = at, _typeof(value), np.asarray(value).itemsize
            at += 1 + np.ndim(value)


@extending.register_model(_Held)
class _HeldModel(_Model):  # type: ignore[misc]
    def __init__(self, manager: Any, held: _Held) -> None:
        super().__init__(manager, held, WORD.as_pointer())


@extending.infer_getattr
class _HeldAttributes(_Attributes):  # type: ignore[misc]
    key = _Held

    def generic_resolve(self, held: _Held, name: str) -> Any:
        return held.fields[name][1] if name in held.fields else None


@_reader_of(_Held)  # type: ignore[untyped-decorator]
def _read(context: Any, builder: Any, held: _Held, value: Any, name: str) -> Any:
    from numba.np import arrayobj  # noqa: PLC0415 - for compiling alone

    arrays: Any = arrayobj
    first, kind, size = held.fields[name]

    def word(offset: int) -> Any:
        loaded = builder.load(builder.gep(value, [WORD(first + offset)]))
        # nobody writes these words while compiled code runs
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if not isinstance(kind, types.Array):
        return word(0)
    array = arrays.make_array(kind)(context, builder)
    shape = [word(1 + axis) for axis in range(kind.ndim)]
    strides = [WORD(size)]
    for length in shape[:0:-1]:
        strides.insert(0, builder.mul(strides[0], length))
    data = builder.inttoptr(word(0), array.data.type)
    arrays.populate_array(array, data, shape, strides, WORD(size), None)
    return array._getvalue()


def holder(example: Callable[[], T]) -> Callable[[int], T]:
    """A function for compiled code, which takes the address of `words` and returns the tuple that
    they hold; its fields have the types of those of ``example()``."""

    @_intrinsic  # type: ignore[untyped-decorator]
    def held(_: Any, address: Any) -> Any:
        kind = _Held(example())

        def at(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return kind(address), at

    return cast(Callable[[int], T], held)
