"""Memory that a block's threads share, keep for themselves, or read as a constant."""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint8

import numbasync as na
from tests.common import host

WEIGHTS = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def test_several_shared_arrays_of_several_types(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def several(z: na.KernelOutput):
        a = cuda.shared.array(32, float32)
        b, c = cuda.shared.array((4, 8), int64), cuda.shared.array((2, 2, 8), uint8)
        t = cuda.threadIdx.x
        a[t] = t / 2
        b[t // 8, t % 8] = -t * 2**33
        c[t // 16, t // 8 % 2, t % 8] = 255 - t
        cuda.syncthreads()
        u = 31 - t
        z[t, 0] = a[u]
        z[t, 1] = b[u // 8, u % 8]
        z[t, 2] = c[u // 16, u // 8 % 2, u % 8]
        z[t, 3] = a.shape[0] + 100 * b.shape[1] + 1000 * c.size + 100000 * len(c)

    z = na.zeros((32, 4), np.float64).sync()
    several[1, 32](z).sync()
    u = 31 - np.arange(32)
    np.testing.assert_array_equal(host(z).T, [u / 2, -u * 2.0**33, 255 - u, np.full(32, 232832)])


def test_dynamic_shared_memory_in_parts(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def parts(z: na.KernelOutput, n):
        whole = cuda.shared.array(0, float64)
        low, high = whole[:n], whole[n : 2 * n]
        fixed = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        if t < 4:
            fixed[t] = 1000 * t
        low[t] = t
        high[n - 1 - t] = 100 + t
        cuda.syncthreads()
        z[t] = low[n - 1 - t] + high[t] / 2 + fixed[t % 4]

    z = na.zeros(24, np.float64).sync()
    parts[1, 24, 0, 2 * 24 * 8](z, 24).sync()
    t = np.arange(24)
    np.testing.assert_array_equal(host(z), (23 - t) + (100 + 23 - t) / 2 + 1000 * (t % 4))


@cuda.jit(device=True)
def put_behind(i, value):
    behind = cuda.shared.array(0, float32)
    behind[i] = value


def test_dynamic_shared_memory_in_functions_beside_barriers(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def reverse(z: na.KernelOutput):
        fixed, behind = cuda.shared.array(32, float32), cuda.shared.array(0, float32)
        t = cuda.threadIdx.x
        put_behind(t, t / 2)
        fixed[t] = 1000
        cuda.syncthreads()
        z[t] = behind[31 - t] + fixed[t]

    z = na.zeros(32).sync()
    reverse[1, 32, 0, 128](z).sync()
    np.testing.assert_array_equal(host(z), 1000 + (31 - np.arange(32)) / 2)


def test_local_arrays_belong_to_one_thread(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def polynomial(z: na.KernelOutput, x: na.KernelInput):
        line = cuda.local.array(5, int64)
        grid = cuda.local.array((2, 3), float32)
        i = cuda.grid(1)
        for k in range(5):
            line[k] = (i + 1) * k
        for r in range(2):
            for c in range(3):
                grid[r, c] = x[i] + 10 * r + c
        cuda.syncthreads()
        for k in range(5):
            z[i, 0] += line[k]
        z[i, 1] = grid[1, 2] - grid[0, 1]
        z[i, 2] = grid[i % 2, i % 3]

    x = np.arange(40, dtype=np.float32)
    z = na.zeros((40, 3), np.float64).sync()
    polynomial[2, 20](z, x).sync()
    i = np.arange(40)
    want = [10 * (i + 1), np.full(40, 11), i + 10 * (i % 2) + i % 3]
    np.testing.assert_array_equal(host(z).T, want)


def test_constant_arrays(device: na.Device) -> None:
    names = np.array([3, -5, 8], np.int64)

    @na.launcher
    @cuda.jit
    def constants(z: na.KernelOutput):
        weights, offsets = cuda.const.array_like(WEIGHTS), cuda.const.array_like(names)
        i = cuda.grid(1)
        z[i] = weights[i // 3 % 2, i % 3] * 0.5 + offsets[i % 3]

    z = na.zeros(12, np.float64).sync()
    constants[2, 6](z).sync()
    np.testing.assert_array_equal(host(z), np.tile(WEIGHTS.ravel() / 2 + np.tile(names, 2), 2))


def test_rows_that_a_thread_keeps_while_others_come(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def rows(z: na.KernelOutput, x: na.KernelInput):
        held = cuda.shared.array((4, 8), int32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row = held[ty]
        row[tx] = x[ty, tx]
        cuda.syncthreads()
        part = row[2:]
        z[ty, tx] = row[7 - tx] + held[3 - ty, tx]
        cuda.syncthreads()
        row[tx] += 1
        cuda.syncthreads()
        if tx == 0:
            part[0] = 100
        cuda.syncthreads()
        z[ty, tx] += row[(tx + 1) % 8] * 1000

    x = np.arange(32, dtype=np.int32).reshape(4, 8)
    z = rows[1, (8, 4)](na.zeros((4, 8), dtype=np.int32), x).sync()[0]
    later = x + 1
    later[:, 2] = 100
    want = x[:, ::-1] + x[::-1] + np.roll(later, -1, axis=1) * 1000
    np.testing.assert_array_equal(z.to_host().sync(), want)
    assert device.kind == "cuda" or rows.cpu_engine().name == "compiled"
