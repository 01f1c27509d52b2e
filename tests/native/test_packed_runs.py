"""Runs of algorithms on the null driver: the core's, and Python's, which say the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import native
from numbasync.algorithms.launches import Launches
from numbasync.algorithms.operation import Algorithm
from numbasync.backend.protocols import counters
from numbasync.errors import DriverError
from tests.common import add_one
from tests.native.null_device import launches, library

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
F32 = np.dtype(np.float32)


@na.launcher(may_alias=True)
@cuda.jit
def combine(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput, scale: float) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = scale * x[i] + y[i]


def plan(count: int, shape: Any, dtype: Any) -> Launches:
    """`count` launches over an operand, scratch that is filled, a constant, and a result."""
    run = Launches((shape, dtype))
    (x,) = run.operands
    scratch, z = run.full((12,), 0, dtype), run.empty((2, 4), dtype)
    constant = run.constant(np.arange(16, dtype=np.uint8))
    for i in range(count):
        part = scratch.part(i % 3 + 1, (8,))
        run.launch(combine[1, 32], z.reshape((8,)), x, part, float(i))
    run.give(z, scratch.part(1, (3,)), constant)
    return run


def put_together(x: na.Tensor, count: int = 3) -> Algorithm[Any]:
    build = plan(count, x.shape, x.dtype)
    op = Algorithm[Any]("combined", x, partial(lambda *_: build))
    op.sync()  # by its steps, after which the launches are known
    return Algorithm("combined", x, partial(lambda *_: build))


def by_steps(self: Any, ctx: Any) -> Any:
    raise AssertionError(f"{self} took steps")


@pytest.mark.parametrize("count", [1, 3, 40])
def test_launches_of_a_run(
    null: na.Device, on: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = na.zeros(8).sync()
    op = put_together(x, count)
    monkeypatch.setattr(Algorithm, "steps", by_steps)
    stream, first, before = null.new_stream(), len(launches()), counters.launches
    z, part, constant = op.async_on(stream)
    submission = z.storage.writer
    assert counters.launches - before == count
    *used, block = submission.keep_alive
    assert set(used) == {t.storage for t in (x, z, part, constant)}
    assert np.frombuffer(block, np.uint8).tolist() == list(range(16))
    assert x.storage.readers[stream] is part.storage.writer is submission
    assert (submission.nbytes, submission.copied) == (12 * 4 + 8 * 4 + 2 * 16, 16)
    assert len(submission.launched) == 1
    assert (z.shape, part.shape, part.address) == ((2, 4), (3,), part.storage.memory.address + 4)
    names = {t.storage.memory.address: name for t, name in ((x, "x"), (z, "z"))}
    names |= {part.storage.memory.address + 4 * i: f"scratch + {4 * i}" for i in (1, 2, 3)}
    kernels: Any = null.backend
    for i, launch in enumerate(launches(first)):
        _, _, extents, *arrays, scale = launch.described(kernels.kernels, names)
        assert (extents[:6], scale) == ([1, 1, 1, 32, 1, 1], (float(i),))
        assert [a[4] for a in arrays] == ["z", "x", f"scratch + {4 * (i % 3 + 1)}"]
        assert [a[2:4] + a[5:] for a in arrays] == [[8, 4]] * 3
        assert launch.arguments[32 + 8 : 56] == np.array([8, 4], np.int64).tobytes()
    stream.synchronize()


@pytest.mark.parametrize("case", ["written elsewhere", "moved"])
def test_what_takes_steps(
    null: na.Device, on: bool, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, stream = na.zeros(8).sync(), null.new_stream()
    add_one(x).sync_on(stream)
    op = put_together(x)
    if case == "written elsewhere":
        library().null_hold(stream.backend.handle_number, 1)
        add_one(x).async_on(stream)
    else:
        kept = x.take()
        assert kept is not x
    monkeypatch.setattr(Algorithm, "steps", by_steps)
    first = len(launches())
    with pytest.raises(AssertionError, match="took steps"):
        op.async_on(null.new_stream())
    assert len(launches(first)) == 0
    library().null_hold(stream.backend.handle_number, 0)
    stream.synchronize()


def test_an_operand_at_another_place(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was planned for aligned vectors is not run on a view that begins within one."""
    whole = na.zeros(12).sync()
    build = plan(3, (8,), F32)
    by_steps, steps = list[bool](), Launches.steps

    def noted(self: Launches, ctx: Any, operands: Any) -> Any:
        by_steps.append(operands[0].is_aligned)
        return steps(self, ctx, operands)

    monkeypatch.setattr(Launches, "steps", noted)
    for x in (whole[4:], whole[4:], whole[:8], whole[1:9], whole[2:10]):
        first = len(launches())
        Algorithm[Any]("combined", x, partial(lambda *_: build)).sync_on(null.new_stream())
        kernels: Any = null.backend
        found = [launch.described(kernels.kernels, {x.address: 1}) for launch in launches(first)]
        assert [row[4][4] for row in found] == [1] * 3
    assert by_steps == [True, False]


def test_a_refused_launch_of_a_run(null: na.Device, on: bool) -> None:
    x, stream = na.zeros(8).sync(), null.new_stream()
    op = put_together(x)
    first, number = len(launches()), stream._sequence
    library().null_fail(1, 4)  # a fill and an upload come first
    with pytest.raises(DriverError, match="cuLaunchKernel"):
        op.async_on(stream)
    library().null_fail(0, 0)
    assert (len(launches(first)), stream._sequence) == (2, number + 1)
    submission = x.storage.readers[stream]
    assert len(submission.keep_alive) == 5 and submission.launched[0] == "combine"
    stream.synchronize()
    assert not stream.in_flight_count
