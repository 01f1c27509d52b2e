"""bfloat16 as a type of Numba's compiler for GPUs: what numba-cuda lacks of it, and its dtype.

numba-cuda has the type, its arithmetic and most of its casts. It lacks an array of it that a kernel
creates, a constant of it, its truth, and casts from integers of 8 bits and to float16.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.np import numpy_support

from numbasync.errors import DTypeError
from numbasync.layout import is_bfloat16

bfloat16: Any = getattr(types, "bfloat16", None)  # None in the numba.cuda that is a part of Numba


def from_dtype(dtype: np.dtype[Any]) -> Any:
    """Numba's type of elements.

    Raises:
        DTypeError: it is bfloat16, which this version of Numba does not have.
    """
    if not is_bfloat16(dtype):
        return numpy_support.from_dtype(dtype)
    if bfloat16 is None:
        raise DTypeError(
            f"a kernel of {dtype} is compiled by numba-cuda 0.30 or later, which is not installed."
        )
    return bfloat16


def refuse_in_tuples(argument_types: Iterable[Any]) -> None:
    """
    Raises:
        DTypeError: an argument is a tuple with a number of bfloat16, which Numba does not pass.
    """
    for numba_type in argument_types:
        if isinstance(numba_type, types.BaseTuple):
            refuse_in_tuples(numba_type)
            if bfloat16 in list(numba_type):
                raise DTypeError(
                    f"a kernel cannot take {numba_type}, a tuple with a number of bfloat16.\n"
                    "Pass the number by itself, or as np.float32(x)."
                )


def _register() -> None:
    """Add to numba-cuda what it lacks of bfloat16. Each part is used in its stead, should a later
    version have it.
    """
    made = _cudaimpl._generic_array

    def array_of(*args: Any, **kwargs: Any) -> Any:
        """A shared or local array: of bfloat16 the same as of its bits, for LLVM."""
        if kwargs["dtype"] == bfloat16:
            kwargs["dtype"] = types.uint16
        return made(*args, **kwargs)

    _cudaimpl._generic_array = array_of

    @_cudaimpl.lower_cast(types.int8, bfloat16)
    @_cudaimpl.lower_cast(types.uint8, bfloat16)
    def of_int8(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
        wide = context.cast(builder, value, fromty, types.int16)
        return context.cast(builder, wide, types.int16, toty)

    @_cudaimpl.lower_cast(bfloat16, types.float16)
    def to_float16(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
        wide = context.cast(builder, value, fromty, types.float32)
        return context.cast(builder, wide, types.float32, toty)

    @_cudaimpl.lower_constant(bfloat16)
    def constant(context: Any, builder: Any, ty: Any, value: Any) -> Any:
        return ir.IntType(16)(int(value.view(np.uint16)))

    @_cudaimpl.lower(bool, bfloat16)
    def truth(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size = builder.and_(args[0], ir.IntType(16)(0x7FFF))
        return builder.icmp_unsigned("!=", size, ir.IntType(16)(0))


if bfloat16 is not None:
    _cudaimpl: Any = importlib.import_module("numba.cuda.cudaimpl")
    _register()
