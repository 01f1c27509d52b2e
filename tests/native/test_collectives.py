"""The driver's calls of a collective of several devices, on the null driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

import numbasync as na
from numbasync import native
from numbasync.collective import all_reduce, local
from numbasync.device.device import Device
from tests.native.null_device import NullDevice, library

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
COUNT = 4


class Library:
    """A library of collectives that does nothing but enter the devices, as NCCL's ranks do."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int]] = []  # each one's stream, and what it was given

    def takes(self, dtype: Any, op: str | None = None) -> bool:
        return True

    def ranks(self, devices: Any) -> list[Rank]:
        return [Rank(self, device) for device in devices]

    @contextmanager
    def together(self) -> Iterator[None]:
        self.calls = []
        yield


class Rank:
    def __init__(self, own: Library, device: NullDevice) -> None:
        self._library, self._device = own, device

    def all_reduce(self, stream: Any, send: Any, recv: Any, op: str) -> None:
        native.core.enter(self._device)
        starts = [array.array.ctypes.data for array in (send, recv)]
        self._library.calls.append((stream.handle_number, *starts))


@pytest.fixture
def devices(null: na.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Device]]:
    monkeypatch.setattr(NullDevice, "collectives", Library(), raising=False)
    monkeypatch.setattr(local, "_groups", {})
    others = [Device(NullDevice(100 + i)) for i in range(COUNT - 1)]
    yield [null, *others]
    for other in others:
        other.backend._engine.stop()  # type: ignore[attr-defined]


@pytest.fixture
def parts(devices: list[Device]) -> list[na.Tensor]:
    """A part on each device, of a group that is known."""
    parts = []
    for device in devices:
        with na.use_device(device):
            parts.append(na.zeros(8).sync())
    all_reduce(parts, out=parts).sync()
    return parts


def context() -> int | None:
    """The context that is current on this thread."""
    current = ctypes.c_void_p()
    library().cuCtxGetCurrent(ctypes.byref(current))
    return current.value


def test_every_device_but_the_first_is_switched_to_twice(
    on: bool, devices: list[Device], parts: list[na.Tensor]
) -> None:
    """For the library's call, and for the event that the first one waits for."""
    stream = devices[0].new_stream()
    all_reduce(parts, out=parts).async_on(stream)
    before = library().null_switched()
    all_reduce(parts, out=parts).async_on(stream)
    assert library().null_switched() - before == 2 * (COUNT - 1)
    near = cast(NullDevice, devices[0].backend)
    assert context() == near.context, "on which the await goes on"
    stream.synchronize()


def test_the_first_stream_waits_for_every_other_one_once(
    on: bool, devices: list[Device], parts: list[na.Tensor]
) -> None:
    stream = devices[0].new_stream()
    waits = devices[0].backend.waits  # type: ignore[attr-defined]
    waits.clear()
    all_reduce(parts, out=parts).async_on(stream)
    group = local._groups[tuple(devices)]
    numbers = [s.backend.handle_number for s in group.streams]
    first = stream.backend.handle_number
    assert sorted(waits) == sorted((first, number) for number in numbers)
    calls = devices[0].backend.collectives.calls  # type: ignore[union-attr]
    starts = [part.storage.memory.address for part in parts]
    assert calls == [(n, at, at) for n, at in zip([first, *numbers], starts, strict=True)]
    assert all(stream.follows(other, other._sequence) for other in group.streams)
    stream.synchronize()
