"""What atomic operations and fences order is no race, and what they do not order is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import EndlessWaitError
from numbasync.testing import KernelRace, check_kernel
from tests.planted_bugs.orders import MISTAKES, PATTERNS, Pattern, zeros

pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")


def cases(of: Callable[[Pattern], list[tuple[int, int, int]]]) -> list[Any]:
    """Each mistake in each launch; those of a second launch are `full`."""
    found = []
    for pattern in PATTERNS:
        name = pattern.kernel.py_func.__name__
        launches = of(pattern)
        for mistake, grid, block in launches:
            case = f"{name}-{MISTAKES[mistake]}-{grid}x{block}"
            marks = [pytest.mark.full] if (grid, block) != launches[0][1:] else []
            found.append(pytest.param(pattern, mistake, grid, block, id=case, marks=marks))
    return found


def check(pattern: Pattern, mistake: int, grid: int, block: int, **options: Any) -> None:
    arguments = [*pattern.args(grid * block), mistake]
    check_kernel(pattern.kernel, arguments, pattern.reference, grid=grid, block=block, **options)


@pytest.mark.parametrize(("pattern", "mistake", "grid", "block"), cases(Pattern.right))
def test_what_is_ordered_is_right(
    device: na.Device, pattern: Pattern, mistake: int, grid: int, block: int
) -> None:
    check(pattern, mistake, grid, block, races=2)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize(("pattern", "mistake", "grid", "block"), cases(Pattern.wrong))
def test_what_is_not_ordered_is_a_race(
    pattern: Pattern, mistake: int, grid: int, block: int
) -> None:
    with pytest.raises(KernelRace) as failure:
        check(pattern, mistake, grid, block)
    assert "nothing says which comes first" in str(failure.value)


@cuda.jit
def waits_for_the_next(out, flags):
    i = cuda.grid(1)
    cuda.atomic.exch(flags, i, 1)
    while cuda.atomic.add(flags, i + 1, 0) == 0:
        pass
    out[i] = 1


@pytest.mark.usefixtures("cpu")
def test_a_thread_waiting_for_later_ones_is_told() -> None:
    arguments = [zeros(4), np.array([0, 0, 0, 0, 1], np.int32)]
    for grid, block in ((4, 1), (1, 4)):
        with pytest.raises(EndlessWaitError, match=r"an element of flags as it is.*orders\.py:\d+"):
            check_kernel(waits_for_the_next, arguments, None, grid=grid, block=block)
