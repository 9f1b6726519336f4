"""Memory that compiled code will need soon, asked for in time.

Where a network is larger than the caches, most of its time is spent waiting for single items far
apart. The processor can fetch many at once, if it is told early which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import extending, types

_intrinsic: Any = extending.intrinsic  # it has no types


@_intrinsic  # type: ignore[untyped-decorator]
def _fetch(_: Any, array: Any, index: Any, offset: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, index_type, offset_type = signature.args
        data = context.make_array(array_type)(context, builder, arguments[0]).data
        word = context.cast(builder, arguments[1], index_type, types.int64)
        skipped = context.cast(builder, arguments[2], offset_type, types.int64)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        item = builder.gep(builder.bitcast(builder.gep(data, [word]), byte), [skipped])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        asked = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # to be written, to be kept in all caches, data
        builder.call(asked, [item, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, index, offset), code


fetch = cast(Callable[[Any, int, int], None], _fetch)
