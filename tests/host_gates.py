"""Gates that hold the host's side of a CUDA stream, for `compute-sanitizer`.

The sanitizer lets a launch wait until its kernel has ended, so a kernel behind a gate on the
device would hold up the program that is to open the gate. With this plugin

    pytest -p tests.host_gates --device cuda

a gate keeps what is enqueued behind it in a list, and opening it enqueues the list. What
waits for an event of such a stream is kept, too. The device sees the same work in an order
that the gates allow; what it does at the same time is what remains to it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numbasync.backend.cuda.event import CudaEvent
from numbasync.backend.cuda.stream import CudaQueue, CudaStream
from numbasync.backend.protocols import counters

# What needs a gate on the device.
ON_THE_DEVICE = {
    "test_enqueued_launches_keep_their_arguments": "a replay that is kept gets later arguments",
    "test_pytorch_comes_behind_the_blocks_work": "PyTorch's stream is not kept",
}
_changed = threading.Condition()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        reason = ON_THE_DEVICE.get(getattr(item, "originalname", item.name))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


class _Gate:
    def __init__(self) -> None:
        self.is_open = False


class _Mark(_Gate):
    """Open when the device has been told to record `event`, which nobody records again."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.event = CudaEvent(device, timing=False)


class _Held:
    """What a stream has been told and has not enqueued: calls, and what they wait for."""

    def __init__(self) -> None:
        self.entries: deque[Callable[[], Any] | _Gate] = deque()
        self.draining = False


def _held(stream: CudaStream) -> _Held:
    return _held_by.setdefault(stream, _Held())


def _enqueue(stream: CudaStream, call: Callable[[], Any]) -> None:
    """Now, if nothing is held; else behind what is held."""
    with _changed:
        held = _held(stream)
        if held.entries or held.draining:
            held.entries.append(call)
            return
    call()


def _drain_all() -> None:
    """Enqueue everything that no gate holds any more, stream by stream."""
    moved = True
    while moved:
        moved = False
        for stream in list(_held_by):
            moved = _drain(stream) or moved


def _drain(stream: CudaStream) -> bool:
    held = _held(stream)
    moved = False
    with _changed:
        if held.draining:
            return False
        held.draining = True
        try:
            while held.entries:
                entry = held.entries[0]
                if isinstance(entry, _Gate):
                    if not entry.is_open:
                        break
                else:
                    entry()
                held.entries.popleft()
                moved = True
        finally:
            held.draining = False
            _changed.notify_all()
    return moved


# In the order in which they were made. None is given up: the process ends with the tests.
_held_by: dict[CudaStream, _Held] = {}
_init = CudaStream.__init__
_record, _wait, _write = CudaStream.record, CudaStream.wait, CudaStream.write
_query, _synchronize, _wake = CudaStream.query, CudaStream.synchronize, CudaStream.wake
_spin_poll = CudaStream.spin_poll


def _new(self: CudaStream, *args: Any) -> None:
    _init(self, *args)
    _held(self)


def hold(self: CudaStream) -> Callable[[], None]:
    gate = _Gate()
    with _changed:
        _held(self).entries.append(gate)

    def release() -> None:
        gate.is_open = True
        _drain_all()

    return release


def record(self: CudaStream, event: CudaEvent) -> None:
    mark = event.__dict__["_recorded"] = _Mark(self.device)

    def call() -> None:
        _record(self, event)
        _record(self, mark.event)
        mark.is_open = True

    _enqueue(self, call)


def wait(self: CudaStream, event: Any) -> None:
    mark = event.__dict__.get("_recorded") if isinstance(event, CudaEvent) else None
    if mark is None or mark.is_open:
        _enqueue(self, lambda: _wait(self, event))
        return
    with _changed:  # `event` itself may be recorded again before the mark is open
        entries = _held(self).entries
        entries.append(mark)
        entries.append(lambda: _wait(self, mark.event))


def write(self: CudaStream, sequence: int) -> None:
    _enqueue(self, lambda: _write(self, sequence))


def query(self: CudaStream) -> bool:
    return not _held(self).entries and _query(self)


def spin_poll(self: CudaStream) -> bool:
    return not _held(self).entries and _spin_poll(self)


def synchronize(self: CudaStream) -> None:
    with _changed:
        _changed.wait_for(lambda: not _held(self).entries)
    _synchronize(self)


def wake(self: CudaStream, sequence: int, waker: Any) -> bool:
    with _changed:
        if not _held(self).entries:
            return _wake(self, sequence, waker)
        _held(self).entries.append(lambda: _wake(self, sequence, waker))
        return True


def _later(method: Callable[..., None], counter: str, count: int) -> Callable[..., None]:
    """Counted when it is called, as it would be if the device held the gate."""

    def enqueue(self: CudaQueue, *args: Any) -> None:
        with _changed:
            held = _held(self._stream)
            is_free = not held.entries and not held.draining
        if is_free:  # what a stream that captures is told is not counted
            method(self, *args)
            return
        before = getattr(counters, counter)

        def call() -> None:
            here = getattr(counters, counter)
            method(self, *args)
            setattr(counters, counter, here)

        _enqueue(self._stream, call)
        setattr(counters, counter, before + count)

    return enqueue


def _event_query(self: CudaEvent) -> bool:
    mark = self.__dict__.get("_recorded")
    return (mark is None or mark.is_open) and bool(self.core.is_done)


def _event_synchronize(self: CudaEvent) -> None:
    mark = self.__dict__.get("_recorded")
    with _changed:
        _changed.wait_for(lambda: mark is None or mark.is_open)
    self.core.sync()


def _through_queue(name: str) -> Callable[..., Any]:
    """What the stream has a quick way for, by the queue, whose methods keep it."""

    def enqueue(self: CudaStream, *args: Any) -> Any:
        *operands, queue = args
        queue = queue or self.open()
        getattr(queue, name)(*operands)
        return queue

    return enqueue


def _upload(self: CudaStream, dst: Any, block: Any, queue: Any) -> Any:
    queue = queue or self.open()
    queue.upload(dst, np.ndarray((dst.nbytes,), np.uint8, block))
    return queue


def _download(self: CudaStream, block: Any, src: Any, queue: Any) -> Any:
    queue = queue or self.open()
    queue.download(np.ndarray((src.nbytes,), np.uint8, block), src)
    return queue


_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": _new, "hold": hold, "record": record, "wait": wait, "write": write,
    "query": query, "spin_poll": spin_poll, "synchronize": synchronize, "wake": wake,
    "launch": _through_queue("launch"), "fill": _through_queue("fill"),
    "replay": _through_queue("replay"), "copy_peer": _through_queue("copy_peer"),
    "upload": _upload, "download": _download,
}  # fmt: skip
for _name, _method in _METHODS.items():
    setattr(CudaStream, _name, _method)
_COUNTED = {  # the counter of each method of a queue, and what a call adds to it
    "launch": ("launches", 1), "replay": ("replays", 1), "upload": ("copies", 1),
    "download": ("copies", 1), "copy": ("copies", 1), "copy_peer": ("copies", 1),
    "fill": ("copies", 0), "generate": ("launches", 0),
}  # fmt: skip
for _name, (_counter, _count) in _COUNTED.items():
    setattr(CudaQueue, _name, _later(getattr(CudaQueue, _name), _counter, _count))
CudaEvent.query = _event_query
CudaEvent.synchronize = _event_synchronize
