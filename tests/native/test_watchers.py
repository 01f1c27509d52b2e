"""The core's threads that watch a stream and wake a loop: on the null driver, whose streams a test
holds.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import numbasync as na
from numbasync import native
from numbasync.errors import DeviceLostError
from tests.native.null_device import LOST, library

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
LONG = 3600.0  # seconds, of looks that end with the work


@dataclass
class Watched:
    """A stream that is held, and a watcher of it, with the eventfd that it rings."""

    stream: na.Stream
    watcher: Any
    descriptor: int

    def rings(self) -> bool:
        """Wait for a ring."""
        ready = select.select([self.descriptor], [], [], 60)[0]
        return bool(ready) and os.eventfd_read(self.descriptor) > 0

    def has_rung(self) -> bool:
        return bool(select.select([self.descriptor], [], [], 0)[0])


@pytest.fixture
def watched(null: na.Device) -> Iterator[Watched]:
    stream = null.new_stream()
    backend: Any = stream.backend
    event = 8  # the null driver's events are numbers
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    watcher = native.core.Watcher(event)
    threading.Thread(target=watcher.run, daemon=True).start()
    release = backend.hold()
    stream.enqueue_signal()
    assert library().cuEventRecord(event, backend.handle_number) == 0
    yield Watched(stream, watcher, descriptor)
    release()
    os.close(descriptor)


def watch(watched: Watched, seconds: float) -> int:
    number = watched.stream._sequence
    calls: Any = watched.stream.backend.calls  # type: ignore[attr-defined]
    watched.watcher.start(calls, number, seconds, watched.descriptor)
    return number


def proved(watched: Watched) -> int:
    return int(watched.stream.backend.calls.proved_number)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_it_rings_when_the_device_has_passed_the_number(watched: Watched, seconds: float) -> None:
    for _ in range(2):
        number = watch(watched, seconds)
        assert watched.watcher.is_busy and not watched.has_rung() and proved(watched) < number
        watched.stream.backend.pass_all()  # type: ignore[attr-defined]
        assert watched.rings()
        assert not watched.watcher.is_busy
        assert proved(watched) == number
        watched.watcher.rest()
        watched.stream.enqueue_signal()


@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_a_fault_rings_and_proves_nothing(watched: Watched, seconds: float) -> None:
    number = watch(watched, seconds)
    library().null_fail(LOST, 0)
    watched.stream.backend.pass_all()  # type: ignore[attr-defined]
    assert watched.rings()
    assert proved(watched) < number


def test_what_a_thread_has_proved_needs_no_query(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = watch(watched, LONG)
    watched.stream.backend.pass_all()  # type: ignore[attr-defined]
    assert watched.rings()
    library().null_fail(LOST, 0)  # of the next call
    watched.stream.verify(number)
    assert watched.stream.verified == number


def test_what_a_task_sees_pass_is_proved_by_the_driver(null: na.Device) -> None:
    stream = null.new_stream()
    backend: Any = stream.backend
    for lost in (False, True):
        number = stream.enqueue_signal()
        library().null_fail(LOST if lost else 0, 0)
        assert stream.passes_soon(number)
        assert (int(backend.calls.proved_number) == number) is not lost
        if lost:
            with pytest.raises(DeviceLostError):
                stream.verify(number)


def test_the_driver_is_not_asked_where_a_notification_tells(
    null: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = null.new_stream()
    backend: Any = stream.backend
    number = stream.enqueue_signal()
    backend._notifications = (number,)
    monkeypatch.setattr(type(backend), "verified_sequence", lambda self: number)
    library().null_fail(LOST, 0)
    stream.verify(number)
    with pytest.raises(DeviceLostError):
        stream.verify(number + 1)
