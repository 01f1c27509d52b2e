"""Functions of `na.block` and `na.warp` in kernels that run as Python."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import BarrierDivergenceError
from tests.backend_cpu.test_interpreter import run


@cuda.jit(device=True)
def latest(a, b):
    return b if b != 0 else a


@cuda.jit(device=True)
def apply_both(f, g):
    return f[0] * g[0], f[1] * g[0] + g[1]


def test_a_block_of_two_axes() -> None:
    def kernel(total, last, runs, x):
        i = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
        total[i] = na.block.sum(x[i])
        last[i] = na.block.reduce(x[i], latest)
        runs[0, i] = na.block.scan(x[i])
        runs[1, i] = na.block.scan(x[i], latest, exclusive=True, initial=7)

    x = np.array([3, 0, 5, 0, 0, 9, 0] * 10, np.float32)
    total, last, runs = np.zeros(70), np.zeros(70), np.zeros((2, 70), np.float32)
    run(kernel, total, last, runs, x, block=(10, 7, 1))
    assert (total == 170).all() and (last == 9).all()
    assert (runs[0] == x.cumsum()).all()
    before = np.concatenate(([7], x[:-1]))
    assert (runs[1] == before[np.maximum.accumulate(np.where(before, np.arange(70), 0))]).all()


def test_warps_are_apart() -> None:
    def kernel(out):
        i = cuda.threadIdx.x
        out[0, i] = na.warp.sum(i > 33)
        out[1, i] = na.warp.scan(1, exclusive=True)
        out[2, i] = na.warp.reduce((i % 2, 1), apply_both)[1]

    out = np.zeros((3, 40), np.int64)
    run(kernel, out, block=(40, 1, 1))
    assert out[0].tolist() == [0] * 32 + [6] * 8
    assert out[1].tolist() == [*range(32), *range(8)]
    total = 0
    for i in range(32, 40):
        total = total * (i % 2) + 1
    assert out[2, 39] == total


def test_threads_that_are_missing_are_reported() -> None:
    def of_block(out):
        if cuda.threadIdx.x < 3:
            out[0] = na.block.sum(1)

    def of_warp(out):
        if cuda.threadIdx.x < 3:
            out[0] = na.warp.sum(1)

    with pytest.raises(BarrierDivergenceError, match=r"3 of 4 threads wait at na\.block\.sum"):
        run(of_block, np.zeros(1), block=(4, 1, 1))
    with pytest.raises(BarrierDivergenceError, match="3 of 4 threads have come"):
        run(of_warp, np.zeros(1), block=(4, 1, 1))
