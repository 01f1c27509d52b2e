"""Which parameters a kernel writes, found in its own code."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import LauncherError
from numbasync.launch.parameters import parameters


@cuda.jit(device=True)
def store_second(a, b, i):
    b[i] = a[i]


@cuda.jit(device=True)
def store_through(a, b):
    store_second(b, a, 0)


@cuda.jit(device=True)
def hand_back(a):
    return a


@cuda.jit(device=True)
def again(x, y):
    if x[0] > 0:
        y[0] = 1
        again(x, y)


def written(function: Callable[..., None]) -> set[str]:
    return {p.name for p in parameters(function) if p.is_output}  # type: ignore[arg-type]


def assignment(x, y):
    y[0] = x[0]


def augmented(x, y):
    y[0] += x[0]


def of_several_axes(x, y):
    y[0, 1] = x[1, 0]


def through_a_name(x, y):
    z = y
    z[0] = x[0]


def through_a_view(x, y):
    row = y[1:]
    row[0] = x[0]


def through_a_row(x, y):
    y[0][1] = x[0][1]


def through_reshape(x, y):
    y.reshape(4)[0] = x[0]


def through_a_tuple(x, y):
    both = (x, y)
    both[1][0] = 1


def in_a_loop(x, y):
    z = x
    for _ in range(3):
        z[0] = 1
        z = y


def in_a_branch(x, y):
    z = x if x.shape[0] > 3 else y
    z[0] = 1


def atomically(x, y):
    cuda.atomic.add(y, 0, x[0])


def by_a_device_function(x, y):
    store_second(x, y, cuda.grid(1))


def by_a_keyword(x, y):
    store_second(b=y, a=x, i=0)


def two_calls_deep(x, y):
    store_through(y, x)


def through_what_a_function_gives_back(x, y):
    hand_back(y)[0] = x[0]


def with_a_cache_hint(x, y):
    cuda.stwt(y, 0, x[0])


def to_a_field(x, y):
    y[0].value = x[0]


ONLY_Y = [
    assignment, augmented, of_several_axes, through_a_name, through_a_view, through_a_row,
    through_reshape, through_a_tuple, atomically, by_a_device_function, by_a_keyword,
    two_calls_deep, through_what_a_function_gives_back, with_a_cache_hint, to_a_field,
]  # fmt: skip


@pytest.mark.parametrize("kernel", ONLY_Y, ids=lambda f: f.__name__)
def test_stores_are_found(kernel: Callable[..., None]) -> None:
    found = written(kernel)
    assert "y" in found
    if kernel is not through_a_tuple:  # which element was taken is not followed
        assert found == {"y"}


@pytest.mark.parametrize("kernel", [in_a_loop, in_a_branch], ids=lambda f: f.__name__)
def test_a_store_to_either_counts_for_both(kernel: Callable[..., None]) -> None:
    assert written(kernel) == {"x", "y"}


def test_reading_is_no_store() -> None:
    def reads(x, y, n):
        i = cuda.grid(1)
        total = 0.0
        for k in range(min(x.shape[0], y.size)):
            total += math.sqrt(x[k]) * np.float32(y[k])
        own = cuda.shared.array(4, np.float32)
        own[i] = total
        cuda.syncthreads()

    assert written(reads) == set()


def test_an_unseen_function_counts_as_a_store() -> None:
    unseen = cuda.declare_device("unseen", "void(float32[:], float32[:])")

    def calls(x, y):
        unseen(x, y)

    assert written(calls) == {"x", "y"}


def test_a_function_that_calls_itself_is_read_once() -> None:
    assert written(again.py_func) == {"y"}


def test_annotations_declare() -> None:
    def kernel(x: na.KernelInput, y: na.KernelOutput, z: na.Tile, a: float, b):
        pass

    roles = {p.name: p.role.name for p in parameters(kernel)}
    assert roles == {"x": "INPUT", "y": "OUTPUT", "z": "TILE", "a": "SCALAR", "b": "ANY"}
    assert written(kernel) == {"y", "z"}


def test_storing_to_declared_inputs_is_an_early_error() -> None:
    with pytest.raises(LauncherError, match=r"wrong stores to x.*KernelInput") as caught:

        @na.launcher
        @cuda.jit
        def wrong(x: na.KernelInput):
            x[0] = 1

    assert "x: na.KernelOutput" in str(caught.value)


def test_star_args_are_refused() -> None:
    def star(*x):
        pass

    def named(**x):
        pass

    def only(x, /):
        pass

    for kernel in (star, named, only):
        with pytest.raises(LauncherError, match="not a plain one"):
            parameters(kernel)


def test_defaults_and_what_may_be_none() -> None:
    def kernel(x, n=3, *, y=None, w: na.KernelInput | None, v: na.KernelOutput | None):
        if x is not None:
            x[0] = n

    found = parameters(kernel)
    assert [p.takes_none for p in found] == [True, False, True, True, True]
    assert [p.default for p in found[1:3]] == [3, None]
    assert [p.role.value for p in found[3:]] == ["KernelInput", "KernelOutput"]
    assert [p.name for p in found if p.is_output] == ["x", "v"]


def test_what_a_kernel_uses_as_a_number() -> None:
    def kernel(z, index, factor, size, whole, given, asked, tested):
        for i in range(size):
            z[index] += math.sqrt(factor) * whole[i] if factor > size else -asked.shape[0]
        z[0] = np.float32(factor) + helper(given)
        z[1] = tested

    @cuda.jit(device=True)
    def helper(x):
        return x

    numbers = {p.name for p in parameters(kernel) if p.is_number}
    assert numbers == {"index", "factor", "size", "tested"}


def test_code_that_numba_cannot_read_is_refused() -> None:
    def imports(x):
        import os

        x[0] = os.getpid()

    with pytest.raises(LauncherError, match="Numba cannot read imports"):
        parameters(imports)


def test_launchers_are_refused_where_there_is_no_kernel() -> None:
    @cuda.jit(device=True)
    def helper(x):
        return x

    with pytest.raises(LauncherError, match="device function"):
        na.launcher(helper)
    with pytest.raises(LauncherError, match="no kernel"):
        na.launcher(42)  # type: ignore[call-overload]
    with pytest.raises(LauncherError, match="fastmath"):
        na.launcher(fastmath=True)(cuda.jit(assignment))
    with pytest.raises(LauncherError, match="has a launcher already"):
        na.launcher(na.launcher(cuda.jit(assignment)))


def test_editors_are_shown_the_kernels_parameters() -> None:
    @na.launcher
    def kernel(z: na.KernelOutput, a: float, x: na.KernelInput) -> None:
        """What it does."""
        z[0] = a * x[0]

    for called in (kernel, kernel[1, 2], kernel.forall(3)):
        shown = inspect.signature(called)
        assert list(shown.parameters) == ["z", "a", "x"]
        assert shown.parameters["a"].annotation == "float"
        assert shown.return_annotation is na.Launch
    assert kernel.__doc__ == "What it does."
    assert "dispatcher" in inspect.signature(na.Launcher).parameters  # the class is no kernel
    assert na.Launcher[...] is not None  # what annotations may say at run time


def test_results_have_the_kernels_names() -> None:
    @na.launcher
    def kernel(z: na.KernelOutput, a, _x):
        z[0] = a

    result = kernel.result((1, 2, 3))
    assert isinstance(result, na.LaunchResult) and isinstance(result, tuple)
    assert (result.z, result.a, result[2]) == (1, 2, 3) and {"z", "a"} <= set(dir(result))
    assert result._fields == ("z", "a", "_2")
    assert not hasattr(result, "__dict__") and result == (1, 2, 3)
