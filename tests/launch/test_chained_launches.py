"""The output of one kernel as the input, or the output, of the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import AliasError, LauncherError, OperationError
from tests.common import saxpy


@na.launcher
@cuda.jit
def doubled(z: na.KernelOutput, x: na.KernelInput):
    for i in range(cuda.grid(1), z.shape[0], cuda.gridsize(1)):
        z[i] = 2 * x[i]


@na.launcher
@cuda.jit
def undeclared(z, x):
    for i in range(cuda.grid(1), z.shape[0], cuda.gridsize(1)):
        z[i] = 3 * x[i]


PARTITIONS: dict[str, Callable[[na.Tensor], Any]] = {
    "whole": lambda t: t,
    "exact": lambda t: t.partition(8),
    "prefix": lambda t: t.partition_prefix(8),
    "mapped": lambda t: t.partition(8).map(2),
    "moved": lambda t: t.take().partition(8),
    "shared": lambda t: t.take().shared().partition(8),
    "lazy": lambda t: na.value(t).partition(8),
    "lazy mapped": lambda t: na.value(t).partition(8).map(lambda p: p.map(2)),
}
HANDED_ON: dict[str, Callable[[na.DeviceOp[Any]], Any]] = {
    "output": lambda op: op.output(),
    "first": lambda op: op.first(),
    "unzip": lambda op: op.unzip()[0],
    "shared": lambda op: op.output().shared(),
    "then": lambda op: op.then(lambda result: na.value(result.z)),
    "awaited": lambda op: op.output().sync(),
}


@pytest.mark.parametrize("second", [doubled, undeclared], ids=lambda k: k.name)
@pytest.mark.parametrize("cut", PARTITIONS)
def test_a_launchs_result_is_the_nexts_input(
    device: na.Device, cut: str, second: na.Launcher
) -> None:
    x = na.ones(32).sync()
    for hand_on in HANDED_ON.values():
        first = doubled[4, 8] if cut == "prefix" else doubled
        z, out = (na.zeros(32).sync() for _ in range(2))
        op = first(PARTITIONS[cut](z), x)
        result = second(out.partition(8), hand_on(op)).sync()
        assert (out.to_host().sync() == (4 if second is doubled else 6)).all()
        assert result.z.tensor is out  # each comes back as it was passed
        again = second(out.partition(8), result.x).sync()  # a partition, most often
        assert again.x is result.x


def test_an_output_is_an_output_again(device: na.Device) -> None:
    x, z = na.ones(32).sync(), na.zeros(32).sync()
    first = saxpy(z.partition(8), 1.0, x).output()
    second = saxpy(saxpy(first, 1.0, x).output(), 1.0, x)
    assert (second.sync().z.to_host().sync() == 3).all()


def test_chains_in_graphs(device: na.Device) -> None:
    x, z, out = (na.full(32, n).sync() for n in (1.0, 0.0, 0.0))
    graph = doubled(out.partition(8), doubled(z.partition(8), x).output()).graph()
    graph.launch().sync()
    assert (out.to_host().sync() == 4).all()
    stream = device.new_stream()

    def build(s: Any) -> Any:
        part = s.record(doubled(z.partition(8), x)).z
        return s.record(doubled(out, part))

    na.CudaGraph.scope(stream, build).launch().sync()
    assert (out.to_host().sync() == 4).all()


# --- what cannot be is refused by the call ---


def test_known_results_are_checked_by_the_call(device: na.Device) -> None:
    x, z, out = (na.zeros(32).sync() for _ in range(3))
    part = z.partition(8)
    with pytest.raises(AliasError, match="x are in the same storage"):
        doubled(z, doubled(part, x).output())
    with pytest.raises(AliasError, match="x are in the same storage"):
        doubled(na.value(z).partition(8), doubled(part, x).shared().output())
    with pytest.raises(LauncherError, match=r"result\.z, or op\.output\(\)"):
        doubled(out, doubled(part, x))
    with pytest.raises(LauncherError, match="a is annotated as a number"):
        scaled(out, doubled(part, x).unzip()[0])
    with pytest.raises(OperationError, match="only the result of a launch has outputs"):
        doubled(out, na.value(x).output())
    with pytest.raises(LauncherError, match="z is a na.KernelOutput"):
        doubled(na.value(1.5), x)
    # What is plain in it, too, though another argument is only known when it has been run.
    with pytest.raises(LauncherError, match="x cannot be str"):
        doubled(na.zeros(8), "x")
    assert not out.to_host().sync().any()


@na.launcher
@cuda.jit
def scaled(z: na.KernelOutput, a: float):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] *= a


def test_nothing_is_called_to_know_it(device: na.Device) -> None:
    x, out = (na.zeros(32).sync() for _ in range(2))
    seen: list[Any] = []

    def look(value: Any) -> Any:
        seen.append(value)
        return value

    ops = [doubled(out, na.value(x).map(look)), doubled(out, na.value(x).inspect(look))]
    held = na.value(na.zeros(32).sync().shared()).partition(8)
    ops.append(doubled(held, x))  # which moves what it holds, when it runs
    assert not seen
    assert np.array([op.sync().z is not None for op in ops]).all()
    assert len(seen) == 2
