"""Threads that have returned before a barrier: a GPU's barriers do not wait for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numba import cuda, float64, int32

import numbasync as na
from numbasync.errors import BarrierDivergenceError
from numbasync.testing import checked
from tests.common import full


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    with na.cuda_on_cpu():
        yield


def running_sums(x, out, rounds):
    held = cuda.shared.array(64, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if i >= x.size:
        return
    held[t] = x[i]
    cuda.syncthreads()
    for _ in range(rounds):
        last = min(cuda.blockDim.x, x.size - cuda.blockIdx.x * cuda.blockDim.x) - 1
        value = held[t] + held[last - t]
        cuda.syncthreads()
        held[t] = value
        cuda.syncthreads()
    out[i] = held[t]


sums_of_blocks = cuda.jit(running_sums)


def expected_sums(x, block, rounds):
    parts = [x[k : k + block] for k in range(0, x.size, block)]
    for _ in range(rounds):
        parts = [part + part[::-1] for part in parts]
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("size", "block"), [(50, 64), (1, 32), (70, 32), full(64, 64), full(33, 8), full(127, 64)]
)
def test_threads_return_before_barriers_of_a_block(size: int, block: int) -> None:
    x, out = np.random.default_rng(size).random(size), np.zeros(size)
    sums_of_blocks[(size + block - 1) // block + 1, block](x, out, 3)  # one block does nothing
    np.testing.assert_allclose(out, expected_sums(x, block, 3))


@cuda.jit
def one_by_one(out, counted):
    """In each round the first thread that is left takes its number, and returns."""
    held = cuda.shared.array(1, int32)
    t = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    if t == 0:
        held[0] = 0
    cuda.syncthreads()
    for turn in range(cuda.blockDim.x * cuda.blockDim.y):
        left = cuda.syncthreads_count(1)
        if t == turn:
            out[t] = held[0]
            held[0] += 2
            counted[t] = left
            return
        cuda.syncthreads()


@pytest.mark.full
@pytest.mark.parametrize("block", [(4, 3), full((37, 1)), full((2, 20))])
def test_threads_return_one_by_one(block: tuple[int, int]) -> None:
    n = block[0] * block[1]
    out, counted = np.zeros(n, np.int32), np.zeros(n, np.int32)
    one_by_one[1, block](out, counted)
    np.testing.assert_array_equal(out, 2 * np.arange(n))
    np.testing.assert_array_equal(counted, n - np.arange(n))


@cuda.jit
def alternating(a, b, steps):
    i = cuda.grid(1)
    if i >= a.size:
        return
    grid = cuda.cg.this_grid()
    for step in range(steps):
        if step % 2 == 0:
            b[i] = a[i] + a[a.size - 1 - i]
        else:
            a[i] = b[i] + b[(i + 1) % b.size]
        grid.sync()


@pytest.mark.full
@pytest.mark.parametrize("size", [97, full(128), full(110)])
def test_threads_return_before_the_grid_meets(size: int) -> None:
    a = np.random.default_rng(size).integers(0, 9, size)
    b, x = np.zeros_like(a), a.copy()
    alternating[4, 32](a, b, 4)
    for _ in range(2):
        y = x + x[::-1]
        x = y + np.roll(y, -1)
    np.testing.assert_array_equal(a, x)


@pytest.mark.full
def test_a_block_returning_before_the_grid_meets_fails() -> None:
    a = np.zeros(64, np.int64)  # as on a GPU, which would wait for it
    with pytest.raises(BarrierDivergenceError, match=r"block \(2, 0, 0\): 0 of 32 threads"):
        alternating[4, 32](a, a.copy(), 2)


def test_they_are_found_by_checks_and_by_launchers() -> None:
    x, out = np.ones(50), np.zeros(50)
    with checked(na.devices("cpu")[0]), pytest.raises(BarrierDivergenceError, match="has returned"):
        sums_of_blocks[1, 64](x, out, 1)
    own = na.launcher(cuda.jit(running_sums))
    cpu = na.devices("cpu")[0]
    with na.use_device(cpu), pytest.raises(BarrierDivergenceError, match="has returned"):
        own[1, 64](x, na.inout(out), 1).sync()


def test_threads_that_wait_elsewhere_are_an_error() -> None:
    @cuda.jit
    def elsewhere(a):
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()
            a[0] = 1
        elif cuda.threadIdx.x < 7:
            cuda.syncthreads()
            a[1] = 1

    with pytest.raises(BarrierDivergenceError, match="has returned or gone another way"):
        elsewhere[1, 8](np.zeros(2))
