"""Compiled kernels of many forms, launched without a launcher: numbers, errors, checks."""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, float64, int32

from numbasync.backend.cpu.races.shadow_memory import turns
from numbasync.backend.protocols import Checks
from numbasync.errors import (
    BarrierDivergenceError,
    DataRaceError,
    InputModifiedError,
    KernelError,
    OutOfBoundsError,
    UninitialisedReadError,
)
from tests.backend_cpu.engines import INPUT, OUTPUT, run_on
from tests.common import full, mostly_full

pytestmark = [
    pytest.mark.usefixtures("cpu"),
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]
PLAIN: Any = cuda.jit
RECORDS = np.dtype([("a", np.int32), ("b", np.float64)], align=True)


class Colour(enum.IntEnum):
    RED = 3
    BLUE = 5


# --- numbers ---


@PLAIN
def plain(z, x, pair, nothing, c, h):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < z.shape[0]:
        factor, more = pair
        z[i] = factor * x[i] + more + c.real - c.imag + float32(h)
        if nothing is None:
            z[i] += math.sin(x[i])


@PLAIN
def records(z, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    z[i].a = x[i].a * Colour.BLUE
    z[i].b = x[i].b / (x[i].a + 1)


@cuda.jit(device=True)
def swapped(x, t):  # type: ignore[no-untyped-def]
    held = cuda.shared.array(64, float64)
    held[t] = x
    cuda.syncthreads()
    return held[cuda.blockDim.x - 1 - t]


@PLAIN
def meeting(z, x):  # type: ignore[no-untyped-def]
    own = cuda.local.array(3, int32)
    t = cuda.threadIdx.x
    dynamic = cuda.shared.array(0, float64)
    for k in range(3):
        own[k] = t * k
    value = swapped(x[cuda.grid(1)], t)
    dynamic[t] = value
    cuda.syncthreads()
    total = 0.0
    for k in range(cuda.blockDim.x):
        total += dynamic[k] * own[k % 3]
    z[cuda.grid(1)] = total


@PLAIN
def in_warps(z, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    value = x[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
    cuda.atomic.add(z, cuda.laneid, value)
    if cuda.syncthreads_count(int32(x[i] > 3)) > 5:
        cuda.atomic.max(z, 0, 1000)


@PLAIN
def some_leave(z, x, n):  # type: ignore[no-untyped-def]
    held = cuda.shared.array(64, float64)
    t = cuda.threadIdx.x
    held[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t >= n:
        return
    step = 1
    while step < n:
        other = held[(t + step) % n]
        held[t] += 0.0 * other
        step *= 2
    z[cuda.grid(1)] = held[n - 1 - t]


@PLAIN
def all_blocks(z, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    z[i] = x[i]
    cuda.cg.this_grid().sync()
    other = z[z.shape[0] - 1 - i]
    cuda.cg.this_grid().sync()
    z[i] = other


X = np.arange(128.0)
SEVENS = np.arange(64) % 7
SUMS = np.full(32, SEVENS.sum())
SUMS[0] = 1000
CASES: dict[str, tuple[Any, ...]] = {
    "plain": (
        plain, (3, 1, 1), (32, 1, 1),
        (np.zeros(70, np.float32), X.astype(np.float32), (2, 0.5), None, 1 - 2j, np.float16(1.5)),
    ),
    "records": (
        records, (2, 1, 1), (4, 1, 1),
        (np.zeros(8, RECORDS), np.array([(i, i * 1.5) for i in range(8)], RECORDS)),
    ),
    "meeting": (meeting, (2, 1, 1), (64, 1, 1), (np.zeros(128), X), 64 * 8),
    "in_warps": (in_warps, (1, 1, 1), (64, 1, 1), (np.zeros(32, np.int64), SEVENS)),
    "some_leave": (some_leave, (2, 1, 1), (64, 1, 1), (np.zeros(128), X, 40)),
    "all_blocks": (all_blocks, (4, 1, 1), (32, 1, 1), (np.zeros(128), X)),
}  # fmt: skip


def summed(x: np.ndarray) -> np.ndarray:
    """What `meeting` gives for one block."""
    return np.array([sum(x[::-1] * (t * (np.arange(64) % 3))) for t in range(64)])


def led(x: np.ndarray) -> np.ndarray:
    """What `some_leave` gives for one block."""
    return np.where(np.arange(64) < 40, x[39 - np.arange(64)], 0)


EXPECTED: dict[str, Any] = {
    "plain": 2 * X[:70] + 0.5 + 3 + 1.5 + np.sin(X[:70]),
    "records": np.array([(5 * i, i * 1.5 / (i + 1)) for i in range(8)], RECORDS),
    "meeting": np.concatenate([summed(X[:64]), summed(X[64:])]),
    "in_warps": SUMS,
    "some_leave": np.concatenate([led(X[:64]), led(X[64:])]),
    "all_blocks": X[::-1],
}


@pytest.mark.parametrize("name", mostly_full(CASES, "meeting", "in_warps", "all_blocks"))
def test_numbers(name: str) -> None:
    result = run_on("compiled", *CASES[name])[0]
    if name == "plain":
        np.testing.assert_allclose(result, EXPECTED[name], rtol=1e-6)
    else:
        np.testing.assert_array_equal(result, EXPECTED[name])


# --- errors ---


@PLAIN
def beyond(z, i):  # type: ignore[no-untyped-def]
    z[1, cuda.grid(1) + i] = 1


@cuda.jit(debug=True, opt=False)
def raising(z, n):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i == n:
        raise ValueError("too many")
    z[i] = 6 // (i - 7)


@PLAIN
def some_meet(z, n):  # type: ignore[no-untyped-def]
    if cuda.threadIdx.x != n:
        cuda.syncthreads()
    z[cuda.threadIdx.x] = 1


ERRORS: dict[str, tuple[Any, ...]] = {
    "index": (
        OutOfBoundsError,
        r"beyond, block \(1, 0, 0\), thread \(5, 0, 0\): .*index 40 .* axis 1 of z, which has 40",
        beyond, (2, 1, 1), (32, 1, 1), (np.zeros((2, 40)), 3),
    ),
    "raise": (
        KernelError, r"raising, block \(0, 0, 0\), thread \(3, 0, 0\): ValueError: too many",
        raising, (1, 1, 1), (4, 1, 1), (np.zeros(8), 3),
    ),
    "division": (
        KernelError, r"block \(1, 0, 0\), thread \(3, 0, 0\): ZeroDivisionError: integer division",
        raising, (2, 1, 1), (4, 1, 1), (np.zeros(8), 9),
    ),
    "divergence": (
        BarrierDivergenceError,
        r"7 of 8 threads wait at cuda.syncthreads, line \d+, but thread \(5, 0, 0\) has",
        some_meet, (1, 1, 1), (8, 1, 1), (np.zeros(8), 5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", mostly_full(ERRORS, "index", "divergence"))
def test_errors_say_who_and_where(name: str) -> None:
    kind, text, *launch = ERRORS[name]
    with pytest.raises(kind, match=text):
        run_on("compiled", *launch)


# --- checks ---


@PLAIN
def racing(z, x):  # type: ignore[no-untyped-def]
    z[cuda.grid(1) // 2] = x[cuda.grid(1)]


@PLAIN
def shared_race(z, x):  # type: ignore[no-untyped-def]
    held = cuda.shared.array(64, float64)
    t = cuda.threadIdx.x
    held[t // 2] = x[t]
    cuda.syncthreads()
    z[t] = held[t // 2]


@PLAIN
def unwritten(z, x):  # type: ignore[no-untyped-def]
    own = cuda.local.array(4, float64)
    own[0] = x[0]
    z[cuda.grid(1)] = own[cuda.threadIdx.x % 2]


@PLAIN
def input_written(z, x):  # type: ignore[no-untyped-def]
    x[cuda.grid(1)] = -1


@PLAIN
def clean(z, x):  # type: ignore[no-untyped-def]
    held = cuda.shared.array(64, float64)
    t = cuda.threadIdx.x
    held[t] = x[t]
    cuda.syncthreads()
    z[t] = held[7 - t]
    cuda.atomic.add(z, 100, 1)


CHECKED: dict[str, tuple[Any, ...]] = {
    "race": (DataRaceError, r"writes an element of z .*\n.* writes as z ", racing),
    "shared race": (DataRaceError, r"writes an element of held .*\n.* writes as held", shared_race),
    "unwritten": (UninitialisedReadError, "reads an element of own", unwritten),
    "input": (InputModifiedError, "writes x, whose memory is of a na.KernelInput", input_written),
}


def checked(kernel: Any, checks: Checks) -> list[np.ndarray]:
    arguments = np.zeros(128), X
    return run_on(
        "compiled", kernel, (1, 1, 1), (8, 1, 1), arguments, checks=checks, access=[OUTPUT, INPUT]
    )


@pytest.mark.parametrize("order", ["forward", full("reverse")])
@pytest.mark.parametrize("name", mostly_full(CHECKED, "shared race", "unwritten"))
def test_checks_find(name: str, order: Any) -> None:
    kind, text, kernel = CHECKED[name]
    with pytest.raises(kind, match=text):
        checked(kernel, Checks(order))


def test_a_clean_kernel_passes_its_checks() -> None:
    writers: list[Any] = []
    result = checked(clean, Checks("shuffled", 3, True, writers))
    np.testing.assert_array_equal(result[0][:8], X[7::-1])
    assert result[0][100] == 8
    last = writers[0].last[0]
    # Numbers of threads and one; the last thread writes the 0 that is there.
    np.testing.assert_array_equal(last[:8], [1, 2, 3, 4, 5, 6, 7, 0])
    assert last[100] == 1 + turns(Checks("shuffled", 3), 8)[-1]
