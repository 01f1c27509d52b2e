"""The threads that copy."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from numbasync.backend import protocols
from numbasync.device import copy_threads
from numbasync.device.staging_ring import Deadline, Ring


def test_settling_waits_for_what_was_given() -> None:
    gate, done, settled = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        assert gate.wait(300)
        done.set()

    def settle() -> None:
        copy_threads.settle(30)
        assert done.is_set()
        settled.set()

    copy_threads.submit(call)
    waiting = threading.Thread(target=settle)
    waiting.start()
    assert not settled.wait(0.01)
    gate.set()
    waiting.join(300)
    assert settled.is_set()


def test_settling_gives_up_on_a_held_thread() -> None:
    gate = threading.Event()
    copy_threads.submit(lambda: gate.wait(300))
    copy_threads.settle(0.001)  # returns, and the threads go on
    gate.set()
    copy_threads.settle(30)
    assert copy_threads.submit_with_result(lambda: 1).result(30) == 1


@pytest.fixture
def large_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine of 20 processors."""
    monkeypatch.setattr(copy_threads, "THREADS", 4)
    monkeypatch.setattr(copy_threads, "HALF", 10)
    copy_threads.start_over()
    yield
    copy_threads.start_over()


class Memory:
    """The part of a device that its ring uses."""

    kind, ordinal = "test", 0

    def host_buffer(self, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.zeros(nbytes, np.uint8)

    def new_event(self, timing: bool) -> None:
        return None


def test_each_destination_device_has_its_own_threads(large_machine: None) -> None:
    """Threads that wait for one device's ring are no reason for another one to wait."""
    device: protocols.Device = Memory()  # type: ignore[assignment]
    numbers = [copy_threads.most()]
    for _ in range(3):
        ring = Ring(device)
        ring.take(Deadline())
        ring.take(Deadline())
        numbers.append(copy_threads.most())
    assert numbers == [4, 4, 8, 10], "at most half of the processors"
    gate, running = threading.Event(), threading.Semaphore(0)

    def call() -> None:
        running.release()
        assert gate.wait(300)

    for _ in range(12):
        copy_threads.submit(call)
    for _ in range(10):
        assert running.acquire(timeout=300)
    assert not running.acquire(timeout=0.01)
    gate.set()
    copy_threads.settle(300)
