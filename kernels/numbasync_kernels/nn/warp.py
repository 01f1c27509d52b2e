"""Sums and maxima over the 32 threads of a warp, for kernels that give each row to one warp."""

from __future__ import annotations

from typing import Any

from numbasync.kernel_names import cuda

WARP = 32
EVERYONE = 0xFFFFFFFF


@cuda.jit(device=True)
def warp_sum(value: Any) -> Any:
    """The sum of every thread's `value`, for every thread: 5 additions. All 32 must come."""
    step = WARP // 2
    while step > 0:
        value += cuda.shfl_xor_sync(EVERYONE, value, step)
        step //= 2
    return value


@cuda.jit(device=True)
def warp_max(value: Any) -> Any:
    """The largest `value`, for every thread. All 32 must come."""
    step = WARP // 2
    while step > 0:
        value = max(value, cuda.shfl_xor_sync(EVERYONE, value, step))
        step //= 2
    return value
