"""What a kernel's code may say: indices, control flow, builtins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from tests.common import host, put

# --- where a thread is ---

LAUNCHES = [
    ((1, 1, 1), (1, 1, 1)), ((3, 1, 1), (40, 1, 1)), ((2, 3, 1), (5, 7, 1)),
    ((2, 1, 2), (3, 4, 5)), ((1, 2, 3), (33, 2, 1)),
]  # fmt: skip


def threads_of(grid: Any, block: Any) -> tuple[np.ndarray, np.ndarray]:
    """Index in the block and index of the block for every thread of a grid, as [x, y, z]."""
    at = np.indices([g * b for g, b in zip(grid, block, strict=True)])
    extent = np.array(block).reshape(3, 1, 1, 1)
    return at % extent, at // extent


@na.launcher
@cuda.jit
def where(z: na.KernelOutput):
    i, j, k = cuda.grid(3)
    z[i, j, k, 0] = cuda.threadIdx.x
    z[i, j, k, 1] = cuda.threadIdx.y
    z[i, j, k, 2] = cuda.threadIdx.z
    z[i, j, k, 3] = cuda.blockIdx.x
    z[i, j, k, 4] = cuda.blockIdx.y
    z[i, j, k, 5] = cuda.blockIdx.z
    z[i, j, k, 6] = cuda.blockDim.x + 100 * cuda.blockDim.y + 10000 * cuda.blockDim.z
    z[i, j, k, 7] = cuda.gridDim.x + 100 * cuda.gridDim.y + 10000 * cuda.gridDim.z
    z[i, j, k, 8] = cuda.laneid
    z[i, j, k, 9] = cuda.warpsize


@pytest.mark.parametrize(("grid", "block"), LAUNCHES, ids=str)
def test_indices_and_extents(device: na.Device, grid: Any, block: Any) -> None:
    thread, blocks = threads_of(grid, block)
    z = na.full((*thread.shape[1:], 10), -1, np.int64).sync()
    where[grid, block](z).sync()
    got = np.moveaxis(host(z), -1, 0)
    np.testing.assert_array_equal(got[:3], thread)
    np.testing.assert_array_equal(got[3:6], blocks)
    assert (got[6] == block[0] + 100 * block[1] + 10000 * block[2]).all()
    assert (got[7] == grid[0] + 100 * grid[1] + 10000 * grid[2]).all()
    linear = thread[0] + block[0] * (thread[1] + block[1] * thread[2])
    np.testing.assert_array_equal(got[8], linear % 32)
    assert (got[9] == 32).all()


@na.launcher
@cuda.jit
def sizes(z: na.KernelOutput, seen: na.KernelOutput):
    x, y = cuda.grid(2)
    cuda.atomic.add(seen, (x, y), 1)
    if cuda.grid(1) == 0 and y == 0 and cuda.threadIdx.z == 0 and cuda.blockIdx.z == 0:
        z[0] = cuda.gridsize(1)
        z[1], z[2] = cuda.gridsize(2)
        z[3], z[4], z[5] = cuda.gridsize(3)


@pytest.mark.parametrize(("grid", "block"), LAUNCHES, ids=str)
def test_gridsize_and_grid_in_fewer_axes(device: na.Device, grid: Any, block: Any) -> None:
    n = [g * b for g, b in zip(grid, block, strict=True)]
    z, seen = na.zeros(6, np.int64).sync(), na.zeros(n[:2], np.int32).sync()
    sizes[grid, block](z, seen).sync()
    assert host(z).tolist() == [n[0], n[0], n[1], *n]
    assert (host(seen) == n[2]).all()


# --- control flow ---


def test_loops_with_break_continue_and_else(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def search(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i >= x.shape[0]:
            return
        odd = 0
        for j in range(x.shape[1]):
            if x[i, j] == 0:
                break
            if x[i, j] % 2 == 0:
                continue
            odd += 1
        else:
            odd += 100
        z[i, 0] = odd
        n = x[i, 0]
        steps = 0
        while n != 1:
            if steps == 20:
                break
            n = 3 * n + 1 if n % 2 else n // 2
            steps += 1
        else:
            steps += 1000
        z[i, 1] = steps

    def reference(row: np.ndarray) -> list[int]:
        end = next((j for j, v in enumerate(row) if v == 0), None)
        odd = sum(int(v) % 2 for v in row[:end]) + (100 if end is None else 0)
        n, steps = int(row[0]), 0
        while n != 1 and steps < 20:
            n, steps = 3 * n + 1 if n % 2 else n // 2, steps + 1
        return [odd, steps + 1000 if n == 1 else steps]

    x = np.random.default_rng(1).integers(0, 12, (70, 9))
    x[:, 0] += 1
    z = na.zeros((70, 2), np.int64).sync()
    search[3, 32](z, x).sync()
    assert host(z).tolist() == [reference(row) for row in x]


def test_chained_comparisons_and_short_circuits(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def compare(z: na.KernelOutput, x: na.KernelInput, low, high):
        i = cuda.grid(1)
        n = x.shape[0]
        inside = low < x[i % n] <= high
        z[i, 0] = inside
        z[i, 1] = 1 <= i < n and x[i] != 3 and not x[i - 1] == x[i]  # noqa: SIM201
        z[i, 2] = x[i] if i < n else -1
        z[i, 3] = low < i < high or (i > 9) != (i % 2 == 0)

    x = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3], np.int32)
    z = na.zeros((12, 4), np.int32).sync()
    compare[1, 12](z, x, 2, 5).sync()
    want = []
    for i in range(12):
        v = x.tolist()[i % 10]
        second = 1 <= i < 10 and v != 3 and x[i - 1] != v
        third = v if i < 10 else -1
        want.append([2 < v <= 5, second, third, 2 < i < 5 or (i > 9) != (i % 2 == 0)])
    assert host(z).tolist() == want


def test_augmented_assignments(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def update(z: na.KernelOutput, f: na.KernelOutput):
        i = cuda.grid(1)
        z[i, 0] += 5
        z[i, 1] -= 7
        z[i, 2] *= 3
        z[i, 3] //= 4
        z[i, 4] %= 6
        z[i, 5] <<= 2
        z[i, 6] >>= 1
        z[i, 7] &= 0b1100
        z[i, 8] |= 0b0011
        z[i, 9] ^= 0b0101
        z[i, 10] **= 2
        f[i] /= 8
        f[i] += 1

    start = np.arange(-20, 24, dtype=np.int64).reshape(4, 11)
    z, f = put(start), put(np.arange(4, dtype=np.float64))
    update[1, 4](z, f).sync()
    rules = [
        lambda v: v + 5, lambda v: v - 7, lambda v: v * 3, lambda v: v // 4, lambda v: v % 6,
        lambda v: v << 2, lambda v: v >> 1, lambda v: v & 0b1100, lambda v: v | 0b0011,
        lambda v: v ^ 0b0101, lambda v: v**2,
    ]  # fmt: skip
    want = [[rule(v) for rule, v in zip(rules, row, strict=True)] for row in start.tolist()]
    assert host(z).tolist() == want
    assert host(f).tolist() == [1, 1.125, 1.25, 1.375]


def test_ranges_with_steps_and_names_that_live_on(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def walk(z: na.KernelOutput, start, stop, step):
        i = cuda.grid(1)
        total = 0
        last = -99
        for j in range(start + i, stop, step):
            total += j
            last = j
        for j in range(5, 5 - i, -2):
            for k in range(j):
                if k > i:
                    break
                total += 10000 * k
        z[i, 0] = total
        z[i, 1] = last

    z = na.zeros((9, 2), np.int64).sync()
    walk[1, 9](z, -3, 4, 3).sync()
    want = []
    for i in range(9):
        walked = list(range(i - 3, 4, 3))
        inner = sum(k for j in range(5, 5 - i, -2) for k in range(j) if k <= i)
        want.append([sum(walked) + 10000 * inner, walked[-1] if walked else -99])
    assert host(z).tolist() == want


def test_builtins(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def builtins(z: na.KernelOutput, x, n):
        i = cuda.grid(1)
        z[i, 0] = abs(x[i])
        z[i, 1] = min(x[i], 1.5) + max(n[i], 2)
        z[i, 2] = max(n[i], 2, i)
        z[i, 3] = round(x[i])
        z[i, 4] = int(x[i])
        z[i, 5], z[i, 6] = divmod(n[i], 4)
        z[i, 7] = pow(x[i], 2)
        z[i, 8] = bool(n[i]) + len(x)
        for k, v in enumerate(n):
            z[i, 9] += k * v
        for a, b in zip(x, n):  # noqa: B905
            z[i, 10] += a * b

    x = np.array([-2.5, -0.5, 0.5, 1.5, 2.5, 3.75])
    n = np.array([-7, -1, 0, 3, 4, 9])
    z = na.zeros((6, 11), np.float64).sync()
    builtins[1, 6](z, x, n).sync()
    want = [
        [abs(a), min(a, 1.5) + max(b, 2), max(b, 2, i), round(a), int(a), b // 4, b % 4, a * a,
         bool(b) + 6, float(np.dot(np.arange(6), n)), float(np.dot(x, n))]
        for i, (a, b) in enumerate(zip(x.tolist(), n.tolist(), strict=True))
    ]  # fmt: skip
    assert host(z).tolist() == want


def test_vector_types(device: na.Device) -> None:
    @cuda.jit(device=True)
    def swapped(v):
        return cuda.float32x2(v.y, v.x)

    @na.launcher
    @cuda.jit
    def vectors(z: na.KernelOutput, n: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        pair = swapped(cuda.float32x2(x[i], x[i] + 0.1))
        four = cuda.float4(pair, 7, cuda.float32x1(x[i] * 2))
        same = cuda.float64x4(cuda.float64x3(1, pair.x, 3), 4.5)
        z[i, 0] = four.x
        z[i, 1] = four.y
        z[i, 2] = four.z + four.w
        z[i, 3] = same.y * same.w
        count = cuda.uint8x3(250, 251, 252)
        total = 0
        for v in (cuda.int32x2(1, i), cuda.int32x2(i, 2)):
            total += v.x * 100 + v.y
        n[i] = total + count.z

    x = np.linspace(0, 3, 32, dtype=np.float32)
    z, n = na.zeros((32, 4), np.float32).sync(), na.zeros(32, np.int64).sync()
    vectors[1, 32](z, n, x).sync()
    more = (x + 0.1).astype(np.float32)
    want = [more, x, 7 + x * 2, more.astype(np.float64) * 4.5]
    np.testing.assert_array_equal(z.to_host().sync().T, np.array(want).astype(np.float32))
    i = np.arange(32)
    np.testing.assert_array_equal(n.to_host().sync(), 100 + i + 100 * i + 2 + 252)


# --- branches on constants ---


def first_of(by_name: bool) -> Any:
    """A kernel that takes the first element, of an array or of a tuple."""

    @na.launcher
    @cuda.jit
    def taken(z: na.KernelOutput, x: Any):
        if by_name:
            z[0] = x.flat[0]
        else:
            z[0] = x[0]

    return taken


def test_code_excluded_by_constants_need_not_type(device: na.Device) -> None:
    z = na.zeros(1, np.float32).sync()
    first_of(False)[1, 1](z, (np.float32(5.0), np.float32(6.0))).sync()  # has no `flat`
    assert host(z) == 5
    first_of(True)[1, 1](z, put(np.full((2, 2), 7, np.float32))).sync()
    assert host(z) == 7
