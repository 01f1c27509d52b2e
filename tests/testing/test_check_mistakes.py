"""`check_kernel`: each kind of mistake has a name, and what is not watched is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32

import numbasync as na
from numbasync import testing
from numbasync.testing import check_kernel

pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")


@na.launcher
@cuda.jit
def sums(z: na.KernelOutput, x: na.KernelInput):
    z[0] += x[cuda.grid(1)]


@na.launcher
@cuda.jit
def reads_behind(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i + 1]


@na.launcher
@cuda.jit
def leaves_a_tile(z: na.KernelOutput):
    i = cuda.grid(1)
    if i + 1 < z.shape[0]:
        z[i + 1] = 1


@na.launcher
@cuda.jit
def meets_in_part(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        cuda.syncthreads()
        z[i] = 1


@na.launcher
@cuda.jit
def reads_what_nobody_wrote(z: na.KernelOutput):
    held = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    if t < 16:
        held[t] = t
    cuda.syncthreads()
    z[cuda.grid(1)] = held[t]


@cuda.jit(device=True)
def store_to_second(arrays, i):
    """The launcher does not know to which member of a tuple a function stores, and trusts what the
    kernel declares.
    """
    arrays[1][i] = 2


@na.launcher
@cuda.jit
def writes_its_input(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = 1
        store_to_second((z, x), i)


def _anything(*args: Any) -> Any:
    return 1


@pytest.mark.parametrize(
    ("kernel", "args", "options", "kind", "said"),
    [
        (sums, [np.zeros(1), np.ones(64)], {"grid": 2, "block": 32}, testing.KernelRace, "+= "),
        (reads_behind, [np.zeros(64), np.ones(64)], {"tile": 32}, testing.OutOfBounds, "x[i + 1]"),
        (leaves_a_tile, [np.zeros(64)], {"tile": 32}, testing.OutOfBounds, "z[i + 1] = 1"),
        (meets_in_part, [np.zeros(40)], {"tile": 32}, testing.BarrierDivergence, "syncthreads"),
        (reads_what_nobody_wrote, [np.zeros(64)], {"tile": 32}, testing.UninitialisedRead,
         "= held[t]"),
        (writes_its_input, [np.zeros(64), np.ones(64)], {"tile": 32}, testing.InputModified,
         "arrays[1][i] = 2"),
    ],
)  # fmt: skip
def test_each_mistake_has_a_name_and_a_line(
    device: na.Device, kernel: Any, args: Any, options: Any, kind: Any, said: str
) -> None:
    import inspect

    with pytest.raises(kind) as error:
        check_kernel(kernel, args, _anything, **options)
    sources = map(inspect.getsourcelines, (kernel.kernel.py_func, store_to_second.py_func))
    (number,) = [first + i for lines, first in sources
                 for i, line in enumerate(lines) if said in line]  # fmt: skip
    assert f"{number}" in str(error.value)
    assert f"kernel {kernel.name}, block" in str(error.value)
    assert "again: pytest" in str(error.value)


@na.launcher
@cuda.jit
def in_order_of_arrival(z: na.KernelOutput, count: na.KernelOutput):
    z[cuda.atomic.add(count, 0, 1)] = cuda.grid(1)


def test_a_result_that_depends_on_who_comes_first(device: na.Device) -> None:
    args = [np.zeros(8), np.zeros(1, np.int32)]
    for reference in (lambda z, count: (np.arange(8), 8), None):
        with pytest.raises(testing.KernelRace, match="threads in reverse order"):
            check_kernel(in_order_of_arrival, args, reference, grid=2, block=4)
    check_kernel(in_order_of_arrival, args, lambda z, c: (None, 8), grid=2, block=4)


def test_inputs_are_compared_where_nobody_watches(device: na.Device) -> None:
    args = [np.zeros(64), np.ones(64)]
    with pytest.raises(testing.InputModified) as error:
        check_kernel(writes_its_input, args, _anything, tile=32, races=0)
    said = (
        "64 of 64 elements of x, which is an input, were changed\n  first at (0,): was 1.0, is 2.0"
    )
    assert said in str(error.value)


@na.launcher
@cuda.jit
def neighbours(z: na.KernelOutput):
    i = cuda.grid(1)
    z[i] = i
    cuda.cg.this_grid().sync()
    z[i] += z[(i + 1) % z.shape[0]]


def test_blocks_that_meet_are_tried_in_other_orders(device: na.Device) -> None:
    with pytest.raises(testing.KernelRace, match="threads in reverse order"):
        check_kernel(neighbours, [np.zeros(6)], None, grid=2, block=3)
