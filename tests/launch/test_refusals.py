"""Calls that are refused: typed, with the values, before anything is launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    AliasError,
    DeviceMismatchError,
    DTypeError,
    LauncherError,
    LaunchError,
    MovedError,
    NumbasyncError,
    ShapeError,
)
from numbasync.testing import counters
from tests.common import add_one, copy_to, host, saxpy, used, visit


def refusals() -> dict[str, tuple[type, str, Callable[[na.Tensor, na.Tensor], Any]]]:
    return {
        "too few": (LauncherError, r"saxpy\(z, a, x\): x is missing", lambda z, x: saxpy(z, 1.0)),
        "too many": (LauncherError, "4 arguments came", lambda z, x: saxpy(z, 1.0, x, x)),
        "unknown": (
            LauncherError, r"there is no parameter y; x is missing\.",
            lambda z, x: saxpy(z, 1.0, y=x)),
        "twice": (
            LauncherError, r"\): z came by place and by name\.",
            lambda z, x: saxpy(z, 1.0, x, z=z)),
        "scalar for array": (
            LauncherError, r"x is a na\.KernelInput.*int", lambda z, x: saxpy(z, 1.0, 3)),
        "list": (
            LauncherError, r"saxpy: x cannot be list.*\n.*tuple\(.*np\.asarray",
            lambda z, x: saxpy(z, 1.0, [1, 2])),
        "none": (
            LauncherError, r"saxpy: a cannot be NoneType.*\nPass an array or a number.*is not None",
            lambda z, x: saxpy(z, None, x)),
        "text": (
            LauncherError, r"saxpy: a cannot be str.*\n.*no text", lambda z, x: saxpy(z, "2", x)),
        "text of NumPy": (
            LauncherError, r"saxpy: a cannot be str_", lambda z, x: saxpy(z, np.str_("2"), x)),
        "the result of a launch": (
            LauncherError, r"saxpy: x cannot be saxpy.*\n.*result\.z.*op\.output\(\)",
            lambda z, x: saxpy(z, 1.0, saxpy.result((z, 1.0, x)))),
        "a tensor in a tuple": (
            LauncherError, r"by_number: a cannot be tuple.*\nPass it to a parameter that is",
            lambda z, x: by_number(z, (1, (2.0, x)))),
        "text in a tuple": (
            LauncherError, r"saxpy: a is a tuple with str", lambda z, x: saxpy(z, (1, "2"), x)),
        "numpy as output": (
            LauncherError, r"would be lost.*\n.*from_host",
            lambda z, x: saxpy(np.zeros(8, np.float32), 1.0, x)),
        "shared as output": (
            LauncherError, "is shared", lambda z, x: saxpy(z.shared(), 1.0, x)),
        "object array": (
            DTypeError, "saxpy: x: .*cannot hold object",
            lambda z, x: saxpy(z, 1.0, np.array([object()] * 8))),
        "array of text": (
            DTypeError, "saxpy: x: .*cannot hold", lambda z, x: saxpy(z, 1.0, np.array(["a"] * 8))),
        "array of long doubles": (
            DTypeError, r"saxpy: x.*(cannot hold|no device)",
            lambda z, x: saxpy(z, 1.0, np.ones(8, np.longdouble))),
        "forall beside a partition": (
            LaunchError, r"forall\(8\) has \(1, 1, 1\) blocks, but the partition of z has \(2",
            lambda z, x: saxpy.forall(8)(z.partition(4), 1.0, x)),
        "forall with tiles": (
            LaunchError, r"tiles: forall\(8\).*z is a na\.Tile",
            lambda z, x: tiles.forall(8)(z.partition(4))),
        "threads of two axes for one": (
            LaunchError, r"same work again.*\n.*threads=256", lambda z, x: in_squares(z)),
        "a tile that is too large": (
            LaunchError, r"tile \(4096,\) of z's partition.*\n.*smaller tile.*threads=256",
            lambda z, x: saxpy(z.partition(4096), 1.0, x)),
        "alias": (AliasError, "z, which may be written, and x", lambda z, x: saxpy(z, 1.0, z)),
        "alias of views": (
            AliasError, "same storage", lambda z, x: saxpy(z[:4], 1.0, z[4:])),
        "grids differ": (
            LaunchError, r"the grid has \(3, 1, 1\)",
            lambda z, x: saxpy[3, 4](z.partition(4), 1.0, x)),
        "too many threads": (
            LaunchError, "2048 threads", lambda z, x: saxpy[1, 2048](z, 1.0, x)),
        "too long a block": (
            LaunchError, "block.*128 along z", lambda z, x: saxpy[1, (1, 1, 128)](z, 1.0, x)),
        "too much shared memory": (
            LaunchError, "dynamic shared memory", lambda z, x: saxpy[1, 8, 0, 10**6](z, 1.0, x)),
        "prefix without a grid": (
            LaunchError, "grid must be given", lambda z, x: saxpy(z.partition_prefix(4), 1.0, x)),
        "no grid at all": (LaunchError, "no output", lambda z, x: reads_only(x)),
        "zero blocks": (LaunchError, "at least 1", lambda z, x: saxpy[0, 8](z, 1.0, x)),
        "config": (LaunchError, r"\[grid, block\]", lambda z, x: saxpy[1](z, 1.0, x)),
        "stream": (LaunchError, "stream is a na.Stream", lambda z, x: saxpy[1, 8, "s"](z, 1.0, x)),
        "forall": (LaunchError, "forall", lambda z, x: saxpy.forall(-1)(z, 1.0, x)),
        "precondition": (
            LaunchError, r"z\.shape\[0\] % 64 == 0.*does not hold: z\.shape = \(8,\)",
            lambda z, x: in_64s(z)),
        "tile without tiles": (LauncherError, "needs tiles", lambda z, x: tiles(z)),
        "tensor for a number": (
            LauncherError, "annotated as a number", lambda z, x: annotated(z, x)),
    }  # fmt: skip


@na.launcher
@cuda.jit
def by_number(z: na.KernelOutput, a: float):
    z[0] = a


@na.launcher
@cuda.jit
def reads_only(x: na.KernelInput):
    cuda.syncthreads()


@na.launcher(preconditions=["z.shape[0] % 64 == 0"])
@cuda.jit
def in_64s(z: na.KernelOutput):
    z[0] = 1


@na.launcher(threads=(16, 16))
@cuda.jit
def in_squares(z: na.KernelOutput):
    z[cuda.grid(1)] = 1


@na.launcher
@cuda.jit
def tiles(z: na.Tile):
    z[0] = 1


@na.launcher
@cuda.jit
def annotated(z: na.KernelOutput, n: int):
    z[0] = n


@pytest.mark.parametrize("case", refusals())
def test_refusals(device: na.Device, case: str) -> None:
    error, message, attempt = refusals()[case]
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    saxpy(z, 1.0, x).sync()
    held = used(device)
    before = counters()
    with pytest.raises(error, match=message) as caught:
        attempt(z, x).sync()
    del caught
    did = counters() - before
    assert (did.launches, did.allocations, did.copies) == (0, 0, 0)
    assert used(device) == held
    saxpy(z, 1.0, x).sync()
    assert host(z).tolist() == [2] * 8


def test_work_under_way_is_no_argument(device: na.Device) -> None:
    future = na.spawn(na.ones(8))
    with pytest.raises(LauncherError, match=r"saxpy: x cannot be DeviceFuture.*\n.*await it"):
        saxpy(na.zeros(8).sync(), 1.0, future)
    saxpy(na.zeros(8).sync(), 1.0, future.sync()).sync()


def test_kernels_written_for_it_may_have_an_alias(device: na.Device) -> None:
    @na.launcher(may_alias=True)
    @cuda.jit
    def double(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = 2 * x[i]

    z = na.ones(8).sync()
    double(z, z).sync()
    assert host(z).tolist() == [2] * 8
    assert copy_to(z, np.ones(8, np.float32)).sync().z is z


def test_inputs_may_alias_each_other(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def add(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = x[i] + y[i]

    z, x = na.zeros(8).sync(), na.ones(8).sync()
    add(z, x, x).sync()
    assert host(z).tolist() == [2] * 8


def test_a_tensor_of_another_device_is_refused() -> None:
    one, two = na.devices("cpu")[:2]
    with na.use_device(two):
        x = na.ones(8).sync()
    with na.use_device(one):
        z = na.zeros(8).sync()
        before = counters()
        with pytest.raises(DeviceMismatchError, match=r"x is <Tensor.*cpu:1.*goes to cpu:0"):
            saxpy(z, 1.0, x).sync()
        with pytest.raises(DeviceMismatchError, match="Name no stream, and it runs on cpu:1"):
            x.to_host().sync_on(one.new_stream())
        assert (counters() - before).launches == 0


def test_what_a_launcher_says_of_itself() -> None:
    assert repr(saxpy) == "<launcher saxpy(z: KernelOutput, a: undeclared, x: KernelInput)>"
    assert saxpy.__name__ == "saxpy" and saxpy.kernel.py_func is saxpy.__wrapped__
    assert repr(saxpy[1, 8]) == "<saxpy[(1, 1, 1), (8, 1, 1)]>"
    assert repr(saxpy.forall(8)) == "<saxpy[8 threads]>"
    assert visit.__doc__ and "Add one" in visit.__doc__


@pytest.mark.parametrize(
    ("good", "bad"),
    [((1, 8), (1.0, 8)), ((1, 8), (1, 8.0)), (((1, 1), 8), ((1.0, 1), 8)), ((1, 8), ([1], "8"))],
)
def test_an_accepted_call_does_not_admit_equal_ones(device: na.Device, good: Any, bad: Any) -> None:
    z = na.zeros(8).sync()
    add_one[good](z).sync()
    assert z.to_host().sync().tolist() == [1] * 8
    with pytest.raises(LaunchError):
        add_one[bad]


def test_an_input_may_be_the_output_itself_only(device: na.Device) -> None:
    z = na.arange(8).sync()
    saxpy(z, 1.0, np.ones(8, np.float32)).sync()  # reads and writes its output
    says = "z, which may be written, and x are in the same storage"
    for x in (z, z[:], z[::2], z.reshape(2, 4)[0], na.shared(z), z.partition(4).unpartition()):
        for out in (z, z.partition(4)):
            with pytest.raises(AliasError, match=says):
                copy_to(out, x).sync()
    assert host(z).tolist() == list(range(1, 9))


@na.launcher(axes=(1, 0))
@cuda.jit
def turned(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = 1


@na.launcher
@cuda.jit
def of_four_axes(z: na.KernelOutput):
    z[0, 0, 0, 0] = 1


@na.launcher
@cuda.jit
def two(z: na.KernelOutput, y: na.KernelOutput):
    z[0] = y[0] = 1


def elsewhere(device: na.Device) -> na.Tensor:
    other = next(d for d in na.devices() if d is not device)
    with na.use_device(other):
        return na.ones(8).sync()


Call = tuple[na.Launcher | Any, tuple[Any, ...]]
REFUSED: dict[str, tuple[type[NumbasyncError], Callable[[na.Tensor, na.Tensor], Call]]] = {
    "rank of axes": (LaunchError, lambda z, x: (turned, (z.partition(4),))),
    "rank of a whole tensor": (
        LaunchError, lambda z, x: (of_four_axes, (z.reshape(2, 2, 2, 1),))),
    "dtype of objects": (
        DTypeError, lambda z, x: (saxpy, (z, 1.0, np.array([None] * 8)))),
    "dtype of text": (
        DTypeError, lambda z, x: (saxpy, (z, 1.0, np.array(["a"] * 8)))),
    "grid": (LaunchError, lambda z, x: (saxpy[3, 4], (z.partition(4), 1.0, x))),
    "grid beyond a prefix": (
        LaunchError, lambda z, x: (saxpy[3, 4], (z.partition_prefix(4), 1.0, x))),
    "no grid": (LaunchError, lambda z, x: (saxpy, (z.partition_prefix(4), 1.0, x))),
    "forall": (LaunchError, lambda z, x: (saxpy.forall(8), (z.partition(4), 1.0, x))),
    "partition agreement": (LaunchError, lambda z, x: (two, (z.partition(4), x.partition(2)))),
    "precondition": (LaunchError, lambda z, x: (in_64s, (z,))),
    "foreign device": (DeviceMismatchError, lambda z, x: (saxpy, (z, 1.0, None))),
    "too many threads": (LaunchError, lambda z, x: (saxpy[1, (64, 32)], (z, 1.0, x))),
    "too large a tile": (LaunchError, lambda z, x: (saxpy, (z.partition(4096), 1.0, x))),
    "too much shared memory": (LaunchError, lambda z, x: (saxpy[1, 8, 0, 10**6], (z, 1.0, x))),
    "alias": (AliasError, lambda z, x: (saxpy, (z, 1.0, z))),
    "moved": (MovedError, lambda z, x: (saxpy, (z, 1.0, moved()))),
}  # fmt: skip


def moved() -> na.Tensor:
    x = na.ones(8).sync()
    x.take()
    return x


@pytest.mark.parametrize("lazily", [False, True], ids=["at once", "lazily"])
@pytest.mark.parametrize("case", REFUSED)
def test_no_refusal_changes_the_launch_counter(device: na.Device, case: str, lazily: bool) -> None:
    error, call = REFUSED[case]
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    saxpy(z, 1.0, x).sync()
    kernel, values = call(z, x)
    values = tuple(elsewhere(device) if v is None else v for v in values)
    before = counters()
    with pytest.raises(error) as caught:
        kernel(*(na.value(v) if lazily else v for v in values)).sync()
    did = counters() - before
    assert (did.launches, did.copies) == (0, 0)
    assert "kernel " in str(caught.value) or case == "moved"
    saxpy(z, 1.0, x).sync()
    assert host(z).tolist() == [2] * 8


def test_tiles_of_another_rank_are_refused_when_cut(device: na.Device) -> None:
    z = na.zeros((4, 4)).sync()
    before = counters()
    for attempt in (
        lambda: z.partition(4), lambda: z.partition((2, 2, 2)), lambda: z.partition_prefix(4),
        lambda: z.reshape(2, 2, 2, 2).partition((1, 1, 1, 1)),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match="axes"):
            attempt()
    assert counters() == before
