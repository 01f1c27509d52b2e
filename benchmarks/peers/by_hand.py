"""The kernels of `bench cpu` as loops for a processor, with Numba's `njit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, prange

from benchmarks.cpu_cases import BINS, THREADS, TILE, Array, Case
from benchmarks.cpu_limits import Prepare

NAME = "parallel njit by hand"
CHUNKS = 16


def _saxpy(out: Any, a: Any, x: Any, y: Any, wide: int, high: int) -> None:
    for i in prange(out.shape[0]):
        out[i] = a * x[i] + y[i]


def _block_sum(out: Any, x: Any, wide: int, high: int) -> None:
    for block in prange(out.shape[0]):
        total = np.float32(0)
        for i in range(block * THREADS, (block + 1) * THREADS):
            total += x[i]
        out[block] = total


def _matmul(out: Any, a: Any, b: Any, wide: int, high: int) -> None:
    columns = wide * TILE
    for row in prange(high * TILE):
        out[row, :columns] = 0
        for k in range(a.shape[1]):
            factor = a[row, k]
            for column in range(columns):
                out[row, column] += factor * b[k, column]


def _histogram(bins: Any, x: Any, wide: int, high: int) -> None:
    own = np.zeros((CHUNKS, BINS), np.int32)
    size = -(-x.shape[0] // CHUNKS)
    for chunk in prange(CHUNKS):
        for i in range(chunk * size, min((chunk + 1) * size, x.shape[0])):
            own[chunk, x[i]] += 1
    bins += own.sum(0)


_LOOPS = {
    "saxpy": _saxpy, "block_sum": _block_sum, "matmul": _matmul, "histogram": _histogram,
}  # fmt: skip


def of_case(case: Case) -> Prepare:
    """`case` as a parallel loop; compiled when it is first called."""
    loop = njit(parallel=True)(_LOOPS[case.body.__name__])

    def prepare(blocks: int) -> tuple[Callable[[], object], Callable[[], Array]]:
        args = case.inputs(blocks)
        grid = case.grid(blocks)
        return lambda: loop(*args, *grid), lambda: args[0]

    return prepare
