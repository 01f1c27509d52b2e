"""Cooperative launches: barriers of the whole grid."""

from __future__ import annotations

import numpy as np
from numba import cuda, int64

import numbasync as na
from tests.common import host


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


@cuda.jit(device=True)
def exchange(z, other, i, n):
    grid = cuda.cg.this_grid()
    other[i] = z[(i + 1) % n]
    grid.sync()
    return other[(i + 1) % n]


def test_blocks_wait_in_a_device_function_and_vote(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def meet(z: na.KernelOutput, other: na.KernelOutput, votes: na.KernelOutput):
        held = cuda.shared.array(0, int64)
        i, n, t = cuda.grid(1), z.shape[0], cuda.threadIdx.x
        keep = i * 10
        held[t] = exchange(z, other, i, n)
        count = cuda.syncthreads_count(held[t] % 2)
        cuda.cg.this_grid().sync()
        if cuda.blockIdx.x == 1:
            cuda.syncthreads()
            held[t] += 1000
            cuda.syncthreads()
        votes[i] = count
        z[i] = held[cuda.blockDim.x - 1 - t] + keep

    start = np.random.default_rng(15).integers(0, 99, 96)
    z, other = na.from_host(start).sync(), na.zeros(96, np.int64).sync()
    votes = na.zeros(96, np.int64).sync()
    meet[3, 32, 0, 32 * 8](z, other, votes).sync()
    moved = np.roll(start, -2)
    want = moved.reshape(3, 32)[:, ::-1] + np.array([[0], [1000], [0]])
    np.testing.assert_array_equal(host(z), want.ravel() + 10 * np.arange(96))
    np.testing.assert_array_equal(host(votes), np.repeat((moved % 2).reshape(3, 32).sum(1), 32))


def test_a_grid_of_two_axes(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def turn(z: na.KernelOutput, other: na.KernelOutput):
        i, j = cuda.grid(2)
        other[i, j] = z[j, i]
        cuda.cg.this_grid().sync()
        z[i, j] = other[i, j] * 2

    start = np.random.default_rng(16).integers(0, 99, (12, 12))
    z, other = na.from_host(start).sync(), na.zeros((12, 12), np.int64).sync()
    turn[(3, 4), (4, 3)](z, other).sync()
    np.testing.assert_array_equal(host(z), start.T * 2)
