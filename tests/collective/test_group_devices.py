"""A collective of a group runs on its communicator's device, whatever device is current."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import numbasync as na
from numbasync.collective import Communicator, all_gather, all_reduce, broadcast, new_key, recv
from numbasync.errors import DeviceMismatchError
from tests.waiting import begin

N = 8


@pytest.fixture
def far(device: na.Device) -> na.Device:
    """Another device than the current one."""
    kind = na.devices(device.kind) if len(na.devices(device.kind)) > 1 else na.devices("cpu")
    return next(d for d in kind if d is not device)


@pytest.fixture
def alone(far: na.Device) -> Iterator[Communicator]:
    with Communicator(new_key(1), 0, far) as comm:
        yield comm


@pytest.fixture
def two(far: na.Device) -> Iterator[list[Communicator]]:
    """Both ranks of a group, on one device."""
    if far.backend.collectives is not None:
        pytest.skip("NCCL takes one rank of each GPU")
    key = new_key(2)
    other = begin(lambda: Communicator(key, 1, far))
    comms = [Communicator(key, 0, far), other()]
    yield comms
    for comm in comms:
        comm.close()


COLLECTIVES: dict[str, Callable[[na.Tensor, Communicator], na.DeviceOp[na.Tensor]]] = {
    "all_reduce": lambda t, comm: all_reduce(t, comm=comm),
    "all_gather": lambda t, comm: all_gather(t, comm=comm),
    "broadcast": lambda t, comm: broadcast(t, 0, comm=comm),
}


@pytest.mark.parametrize("name", COLLECTIVES)
async def test_what_sends_runs_where_the_communicator_is(
    device: na.Device, far: na.Device, alone: Communicator, name: str
) -> None:
    t = na.ones(N).sync_on(far.new_stream())
    make = COLLECTIVES[name]
    with na.use_device(device):
        got = [await make(t, alone), (await na.gather(na.zeros(3), make(t, alone)))[1]]
        got += [await na.spawn(make(t, alone)), await make(t, alone).then(lambda u: u.dup())]
        got.append((await na.zip(na.zeros(3), make(t, alone)))[1])
    assert [u.device for u in got] == [far] * 5
    for u in got:
        assert (await u.to_host()).tolist() == [1] * N


def test_what_only_receives_does_too(
    device: na.Device, far: na.Device, two: list[Communicator]
) -> None:
    t = na.full(N, 5).sync_on(far.new_stream())
    for receive, send in (
        (lambda: broadcast(t, 1, comm=two[0]), lambda: broadcast(t, 1, comm=two[1])),
        (lambda: recv(N, 1, two[0]), lambda: na.collective.send(t, 0, two[1])),
    ):
        received = begin(lambda receive=receive: receive().sync())  # type: ignore[misc]
        send().sync()
        got: Any = received()
        assert got.device is far and got.to_host().sync().tolist() == [5] * N


async def test_another_devices_streams_are_refused(
    device: na.Device, far: na.Device, two: list[Communicator]
) -> None:
    t, here = na.ones(N).sync_on(far.new_stream()), device.new_stream()
    advice = f"communicator is of {far.label}(?s:.)*Name no stream"
    makes: list[Callable[[], na.DeviceOp[Any]]] = [
        lambda: all_reduce(t, comm=two[0]),
        lambda: broadcast(t, 1, comm=two[0]),
        lambda: recv(N, 1, two[0]),
    ]
    for make in makes:
        with pytest.raises(DeviceMismatchError, match=advice):
            make().sync_on(here)
        with pytest.raises(DeviceMismatchError, match=advice):
            await na.zeros(3).then(lambda _, make=make: make())  # type: ignore[misc]
