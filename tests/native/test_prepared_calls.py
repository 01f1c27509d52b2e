"""Prepared launches: what the core runs without building an operation, and what it hands over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import numbasync as na
from numbasync import native
from numbasync.device.callsite import CallSite
from numbasync.errors import DriverError, NumbasyncError, ReentrancyError
from tests.common import add_one, saxpy
from tests.native.null_device import launches, library
from tests.native.test_gathered import queued

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


def test_changed_arguments(null: na.Device) -> None:
    """Changes of every kind, with the core and without."""
    stream, kernels = null.new_stream(), null.backend.kernels  # type: ignore[attr-defined]
    z, x, y = (na.zeros(8).sync_on(stream) for _ in range(3))
    names = {t.storage.memory.address: name for t, name in ((z, "z"), (x, "x"), (y, "y"))}
    unnamed: Any = (1.0,)
    runs = [saxpy.prepare(z, a, x) for a in (1.0, 1)]
    changes: list[dict[str, Any]] = [
        {}, {"a": 2.0}, {"a": 2}, {"a": 2**63 - 1}, {"a": 2**63}, {"a": -(2**63) - 1}, {"a": True},
        {"x": y}, {"x": z}, {"x": x}, {"b": 1.0}, {"a": "a"}, {"a": 3.0, "x": y},
    ]  # fmt: skip

    def outcome(call: Callable[[], Any]) -> Any:
        first = len(launches())
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return [launch.described(kernels, names) for launch in launches(first)]

    outcomes = []
    for on in (False, False, True, True):  # planned by the first
        native.switch(on)
        outcomes.append([
            outcome(call)
            for run in runs
            for change in changes
            for call in (
                lambda run=run, change=change: run(**change).async_on(stream),
                lambda run=run, change=change: run.async_on(stream, **change),
                lambda run=run, change=change: run.sync_on(stream, **change),
            )
        ] + [outcome(lambda: runs[0](*unnamed))])  # fmt: skip
    assert outcomes[1:] == outcomes[1:2] * 3


def prepared(stream: na.Stream) -> tuple[na.Tensor, Any]:
    """A tensor, and a prepared launch whose plan is known."""
    z = na.zeros(8).sync_on(stream)
    run = add_one.prepare(z)
    for _ in range(2):
        run().sync_on(stream)
    return z, run


WAYS = ("async_on", "sync_on")


@pytest.mark.parametrize("way", WAYS)
def test_what_a_run_leaves_behind(null: na.Device, on: bool, way: str) -> None:
    stream = null.new_stream()
    z, run = prepared(stream)
    getattr(run, way)(stream)
    submission = z.storage.writer
    assert (submission.done, submission.detached) == (way == "sync_on", way == "async_on")
    assert submission.launched == ("add_one",)
    assert isinstance(submission.site, CallSite)
    assert submission.site.code.co_name == "test_what_a_run_leaves_behind"


@pytest.mark.parametrize("way", WAYS)
def test_not_inside_of_another_operation(null: na.Device, on: bool, way: str) -> None:
    stream = null.new_stream()
    z, run = prepared(stream)
    with pytest.raises(ReentrancyError):
        add_one(z).map(lambda r: getattr(run, way)(stream)).async_on(stream)


@pytest.mark.parametrize("way", WAYS)
def test_not_before_what_waits(null: na.Device, on: bool, way: str) -> None:
    stream = null.new_stream()
    z, run = prepared(stream)

    async def main() -> None:
        with queued(z, stream) as in_order:
            getattr(run, way)(stream)
            in_order()

    na.run(main())


def test_not_behind_a_fault(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    _, run = prepared(stream)
    stream.break_with(DriverError("cuStreamQuery", 1, "CUresult 1", ""))
    first = len(launches())
    with pytest.raises(DriverError):
        run.async_on(stream)
    assert len(launches()) == first


def test_not_on_another_stream_than_its_own(null: na.Device, on: bool) -> None:
    stream, other = null.new_stream(), null.new_stream()
    run = add_one[(1,), (8,), stream].prepare(na.zeros(8).sync_on(stream))
    for _ in range(2):
        run.sync_on(stream)
        run().sync()
        with pytest.raises(NumbasyncError, match="names .* in its brackets, but is"):
            run.sync_on(other)


def test_not_without_blocks(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    run = add_one.prepare(na.zeros(0).sync_on(stream))
    for _ in range(3):
        run().sync_on(stream)
        run.sync_on(stream)
    assert not launches()


def test_a_run_that_the_driver_refuses_is_numbered(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    _, run = prepared(stream)
    number = stream._sequence
    library().null_fail(1, 0)
    with pytest.raises(DriverError, match="cuLaunchKernel"):
        run.async_on(stream)
    library().null_fail(0, 0)
    assert (stream._sequence, stream.in_flight_count) == (number + 1, 1)
