"""What annotations declare, and functions that are no kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import LauncherError
from numbasync.launch.parameters import check_kernel, parameters

if TYPE_CHECKING:
    import somewhere  # pyright: ignore[reportMissingImports]


def written(function: Callable[..., Any]) -> set[str]:
    assert isinstance(function, FunctionType)
    return {p.name for p in parameters(function) if p.is_output}


@cuda.jit(device=True)
def store(a, i):
    a[i] = 1


@cuda.jit(device=True)
def load(a, i):
    return a[i]


def fill(x, y):
    y.fill(x[0])


# --- annotations ---


def test_annotations_are_evaluated_one_by_one() -> None:
    from numbasync import KernelInput as In

    # The last four do not evaluate, or to no type.
    def kernel(a: In, b: na.Tile, c: "na.KernelInput", d: int, e: somewhere.KernelOutput, f, g, h):  # noqa: UP037
        f[0] = a[0]

    kernel.__annotations__ |= {"f": "nowhere.Something", "g": "3 + []", "h": "[1, 2]"}
    roles = {p.name: p.role.name for p in parameters(kernel)}
    assert list(roles.values()) == [
        "ANY", "TILE", "INPUT", "SCALAR", "OUTPUT", "ANY", "ANY", "ANY"
    ]  # fmt: skip
    assert written(kernel) == {"b", "e", "f"}


def test_an_annotation_that_is_local_declares() -> None:
    import numbasync as other
    from numbasync import KernelOutput

    def kernel(x: other.KernelInput, y: KernelOutput, z):
        pass

    kernel.__annotations__["z"] = "other.KernelOutputs"

    assert [p.role.name for p in parameters(kernel)] == ["INPUT", "OUTPUT", "ANY"]


# --- kernels that are none ---


def test_what_no_kernel_does_is_refused() -> None:
    def gives(x):
        yield x

    async def waits(x):
        x[0] = 1

    def returns(x):
        if x[0] > 0:
            return None
        return x[0]

    def returns_what_it_called(x):
        return load(x, 0)

    def elements_of_a_number(n: int, z):
        n[0] = 1  # pyright: ignore[reportIndexIssue]

    for kernel, message in (
        (gives, "gives has a yield"),
        (waits, "waits is an async def"),
        (returns, r"returns returns a value, in line \d+ of .*test_declarations.py"),
        (returns_what_it_called, "returns a value"),
        (elements_of_a_number, "elements of n, which is declared a number"),
        (lambda x: store(x, 0), "<lambda> is none.*\n.*def"),
    ):
        with pytest.raises(LauncherError, match=message):
            parameters(kernel)


def test_a_return_without_a_value_is_fine() -> None:
    def bare(x):
        if x[0] > 0:
            return
        x[0] = 1

    def none(x):
        return None

    def a_call(x):
        return store(x, 0)

    assert (written(bare), written(none), written(a_call)) == ({"x"}, set(), {"x"})


def test_a_lambda_with_a_name_is_a_kernel() -> None:
    kernel = lambda x: store(x, 0)  # noqa: E731
    kernel.__name__ = "named"
    assert written(kernel) == {"x"}
    assert na.launcher(kernel).name == "named"


def test_a_simulators_kernel_is_refused_by_name() -> None:
    program = (
        "from numba import cuda\n"
        "from numbasync.launch.parameters import check_kernel\n"
        "@cuda.jit\n"
        "def k(x): pass\n"
        "try: check_kernel(k)\n"
        "except TypeError as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
    )  # fmt: skip
    assert "kernel k: NUMBA_ENABLE_CUDASIM is set" in result.stdout, result.stderr
    assert "unset NUMBA_ENABLE_CUDASIM" in result.stdout


def test_the_function_of_a_kernel() -> None:
    kernel = cuda.jit(fill)
    assert check_kernel(kernel) is fill
    with pytest.raises(LauncherError, match="device function"):
        check_kernel(store)
    with pytest.raises(LauncherError, match="no kernel"):
        check_kernel(42)
