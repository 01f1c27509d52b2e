"""Warps: values that lanes give each other, and barriers of a warp."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, float32, int32

import numbasync as na
from tests.backend_cpu.values import FULL, bits, signed, values
from tests.common import full, host


# The others are summed, in `test_sum_of_a_warp`, and scanned.
@pytest.mark.parametrize("dtype", [np.int32, full(np.float64)])
def test_shuffles_of_every_kind(device: na.Device, dtype: type) -> None:
    @na.launcher
    @cuda.jit
    def shuffle(z: na.KernelOutput, x: na.KernelInput, k):
        i = cuda.grid(1)
        v = x[i]
        z[i, 0] = cuda.shfl_sync(FULL, v, k)
        z[i, 1] = cuda.shfl_up_sync(FULL, v, k)
        z[i, 2] = cuda.shfl_down_sync(FULL, v, k)
        z[i, 3] = cuda.shfl_xor_sync(-1, v, k)

    x = values(dtype, 128)
    lane = np.arange(32)
    for k in (0, 1, 5, 16, 31):
        z = na.zeros((128, 4), dtype).sync()
        shuffle[2, 64](z, x, k).sync()
        for warp, got in zip(x.reshape(4, 32), host(z).reshape(4, 32, 4), strict=True):
            np.testing.assert_array_equal(got[:, 0], warp[k])
            np.testing.assert_array_equal(got[:, 1], np.where(lane < k, warp, warp[lane - k]))
            down = np.where(lane + k > 31, warp, warp[(lane + k) % 32])
            np.testing.assert_array_equal(got[:, 2], down)
            np.testing.assert_array_equal(got[:, 3], warp[lane ^ k])


def test_source_lanes_count_modulo_32_and_may_differ(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def pick(z: na.KernelOutput, x: na.KernelInput, source: na.KernelInput):
        i = cuda.grid(1)
        z[i] = cuda.shfl_sync(FULL, x[i], source[i])

    rng = np.random.default_rng(1)
    x, source = values(np.int32, 64), rng.integers(-64, 96, 64).astype(np.int32)
    z = na.zeros(64, np.int32).sync()
    pick[1, 64](z, x, source).sync()
    want = x.reshape(2, 32)[np.arange(64) // 32, source % 32]
    np.testing.assert_array_equal(host(z), want)


def test_shuffles_of_scalars_and_sums(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def mixed(z: na.KernelOutput, small: na.KernelInput, a):
        i = cuda.grid(1)
        z[i, 0] = cuda.shfl_xor_sync(FULL, i, 1)
        z[i, 1] = cuda.shfl_sync(FULL, small[i] * 2**20, 3)
        z[i, 2] = cuda.shfl_down_sync(FULL, a * cuda.laneid, 2)
        z[i, 3] = cuda.shfl_up_sync(FULL, cuda.threadIdx.x, 1) + cuda.shfl_sync(FULL, 7, 0)

    small = np.arange(32, dtype=np.int16) + 3000
    z = na.zeros((32, 4), np.float64).sync()
    mixed[1, 32](z, small, 0.5).sync()
    lane = np.arange(32)
    want = [lane ^ 1, np.full(32, 3003 * 2**20), np.where(lane < 30, lane + 2, lane) / 2,
            np.maximum(lane - 1, 0) + 7]  # fmt: skip
    np.testing.assert_array_equal(host(z).T, want)


@pytest.mark.parametrize("dtype", [full(np.int64), np.float32])
def test_sum_of_a_warp(device: na.Device, dtype: type) -> None:
    @na.launcher
    @cuda.jit
    def sums(down: na.KernelOutput, xor: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        v = x[i]
        offset = 16
        while offset > 0:
            v += cuda.shfl_down_sync(FULL, v, offset)
            offset //= 2
        down[i] = cuda.shfl_sync(FULL, v, 0)
        v = x[i]
        for k in range(5):
            v += cuda.shfl_xor_sync(FULL, v, 1 << k)
        xor[i] = v

    x = np.random.default_rng(2).integers(-1000, 1000, 192).astype(dtype)
    down, xor = na.zeros(192, dtype).sync(), na.zeros(192, dtype).sync()
    sums[2, 96](down, xor, x).sync()
    want = np.repeat(x.reshape(6, 32).sum(1), 32)
    np.testing.assert_array_equal(host(down), want)
    np.testing.assert_array_equal(host(xor), want)


def test_inclusive_scan_of_a_warp(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def scan(z: na.KernelOutput, x: na.KernelInput):
        i, lane = cuda.grid(1), cuda.laneid
        v = x[i]
        offset = 1
        while offset < 32:
            left = cuda.shfl_up_sync(FULL, v, offset)
            if lane >= offset:
                v += left
            offset *= 2
        z[i] = v

    x = np.random.default_rng(3).integers(-99, 99, 128).astype(np.float32)
    z = na.zeros(128).sync()
    scan[1, 128](z, x).sync()
    np.testing.assert_array_equal(host(z), x.reshape(4, 32).cumsum(1).ravel())


@cuda.jit(device=True)
def warp_sum(value):
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, offset)
    return value


@na.launcher
@cuda.jit
def sum_of_block(z: na.KernelOutput, x: na.KernelInput):
    partial = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    warp, lane = t // 32, cuda.laneid
    v = warp_sum(x[cuda.grid(1)])
    if lane == 0:
        partial[warp] = v
    cuda.syncthreads()
    if warp == 0:
        v = warp_sum(partial[lane] if lane < cuda.blockDim.x // 32 else float32(0))
        if lane == 0:
            z[cuda.blockIdx.x] = v


@pytest.mark.parametrize("threads", [32, 128, 512], ids="threads={}".format)
def test_sum_of_a_block_by_its_first_warp(device: na.Device, threads: int) -> None:
    x = np.random.default_rng(4).integers(-99, 99, 3 * threads).astype(np.float32)
    z = na.zeros(3).sync()
    sum_of_block[3, threads](z, x).sync()
    np.testing.assert_array_equal(host(z), x.reshape(3, threads).sum(1))


def test_some_lanes_of_a_warp_shuffle(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def parts(z: na.KernelOutput, x: na.KernelInput):
        i, lane = cuda.grid(1), cuda.laneid
        v = x[i]
        if lane < 16:
            for k in (8, 4, 2, 1):
                v += cuda.shfl_xor_sync(0xFFFF, v, k)
        elif lane >= 24:
            for k in (4, 2, 1):
                v = max(v, cuda.shfl_xor_sync(0xFF000000, v, k))
        z[i] = v

    x = values(np.int64, 64) // 100
    z = na.zeros(64, np.int64).sync()
    parts[1, 64](z, x).sync()
    want = x.reshape(2, 32).copy()
    want[:, :16] = want[:, :16].sum(1, keepdims=True)
    want[:, 24:] = want[:, 24:].max(1, keepdims=True)
    np.testing.assert_array_equal(host(z), want.ravel())


def test_warps_go_different_ways(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def ways(z: na.KernelOutput, x: na.KernelInput):
        own = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        warp = t // 32
        v = x[t]
        if warp == 1:
            for _ in range(3):
                v = cuda.shfl_sync(FULL, v, (cuda.laneid + 1) % 32)
        elif warp == 2:
            v = cuda.ballot_sync(FULL, v % 2)
        elif warp == 3:
            own[t] = v
            cuda.syncwarp()
            v = own[96 + (127 - t)]
        z[t] = v

    x = values(np.int32, 128)
    z = na.zeros(128, np.int32).sync()
    ways[1, 128](z, x).sync()
    want = x.reshape(4, 32).copy()
    want[1] = np.roll(want[1], -3)
    want[2] = signed(bits(want[2] % 2))
    want[3] = want[3, ::-1]
    np.testing.assert_array_equal(host(z), want.ravel())


def test_a_loop_each_warp_leaves_by_itself(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def vote_until(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        left, rounds = x[i], 0
        while cuda.any_sync(FULL, left > 0):
            left -= 1
            rounds += 1
        z[i] = rounds

    x = np.random.default_rng(5).integers(-3, 40, 128)
    x[32:64] = 0
    z = na.zeros(128, np.int64).sync()
    vote_until[2, 64](z, x).sync()
    np.testing.assert_array_equal(host(z), np.repeat(np.maximum(x.reshape(4, 32).max(1), 0), 32))


def test_syncwarp_orders_shared_memory(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def turn(z: na.KernelOutput, x: na.KernelInput):
        own = cuda.shared.array((2, 32), float32)
        t = cuda.threadIdx.x
        warp, lane = t // 32, cuda.laneid
        own[warp, lane] = x[t]
        for offset in (16, 8, 4, 2, 1):
            cuda.syncwarp()
            v = own[warp, lane ^ offset]
            cuda.syncwarp(FULL)
            own[warp, lane] += v
        cuda.syncwarp()
        if lane < 8:
            own[warp, lane] += lane
            cuda.syncwarp(0xFF)
            z[t] = own[warp, 7 - lane]
        else:
            z[t] = own[warp, 31]

    x = np.random.default_rng(6).integers(-9, 9, 64).astype(np.float32)
    z = na.zeros(64).sync()
    turn[1, 64](z, x).sync()
    extra = np.where(np.arange(32) < 8, 7 - np.arange(32), 0)
    want = x.reshape(2, 32).sum(1)[:, None] + extra
    np.testing.assert_array_equal(host(z), want.ravel())
