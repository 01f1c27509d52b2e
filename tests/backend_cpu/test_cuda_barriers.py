"""Barriers of a block: where they may stand, votes, and what the CPU device finds."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, float32, int32, int64

import numbasync as na
from numbasync.errors import BarrierDivergenceError
from tests.common import host, put

# --- where barriers may stand ---


@na.launcher
@cuda.jit
def rotate(z: na.KernelOutput, rounds):
    own = cuda.shared.array(96, int64)
    t, n = cuda.threadIdx.x, cuda.blockDim.x
    own[t] = z[cuda.grid(1)]
    for i in range(rounds):
        for j in range(i + 1):
            cuda.syncthreads()
            v = own[(t + 1) % n]
            cuda.syncthreads()
            own[t] = v + j
    cuda.syncthreads()
    z[cuda.grid(1)] = own[n - 1 - t]


@pytest.mark.parametrize("threads", [1, 20, 32, 33, 96], ids="threads={}".format)
def test_a_barrier_in_nested_loops(device: na.Device, threads: int) -> None:
    start = np.random.default_rng(threads).integers(0, 1000, 3 * threads)
    z = put(start)
    rotate[3, threads](z, 4).sync()
    want = start.reshape(3, threads)
    for i in range(4):
        for j in range(i + 1):
            want = np.roll(want, -1, axis=1) + j
    np.testing.assert_array_equal(host(z).reshape(3, threads), want[:, ::-1])


def test_a_barrier_loop_up_to_a_read_bound(device: na.Device) -> None:
    """The loop's variable begins as a constant, and is of the type of all integers."""
    first = 32

    @na.launcher
    @cuda.jit
    def add_neighbours(z: na.KernelOutput, stops: na.KernelInput):
        own = cuda.shared.array(32, int64)
        i, total = cuda.threadIdx.x, 0
        for start in range(first, stops[0] * first, first):
            own[i] = start + i
            cuda.syncthreads()
            total += own[(i + 1) % 32]
            cuda.syncthreads()
        z[i] = total

    z = put(np.zeros(32, np.int64))
    add_neighbours[1, 32](z, np.array([4])).sync()
    want = 32 + 64 + 96 + 3 * ((np.arange(32) + 1) % 32)
    np.testing.assert_array_equal(host(z), want)


