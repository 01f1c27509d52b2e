"""Compiled kernels of the CPU device: which are, and what their errors say."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int64

import numbasync as na
from numbasync.errors import (
    BarrierDivergenceError,
    KernelCompileError,
    KernelError,
    LaunchError,
)

overload: Any = importlib.import_module("numba.cuda.extending").overload
pytestmark = [
    pytest.mark.usefixtures("cpu"),
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


@na.launcher
@cuda.jit
def halve_sums(z: na.KernelOutput, x: na.KernelInput):
    sums = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    sums[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            sums[t] += sums[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        z[cuda.blockIdx.x] = sums[0]


@na.launcher
@cuda.jit
def past_the_end(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    z[i] = x[i + 2]


@na.launcher
@cuda.jit
def rows(z: na.KernelOutput, j):
    z[1, j] = 1


@na.launcher
@cuda.jit
def refuse(z: na.KernelOutput):
    if cuda.grid(1) == 5:
        raise ValueError("no fives")


@na.launcher
@cuda.jit
def count_all(z: na.KernelOutput):
    cuda.atomic.add(z, cuda.grid(1) % 7, 1)


# --- which engine ---


def test_a_kernel_tells_what_runs_it() -> None:
    kernel = na.launcher(halve_sums.kernel)
    assert kernel.cpu_engine() == ("none yet", "no call has needed it")
    kernel.compile(na.meta(4), na.meta(64)).sync()
    assert kernel.cpu_engine() == ("compiled", "")


@cuda.jit(device=True)
def sum_of_block(z, v):
    own = cuda.shared.array(32, float32)
    own[cuda.threadIdx.x] = v
    cuda.syncthreads()
    return own[0]


def keeps_a_view(z, n):
    for k in range(n):
        row = z[k * cuda.threadIdx.x :]
        cuda.syncthreads()
        row[0] = 1


def chooses_a_view(z, n):
    row = z[2:] if cuda.threadIdx.x > n else z[1:]
    cuda.syncthreads()
    row[0] = 1


def adds_to_an_element(z, n):
    z[cuda.threadIdx.x] += sum_of_block(z, n)


def adds_to_what_is_changed(z, n):
    total = n

    def change():
        nonlocal total
        total = 100
        return 1

    total += change()
    z[0] = total


def loops_over_a_part(z, n):
    t = cuda.threadIdx.x
    total = 0
    for value in z[t % 2 + 4 : t % 2 + 4 + n]:
        cuda.syncthreads()
        total += value + 1
    z[t] = total


def has_a_large_local_array(z, n):
    own = cuda.local.array(100_000, float32)
    own[n] = 1
    cuda.syncthreads()
    z[0] = own[n]


def has_an_array_of_no_axes(z, n):
    z[0] = cuda.shared.array((), float32).size


def matches(z, n):
    match n:
        case 1:
            z[0] = 1
        case _:
            z[0] = 2


def calls_what_is_computed(z, n):
    def plus(v):
        return v + 1

    also_plus = plus
    z[0] = also_plus(n)


def passes_a_star(z, n):
    z[0] = max(*(n, 2))


def without_source() -> Any:
    names: dict[str, Any] = {"cuda": cuda}
    exec("def made(z, n):\n    z[0] = n\n", names)
    return names["made"]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (keeps_a_view, [1, 1, 1, 1]),
        (chooses_a_view, [0, 1, 1, 0]),
        (adds_to_an_element, [2, 2, 2, 2]),
        (loops_over_a_part, [2, 2, 2, 2]),
        (has_a_large_local_array, [1, 0, 0, 0]),
        (has_an_array_of_no_axes, [1, 0, 0, 0]),
        (matches, [2, 0, 0, 0]),
        (calls_what_is_computed, [3, 0, 0, 0]),
        (passes_a_star, [2, 0, 0, 0]),
        (adds_to_what_is_changed, [101, 0, 0, 0]),
        (without_source(), [2, 0, 0, 0]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_gpu_runs_runs(kernel: Any, expected: list[int]) -> None:
    z = na.zeros(8).sync()
    na.launcher(cuda.jit(kernel))[1, 4](z, 2).sync()
    assert z.to_host().sync().tolist() == [*expected, 0, 0, 0, 0]


# --- messages ---


def test_an_index_out_of_range_is_named() -> None:
    z = na.zeros(8).sync()
    with pytest.raises(KernelError) as caught:
        past_the_end[2, 4](z, na.ones(8).sync()).sync()
    line = past_the_end.py_func.__code__.co_firstlineno + 4
    assert (
        "kernel past_the_end, block (1, 0, 0), thread (2, 0, 0): IndexError: index 8 is out of "
        f"bounds for axis 0 of x, which has 8 ({__file__}:{line})"
    ) in str(caught.value)
    assert past_the_end.cpu_engine().name == "compiled"


@pytest.mark.parametrize(("j", "ok"), [(3, True), (-4, True), (4, False), (-5, False)])
def test_axes_are_checked_and_negative_indices_count_back(j: int, ok: bool) -> None:
    z = na.zeros((2, 4)).sync()
    if not ok:
        with pytest.raises(KernelError, match=f"index {j} is out of bounds for axis 1 of z"):
            rows[1, 1](z, j).sync()
    else:
        rows[1, 1](z, j).sync()
        assert z.to_host().sync()[1, j] == 1


def test_what_a_kernel_raises_names_the_thread() -> None:
    with pytest.raises(
        KernelError, match=r"block \(1, 0, 0\), thread \(1, 0, 0\): ValueError: no "
    ):
        refuse[2, 4](na.zeros(1).sync()).sync()
    assert refuse.cpu_engine().name == "compiled"


def test_after_an_error_the_same_kernel_works() -> None:
    z = na.zeros(8).sync()
    with pytest.raises(KernelError):
        past_the_end[1, 8](z, na.ones(8).sync()).sync()
    past_the_end[1, 8](z, na.ones(10).sync()).sync()
    assert z.to_host().sync().tolist() == [1] * 8


def test_a_missing_thread_at_a_barrier_is_named() -> None:
    @na.launcher
    @cuda.jit
    def leave(z: na.KernelOutput, n):
        i = cuda.grid(1)
        if i >= n:
            return
        cuda.syncthreads()
        z[i] = 1

    z = na.zeros(8).sync()
    with pytest.raises(BarrierDivergenceError, match=r"2 of 4 threads wait .* thread \(2, 0, 0\)"):
        leave[2, 4](z, 6).sync()
    leave[2, 4](z, 4).sync()  # the second block leaves as a whole
    assert z.to_host().sync().tolist() == [1] * 4 + [0] * 4


def test_too_much_shared_memory_is_refused() -> None:
    z, x = na.zeros(1).sync(), na.ones(64).sync()
    with pytest.raises(LaunchError, match="needs 256 bytes of static and 232,448 bytes of dynamic"):
        halve_sums[1, 64, 0, 227 * 1024](z, x).sync()

    @na.launcher
    @cuda.jit
    def fixed(z):
        a, b = cuda.shared.array(12 * 1024, float32), cuda.shared.array(1, float32)
        z[0] = a[0] + b[0]

    with pytest.raises(KernelCompileError, match="fixed: .* 49,156 bytes; .* 49,152"):
        fixed[1, 1](z).sync()


def test_unwritten_shared_memory_is_no_number() -> None:
    @na.launcher
    @cuda.jit
    def peek(z: na.KernelOutput, n: na.KernelOutput):
        first = cuda.shared.array(8, float32)
        second = cuda.shared.array(8, int64)
        rest = cuda.shared.array(0, float32)
        t = cuda.threadIdx.x
        z[t] = first[t] + 0 * rest[t]
        n[t] = second[t]
        cuda.syncthreads()
        first[t] = second[t] = rest[t] = t

    z, n = na.zeros(8).sync(), na.zeros(8, np.int64).sync()
    for _ in range(2):
        peek[1, 8, 0, 32](z, n).sync()
        assert np.isnan(z.to_host().sync()).all()
        assert (n.to_host().sync() == -1).all()


# --- all processors ---


@cuda.jit(device=True)
def far(values, pair):
    return values[70_000_000] + pair[1]


@na.launcher
@cuda.jit
def literal_store(z: na.KernelOutput):
    z[100_000_000] = 1


@na.launcher
@cuda.jit
def literal_load_of_a_view(z: na.KernelOutput, x: na.KernelInput, pair):
    rest = x[2:]
    z[0] = far(rest, pair)


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (lambda: literal_store[1, 1](na.zeros(3)), "index 100000000 .* axis 0 of z, which has 3"),
        (
            lambda: literal_load_of_a_view[1, 1](na.zeros(3), na.ones(3), (1, 2.0)),
            "index 70000000 .* axis 0 of values, which has 1",
        ),
    ],
)
def test_literal_indices_are_checked_too(op: Any, said: str) -> None:
    with pytest.raises(KernelError, match=said):
        op().sync()


# --- blocks that synchronise ---


@na.launcher
@cuda.jit
def rows_of_a_loop(z: na.KernelOutput, x: na.KernelInput):
    held = cuda.shared.array((2, 8), float32)
    t = cuda.threadIdx.x
    for k in range(2):
        held[k, t] = x[t] + k
    cuda.syncthreads()
    total = 0.0
    for row in held:
        total += row[7 - t]
    cuda.syncthreads()
    z[t] = total


def test_rows_in_loops_between_two_barriers() -> None:
    x = np.arange(8, dtype=np.float32)
    z = rows_of_a_loop[1, 8](na.zeros(8), x).sync()[0]
    assert rows_of_a_loop.cpu_engine().name == "compiled"
    np.testing.assert_array_equal(z.to_host().sync(), 2 * x[::-1] + 1)


def test_constants_of_float16() -> None:
    third, table = np.float16(1 / 3), np.array([0.5, 65504, np.inf, 6e-8], np.float16)
    limit = np.float16(-np.inf)

    @na.launcher
    @cuda.jit
    def scaled(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i] = x[i] * third + table[i] if x[i] > limit else third

    x = np.array([1, 2, 3, -np.inf], np.float16)
    z = na.zeros(4, np.float16).sync()
    scaled[1, 4](z, x).sync()
    np.testing.assert_array_equal(z.to_host().sync(), [*(x * third + table)[:3], third])
    assert scaled.cpu_engine() == ("compiled", "")


def last_but(x, i):  # type: ignore[no-untyped-def]
    raise NotImplementedError("only in kernels")


@overload(last_but)
def _last_but(x, i):  # type: ignore[no-untyped-def]
    return lambda x, i: x[x.size - 1 + i]


def test_an_index_of_an_overload_is_checked() -> None:
    @na.launcher
    @cuda.jit
    def read(z: na.KernelOutput, x: na.KernelInput, i):
        z[0] = last_but(x, i)

    x, z = np.arange(4.0, dtype=np.float32), na.zeros(1).sync()
    read[1, 1](z, x, 0).sync()
    assert z.to_host().sync().tolist() == [3] and read.cpu_engine() == ("compiled", "")
    with pytest.raises(KernelError, match="index 4 is out of bounds for axis 0 of x, which has 4"):
        read[1, 1](z, x, 1).sync()
