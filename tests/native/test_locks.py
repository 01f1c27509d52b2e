"""Locks that another thread holds: the core leaves such a case to Python, which waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

import pytest

import numbasync as na
from numbasync import native
from numbasync.device.in_flight import Progress
from tests.common import add_one
from tests.native.null_device import library
from tests.native.test_pools import gpu_memory, pool_with

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


@contextmanager
def held_elsewhere(
    lock: Any, function: Any, into: Callable[[Any], object] | None = None
) -> Iterator[list[str]]:
    """A lock in another thread's hands, until the core calls `function`, of Python; its calls.

    `into` puts another function in its place; None: it is one that the core has taken over.
    """
    replace: Callable[[Any], object] = native.core.take_over if into is None else into
    calls, taken, free = list[str](), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            free.wait()

    def note(*args: Any) -> Any:
        calls.append(function.__qualname__)
        free.set()
        holder.join()
        return unwrap(function)(*args)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    note.__qualname__ = function.__qualname__
    replace(note)
    try:
        yield calls
    finally:
        replace(unwrap(function))
        free.set()
        holder.join()


def test_a_number_is_given_under_the_streams_lock(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    number = stream._sequence
    with held_elsewhere(stream._lock, Progress.commit) as calls:
        add_one(z).async_on(stream)
    assert calls == ["Progress.commit"]
    assert stream._sequence == number + 1


def test_a_passed_number_is_noted_under_the_lock(null: na.Device, on: bool) -> None:
    stream = null.new_stream()

    def replace(function: Any) -> None:
        Progress._has_passed = function  # type: ignore[method-assign]

    with held_elsewhere(stream._lock, Progress._has_passed, replace) as calls:
        stream.wait_until_idle()
    assert calls == ["Progress._has_passed"]


def test_the_latest_number_that_has_passed_stays_noted(null: na.Device, on: bool) -> None:
    """Another thread may have noted a later one meanwhile."""
    stream = null.new_stream()
    add_one(na.zeros(8).sync_on(stream)).sync_on(stream)
    later = stream._confirmed = stream._sequence + 5
    stream.wait_until_idle()
    assert stream._confirmed == later


def test_blocks_change_hands_under_the_pools_lock(on: bool) -> None:
    memory = gpu_memory()
    pool = pool_with(memory, 2)
    with held_elsewhere(pool._lock, memory.CudaPool.reuse) as calls:
        block = pool.reuse(256)
    assert (calls, pool._used) == (["CudaPool.reuse"], 256)
    with held_elsewhere(pool._lock, memory.CudaPool.free) as calls:
        pool.free(block)
    assert (calls, pool._used) == (["CudaPool.free"], 0)


@pytest.mark.parametrize("kind", ["launch", "zip", "download", "graph"])
def test_work_waits_for_the_lock_of_the_device(null: na.Device, on: bool, kind: str) -> None:
    """Nothing is enqueued meanwhile, and no access recorded."""
    stream = null.new_stream()
    z, own = (na.zeros(8).sync_on(stream) for _ in range(2))
    graph = add_one(own).graph_on(stream)
    makers: dict[str, Callable[[], Any]] = {
        "launch": lambda: add_one(z),
        "zip": lambda: na.zip(add_one(z), add_one(z)),
        "download": z.to_host,
        "graph": graph.launch,
    }
    for _ in range(2):  # the second time is quick
        makers[kind]().sync_on(stream)

    def enqueued() -> tuple[int, int, int]:
        return library().null_launched(), library().null_others(), stream._sequence

    before = enqueued()
    thread = threading.Thread(target=lambda: makers[kind]().async_on(stream))
    with null.submit_lock:
        thread.start()
        thread.join(0.1)
        assert (thread.is_alive(), enqueued()) == (True, before)
    thread.join()
    assert enqueued() > before
    stream.synchronize()


def test_work_is_retired_under_the_streams_lock(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    release = stream.backend.hold()
    add_one(z).async_on(stream)
    submission = z.storage.writer
    stream.enqueue_signal()
    release()
    thread = threading.Thread(target=stream.advance)
    with stream._lock:
        thread.start()
        thread.join(0.1)
        assert (thread.is_alive(), submission.done) == (True, False)
    thread.join()
    assert submission.done
