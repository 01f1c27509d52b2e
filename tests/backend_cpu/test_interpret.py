"""The interpreter's own rules: types of elements, and what a kernel's code is bound to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numba import cuda, float32, int8, uint8
from numba.cuda import blockDim, blockIdx, grid, syncthreads, threadIdx

from numbasync.backend.cpu.interpreter.arrays import IntArray, typed, wrap
from numbasync.backend.cpu.interpreter.cuda_module import Intrinsics
from numbasync.backend.cpu.interpreter.interpret import Interpreted
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.backend.protocols import Dim3
from numbasync.errors import BarrierDivergenceError, KernelError, UnsupportedKernelError

FACTOR = 2.1
TABLE = np.array([3, 1, 4], np.uint8)


def run(kernel: Any, *args: Any, grid: Dim3 = (1, 1, 1), block: Dim3 = (1, 1, 1)) -> None:
    values = [CpuArgument(a) if isinstance(a, np.ndarray) else a for a in args]
    Interpreted(cuda.jit(kernel), 1024).run(grid, block, 64, values, Engine("test", 1))


class CpuArgument:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array


# --- elements ---


@given(st.integers(-(2**80), 2**80), st.sampled_from("bBhHiIlLqQ"))
def test_wrap_is_a_store_by_c(value: int, code: str) -> None:
    dtype = np.dtype(code)
    bits = dtype.itemsize * 8
    want = np.array([value & ((1 << bits) - 1)], np.dtype(f"u{dtype.itemsize}")).view(dtype)[0]
    assert wrap(value, dtype) == want


@given(hnp.arrays(st.sampled_from([np.uint8, np.int16, np.bool_]), (3, 4)))
def test_an_integer_array_is_indexed_as_numpy_indexes(array: np.ndarray) -> None:
    view = typed(array)
    assert isinstance(view, IntArray)
    assert view[1, 2] == array[1, 2] and type(view[1, 2]) in (int, bool)
    assert view[-1, -1] == array[-1, -1]
    assert [list(row) for row in view] == array.tolist()
    assert list(view[2]) == array[2].tolist()
    assert list(view[0][1:3]) == array[0, 1:3].tolist()
    assert view.reshape(12)[5] == array.reshape(12)[5]
    assert view.T[3, 0] == array[0, 3]
    assert (view.shape, view.ndim, view.size, len(view)) == ((3, 4), 2, 12, 3)
    with pytest.raises(IndexError):
        view[3, 0]


def test_sums_of_small_integers_do_not_wrap_before_the_store() -> None:
    def kernel(out, x, small):
        out[0] = x[0] + x[1]
        small[0] = x[0] + x[1]
        small[1] = -1

    out, small = np.zeros(1, np.int64), np.zeros(2, np.uint8)
    run(kernel, out, np.array([200, 100], np.uint8), small)
    assert out[0] == 300
    assert small.tolist() == [300 - 256, 255]


def test_float_constants_are_float64_and_float32_stays() -> None:
    def kernel(out, x):
        out[0] = x[0] * 2.1
        out[1] = x[0] * FACTOR
        out[2] = x[0] * x[0]
        out[3] = math.sqrt(x[0])
        out[4] = float32(2.1) * x[0]

    out, x = np.zeros(5), np.array([0.1], np.float32)
    run(kernel, out, x)
    wide = np.float64(x[0])
    assert out.tolist() == [
        wide * 2.1, wide * 2.1, np.float64(x[0] * x[0]), np.float64(np.sqrt(x[0])),
        np.float64(np.float32(2.1) * x[0]),
    ]  # fmt: skip


def test_division_by_zero_and_nan_do_not_raise() -> None:
    def kernel(out, x):
        out[0] = x[0] / x[1]
        out[1] = math.sqrt(-x[0])
        out[2] = math.log(x[1])

    out = np.zeros(3)
    run(kernel, out, np.array([1.0, 0.0]))
    assert out[0] == math.inf and math.isnan(out[1]) and out[2] == -math.inf


def test_casts_reduce_as_compiled_casts_do() -> None:
    def kernel(out, x):
        out[0] = uint8(x[0])
        out[1] = int8(x[0])
        out[2] = np.int32(2.9)
        out[3] = int(-2.9)

    out = np.zeros(4, np.int64)
    run(kernel, out, np.array([300.0]))
    assert out.tolist() == [44, 44, 2, -2]


# --- names ---


def test_names_imported_one_by_one_are_bound() -> None:
    def kernel(out):
        i = threadIdx.x + blockIdx.x * blockDim.x
        syncthreads()
        if i == grid(1):
            out[i] = TABLE[i % 3]

    out = np.zeros(6, np.int32)
    run(kernel, out, grid=(2, 1, 1), block=(3, 1, 1))
    assert out.tolist() == [3, 1, 4, 3, 1, 4]


def test_the_users_function_and_module_stay_as_they_are() -> None:
    def kernel(out):
        out[0] = cuda.grid(1)

    names = dict(kernel.__globals__)
    run(kernel, np.zeros(1))
    assert kernel.__globals__["cuda"] is cuda
    assert {k: v for k, v in kernel.__globals__.items() if k in names} == names


def test_closures_and_device_functions_are_bound() -> None:
    scale = 2.5

    @cuda.jit(device=True)
    def scaled(x, i):
        return x[i] * scale

    def kernel(out, x):
        i = cuda.grid(1)
        out[i] = scaled(x, i)

    out = np.zeros(3)
    run(kernel, out, np.arange(3.0), block=(3, 1, 1))
    assert out.tolist() == [0, 2.5, 5.0]


def test_what_is_not_available_is_named() -> None:
    def kernel(out):
        out[0] = cuda.shfl_sync(-1, 1, 0)

    with pytest.raises(UnsupportedKernelError, match=r"kernel kernel, block.*cuda\.shfl_sync"):
        run(kernel, np.zeros(1))


# --- threads and barriers ---


def test_threads_and_blocks_are_numbered_as_on_a_gpu() -> None:
    def kernel(out):
        x, y, z = cuda.grid(3)
        out[z, y, x] = (
            cuda.threadIdx.x + 10 * cuda.blockIdx.y + 100 * cuda.threadIdx.z + 1000 * cuda.laneid
        )
        if x == 0 and y == 0 and z == 0:
            gx, gy, gz = cuda.gridsize(3)
            out[z, y, x] = gx * 100 + gy * 10 + gz

    out = np.zeros((4, 6, 4), np.int64)
    run(kernel, out, grid=(2, 3, 1), block=(2, 2, 4))
    assert out[0, 0, 0] == 464
    assert out[3, 5, 3] == 1 + 20 + 300 + 1000 * (1 + 2 * (1 + 2 * 3))


def test_a_block_reduction_with_barriers() -> None:
    def kernel(out, x):
        own = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        own[t] = x[cuda.grid(1)]
        step = 32
        while step > 0:
            cuda.syncthreads()
            if t < step:
                own[t] += own[t + step]
            step //= 2
        if t == 0:
            out[cuda.blockIdx.x] = own[0]

    x = np.arange(256, dtype=np.float32)
    out = np.zeros(4, np.float32)
    run(kernel, out, x, grid=(4, 1, 1), block=(64, 1, 1))
    assert out.tolist() == x.reshape(4, 64).sum(1).tolist()


def test_two_shared_arrays_made_on_one_line_are_two() -> None:
    def kernel(out):
        a, b = cuda.shared.array(1, float32), cuda.shared.array(1, float32)
        a[0], b[0] = 1, 2
        out[0] = a[0] + 10 * b[0]

    out = np.zeros(1)
    run(kernel, out)
    assert out[0] == 21


def test_dynamic_shared_memory_is_one_array_for_all_types() -> None:
    def kernel(out):
        wide = cuda.shared.array(0, float32)
        narrow = cuda.shared.array(0, uint8)
        wide[0] = 1.0
        out[0] = narrow[3]  # the sign and exponent of 1.0
        out[1] = wide.shape[0]

    out = np.zeros(2)
    run(kernel, out)
    assert out.tolist() == [0x3F, 16]


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
    out = np.zeros(1)  # and the greenlets of the failed block are not used again

    def sound(out):
        cuda.syncthreads()
        cuda.atomic.add(out, 0, 1)

    run(sound, out, block=(4, 1, 1))
    assert out[0] == 4


def test_an_exception_names_kernel_block_thread_and_line() -> None:
    def kernel(out):
        out[cuda.grid(1)] = 1

    with pytest.raises(KernelError) as caught:
        run(kernel, np.zeros(5), grid=(2, 1, 1), block=(4, 1, 1))
    for part in ("kernel kernel", "block (1, 0, 0)", "thread (1, 0, 0)", "out of bounds", __file__):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, IndexError)


@pytest.mark.parametrize(
    ("name", "start", "argument", "end"),
    [("add", 5, 3, 8), ("sub", 5, 3, 2), ("max", 5, 9, 9), ("max", 5, 3, 5), ("min", 5, 3, 3),
     ("and_", 6, 3, 2), ("or_", 6, 3, 7), ("xor", 6, 3, 5), ("exch", 6, 3, 3), ("inc", 5, 9, 6),
     ("inc", 5, 5, 0), ("dec", 5, 9, 4), ("dec", 0, 9, 9), ("dec", 12, 9, 9)],
)  # fmt: skip
def test_atomics_give_the_old_value(name: str, start: int, argument: int, end: int) -> None:
    array = typed(np.array([start], np.uint32))
    assert getattr(Intrinsics().atomic, name)(array, 0, argument) == start
    assert array[0] == end


def test_compare_and_swap() -> None:
    atomic, array = Intrinsics().atomic, typed(np.array([5, 7], np.int32))
    assert atomic.cas(array, 1, 7, 9) == 7 and array[1] == 9
    assert atomic.cas(array, 1, 7, 1) == 9 and array[1] == 9
    assert atomic.compare_and_swap(array, 5, 6) == 5 and array[0] == 6


def test_bit_functions() -> None:
    i = Intrinsics()
    assert (i.popc(255), i.ffs(8), i.ffs(-8)) == (8, 4, 4)
    assert i.fma(np.float32(2), np.float32(3), np.float32(4)) == 10


def test_arrays_that_a_kernel_makes_if_numba_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.cuda import config

    fixed = np.array([1, 2, 3])[::-1]

    def sums(out, x):
        i = cuda.threadIdx.x
        own, others = x.copy(), fixed.copy()
        own[i] += others[i]
        others[i] = 100
        out[i] = own[i]

    out, x = np.zeros(3, np.int64), np.full(3, 10, np.int64)
    with pytest.raises(KernelError, match="NUMBA_CUDA_ENABLE_NRT=1"):
        run(sums, out, x, block=(3, 1, 1))
    monkeypatch.setattr(config, "CUDA_ENABLE_NRT", True)
    for _ in range(2):
        run(sums, out, x, block=(3, 1, 1))
        assert out.tolist() == [13, 12, 11]
    assert x.tolist() == [10] * 3
