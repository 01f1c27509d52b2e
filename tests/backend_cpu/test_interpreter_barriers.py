"""Barriers in kernels that run as Python."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, float32

from numbasync.errors import BarrierDivergenceError
from tests.backend_cpu.test_interpreter import run


def test_votes_of_a_block() -> None:
    def kernel(out):
        t = cuda.threadIdx.x
        out[0] = cuda.syncthreads_count(t % 3 == 0)
        out[1] = cuda.syncthreads_and(t < 8)
        out[2] = cuda.syncthreads_or(t > 6)

    out = np.zeros(3)
    run(kernel, out, block=(8, 1, 1))
    assert out.tolist() == [3, 1, 1]


def test_a_barrier_that_not_all_reach_is_reported() -> None:
    def kernel(out):
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()
        out[0] = 1

    with pytest.raises(BarrierDivergenceError, match=r"3 of 4 threads.*thread \(3, 0, 0\)"):
        run(kernel, np.zeros(1), block=(4, 1, 1))


def test_threads_at_two_barriers_are_reported() -> None:
    def kernel(out):
        if cuda.threadIdx.x % 2 == 0:
            cuda.syncthreads()
        else:
            cuda.syncthreads()
        out[0] = 1

    with pytest.raises(BarrierDivergenceError, match="same barrier"):
        run(kernel, np.zeros(1), block=(4, 1, 1))


def test_a_conditional_barrier_is_one_on_every_way() -> None:
    def kernel(out):
        t = cuda.threadIdx.x
        n = 0
        while n < 4:  # odd threads go around the inner loop, of whose condition there are copies
            while cuda.syncthreads_count(n % 2 == 0) >= 0 and n % 2 < t % 2:
                n += 1
            n += 1
        out[t] = n

    out = np.zeros(4)
    run(kernel, out, block=(4, 1, 1))
    assert out.tolist() == [4, 4, 4, 4]


def test_a_barrier_on_every_way_out_is_one() -> None:
    def kernel(out):
        t = cuda.threadIdx.x
        for k in range(2):
            try:
                if t == k:
                    continue
                out[t] += 1
            finally:
                cuda.syncthreads()

    out = np.zeros(4)
    run(kernel, out, block=(4, 1, 1))
    assert out.tolist() == [1, 1, 2, 2]


def test_shared_memory_in_a_condition_is_one_array() -> None:
    def kernel(out):
        t = cuda.threadIdx.x
        n = 0
        while n < 4:  # two such arrays would be too much
            while cuda.shared.array(8192, float32).shape[0] and n % 2 < t % 2:
                n += 1
            n += 1
        out[t] = n

    out = np.zeros(2)
    run(kernel, out, block=(2, 1, 1))
    assert out.tolist() == [4, 4]


def test_two_calls_on_one_line_are_two_barriers() -> None:
    def kernel(out):
        _ = (cuda.threadIdx.x % 2 and cuda.syncthreads()) or cuda.syncthreads()
        out[0] = 1

    with pytest.raises(BarrierDivergenceError, match="same barrier"):
        run(kernel, np.zeros(1), block=(4, 1, 1))
