"""Arrays that compiled code finds by one address.

Each array that is passed to compiled code costs time: to look at its type and take it apart with
every call from Python, to hand it on from function to function, and to translate all that. Here one
word is passed instead: where it is written down where the arrays are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import typeof, types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)
from numba.np.arrayobj import make_array, populate_array
from numpy.typing import NDArray

T = TypeVar("T", bound=tuple[Any, ...])
_Type: Any = types.Type  # numba's types have none
_Attributes: Any = AttributeTemplate
_Model: Any = models.PrimitiveModel
WORD = ir.IntType(64)


def words(values: tuple[Any, ...]) -> NDArray[np.int64]:
    """A named tuple of integers and C-contiguous arrays as compiled code reads it: every integer,
    and of every array its address and its shape.

    It is up to date, and may be read, for as long as the tuple is kept and not replaced.
    """
    out: list[int] = []
    for value in values:
        out += [value.ctypes.data, *value.shape] if isinstance(value, np.ndarray) else [value]
    return np.array(out, np.int64)


class _Held(_Type):  # type: ignore[misc]
    """The type of a named tuple that is held as `words`.

    Attributes:
        fields: by name, which word is the first, and the type of the value.
    """

    def __init__(self, example: Any) -> None:
        super().__init__(f"Held{type(example).__module__}.{type(example).__name__}")
        self.fields: dict[str, tuple[int, Any]] = {}
        at = 0
        for name, value in zip(example._fields, example, strict=True):
            self.fields[name] = at, typeof(value)
            at += 1 + np.ndim(value)


@register_model(_Held)
class _HeldModel(_Model):  # type: ignore[misc]
    def __init__(self, manager: Any, held: _Held) -> None:
        super().__init__(manager, held, WORD.as_pointer())


@infer_getattr
class _HeldAttributes(_Attributes):  # type: ignore[misc]
    key = _Held

    def generic_resolve(self, held: _Held, name: str) -> Any:
        return held.fields[name][1] if name in held.fields else None


@lower_getattr_generic(_Held)
def _read(context: Any, builder: Any, held: _Held, value: Any, name: str) -> Any:
    first, kind = held.fields[name]

    def word(offset: int) -> Any:
        loaded = builder.load(builder.gep(value, [WORD(first + offset)]))
        # nobody writes these words while compiled code runs
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if not isinstance(kind, types.Array):
        return word(0)
    array = make_array(kind)(context, builder)
    shape = [word(1 + axis) for axis in range(kind.ndim)]
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    strides = [WORD(size)]
    for length in shape[:0:-1]:
        strides.insert(0, builder.mul(strides[0], length))
    data = builder.inttoptr(word(0), array.data.type)
    populate_array(array, data, shape, strides, WORD(size), None)
    return array._getvalue()  # noqa: SLF001 - numba's own way


def holder(example: Callable[[], T]) -> Callable[[int], T]:
    """A function for compiled code, which takes the address of `words` and returns the tuple that
    they hold; its fields have the types of those of ``example()``."""

    @intrinsic
    def held(_: Any, address: Any) -> Any:
        kind = _Held(example())

        def at(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return kind(address), at

    taken: Callable[[int], T] = held
    return taken
