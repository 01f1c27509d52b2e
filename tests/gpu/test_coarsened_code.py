"""The generated kernel around a coarsened one, run by Python without a GPU."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest
from numba import cuda

from numbasync.backend.executables import Coarsening

coarsening: Any = pytest.importorskip("numbasync.backend.cuda.coarsening", exc_type=ImportError)


def kernel_of(function: Any, guard: Any = None) -> FunctionType:
    """The Python function of the generated kernel: four neighbours a thread, one coordinate."""
    plan = Coarsening(4, 1, guard=guard)
    function = coarsening.coarsened(cuda.jit(function), plan).py_func
    assert isinstance(function, FunctionType)
    return function


def positions_of(kernel: FunctionType, thread: int, total: int) -> list[int]:
    """The positions that a thread computes, in order."""
    computed: list[int] = []
    stubs: dict[str, Any] = {"promise": lambda _: None}
    for j in range(4):
        stubs[f"grid{j}"] = lambda _, j=j: 4 * thread + j
        stubs[f"guard{j}"] = lambda z, j=j: 4 * thread + j < len(z)
        stubs[f"body{j}"] = lambda z, j=j: computed.append(4 * thread + j)
    names = {**kernel.__globals__, **stubs}
    run = FunctionType(kernel.__code__, names, "kernel", None, kernel.__closure__)
    run([0] * 7, total)
    return computed


def made(total: Any, x0: Any = 0, body0: Any = 0) -> Any:
    def promise(z: Any) -> None:
        i = cuda.grid(1)
        if i < len(z):
            z[i] = total + x0 + body0

    return promise


@pytest.mark.parametrize(("total", "positions"), [(8, [4, 5, 6, 7]), (6, [4, 5])])
def test_kernels_names_are_apart_from_generated_ones(total: int, positions: list[int]) -> None:
    kernel = kernel_of(made(3, 4, 5))
    assert positions_of(kernel, 1, total) == positions
    assert kernel.__name__ == "promise_x4_neighbours"
    assert kernel.__code__.co_name == "promise"  # by which Numba finds the lines of the source


def test_a_guard_of_a_position_without_work() -> None:
    assert positions_of(kernel_of(made(3), made(3)), 1, 8) == [4, 5, 6, 7]
    assert positions_of(kernel_of(made(3), made(3)), 0, 8) == [0, 1, 2, 3]


def test_free_variables_tell_kernels_apart_on_disk() -> None:
    """Numba's disk cache compares them, and the code of the generated kernel is the same."""
    three, four = kernel_of(made(3)), kernel_of(made(4))
    assert three.__code__.co_code == four.__code__.co_code
    values = [[c.cell_contents for c in k.__closure__ or ()] for k in (three, four)]
    assert [v[1] for v in values] == [3, 4]  # behind `body0`, in the order of the alphabet
    assert values[0][-1] == values[1][-1] == coarsening._own_code()


def test_free_variables_that_are_not_assigned_yet() -> None:
    def scale(z: Any) -> None:
        i = cuda.grid(1)
        if i < len(z):
            z[i] *= factor

    assert positions_of(kernel_of(scale), 0, 4) == [0, 1, 2, 3]
    factor = 2


def test_options_of_the_kernel_pass_on() -> None:
    options = {"lto": False, "max_registers": 32, "shared_memory_carveout": 0, "fastmath": True}
    written = cuda.jit(**options)(made(3))
    kernel = coarsening.coarsened(written, Coarsening(4, 1))
    expected = {name: written.targetoptions[name] for name in options}
    assert {name: kernel.targetoptions[name] for name in options} == expected
    assert expected["max_registers"] == 32 and expected["fastmath"]
