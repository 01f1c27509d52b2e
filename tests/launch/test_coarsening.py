"""Which kernels are plain, so that one thread may compute several positions; and their guards."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda, float32

import numbasync as na
from numbasync import vectors
from numbasync.launch.coarsening import NotPlainError, plain_kernel

_grid = cuda.grid


class Elsewhere:
    grid = cuda.grid


@cuda.jit(device=True)
def positive(v: Any) -> Any:
    if v > 0:
        return v
    return float32(0)


@cuda.jit(device=True)
def place() -> Any:
    return cuda.grid(1)


@cuda.jit(device=True)
def powers(v: Any) -> Any:
    total = v
    for _ in range(3):
        total *= v
    return total


# --- plain ---


def inside(z: Any, x: Any) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + 1


def leaving(z: Any, x: Any) -> None:
    """Returns early."""
    i = numba.cuda.grid(1)
    if i >= z.size:
        return
    v = x[i]
    z[i] = v * v


def between(z: Any, x: Any) -> None:
    i = _grid(1)
    n = x.shape[0]
    if 2 <= i < n - 2:
        z[i] = x[i - 2] + x[i + 2]


def unguarded(z: Any, x: Any) -> None:
    i = cuda.grid(1)
    z[i] = math.sqrt(x[i])


def counting(z: Any, x: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(z, x[i], 1)


def calling(z: Any, x: Any) -> None:
    i = cuda.grid(1)
    if i < z.size:
        z[i] = positive(x[i]) if x[i] < 3 else x[i]


def rows(z: Any, x: Any) -> None:
    i, j = cuda.grid(2)
    if i >= z.shape[0]:
        return
    if j >= z.shape[1]:
        return
    z[i, j] = x[i, j + 1]


def columns(z: Any, x: Any) -> None:
    i, j = cuda.grid(2)
    if j < z.shape[0] and i < z.shape[1]:
        z[j, i] = x[j, i]


def turned(z: Any, x: Any) -> None:
    i, j = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = x[j, i]


@pytest.mark.parametrize(
    ("function", "rank", "along"),
    [
        (inside, 1, {0}), (leaving, 1, {0}), (between, 1, {0}), (unguarded, 1, {0}),
        (counting, 1, {0}), (calling, 1, {0}), (rows, 2, {1}), (columns, 2, {0}),
        (turned, 2, {0, 1}),
    ],
)  # fmt: skip
def test_plain(function: Callable[..., None], rank: int, along: set[int]) -> None:
    plain = plain_kernel(cuda.jit(function))
    assert (plain.rank, plain.along) == (rank, along)
    assert (plain.guard is None) == (function is unguarded)


# --- not plain ---


def looping(z: Any) -> None:
    i = cuda.grid(1)
    for k in range(3):
        z[i] += k


def striding(z: Any) -> None:
    i = cuda.grid(1)
    while i < z.size:
        z[i] = 1
        i += cuda.gridsize(1)


def threading(z: Any) -> None:
    z[cuda.threadIdx.x + cuda.grid(1)] = 1


def meeting(z: Any) -> None:
    i = cuda.grid(1)
    cuda.syncthreads()
    z[i] = 1


def sharing(z: Any) -> None:
    i = cuda.grid(1)
    s = cuda.shared.array(3, float32)
    s[0] = z[i]


LAYOUT = na.shared_layout(a=(np.float32, 3))


def sharing_a_layout(z: Any) -> None:
    i = cuda.grid(1)
    LAYOUT.a[0] = z[i]


def shuffling(z: Any) -> None:
    i = cuda.grid(1)
    z[i] = cuda.shfl_sync(-1, i, 0)


def raising(z: Any) -> None:
    i = cuda.grid(1)
    if i < 3:
        raise ValueError


def branching(z: Any) -> None:
    i = cuda.grid(1)
    if i < 3:
        z[i] = 1
    else:
        z[i] = 2


def nesting(z: Any) -> None:
    i = cuda.grid(1)
    if i < z.size:  # noqa: SIM102
        if z[i] > 0:
            z[i] = 1


def after(z: Any) -> None:
    i = cuda.grid(1)
    if i < 3:
        z[i] = 1
    z[0] = 2


def before(z: Any) -> None:
    i = cuda.grid(1)
    cuda.atomic.add(z, 0, 1)
    if i < 3:
        z[i] = 1


def storing_before(z: Any) -> None:
    i = cuda.grid(1)
    z[0] = 2
    if i < 3:
        z[i] = 1


def asking_elsewhere(z: Any) -> None:
    i = Elsewhere.grid(1)
    z[i] = 1


def asking_below(z: Any) -> None:
    z[cuda.grid(1)] = place()


def loops_below(z: Any) -> None:
    i = cuda.grid(1)
    z[i] = powers(z[i])


def of_two_ranks(z: Any) -> None:
    i = cuda.grid(1)
    j, _ = cuda.grid(2)
    z[i] = j


def nowhere(z: Any) -> None:
    z[0] = 1


def lane(z: Any) -> None:
    i = cuda.grid(1)
    z[i] = cuda.laneid


def printing(z: Any) -> None:
    print(cuda.grid(1))  # noqa: T201


def storing_vectors(z: Any) -> None:
    i = 4 * cuda.grid(1)
    vectors.store(z, i, vectors.load(z, i, 4))


class OnDevice:
    """An array of the device, which Numba compiles in as a constant."""

    __cuda_array_interface__: Any = {}

    def __getitem__(self, index: Any) -> Any: ...


CAPTURED = OnDevice()


def capturing(z: Any) -> None:
    i = cuda.grid(1)
    z[i] = CAPTURED[i]


def _counting() -> Any:
    @cuda.jit(device=True)
    def grid(z: Any) -> Any:
        return cuda.atomic.add(z, 0, 1)

    return grid


grid = _counting()


def calling_another_grid(z: Any) -> None:
    i = cuda.grid(1)
    if grid(z) < 3:
        z[i] = 1


def summing(z: Any) -> None:
    i = cuda.grid(1)
    z[i] = z.sum()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (looping, "has a loop"), (striding, "gridsize"), (threading, "cuda.threadIdx"),
        (meeting, "calls syncthreads"), (sharing, "calls array"),
        (sharing_a_layout, "uses shared memory"), (shuffling, "shfl_sync"),
        (raising, "raises"), (branching, "else branch"), (nesting, "has `if` in line"),
        (after, "computes outside its condition"), (before, "in front of its condition"),
        (storing_before, "stores in front"), (asking_elsewhere, "through another object"),
        (asking_below, "it calls place: it asks for cuda.grid"),
        (loops_below, "it calls powers: it has a loop"), (of_two_ranks, "several ranks"),
        (nowhere, "does not ask for its position"), (lane, "cuda.laneid"), (printing, "print"),
        (summing, "calls .sum()"), (storing_vectors, "several elements at once itself"),
        (capturing, "may alias one"), (calling_another_grid, "in front of its condition"),
    ],
)  # fmt: skip
def test_not_plain(function: Callable[..., None], why: str) -> None:
    with pytest.raises(NotPlainError) as refusal:
        plain_kernel(cuda.jit(function))
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"debug": True, "opt": False}, "debug="),
        ({"opt": False}, "opt=False"),
        ({"extensions": [Elsewhere()]}, "extensions="),
    ],
)
def test_options_that_forbid_it(options: dict[str, Any], why: str) -> None:
    with pytest.raises(NotPlainError, match=why):
        plain_kernel(cuda.jit(**options)(inside))


def test_functions_made_by_exec_are_not_plain() -> None:
    names: dict[str, Any] = {"cuda": cuda}
    exec("def made(z):\n    z[cuda.grid(1)] = 1\n", names)
    with pytest.raises(NotPlainError, match="source is not at hand"):
        plain_kernel(cuda.jit(names["made"]))


# --- guards ---


def _holds(guard: FunctionType, position: Any, *args: Any) -> bool:
    """The guard's answer for a position, run by Python."""
    fake = SimpleNamespace(grid=lambda _: position)
    names = {"cuda": fake, "numba": SimpleNamespace(cuda=fake), "_grid": fake.grid}
    scope = {**guard.__globals__, **names}
    run = FunctionType(guard.__code__, scope, "guard", None, guard.__closure__)
    return bool(run(*args))


