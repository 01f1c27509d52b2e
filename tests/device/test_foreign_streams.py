"""Streams and events of other libraries where there is no GPU: what is taken for one, and what is
refused by name. On a GPU: tests/gpu/test_foreign_streams_cuda.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.backend.stream_handles import Handle, event_handle, stream_handle
from numbasync.errors import CallerError, DeviceMismatchError, LaunchError, OperationError
from tests.common import add_one

pytestmark = pytest.mark.usefixtures("cpu")


class Theirs:
    """A default stream by the protocol, as a method or, as it once was, an attribute."""

    def __init__(self, number: Any = 0, version: Any = 0) -> None:
        self._given = version, number

    def __cuda_stream__(self) -> Any:
        return self._given


class Attribute:
    __cuda_stream__ = 0, 7


class OfPyTorch:
    """Before PyTorch had the protocol."""

    cuda_stream = 8
    device_index = 1


class OfCuPy(Theirs):
    ptr = 9
    device_id = -1
    done = True

    def wait_event(self, event: object) -> None: ...


def test_what_is_a_stream() -> None:
    assert stream_handle(Theirs(5)) == Handle(5, None)
    assert stream_handle(Attribute()) == Handle(7, None)
    assert stream_handle(OfPyTorch()) == Handle(8, 1)
    assert stream_handle(OfCuPy(9)) == Handle(9, None)
    for none in (5, None, "stream", np.zeros(3), na.SingleStream, Theirs):
        assert stream_handle(none) is None
    for wrong in (Theirs(version=1), Theirs("x"), Theirs(None)):
        with pytest.raises(OperationError, match=r"and not \(0, handle\)"):
            stream_handle(wrong)


def test_what_is_an_event() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")

    class Device:
        device_id = 2

    class OfNumba:
        handle = driver.CUevent(5)

    class OfCore(OfNumba):
        device = Device()

    class EventOfPyTorch:
        cuda_event = 0
        device = None

    class EventOfCuPy:
        ptr = 6
        done = True

    assert event_handle(OfNumba()) == Handle(5, None)
    assert event_handle(OfCore()) == Handle(5, 2)
    assert event_handle(EventOfPyTorch()) == Handle(0, None)
    assert event_handle(EventOfCuPy()) == Handle(6, None)
    for none in (5, None, OfCuPy(), OfPyTorch(), EventOfCuPy, open):
        assert event_handle(none) is None


def test_ours_are_ours(cpu: na.Device) -> None:
    stream, event = cpu.new_stream(), cpu.new_event()
    assert na.Stream.of(stream) is na.Stream.of(stream, cpu) is stream
    assert na.Event.of(event) is na.Event.of(event, cpu) is event
    other = na.devices("cpu")[1]
    with pytest.raises(DeviceMismatchError, match=f"no stream of {other.label}"):
        na.Stream.of(stream, other)
    with pytest.raises(DeviceMismatchError, match=f"no event of {other.label}"):
        na.Event.of(event, other)
    with pytest.raises(CallerError, match=r"a stream of any library, not int \(0\)"):
        na.Stream.of(0)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="an event of any library, not Stream"):
        na.Event.of(stream)
    with pytest.raises(DeviceMismatchError, match=r"CUDA devices only, and this one is of cpu:0"):
        _ = stream.numba


TAKERS: dict[str, Callable[[na.Device, na.Stream, Any], object]] = {
    "Stream.of": lambda device, stream, theirs: na.Stream.of(theirs),
    "Stream.of a device": lambda device, stream, theirs: na.Stream.of(theirs, device),
    "brackets": lambda device, stream, theirs: add_one[1, 32, theirs],
    "forall": lambda device, stream, theirs: add_one.forall(32, 0, theirs),
    "wait_for": lambda device, stream, theirs: stream.wait_for(theirs),
    "record": lambda device, stream, theirs: device.new_event().record(theirs),
    "wait": lambda device, stream, theirs: device.new_event().wait(theirs),
    "scope": lambda device, stream, theirs: na.CudaGraph.scope(theirs),
    "batch": lambda device, stream, theirs: na.CommandBatch().graph(theirs),
    "policy": lambda device, stream, theirs: setattr(device, "policy", theirs),
}
RUNNERS: dict[str, Callable[[na.DeviceOp[Any], Any], object]] = {
    "sync_on": lambda op, theirs: op.sync_on(theirs),
    "async_on": lambda op, theirs: op.async_on(theirs),
    "schedule": lambda op, theirs: op.schedule(theirs),
    "spawn": na.spawn,
    "graph_on": lambda op, theirs: op.graph_on(theirs),
}


@pytest.mark.parametrize("taker", [*TAKERS, *RUNNERS])
def test_the_cpu_device_refuses_streams_of_cuda(cpu: na.Device, taker: str) -> None:
    policy, z = cpu.policy, na.zeros(4).sync()
    op = na.fill(z, 1)
    with pytest.raises(DeviceMismatchError, match="CUDA device"):
        if taker in TAKERS:
            TAKERS[taker](cpu, cpu.new_stream(), Theirs())
        else:
            RUNNERS[taker](op, Theirs())
    assert cpu.policy is policy
    assert cpu.in_flight.ops == 0
    op.suppress_warning()
    assert (z.to_host().sync() == 0).all()


@pytest.mark.parametrize("taker", [*TAKERS, *RUNNERS])
def test_what_is_no_stream_is_refused_as_before(cpu: na.Device, taker: str) -> None:
    op = na.value(1)
    with pytest.raises((CallerError, LaunchError, OperationError)):
        if taker in TAKERS:
            TAKERS[taker](cpu, cpu.new_stream(), "a stream")
        else:
            RUNNERS[taker](op, "a stream")
    op.suppress_warning()


def test_the_cpu_device_refuses_events_of_cuda() -> None:
    class OfCuPy:
        ptr = 6
        done = True

    with pytest.raises(DeviceMismatchError, match="CUDA device"):
        na.Event.of(OfCuPy())


def test_0_in_brackets_is_the_policys() -> None:
    """0 is the policy's stream, and no default stream of CUDA."""
    op = add_one[1, 32, 0](na.zeros(4).sync())
    assert op.stream is None
    op.sync()
    for wrong in (1, 1.0, None, "0"):
        with pytest.raises(LaunchError, match="a na.Stream or one of another library"):
            add_one[1, 32, wrong]
