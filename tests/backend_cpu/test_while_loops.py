"""Loops by `while`: LLVM tests them behind their body, and they are turned inside out all the same.

Each is a function of one thread, which Python runs as it is, for what the kernel has to give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda, types

import numbasync as na
from numbasync.backend.cpu.regions import Settings
from numbasync.backend.cpu.regions.build import write_module
from numbasync.backend.cpu.target import lower
from tests.backend_cpu.test_compile_costs import compiled_from_now_on
from tests.common import host

THREADS, BLOCKS, N = 40, 3, 1000  # threads have 8 or 9 rounds

# What each does to its row of z, of the shape (2, N), as thread i of s.
Thread = Callable[..., None]


def copied(z, x, i, s):
    k = i
    while k < x.size:
        z[0, k] = x[k] * 2
        k += s
    z[1, i] = k


def summed(z, x, i, s):
    total, k = 0, i
    while k <= x.size - 1:
        total += x[k]
        k = k + s
    z[0, i] = total
    z[1, i] = k


def downwards(z, x, i, s):
    k, last = x.size - 1 - i, -1
    while k >= 0:
        z[0, k] = x[k] + k
        last = k
        k -= s
    z[1, i] = last


def left(z, x, i, s):
    k = i
    while k < x.size:
        if x[k] == 77:
            break
        z[0, k] = 1
        k += s
    z[1, i] = k


def entered(z, x, i, s):
    k = i
    while True:
        z[0, k] = x[k]
        k += s
        if k >= x.size:
            break
    z[1, i] = k


def nested(z, x, i, s):
    k = i
    while k < 500:
        total, m = 0, 0
        while m < k % 7:
            total += x[m] + k
            m += 1
        z[0, k] = total
        k += s
    while k < x.size:
        z[1, k] = k
        k += s


def left_before_it_is_set(z, x, i, s):
    first, second = 1, 5
    for k in range(s):
        if i % 5 < k:
            break
        first = -2
        second = k
    z[0, i] = first
    z[1, i] = second


def left_in_rounds_of_their_own(z, x, i, s):
    k, last, before = 0, 7, 9
    while k < i % 6:
        before = last
        last = k * s
        k += 1
    z[0, i] = last
    z[1, i] = before


@pytest.mark.parametrize(
    ("thread", "turned"),
    [
        (copied, 1), (summed, 1), (downwards, 0), (left, 0), (entered, 0), (nested, 0),
        (left_before_it_is_set, 1), (left_in_rounds_of_their_own, 1),
    ],
)  # fmt: skip
def test_threads_give_what_python_does(
    device: na.Device, thread: Thread, turned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiled_from_now_on(monkeypatch)
    of_thread = cuda.jit(device=True)(thread)

    @na.launcher
    @cuda.jit
    def kernel(z: na.KernelOutput, x: na.KernelInput):
        of_thread(z, x, cuda.grid(1), cuda.gridsize(1))

    x = np.random.default_rng(0).integers(0, 100, N)
    z = na.zeros((2, N), np.int64).sync_on(device.new_stream())
    kernel[BLOCKS, THREADS](z, x).sync_on(device.new_stream())
    expected: Any = np.zeros((2, N), np.int64)
    for i in range(BLOCKS * THREADS):
        thread(expected, x, i, BLOCKS * THREADS)
    np.testing.assert_array_equal(host(z), expected)
    found = [loaded.artifact.code.notes["turned"] for each in made for loaded in each._plain]
    assert found in ([], [turned])  # [] on a GPU


def doubled_by_while(z, x):
    i = cuda.grid(1)
    while i < x.size:
        z[i] = x[i] * 2
        i += cuda.gridsize(1)


def doubled_by_range(z, x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] = x[i] * 2


GRID_STRIDE = [doubled_by_while, doubled_by_range]


@pytest.mark.parametrize("body", GRID_STRIDE)
@pytest.mark.parametrize("n", [0, 1, 39, 40, 119, 120, 121, N])
def test_strides_that_are_asked_for_in_the_loop(
    device: na.Device, body: Callable[..., None], n: int
) -> None:
    x = np.arange(n)
    z = na.full(N, -1, np.int64).sync_on(device.new_stream())
    na.launcher(cuda.jit(body))[BLOCKS, THREADS](z, x).sync_on(device.new_stream())
    np.testing.assert_array_equal(host(z), [*(2 * x), *[-1] * (N - n)])


@pytest.mark.parametrize("most", [0, 1, 100, 1000])
def test_a_way_out_between_element_and_loop(device: na.Device, most: int) -> None:
    @na.launcher
    @cuda.jit
    def kernel(z: na.KernelOutput, x: na.KernelInput, most: int):
        i = cuda.grid(1)
        z[i] = -2
        if i >= most:
            return
        while i < x.size:
            z[i] = x[i]
            i += cuda.gridsize(1)

    z = na.full(N, -1, np.int64).sync_on(device.new_stream())
    kernel[BLOCKS, THREADS](z, np.arange(N), most).sync_on(device.new_stream())
    i, s = np.arange(N), BLOCKS * THREADS
    np.testing.assert_array_equal(host(z), np.where(i % s < most, i, np.where(i < s, -2, -1)))


@pytest.mark.parametrize("body", GRID_STRIDE)
def test_rounds_that_no_thread_leaves_note_nothing(body: Callable[..., None]) -> None:
    array = types.Array(types.int64, 1, "C")
    module = lower(cuda.jit(body), (array, array))
    text, code = write_module(module.text, module.name, Settings(row=True))
    everyone = text[text.index("r1e.start:") : text.index("r1f.start:")]
    assert "%na.next" in text and "%na.next" not in everyone
    assert code.notes["per_thread"] == 0  # of the counter all have the same


def test_a_warps_groups_enter_the_next_round_separately(
    device: na.Device,
) -> None:
    # A round counter is one for all threads of a block, but groups of a warp that exchange values
    # apart come into the next round one after the other, as far as the barrier of the block there.
    @na.launcher
    @cuda.jit
    def kernel(z: na.KernelOutput, m: int):
        s = cuda.shared.array(64, np.int64)
        t = cuda.threadIdx.x
        a, b, c = t, 0, 0
        for k in range(4):
            s[t] = a + k
            cuda.syncthreads()
            a = s[(t + 5) % 64]
            cuda.syncthreads()
            b = b * 10 + k
            if t % 2:
                c += cuda.shfl_sync(0xAAAAAAAA, t, 3)
            else:
                for _ in range(m):
                    c += cuda.shfl_sync(0x55555555, t, 2)
        z[t, 0] = a
        z[t, 1] = b
        z[t, 2] = c

    z = na.zeros((64, 3), np.int64).sync_on(device.new_stream())
    kernel[1, 64](z, 2).sync_on(device.new_stream())
    threads = np.arange(64)
    first = threads // 32 * 32
    expected = [(threads + 20) % 64 + 6, np.full(64, 123), 4 * (first + 3)]
    expected[2] = np.where(threads % 2, expected[2], 8 * (first + 2))
    np.testing.assert_array_equal(host(z), np.stack(expected, axis=1))