def test_a_barrier_in_a_uniform_branch(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def turn(z: na.KernelOutput, backwards):
        own = cuda.shared.array(48, int32)
        t, n = cuda.threadIdx.x, cuda.blockDim.x
        i = cuda.grid(1)
        if cuda.blockIdx.x % 2 == 0 and backwards:
            own[t] = z[i]
            cuda.syncthreads()
            z[i] = own[n - 1 - t]
        elif backwards:
            z[i] = -z[i]
        else:
            own[n - 1 - t] = z[i]
            cuda.syncthreads()
            z[i] = own[(t + 1) % n]

    start = np.arange(4 * 48, dtype=np.int32)
    for backwards in (True, False):
        z = put(start)
        turn[4, 48](z, backwards).sync()
        want = start.reshape(4, 48).copy()
        if backwards:
            want[::2] = want[::2, ::-1]
            want[1::2] *= -1
        else:
            want = np.roll(want[:, ::-1], -1, axis=1)
        np.testing.assert_array_equal(host(z), want.ravel())


def test_a_barrier_loop_whose_length_blocks_find(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def halve(z: na.KernelOutput, steps: na.KernelOutput):
        own = cuda.shared.array(40, int32)
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        own[t] = z[b, t]
        cuda.syncthreads()
        count = 0
        while own[0] > 0:
            neighbour = own[(t + 1) % 40]
            cuda.syncthreads()
            own[t] = min(own[t], neighbour) // 2
            cuda.syncthreads()
            count += 1
            if count == 9:
                break
        z[b, t] = own[t]
        if t == 0:
            steps[b] = count

    start = np.random.default_rng(3).integers(0, 5000, (7, 40)).astype(np.int32)
    start[0] = 0
    start[1] = 100000
    want, counts = start.copy(), []
    for row in want:
        count = 0
        while row[0] > 0 and count < 9:
            row[:] = np.minimum(row, np.roll(row, -1)) // 2
            count += 1
        counts.append(count)
    z, steps = put(start), na.zeros(7, np.int32).sync()
    halve[7, 40](z, steps).sync()
    assert host(steps).tolist() == counts and len(set(counts)) > 2
    np.testing.assert_array_equal(host(z), want)


@cuda.jit(device=True)
def exchanged(own, value):
    """The value of the thread opposite, in shared memory of the caller."""
    t, n = cuda.threadIdx.x, cuda.blockDim.x
    own[t] = value
    cuda.syncthreads()
    found = own[n - 1 - t]
    cuda.syncthreads()
    return found


@cuda.jit(device=True)
def block_sum(value):
    """The sum over the block, in shared memory of its own."""
    partial = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    partial[t] = value
    step = 32
    while step > 0:
        cuda.syncthreads()
        if t < step and t + step < cuda.blockDim.x:
            partial[t] += partial[t + step]
        step //= 2
    cuda.syncthreads()
    total = partial[0]
    cuda.syncthreads()
    return total


def test_barriers_in_device_functions_called_twice(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def both(z: na.KernelOutput, x: na.KernelInput):
        own = cuda.shared.array(64, int64)
        i = cuda.grid(1)
        once = exchanged(own, x[i])
        total = block_sum(once)
        twice = exchanged(own, once + total)
        for k in range(2):
            twice += block_sum(twice + k)
        z[i] = twice

    x = np.random.default_rng(4).integers(-50, 50, 3 * 50)
    z = na.zeros(150, np.int64).sync()
    both[3, 50](z, x).sync()
    want = x.reshape(3, 50)
    want = want + want.sum(1, keepdims=True)
    for k in range(2):
        want = want + (want + k).sum(1, keepdims=True)
    np.testing.assert_array_equal(host(z).reshape(3, 50), want)


@na.launcher
@cuda.jit
def shift(z: na.KernelOutput, x: na.KernelInput):
    own = cuda.shared.array(32, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i < x.shape[0]:
        own[t] = x[i]
    else:
        own[t] = -1
    cuda.syncthreads()
    if i < x.shape[0]:
        z[i] = own[(t + 1) % 32]


@pytest.mark.parametrize("n", [1, 63, 64, 100], ids="n={}".format)
def test_work_is_guarded_and_the_barrier_is_not(device: na.Device, n: int) -> None:
    x = np.arange(n, dtype=np.float32)
    z = na.zeros(n).sync()
    shift[(n + 31) // 32, 32](z, x).sync()
    full = np.full((n + 31) // 32 * 32, -1, np.float32)
    full[:n] = x
    np.testing.assert_array_equal(host(z), np.roll(full.reshape(-1, 32), -1, axis=1).ravel()[:n])


def test_a_block_may_leave_as_a_whole(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def some(z: na.KernelOutput, x: na.KernelInput):
        own = cuda.shared.array(16, int32)
        b, t = cuda.blockIdx.x, cuda.threadIdx.x
        if x[b] < 0:
            return
        own[t] = x[b] + t
        cuda.syncthreads()
        z[b, t] = own[15 - t]

    x = np.array([3, -1, 7, -5, 0], np.int32)
    z = na.full((5, 16), -9, np.int32).sync()
    some[5, 16](z, x).sync()
    want = np.where(x[:, None] < 0, -9, x[:, None] + np.arange(15, -1, -1))
    np.testing.assert_array_equal(host(z), want)


def test_barriers_in_blocks_of_three_axes(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def reverse(z: na.KernelOutput):
        own = cuda.shared.array((3, 4, 5), int32)
        i, j, k = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
        own[i, j, k] = 100 * i + 10 * j + k
        cuda.syncthreads()
        z[i, j, k] = own[2 - i, 3 - j, 4 - k]

    z = na.zeros((3, 4, 5), np.int32).sync()
    reverse[1, (3, 4, 5)](z).sync()
    i, j, k = np.indices((3, 4, 5))
    np.testing.assert_array_equal(host(z), (100 * i + 10 * j + k)[::-1, ::-1, ::-1])


# --- votes ---


@na.launcher
@cuda.jit
def votes(z: na.KernelOutput, x: na.KernelInput):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    z[b, t, 0] = cuda.syncthreads_count(x[b, t])
    z[b, t, 1] = cuda.syncthreads_and(x[b, t])
    z[b, t, 2] = cuda.syncthreads_or(x[b, t])
    rounds = 0
    while cuda.syncthreads_or(int32(x[b, t] > rounds)):
        rounds += 1
    z[b, t, 3] = rounds


@pytest.mark.parametrize("threads", [8, 32, 50], ids="threads={}".format)
def test_votes_of_a_block(device: na.Device, threads: int) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-1, 3, (4, threads)).astype(np.int32)
    x[1], x[2] = 0, 2
    z = na.zeros((4, threads, 4), np.int32).sync()
    votes[4, threads](z, x).sync()
    per_block = [np.count_nonzero(x, axis=1), x.all(1), x.any(1), np.maximum(x.max(1), 0)]
    want = np.stack(per_block, axis=1)[:, None, :]
    np.testing.assert_array_equal(host(z), np.broadcast_to(want, (4, threads, 4)))


# --- what the CPU device finds, and a GPU does not ---


def test_a_thread_that_leaves_early_is_named(cpu: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def leaves(z: na.KernelOutput):
        i = cuda.grid(1)
        if i >= 5:
            return
        cuda.syncthreads()
        z[i] = 1

    with pytest.raises(
        BarrierDivergenceError,
        match=r"(?s)kernel leaves.*1 of 4 threads wait at cuda\.syncthreads, line \d+, "
        r"but thread \(1, 0, 0\) has returned",
    ):
        leaves[2, 4](na.zeros(8)).sync()


@pytest.mark.parametrize("place", ["branch", "loop", "function", "vote"])
def test_a_barrier_that_not_all_reach(cpu: na.Device, place: str) -> None:
    @cuda.jit(device=True)
    def wait():
        cuda.syncthreads()

    @na.launcher
    @cuda.jit
    def branch(z: na.KernelOutput):
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()
        z[0] = 1

    @na.launcher
    @cuda.jit
    def loop(z: na.KernelOutput):
        for _ in range(min(cuda.threadIdx.x, 1)):
            cuda.syncthreads()
        z[0] = 1

    @na.launcher
    @cuda.jit
    def function(z: na.KernelOutput):
        if cuda.threadIdx.x:
            wait()
        z[0] = 1

    @na.launcher
    @cuda.jit
    def vote(z: na.KernelOutput):
        if cuda.threadIdx.x % 2:
            z[0] = cuda.syncthreads_count(1)

    kernel = {"branch": branch, "loop": loop, "function": function, "vote": vote}[place]
    waiting = {"branch": 3, "loop": 3, "function": 3, "vote": 2}[place]
    absent = 3 if place == "branch" else 0
    with pytest.raises(
        BarrierDivergenceError,
        match=rf"{waiting} of 4 threads wait at cuda\.syncthreads.*"
        rf"thread \({absent}, 0, 0\) has returned",
    ):
        kernel[1, 4](na.zeros(1)).sync()


def test_two_barriers_are_told_apart(cpu: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def two(z: na.KernelOutput):
        if cuda.threadIdx.x == 2:
            cuda.syncthreads()
        else:
            cuda.syncthreads()
        z[0] = 1

    with pytest.raises(
        BarrierDivergenceError,
        match=r"1 of 4 threads wait at cuda\.syncthreads, line \d+, but thread \(0, 0, 0\)",
    ):
        two[1, 4](na.zeros(1)).sync()
