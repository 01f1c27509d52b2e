"""Variables that outlive a barrier: each value has the type that Numba gives it, and is that of its
thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, float64

import numbasync as na

pytestmark = pytest.mark.usefixtures("cpu")
X = np.arange(4) * 3 + 1
ROWS = np.arange(8.0).reshape(4, 2)


def launched(kernel: Callable[..., None], *args: Any, blocks: int = 1) -> np.ndarray:
    z = na.zeros(4 * blocks, np.float64).sync()
    na.launcher(cuda.jit(kernel))[blocks, 4](z, *args).sync()
    return np.asarray(z.to_host().sync())


# --- names that are bound again ---


def of_two_types(z, x):
    t = cuda.threadIdx.x
    v = x[t]
    cuda.syncthreads()
    z[t] = v // 2
    v = v / 2
    cuda.syncthreads()
    z[t] += v


def of_two_types_over_a_shuffle(z, x):
    t = cuda.threadIdx.x
    v = x[t]
    v += cuda.shfl_xor_sync(0xFFFFFFFF, v, 1)
    v = v / 2
    z[t] = v + cuda.shfl_sync(0xFFFFFFFF, v, 0)


def of_two_types_in_regions_without_a_barrier_between(z, x):
    t = cuda.threadIdx.x
    v = x[t]
    if x.shape[0] > 2:
        z[t] = v
        v = v * 0.5
        cuda.syncthreads()
        z[t] += v


def of_two_types_and_perhaps_of_none(z, x):
    t = cuda.threadIdx.x
    if x.shape[0] > 9:
        v = x[t]
    if x.shape[0] > 9:
        z[t] = v  # pyright: ignore[reportPossiblyUnboundVariable]
    v = z[t] * 0.5
    z[t] = v
    cuda.syncthreads()


def row_bound_again(z, x):
    t = cuda.threadIdx.x
    row = x[t]
    z[t] = row[0]
    cuda.syncthreads()
    z[t] += row[1]
    row = x[3 - t]
    z[t] += row[0]


def view_that_advances(z, x):
    t = cuda.threadIdx.x
    tail = x[t:]
    cuda.syncthreads()
    while tail.shape[0] > 0:
        z[t] += tail[0, 0]
        tail = tail[1:]


def swapped_local_arrays(z, x):
    t = cuda.threadIdx.x
    old = cuda.local.array(1, float64)
    new = cuda.local.array(1, float64)
    old[0] = t
    new[0] = -t
    cuda.syncthreads()
    old, new = new, old
    z[t] = old[0]


def of_two_widths_that_are_seen(z, x):
    t = cuda.threadIdx.x
    cuda.syncthreads()
    z[t] = cuda.clz(t)
    t = t + 1
    cuda.syncthreads()
    z[t - 1] += t + x[0]


@pytest.mark.parametrize(
    ("kernel", "x", "expected"),
    [
        (of_two_types, X, X // 2 + X / 2),
        (of_two_types_over_a_shuffle, X, (X + X[[1, 0, 3, 2]]) / 2 + (X[0] + X[1]) / 2),
        (of_two_types_in_regions_without_a_barrier_between, X, X * 1.5),
        (of_two_types_and_perhaps_of_none, X, np.zeros(4)),
        (of_two_widths_that_are_seen, X, [32, 31, 30, 30] + np.arange(1, 5) + X[0]),
        (row_bound_again, ROWS, ROWS[:, 0] + ROWS[:, 1] + ROWS[::-1, 0]),
        (view_that_advances, ROWS, np.cumsum(ROWS[::-1, 0])[::-1]),
        (swapped_local_arrays, ROWS, -np.arange(4)),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_a_name_is_its_last_binding(kernel: Any, x: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(launched(kernel, x), expected)


# --- values over barriers ---


def parameter_that_changes(z, x, n, scale):
    """All threads change `n`; `scale` becomes a float, in each block anew."""
    i = cuda.grid(1)
    n = n + 1
    cuda.syncthreads()
    scale = scale * 0.5
    cuda.syncthreads()
    z[i] = n * 100 + scale + x[i % 4]


def carried_in_one_region(z, x):
    t = cuda.threadIdx.x
    for k in range(3):
        if k == 0:
            v = x[t]
        z[t] += v  # pyright: ignore[reportPossiblyUnboundVariable]
        v = v * 2  # pyright: ignore[reportPossiblyUnboundVariable]
        cuda.syncthreads()


def types_that_are_not_kept(z, x):
    """Only the float of `v` and the int of `w` are read behind a barrier; those of `s` meet."""
    t = cuda.threadIdx.x
    v = x[t]
    w = v * 0.5
    z[t] = v // 2
    v = w + 1
    w = t
    s = 0
    for _ in range(3):
        cuda.syncthreads()
        s += v
    z[t] += s + w // 2


def values_of_a_parted_condition(z, x):
    t = cuda.threadIdx.x
    found = x[t] > 1 and cuda.shfl_sync(0xFFFFFFFF, x[t], 3)
    z[t] = found


def rows_in_loops_of_a_region(z, x):
    t = cuda.threadIdx.x
    for k in range(2):
        for i in range(4):
            row = x[i]
            z[t] += row[k]
        cuda.syncthreads()


def iterated_rows(z, x):
    t = cuda.threadIdx.x
    for row in x:
        cuda.syncthreads()
        z[t] += row[0]


def int32_and_int64(z, x):
    t = cuda.threadIdx.x
    cuda.syncthreads()
    z[t] = x[t] * t
    t = t + 1
    cuda.syncthreads()
    z[t - 1] += t


def test_a_changed_parameter_begins_anew_in_each_block() -> None:
    z = launched(parameter_that_changes, X, 5, 3, blocks=3)
    np.testing.assert_array_equal(z, 600 + 1.5 + np.tile(X, 3))


@pytest.mark.parametrize(
    ("kernel", "x", "expected"),
    [
        (carried_in_one_region, X, 7 * X),
        (types_that_are_not_kept, X, X // 2 + 3 * (X * 0.5 + 1) + np.arange(4) // 2),
        (values_of_a_parted_condition, X, np.where(X > 1, X[3], 0)),
        (rows_in_loops_of_a_region, ROWS, np.full(4, ROWS.sum())),
        (int32_and_int64, X, X * np.arange(4) + np.arange(1, 5)),
        (iterated_rows, ROWS, np.full(4, ROWS[:, 0].sum())),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_each_thread_keeps_its_own(kernel: Any, x: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(launched(kernel, x), expected)


# --- shared arrays of device functions ---


@cuda.jit(device=True)
def handed_on(value, puts):
    kept = cuda.shared.array(4, float32)
    if puts > 0:
        kept[cuda.threadIdx.x] = value
    cuda.syncthreads()
    return kept[3 - cuda.threadIdx.x]


def called_twice(z, x, n):
    t = cuda.threadIdx.x
    z[t] = handed_on(float32(x[t]), n)
    again = handed_on(float32(0), n - n)
    z[t] += again * 100


def called_with_other_types(z, x, n):
    t = cuda.threadIdx.x
    z[t] = handed_on(float32(x[t]), n)
    handed_on(t, n)
    again = handed_on(float32(0), n - n)
    z[t] += again * 100


def called_with_other_types_in_a_line(z, x, n):
    t = cuda.threadIdx.x
    z[t] = handed_on(float32(x[t]), n) + handed_on(t, n)


@pytest.mark.parametrize("kernel", [called_twice, called_with_other_types])
def test_a_functions_shared_array_is_one_a_type(kernel: Any) -> None:
    np.testing.assert_array_equal(launched(kernel, X, 1), X[::-1] * 101.0)


def test_calls_with_several_types_in_a_line() -> None:
    z = launched(called_with_other_types_in_a_line, X, 1)
    np.testing.assert_array_equal(z, X[::-1] + np.arange(4)[::-1])
