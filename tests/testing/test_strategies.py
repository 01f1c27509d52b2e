"""Hypothesis strategies: arguments that fit a kernel, and failures that become small."""

from __future__ import annotations

import itertools
import subprocess
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.control import current_build_context
from numba import cuda

import numbasync as na
from numbasync.errors import CallerError
from numbasync.facts.arrays import axes_of
from numbasync.testing import KernelMismatch, check_kernel, strategies
from numbasync.testing.strategies import kernel_args, launch_configs, tiles_for
from tests.common import saxpy, saxpy2d, visit_tile


def test_compilations_are_no_time_of_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    @na.launcher
    @cuda.jit
    def fresh(z: na.KernelOutput):
        z[0] = 1

    monkeypatch.setattr(strategies, "perf_counter", itertools.count(step=100).__next__)

    @settings(max_examples=2, database=None)
    @given(kernel_args(fresh))
    def drawn(args: tuple[Any, ...]) -> None:
        left_out.append(current_build_context().data.draw_times.get("generate:compilation", 0))

    left_out: list[float] = []
    drawn()
    assert left_out == [-100, 0]


few = settings(max_examples=15)


@na.launcher
@cuda.jit
def product(c: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, times: int):
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = times * total


@na.launcher(preconditions=["z.shape[0] % 4 == 0"])
@cuda.jit
def in_fours(z: na.KernelOutput):
    for i in range(cuda.grid(1), z.shape[0], cuda.gridsize(1)):
        z[i] = i


@na.launcher(
    preconditions=["z.shape[0] % 64 == 0", "x.shape[0] == 3 * z.shape[0]", "x.is_contiguous"]
)
@cuda.jit
def thirds(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[3 * i]


@na.launcher
@cuda.jit
def forgets_the_end(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0] - 1 or cuda.blockDim.x < 3:
        z[i % z.shape[0]] = x[i % z.shape[0]]


@few
@given(kernel_args(saxpy))
def test_arguments_from_a_signature(device: na.Device, args: Any) -> None:
    z, a, x = args
    assert z.shape == x.shape and z.dtype == x.dtype == np.float32 and isinstance(a, float)
    check_kernel(saxpy, args, lambda z, a, x: a * x + z, races=1)


@few
@given(
    kernel_args(product, extents={"a": ("n", "k"), "b": ("k", "m"), "c": ("n", "m")}, longest=9),
    launch_configs(product, most_threads=16),
)
def test_extents_by_name_and_launches(device: na.Device, args: Any, launch: Any) -> None:
    c, a, b, times = args
    assert c.shape == (a.shape[0], b.shape[1]) and isinstance(times, int)
    assert len(launch["block"]) == 2
    check_kernel(product, args, lambda c, a, b, times: times * (a @ b), races=0, **launch)


@pytest.mark.full
@few
@given(kernel_args(in_fours, dtype=strategies.dtypes("iu")), launch_configs(in_fours))
def test_preconditions_and_strides(device: na.Device, args: Any, launch: Any) -> None:
    (z,) = args
    assert z.size % 4 == 0 and z.dtype.kind in "iu" and set(launch) == {"grid", "block"}
    check_kernel(in_fours, args, lambda z: np.arange(z.size).astype(z.dtype), races=0, **launch)


@pytest.mark.full
@few
@given(kernel_args(thirds, dtype=np.int32, extents={"z": ("n",), "x": ("k",)}, longest=600))
def test_extents_are_such_that_preconditions_hold(device: na.Device, args: Any) -> None:
    z, x = args
    assert z.size % 64 == 0 and x.size == 3 * z.size
    check_kernel(thirds, args, lambda z, x: x[::3], races=0)


@few
@given(kernel_args(visit_tile, dtype=np.int32), launch_configs(visit_tile, most_threads=64))
def test_tiles(device: na.Device, args: Any, launch: Any) -> None:
    check_kernel(visit_tile, args, lambda t: t + 1, races=0, **launch)


@few
@given(strategies.shapes(2).flatmap(lambda s: st.tuples(st.just(s), tiles_for(s))))
def test_tiles_fit_in_a_block(case: Any) -> None:
    shape, tile = case
    assert len(tile) == 2 and tile[0] * tile[1] <= strategies.MOST_THREADS
    assert all(t <= n + 1 for t, n in zip(tile, shape, strict=True))


@few
@given(st.data())
def test_tensors_on_a_device(device: na.Device, data: st.DataObject) -> None:
    t = data.draw(strategies.arrays_on(device, strategies.shapes(2), strategies.dtypes("fiubc")))
    assert t.device is device and t.ndim == 2
    assert t.to_host().sync().shape == t.shape


def test_names_of_parameters(device: na.Device) -> None:
    @few
    @given(kernel_args(saxpy, a=2.0, x=lambda made: np.ones_like(made["z"])))
    def check(args: Any) -> None:
        assert args[1] == 2.0 and (args[2] == 1).all()

    check()
    with pytest.raises(CallerError, match="q is no parameter of saxpy2d"):
        kernel_args(saxpy2d, q=1)
    with pytest.raises(CallerError, match="q is no parameter of saxpy2d"):
        kernel_args(saxpy2d, dtype={"q": np.float64})
    with pytest.raises(CallerError, match=r"extents of x: a tuple of its axes, as in \('n',\)"):
        kernel_args(saxpy2d, extents={"x": "n"})
    with pytest.raises(CallerError, match=r"shapes\(1, 2, 5\): there are none"):
        strategies.shapes(1, 2, 5)
    with pytest.raises(CallerError, match=r"tiles_for\(-1, 256\): there are none"):
        tiles_for(-1)
    with pytest.raises(CallerError, match="dtypes.'x'.: write some of f, i, u, b, c"):
        strategies.dtypes("x")


@cuda.jit(device=True)
def element(rows: Any, i: Any, j: Any) -> Any:
    return rows[i, j]


@cuda.jit(device=True)
def through(given: Any, i: Any) -> Any:
    return element(given, j=0, i=i) if i else through(given, i - 1)


@cuda.jit
def hands_on(z, x, y):
    z[0] = through(x, 0) + element(rows=y, i=0, j=0)


def test_what_device_functions_index_is_an_array() -> None:
    assert axes_of(hands_on.py_func) == {"z": 1, "x": 2, "y": 2}


def test_what_fails_becomes_small(device: na.Device) -> None:
    def fails(case: Any) -> bool:
        args, launch = case
        try:
            check_kernel(forgets_the_end, args, lambda z, x: x, races=0, **launch)
        except KernelMismatch:
            return True
        return False

    args, launch = find(
        st.tuples(kernel_args(forgets_the_end), launch_configs(forgets_the_end)), fails,
        settings=settings(max_examples=200, phases=[Phase.generate, Phase.shrink]),
    )  # fmt: skip
    # The last element is left out by blocks of three threads and more; nothing smaller shows it.
    assert args[0].shape == (1,) and launch == {"block": (3,)}


def test_hypothesis_is_asked_for(python: str, python_env: dict[str, str]) -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import numbasync.testing\n"
        "try:\n"
        "    import numbasync.testing.strategies\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    said = subprocess.run(
        [python, "-c", program], env=python_env, capture_output=True, text=True
    ).stdout
    assert said.startswith("MissingExtraError numbasync.testing.strategies needs Hypothesis")
    assert "pip install hypothesis" in said
