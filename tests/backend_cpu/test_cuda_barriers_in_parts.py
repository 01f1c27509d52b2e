"""Barriers in parts of a statement, and in loops that all threads leave, also past an `else`."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from numba import cuda, int64

import numbasync as na
from numbasync import testing
from numbasync.errors import BarrierDivergenceError
from tests.common import full

VALUES = np.arange(40) % 7


@pytest.fixture(params=["plain", full("checked in reverse")])
def way(request: pytest.FixtureRequest, device: na.Device) -> object:
    """How kernels run: as they are, or checked on the CPU device, with threads in reverse order."""
    is_plain = request.param == "plain" or device.kind == "cuda"
    return nullcontext() if is_plain else testing.checked(device, "reverse")


@na.launcher
@cuda.jit
def count_rounds(z: na.KernelOutput, n):
    total = 0
    rounds = 0
    for k in range(n):
        cuda.syncthreads()
        rounds += 1
        if k == 2:
            total = 5
            break
    more = 0
    while cuda.syncthreads_or(int(more < n)):
        more += 1
        if more == 6:
            total += 50
            break
    z[cuda.threadIdx.x] = total + 100 * rounds + 1000 * more


@pytest.mark.parametrize("n", range(9))
def test_a_counter_of_a_jointly_left_loop(device: na.Device, way: object, n: int) -> None:
    z = na.zeros(40, np.int64).sync()
    with way:  # type: ignore[attr-defined]
        count_rounds[1, 40](z, n).sync()
    total = (5 if n > 2 else 0) + (50 if n > 5 else 0)
    assert z.to_host().sync().tolist() == [total + 100 * min(n, 3) + 1000 * min(n, 6)] * 40


@na.launcher
@cuda.jit
def with_else(z: na.KernelOutput, x: na.KernelInput, n):
    t = cuda.threadIdx.x
    own = cuda.shared.array(64, int64)
    total = 0
    for k in range(n):
        own[t] = x[t] + k
        cuda.syncthreads()
        total += own[(t + 1) % cuda.blockDim.x]
        if k == 2:
            break
        cuda.syncthreads()
    else:
        own[t] = total
        cuda.syncthreads()
        total += own[0]
        for q in range(3):
            if q == n:
                break
        else:
            total += 1000
    cuda.syncthreads()
    for q in range(5):
        if x[t] == q:
            break
    else:
        total += 7
    rounds = 0
    while cuda.syncthreads_or(int(rounds < n - 3)):
        rounds += 1
        if rounds == 4:
            break
    else:
        total += 10000
    z[t] = total


def with_else_in_numpy(n: int) -> np.ndarray:
    total = np.zeros(VALUES.size, np.int64)
    for k in range(min(n, 3)):
        total += np.roll(VALUES + k, -1)
    if n < 3:
        total = total + total[0]
    total += np.where(VALUES < 5, 0, 7)
    return total if n >= 7 else total + 10000


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 6, 7, 9])
def test_the_else_of_a_loop_with_meetings(device: na.Device, way: object, n: int) -> None:
    z = na.zeros(40, np.int64).sync()
    with way:  # type: ignore[attr-defined]
        with_else[1, 40](z, VALUES, n).sync()
    np.testing.assert_array_equal(z.to_host().sync(), with_else_in_numpy(n))


@na.launcher
@cuda.jit
def in_parts(z: na.KernelOutput, x: na.KernelInput, n):
    t = cuda.threadIdx.x
    own = cuda.shared.array(32, int64)
    own[t] = x[t]
    a: int
    a = x[t] * 2
    z[t, 0] = n > 0 and cuda.syncthreads_count(int(own[t] > 2))
    z[t, 1] = n > 0 or cuda.syncthreads_count(int(own[t] > 2))
    z[t, 2] = cuda.syncthreads_count(int(own[t] > a - 3)) if n > 1 else a + t
    z[t, 3] = t + (cuda.shfl_sync(0xFFFFFFFF, x[t], 3) if n > 0 else a) + a
    if n > 0 and x[0] >= 0 and cuda.syncthreads_or(int(x[t] == 3)):
        z[t, 4] = a
    z[t, 5] = (
        -1
        if n < 0
        else cuda.syncthreads_and(int(x[t] >= 0))
        + (7 if n == 0 else cuda.syncthreads_count(int(t < n)))
    )


def in_parts_in_numpy(x: np.ndarray, n: int) -> np.ndarray:
    t, z, a = np.arange(32), np.zeros((32, 6), np.int64), x * 2
    z[:, 0] = n > 0 and (x > 2).sum()
    z[:, 1] = n > 0 or (x > 2).sum()
    z[:, 2] = (x > a - 3).sum() if n > 1 else a + t
    z[:, 3] = t + (x[3] if n > 0 else a) + a
    z[:, 4] = a if n > 0 and (x == 3).any() else 0
    z[:, 5] = -1 if n < 0 else 1 + (7 if n == 0 else (t < n).sum())
    return z


@pytest.mark.parametrize("n", [-1, 0, 1, 2, 9])
def test_a_barrier_in_an_optional_part(device: na.Device, way: object, n: int) -> None:
    x, z = VALUES[:32], na.zeros((32, 6), np.int64).sync()
    with way:  # type: ignore[attr-defined]
        in_parts[1, 32](z, x, n).sync()
    np.testing.assert_array_equal(z.to_host().sync(), in_parts_in_numpy(x, n))


def test_a_barrier_in_a_part_some_threads_skip() -> None:
    @na.launcher
    @cuda.jit
    def some_come(z: na.KernelOutput, n):
        t = cuda.threadIdx.x
        z[t] = t < n and cuda.syncthreads_or(1)

    with na.use_device("cpu"):
        z = na.zeros(8, np.int64).sync()
        for n in (0, 8):
            some_come[1, 8](z, n).sync()
            assert z.to_host().sync().tolist() == [n > 0] * 8
        with pytest.raises(BarrierDivergenceError, match=r"3 of 8 threads wait .*\(3, 0, 0\)"):
            some_come[1, 8](z, 3).sync()


@na.launcher
@cuda.jit
def ranges_with_barriers(z: na.KernelOutput, n: na.KernelInput):
    t = cuda.threadIdx.x
    for i in range(n[t, 1]):
        cuda.syncwarp()
        z[t, 0, i] = i - n[t, 1]
    for i in range(n[t, 0], n[t, 1], n[t, 2]):
        cuda.syncwarp()
        z[t, 1, i] = i - n[t, 1]


@pytest.mark.parametrize("dtype", [np.uint64, np.int8])
def test_numbers_of_barrier_ranges_have_its_type(
    device: na.Device, dtype: type[np.generic]
) -> None:
    """Of unsigned integers they are uint64, whose differences are never negative."""
    n = np.tile(np.array([1, 6, 2], dtype), (32, 1))
    z = na.zeros((32, 2, 8), np.float64).sync()
    ranges_with_barriers[1, 32](z, n).sync()
    as_number = np.uint64 if dtype is np.uint64 else np.int64
    want = np.zeros((2, 8))
    for row, numbers in zip(want, (range(6), range(1, 6, 2)), strict=True):
        row[numbers] = np.array(numbers, as_number) - as_number(6)
    np.testing.assert_array_equal(z.to_host().sync(), np.broadcast_to(want, (32, 2, 8)))
