"""The names of `numba.cuda` and `math`, and what kernels on the CPU device call instead."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from numbasync.backend.cpu.library import arithmetic, atomics, libdevice
from numbasync.backend.cpu.library.entry_points import types
from numbasync.backend.cpu.library.small_float_functions import OF_BFLOAT, OF_HALF
from numbasync.backend.cpu.library.small_floats import bfloat, half
from numbasync.layout import bfloat16

AXES = {cuda.threadIdx: "_t", cuda.blockIdx: "_b", cuda.blockDim: "_w", cuda.gridDim: "_g"}

# Barriers and warp collectives: their names in generated code, and whether the whole block must
# reach them.
BARRIERS: dict[Any, tuple[str, bool]] = {
    cuda.syncthreads: ("@barrier", True),
    cuda.syncthreads_count: ("@count", True),
    cuda.syncthreads_and: ("@and", True),
    cuda.syncthreads_or: ("@or", True),
    cuda.syncwarp: ("@warp", False),
    cuda.shfl_sync: ("@shfl", False),
    cuda.shfl_up_sync: ("@shfl_up", False),
    cuda.shfl_down_sync: ("@shfl_down", False),
    cuda.shfl_xor_sync: ("@shfl_xor", False),
    cuda.all_sync: ("@all", False),
    cuda.any_sync: ("@any", False),
    cuda.eq_sync: ("@eq", False),
    cuda.ballot_sync: ("@ballot", False),
    cuda.match_any_sync: ("@match_any", False),
    cuda.match_all_sync: ("@match_all", False),
    cuda.activemask: ("@activemask", False),
}
GRID_BARRIER = "@grid"  # the method `sync` of the grid of `cuda.cg.this_grid()`
THIS_GRID = cuda.cg.this_grid
# Whether they order accesses for other blocks, too.
FENCES = {cuda.threadfence: True, cuda.threadfence_system: True, cuda.threadfence_block: False}
NOTHING = (*FENCES, cuda.nanosleep)
FUNCTIONS: dict[Any, Any] = {
    cuda.popc: arithmetic.popc, cuda.clz: arithmetic.clz, cuda.ffs: arithmetic.ffs,
    cuda.brev: arithmetic.brev,
    cuda.fma: arithmetic.fma, cuda.selp: arithmetic.selp, cuda.cbrt: arithmetic.cbrt,
    math.floor: arithmetic.floor, math.ceil: arithmetic.ceil, math.trunc: arithmetic.trunc,
    min: arithmetic.smaller, max: arithmetic.larger, math.remainder: arithmetic.remainder,
    math.fmod: np.fmod, math.modf: arithmetic.modf,
    np.float16: half.of, types.float16: half.of,
    bfloat16().type: bfloat.of, bfloat.on_gpu: bfloat.of,
    **libdevice.FUNCTIONS,
}  # fmt: skip
_OF_SMALL_FLOATS = {
    "numba.cuda._internal.cuda_fp16": OF_HALF, "numba.cuda._internal.cuda_bf16": OF_BFLOAT,
}  # fmt: skip
ATOMICS = {getattr(cuda.atomic, name): function for name, function in atomics.ATOMICS.items()}

# What to write instead of a name of `cuda` that is not there.
INSTEAD = {
    "literal_unroll": " (write its items one after the other)",
    **{name: f" as a value (write cuda.{name}.x)"
       for name in ("threadIdx", "blockIdx", "blockDim", "gridDim")},
}  # fmt: skip


def is_barrier(value: Any) -> bool:
    try:
        return value in BARRIERS
    except TypeError:
        return False


def function(value: Any) -> Any:
    """The function that a call of `value` calls here; None if it is `value` itself."""
    of_small_floats = _OF_SMALL_FLOATS.get(getattr(value, "__module__", ""))
    if of_small_floats is not None:
        return of_small_floats.get(value.__name__)
    return FUNCTIONS.get(value)