@pytest.mark.parametrize(
    ("function", "position", "holds"),
    [
        (inside, 9, True), (inside, 10, False), (leaving, 9, True), (leaving, 10, False),
        (between, 1, False), (between, 2, True), (between, 7, True), (between, 8, False),
    ],
)  # fmt: skip
def test_the_guard_is_the_kernels_condition(
    function: Callable[..., None], position: int, holds: bool
) -> None:
    guard = plain_kernel(cuda.jit(function)).guard
    assert guard is not None
    z = np.zeros(10)
    assert _holds(guard, position, z, z) == holds
    assert not z.any()


def test_a_guard_of_several_early_returns() -> None:
    guard = plain_kernel(cuda.jit(rows)).guard
    assert guard is not None
    z = np.zeros((4, 6))
    held = {(i, j) for i in range(6) for j in range(8) if _holds(guard, (i, j), z, z)}
    assert held == {(i, j) for i in range(4) for j in range(6)}


def test_a_guard_reads_free_variables() -> None:
    low, factor = 3, 2.0

    def scaled(z: Any) -> None:
        i = cuda.grid(1)
        if low <= i < z.size:
            z[i] *= factor

    guard = plain_kernel(cuda.jit(scaled)).guard
    assert guard is not None
    cells = dict(zip(guard.__code__.co_freevars, guard.__closure__ or (), strict=True))
    assert {name: cell.cell_contents for name, cell in cells.items()} == {"low": 3, "factor": 2.0}


def test_variables_that_are_assigned_after_the_kernel() -> None:
    def scaled(z: Any) -> None:
        i = cuda.grid(1)
        if i < z.size:
            z[i] *= factor

    kernel = na.launcher(elements=4)(cuda.jit(scaled))
    factor = 2.0
    z = na.ones(5).sync()
    kernel(z).sync()
    assert (z.to_host().sync() == 2).all()
