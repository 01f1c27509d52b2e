"""Cooperative launches: barriers of the whole grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, int64

import numbasync as na

pytestmark = pytest.mark.cuda


def host(tensor: Any) -> np.ndarray:
    return tensor.to_host().sync()


def test_a_grid_waits_for_all_its_blocks(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def rotate(z: na.KernelOutput, other: na.KernelOutput, rounds):
        grid = cuda.cg.this_grid()
        i, n = cuda.grid(1), z.shape[0]
        for _ in range(rounds):
            other[i] = z[(i + 65) % n] + 1
            grid.sync()
            z[i] = other[(i + 65) % n] * 2
            grid.sync()

    start = np.random.default_rng(13).integers(-9, 9, 256)
    z, other = na.from_host(start).sync(), na.zeros(256, np.int64).sync()
    rotate[4, 64](z, other, 3).sync()
    want = start
    for _ in range(3):
        want = (np.roll(want, -130) + 1) * 2
    np.testing.assert_array_equal(host(z), want)


def test_grid_and_block_wait_in_turn(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def share(z: na.KernelOutput, partial: na.KernelOutput):
        own = cuda.shared.array(40, int64)
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        own[t] = z[cuda.grid(1)]
        cuda.syncthreads()
        if t == 0:
            total = 0
            for k in range(40):
                total += own[k]
            partial[b] = total
        cuda.cg.this_grid().sync()
        total = 0
        for k in range(cuda.gridDim.x):
            total += partial[k] * (k + 1)
        z[cuda.grid(1)] = total + own[39 - t]

    start = np.random.default_rng(14).integers(-99, 99, 120)
    z, partial = na.from_host(start).sync(), na.zeros(3, np.int64).sync()
    share[3, 40](z, partial).sync()
    rows = start.reshape(3, 40)
    want = rows.sum(1) @ [1, 2, 3] + rows[:, ::-1]
    np.testing.assert_array_equal(host(z).reshape(3, 40), want)
