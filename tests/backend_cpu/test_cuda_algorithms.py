"""Block algorithms as they are written for CUDA: matmul, reduction, scan, sort, stencil."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32, int64

import numbasync as na
from tests.common import host, put

TILE = 8


@na.launcher
@cuda.jit
def matmul_fixed_tiles(c: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    sa = cuda.shared.array((TILE, TILE), float32)
    sb = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for step in range((a.shape[1] + TILE - 1) // TILE):
        k = step * TILE
        sa[ty, tx] = a[y, k + tx] if y < a.shape[0] and k + tx < a.shape[1] else 0
        sb[ty, tx] = b[k + ty, x] if k + ty < b.shape[0] and x < b.shape[1] else 0
        cuda.syncthreads()
        for i in range(TILE):
            total += sa[ty, i] * sb[i, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


@na.launcher
@cuda.jit
def matmul_registers(c: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    """Every thread has two elements of a column; the tiles are in dynamic shared memory."""
    memory = cuda.shared.array(0, float32)
    wide = cuda.blockDim.x
    sa, sb = memory[: 2 * wide * wide], memory[2 * wide * wide :]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x = cuda.blockIdx.x * wide + tx
    y = cuda.blockIdx.y * 2 * wide + ty
    own = cuda.local.array(2, float32)
    own[0] = own[1] = 0
    k = 0
    while k < a.shape[1]:
        for r in range(2):
            row = y + r * wide
            sa[(ty + r * wide) * wide + tx] = 0
            if row < a.shape[0] and k + tx < a.shape[1]:
                sa[(ty + r * wide) * wide + tx] = a[row, k + tx]
        sb[ty * wide + tx] = 0
        if k + ty < b.shape[0] and x < b.shape[1]:
            sb[ty * wide + tx] = b[k + ty, x]
        cuda.syncthreads()
        for i in range(wide):
            v = sb[i * wide + tx]
            for r in range(2):
                own[r] += sa[(ty + r * wide) * wide + i] * v
        cuda.syncthreads()
        k += wide
    for r in range(2):
        if y + r * wide < c.shape[0] and x < c.shape[1]:
            c[y + r * wide, x] = own[r]


@pytest.mark.parametrize("shape", [(8, 8, 8), (5, 19, 11), (17, 3, 30)], ids=str)
def test_tiled_matmul(device: na.Device, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(k)
    # Small integers: the sums are exact, in whatever order and however rounded.
    a = rng.integers(-9, 10, (m, k)).astype(np.float32)
    b = rng.integers(-9, 10, (k, n)).astype(np.float32)
    one, two = na.full((m, n), -1).sync(), na.full((m, n), -1).sync()
    matmul_fixed_tiles[((n + 7) // 8, (m + 7) // 8), (TILE, TILE)](one, a, b).sync()
    np.testing.assert_array_equal(host(one), a @ b)
    matmul_registers[((n + 3) // 4, (m + 7) // 8), (4, 4), 0, 3 * 16 * 4](two, a, b).sync()
    np.testing.assert_array_equal(host(two), a @ b)


@functools.cache
def reduction_of(dtype: Any) -> na.Launcher:
    """The kernel, whose shared memory has elements of a type."""

    @na.launcher
    @cuda.jit
    def total(z: na.KernelOutput, partial: na.KernelOutput, x: na.KernelInput):
        own = cuda.shared.array(64, dtype)
        t = cuda.threadIdx.x
        mine = 0
        for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
            mine += x[i]
        own[t] = mine
        cuda.syncthreads()
        step = cuda.blockDim.x // 2
        while step != 0:
            if t < step:
                own[t] += own[t + step]
            cuda.syncthreads()
            step >>= 1
        if t == 0:
            partial[cuda.blockIdx.x] = own[0]
            cuda.atomic.add(z, 0, own[0])

    return total


@pytest.mark.parametrize("n", [1, 64, 1000], ids="n={}".format)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_reduction(device: na.Device, dtype: type, n: int) -> None:
    x = np.random.default_rng(n).integers(-1000, 1000, n).astype(dtype)
    z, partial = na.zeros(1, dtype).sync(), na.zeros(3, dtype).sync()
    reduction_of(dtype)[3, 64](z, partial, x).sync()
    assert host(z).tolist() == [x.sum()]
    block = np.arange(n) // 64 % 3
    assert host(partial).tolist() == [x[block == b].sum() for b in range(3)]


@na.launcher
@cuda.jit
def hillis_steele(z: na.KernelOutput, x: na.KernelInput):
    own = cuda.shared.array((2, 128), int64)
    i, t = cuda.grid(1), cuda.threadIdx.x
    now = 0
    own[now, t] = x[i]
    cuda.syncthreads()
    offset = 1
    while offset < cuda.blockDim.x:
        if t >= offset:
            own[1 - now, t] = own[now, t] + own[now, t - offset]
        else:
            own[1 - now, t] = own[now, t]
        now = 1 - now
        offset *= 2
        cuda.syncthreads()
    z[i] = own[now, t]


@pytest.mark.parametrize("threads", [1, 31, 64, 100], ids="threads={}".format)
def test_hillis_steele_scan(device: na.Device, threads: int) -> None:
    x = np.random.default_rng(threads).integers(-9, 10, 4 * threads)
    z = na.zeros(4 * threads, np.int64).sync()
    hillis_steele[4, threads](z, x).sync()
    np.testing.assert_array_equal(host(z), x.reshape(4, threads).cumsum(1).ravel())


def test_blelloch_scan(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def scan(z: na.KernelOutput, x: na.KernelInput):
        own = cuda.shared.array(64, int32)
        t, base = cuda.threadIdx.x, cuda.blockIdx.x * 64
        own[2 * t], own[2 * t + 1] = x[base + 2 * t], x[base + 2 * t + 1]
        step = 1
        while step < 64:
            cuda.syncthreads()
            at = (t + 1) * step * 2 - 1
            if at < 64:
                own[at] += own[at - step]
            step *= 2
        cuda.syncthreads()
        if t == 0:
            own[63] = 0
        while step > 1:
            step //= 2
            cuda.syncthreads()
            at = (t + 1) * step * 2 - 1
            if at < 64:
                own[at - step], own[at] = own[at], own[at] + own[at - step]
        cuda.syncthreads()
        z[base + 2 * t] = own[2 * t]
        z[base + 2 * t + 1] = own[2 * t + 1]

    x = np.random.default_rng(6).integers(-100, 100, 3 * 64).astype(np.int32)
    z = na.zeros(3 * 64, np.int32).sync()
    scan[3, 32](z, x).sync()
    rows = x.reshape(3, 64)
    np.testing.assert_array_equal(host(z), (rows.cumsum(1) - rows).ravel())


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.uint16])
def test_bitonic_sort(device: na.Device, dtype: type) -> None:
    @na.launcher
    @cuda.jit
    def sort(z: na.KernelOutput):
        own = cuda.shared.array(128, dtype)
        t = cuda.threadIdx.x
        own[t] = z[cuda.grid(1)]
        size = 2
        while size <= cuda.blockDim.x:
            stride = size // 2
            while stride > 0:
                cuda.syncthreads()
                other = t ^ stride
                if other > t:
                    ascending = t & size == 0
                    if (own[t] > own[other]) == ascending:
                        own[t], own[other] = own[other], own[t]
                stride //= 2
            size *= 2
        cuda.syncthreads()
        z[cuda.grid(1)] = own[t]

    x = np.random.default_rng(7).integers(0, 1000, 4 * 128).astype(dtype)
    z = put(x)
    sort[4, 128](z).sync()
    np.testing.assert_array_equal(host(z), np.sort(x.reshape(4, 128), axis=1).ravel())


@na.launcher
@cuda.jit
def stencil(z: na.KernelOutput, x: na.KernelInput):
    own = cuda.shared.array(32 + 2 * 3, int64)
    i, t, n = cuda.grid(1), cuda.threadIdx.x, x.shape[0]
    own[t + 3] = x[i] if i < n else 0
    if t < 3:
        own[t] = x[i - 3] if 0 <= i - 3 < n else 0
        own[t + 35] = x[i + 32] if i + 32 < n else 0
    cuda.syncthreads()
    if i < n:
        total = 0
        for k in range(-3, 4):
            total += (4 - abs(k)) * own[t + 3 + k]
        z[i] = total


@pytest.mark.parametrize("n", [5, 64, 131], ids="n={}".format)
def test_stencil_with_halo(device: na.Device, n: int) -> None:
    x = np.random.default_rng(n).integers(-50, 50, n)
    z = na.zeros(n, np.int64).sync()
    stencil[(n + 31) // 32, 32](z, x).sync()
    want = np.convolve(np.pad(x, 3), [1, 2, 3, 4, 3, 2, 1], "valid")
    np.testing.assert_array_equal(host(z), want)


def test_stencil_in_two_axes(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def laplace(z: na.KernelOutput, x: na.KernelInput):
        own = cuda.shared.array((10, 10), float32)
        j, i = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        rows, columns = x.shape
        for r in range(ty, 10, 8):
            for c in range(tx, 10, 8):
                at, by = i - ty + r - 1, j - tx + c - 1
                own[r, c] = x[at, by] if 0 <= at < rows and 0 <= by < columns else 0
        cuda.syncthreads()
        if i < rows and j < columns:
            r, c = ty + 1, tx + 1
            z[i, j] = own[r - 1, c] + own[r + 1, c] + own[r, c - 1] + own[r, c + 1] - 4 * own[r, c]

    x = np.random.default_rng(8).integers(-9, 10, (13, 21)).astype(np.float32)
    z = na.zeros((13, 21)).sync()
    laplace[(3, 2), (8, 8)](z, x).sync()
    p = np.pad(x, 1)
    want = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * x
    np.testing.assert_array_equal(host(z), want)


@functools.cache
def transpose_of(dtype: Any) -> na.Launcher:
    """The kernel, whose shared memory has elements of a type."""

    @na.launcher
    @cuda.jit
    def transpose(z: na.KernelOutput, x: na.KernelInput):
        own = cuda.shared.array((16, 17), dtype)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        j, i = cuda.blockIdx.x * 16 + tx, cuda.blockIdx.y * 16 + ty
        for k in range(0, 16, 4):
            if i + k < x.shape[0] and j < x.shape[1]:
                own[ty + k, tx] = x[i + k, j]
        cuda.syncthreads()
        j, i = cuda.blockIdx.y * 16 + tx, cuda.blockIdx.x * 16 + ty
        for k in range(0, 16, 4):
            if i + k < z.shape[0] and j < z.shape[1]:
                z[i + k, j] = own[tx, ty + k]

    return transpose


@pytest.mark.parametrize("shape", [(16, 16), (5, 33), (40, 17)], ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.int8])
def test_transpose(device: na.Device, dtype: type, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(9).integers(-99, 99, shape).astype(dtype)
    z = na.zeros(shape[::-1], dtype).sync()
    transpose_of(dtype)[((shape[1] + 15) // 16, (shape[0] + 15) // 16), (16, 4)](z, x).sync()
    np.testing.assert_array_equal(host(z), x.T)


def test_histogram_in_shared_memory(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def histogram(z: na.KernelOutput, x: na.KernelInput):
        bins = cuda.shared.array(10, int32)
        t = cuda.threadIdx.x
        for b in range(t, 10, cuda.blockDim.x):
            bins[b] = 0
        cuda.syncthreads()
        for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
            cuda.atomic.add(bins, x[i] // 10, 1)
        cuda.syncthreads()
        if t < 10:
            cuda.atomic.add(z, t, bins[t])

    x = np.random.default_rng(10).integers(0, 100, 2000).astype(np.uint8)
    z = na.zeros(10, np.int32).sync()
    histogram[3, 40](z, x).sync()
    np.testing.assert_array_equal(host(z), np.bincount(x // 10, minlength=10))


def test_the_last_block_sums_up(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def total(z: na.KernelOutput, partial: na.KernelOutput, done: na.KernelOutput):
        last = cuda.shared.array(1, int32)
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        if t == 0:
            partial[b] = (b + 1) * (b + 1)
            cuda.threadfence()
            last[0] = cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1
        cuda.syncthreads()
        if last[0]:
            cuda.threadfence_block()
            for i in range(t, partial.shape[0], cuda.blockDim.x):
                cuda.atomic.add(z, 0, partial[i])

    z, partial, done = (na.zeros(n, np.int64).sync() for n in (1, 9, 1))
    total[9, 32](z, partial, done).sync()
    assert host(z).tolist() == [sum((b + 1) ** 2 for b in range(9))]
