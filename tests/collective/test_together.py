"""Collectives of several devices by a library of theirs, enqueued at once: here by one that adds
what it finds, as soon as the group of calls ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.collective import all_reduce, local, together
from numbasync.testing import Gate
from tests.common import full
from tests.interrupted_calls import WAYS, Interrupted, quietly


class Library:
    """`call` runs for each call of a rank, before it is noted."""

    def __init__(self) -> None:
        self.groups: list[list[tuple[Any, Any, Any]]] = []
        self.call: Callable[[int], None] = lambda number: None

    def takes(self, dtype: Any, op: str | None = None) -> bool:
        return True

    def record(self, *call: Any) -> None:
        """Python makes the calls."""

    def ranks(self, devices: Any) -> Any:
        return [Rank(self) for _ in devices]

    def make(self, calls: Sequence[Callable[[], object]], rank: Rank) -> None:
        self.groups.append([])
        for call in calls:
            call()
        total = sum(send.array.copy() for _, send, _ in self.groups[-1])
        for _, _, recv in self.groups[-1]:
            recv.array[...] = total


class Rank:
    def __init__(self, library: Library) -> None:
        self._library = library

    def all_reduce(self, stream: Any, send: Any, recv: Any, op: str) -> Callable[[], object]:
        def call() -> None:
            calls = self._library.groups[-1]
            self._library.call(len(calls))
            calls.append((stream, send, recv))

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    kind = type(na.devices("cpu")[0].backend)
    monkeypatch.setattr(kind, "collectives", property(lambda self: library))
    for known in ("_groups", "_plans"):
        monkeypatch.setattr(local, known, {})
    return library


@pytest.fixture
def devices() -> list[na.Device]:
    return na.devices("cpu")[:2]


@pytest.fixture
def parts(devices: list[na.Device]) -> list[na.Tensor]:
    return [na.to_device(np.full(8, i + 1, np.float32), d).sync() for i, d in enumerate(devices)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, library: Library, parts: list[na.Tensor]) -> list[bool]:
    """Of each collective from now on, whether it went the quick way. The group is known."""
    all_reduce(parts).sync()
    ways: list[bool] = []
    tried = together.enqueue_together

    def noted(*args: Any) -> Any:
        results = tried(*args)
        ways.append(results is not None)
        return results

    monkeypatch.setattr(together, "enqueue_together", noted)
    return ways


def totals(tensors: Any) -> list[float]:
    arrays = [t.to_host().sync_on(t.device.new_stream()) for t in tensors]
    return [float(x) for array in arrays for x in set(array.tolist())]


async def test_the_first_call_makes_the_group(
    parts: list[na.Tensor], quick: list[bool], devices: list[na.Device], library: Library
) -> None:
    results = await all_reduce(parts)
    assert quick == [True] and totals(results) == [3, 3]
    assert [t.device for t in results] == devices and len(library.groups) == 2
    assert totals(all_reduce(parts, out=parts).sync()) == [3, 3]
    assert (await all_reduce(parts, out=parts)) == tuple(parts)
    assert quick == [True] * 3 and totals(parts) == [6, 6]
    (results,) = await asyncio.gather(all_reduce(parts))
    assert totals(results) == [12, 12]


def test_it_is_done_when_all_devices_are(
    parts: list[na.Tensor], quick: list[bool], devices: list[na.Device], library: Library
) -> None:
    stream = devices[0].new_stream()
    group = local._groups[tuple(devices)]
    with Gate(group.streams[0]) as gate:
        all_reduce(parts, out=parts).async_on(stream)
        assert quick == [True]
        assert not stream.query(), "the other device's part is not over"
        first, second = [part.storage.writer for part in parts]
        assert first.dependencies == [second], "its error would be the operation's"
        gate.open()
        stream.synchronize()
    na.fill(parts[1], 0).sync()
    assert parts[1].storage.writer.done


@pytest.mark.parametrize("busy", [0, 1])
@pytest.mark.parametrize("writes", [True, False])
def test_what_has_to_wait_goes_the_other_way(
    parts: list[na.Tensor], quick: list[bool], devices: list[na.Device], busy: int, writes: bool
) -> None:
    stream, elsewhere = devices[0].new_stream(), devices[busy].new_stream()
    with Gate(elsewhere):
        if writes:
            na.fill(parts[busy], 5).async_on(elsewhere)
        else:  # it may be read by both, but not be written meanwhile
            parts[busy].dup().async_on(elsewhere)
        all_reduce(parts, out=parts).async_on(stream)
        assert quick == [False]
    stream.synchronize()


@pytest.mark.parametrize("busy", [0, 1])
def test_what_is_being_written_is_not_read(
    parts: list[na.Tensor], quick: list[bool], devices: list[na.Device], busy: int
) -> None:
    stream, elsewhere = devices[0].new_stream(), devices[busy].new_stream()
    with Gate(elsewhere):
        na.fill(parts[busy], 5).async_on(elsewhere)
        all_reduce(parts).async_on(stream)
        assert quick == [False]
    stream.synchronize()


def test_what_is_being_read_is_not_written(
    parts: list[na.Tensor], quick: list[bool], devices: list[na.Device]
) -> None:
    elsewhere = devices[1].new_stream()
    with Gate(local._groups[tuple(devices)].streams[0]) as gate:
        all_reduce(parts).async_on(devices[0].new_stream())
        na.fill(parts[1], 0).async_on(elsewhere)
        assert quick == [True] and not elsewhere.query()
        gate.open()
        elsewhere.synchronize()


def test_new_tensors_need_no_wait_for_readers(
    parts: list[na.Tensor], quick: list[bool], devices: list[na.Device]
) -> None:
    elsewhere = devices[1].new_stream()
    with Gate(elsewhere):
        parts[1].dup().async_on(elsewhere)
        assert totals(all_reduce(parts).sync()) == [3, 3]
    assert quick == [True]


def test_limits_and_other_first_devices_go_by_steps(
    parts: list[na.Tensor], quick: list[bool], devices: list[na.Device]
) -> None:
    with na.limit(100, device=devices[1]):
        assert totals(all_reduce(parts).sync()) == [3, 3]
    assert quick == [False]
    all_reduce(parts).sync_on(devices[1].new_stream())
    assert quick == [False, False]


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
@pytest.mark.parametrize("number", [0, 1])
def test_after_an_error_tensors_are_as_if_enqueued(
    parts: list[na.Tensor], quick: list[bool], library: Library, devices: list[na.Device],
    kind: type[BaseException], number: int,
) -> None:  # fmt: skip
    def fail(call: int) -> None:
        if call == number:
            raise kind("k")

    library.call, stream = fail, devices[0].new_stream()
    with Gate(local._groups[tuple(devices)].streams[0]):
        with pytest.raises(kind):
            all_reduce(parts, out=parts).async_on(stream)
        writer = parts[1].storage.writer
        assert writer.sequence and not writer.done, "the device may be writing"
    stream.synchronize()
    library.call = lambda number: None
    assert totals(all_reduce(parts).sync()) == [3, 3]


@pytest.mark.parametrize("on", WAYS, ids=lambda on: "core" if on else "python")
@pytest.mark.parametrize("step", [7, full(1)])
def test_an_interrupt_anywhere_leaves_nothing(
    cpu: na.Device, library: Library, on: bool, step: int
) -> None:
    with quietly(on):
        interrupted = Interrupted(cpu)
        names = ("all_reduce", "await_all_reduce")
        interrupted.calls = {name: interrupted.calls[name] for name in names}
        assert not interrupted.sweep(step)
        assert len(library.groups) > 30 // step
