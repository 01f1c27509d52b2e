"""bfloat16 as a type of Numba's compiler for GPUs: what numba-cuda lacks of it.

numba-cuda has the type, its arithmetic and most of its casts. It lacks an array of it that a kernel
creates, a constant of it, its truth, and casts from integers of 8 bits and to float16. Its casts
from and to float32 call C++; they are replaced.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import types

from numbasync.dtypes import extension_types

_BITS, _WORD = ir.IntType(16), ir.IntType(32)


def widened(builder: Any, bits: Any) -> Any:
    """The float32 of the bits of a bfloat16."""
    return builder.bitcast(builder.shl(builder.zext(bits, _WORD), _WORD(16)), ir.FloatType())


def rounded(builder: Any, value: Any) -> Any:
    """The bits of the bfloat16 nearest to a float32; halfway, of the even one. NaN is 0x7FFF, as
    CUDA has it.
    """
    bits = builder.bitcast(value, _WORD)
    odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
    near = builder.add(builder.add(bits, _WORD(0x7FFF)), odd)
    short = builder.trunc(builder.lshr(near, _WORD(16)), _BITS)
    return builder.select(builder.fcmp_unordered("uno", value, value), _BITS(0x7FFF), short)


@cache
def register() -> None:
    """Add to numba-cuda what it lacks of bfloat16; to be called before a kernel is compiled. Each
    part is used in its stead, should a later version have it.
    """
    bfloat16 = extension_types().get("bfloat16")
    if bfloat16 is None:  # in the numba.cuda that is a part of Numba
        return
    cudaimpl: Any = importlib.import_module("numba.cuda.cudaimpl")
    cuda_bf16: Any = importlib.import_module("numba.cuda._internal.cuda_bf16")
    numbas_own = cudaimpl._generic_array

    def array_of(*args: Any, **kwargs: Any) -> Any:
        """A shared or local array: of bfloat16 the same as of its bits, for LLVM."""
        if kwargs["dtype"] == bfloat16:
            kwargs["dtype"] = types.uint16
        return numbas_own(*args, **kwargs)

    cudaimpl._generic_array = array_of

    @cudaimpl.lower_cast(types.int8, bfloat16)
    @cudaimpl.lower_cast(types.uint8, bfloat16)
    def of_int8(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
        wide = context.cast(builder, value, fromty, types.int16)
        return context.cast(builder, wide, types.int16, toty)

    @cudaimpl.lower_cast(bfloat16, types.float16)
    def to_float16(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
        wide = context.cast(builder, value, fromty, types.float32)
        return context.cast(builder, wide, types.float32, toty)

    # Found before numba-cuda's own, which stand before them in the same registry. Those call C++,
    # and what calls C++ is in no disk cache (`cache=True`).
    @cuda_bf16.lower_cast(bfloat16, types.float32)
    def to_float32(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
        return widened(builder, value)

    @cuda_bf16.lower_cast(types.float32, bfloat16)
    def of_float32(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
        return rounded(builder, value)

    @cudaimpl.lower_constant(bfloat16)
    def constant(context: Any, builder: Any, ty: Any, value: Any) -> Any:
        return _BITS(int(value.view(np.uint16)))

    @cudaimpl.lower(bool, bfloat16)
    def truth(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size = builder.and_(args[0], _BITS(0x7FFF))
        return builder.icmp_unsigned("!=", size, _BITS(0))
