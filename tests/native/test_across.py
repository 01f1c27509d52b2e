"""Copies between two devices: what the core records and asks of the driver, as Python does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.backend.protocols import counters
from numbasync.device.device import Device
from numbasync.device.storage import MANY_READERS
from numbasync.errors import DriverError
from tests.common import add_one
from tests.native.null_device import NullDevice, library

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


@pytest.fixture(params=[98, 100], ids=["before", "behind"])
def far(null: na.Device, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Another device of the null driver, before or behind `null` in the order of devices."""
    backend = NullDevice(request.param)
    yield Device(backend)
    backend._engine.stop()


@pytest.fixture
def stream(far: Any) -> Any:
    return far.new_stream()


@pytest.fixture
def src(null: na.Device) -> na.Tensor:
    return na.zeros(8).sync()


def there(t: Any, far: Any, stream: Any) -> Any:
    """A copy on the far device, whose memory comes from a free block the second time."""
    na.to_device(t, far).sync_on(stream)
    return na.to_device(t, far).sync_on(stream)


def asked(dst: Any, src: Any) -> tuple[int, ...]:
    """The call of the driver that copies one tensor to the other."""
    contexts = [t.device.backend.context for t in (dst, src)]
    starts = [t.handle.array.ctypes.data for t in (dst, src)]
    return starts[0], contexts[0], starts[1], contexts[1], src.nbytes


def calls() -> tuple[int, ...]:
    return tuple(library().null_peer()[:5])


def test_a_new_tensor(on: bool, src: na.Tensor, far: Any, stream: Any) -> None:
    there(src, far, stream)
    release = stream.backend.hold()
    before, copies = library().null_others(), counters.copies
    new = na.to_device(src, far).async_on(stream)
    assert calls() == asked(new, src)
    assert (library().null_others(), counters.copies) == (before + 1, copies + 1)
    submission = new.storage.writer
    assert src.storage.readers[stream] is submission and not new.storage.readers
    assert {new.storage, src.storage} <= set(submission.keep_alive)
    assert (submission.nbytes, submission.queue, submission.done) == (32, None, False)
    release()
    stream.synchronize()
    assert submission.done and not submission.keep_alive


def test_a_tensor_that_is_there(on: bool, src: na.Tensor, far: Any, stream: Any) -> None:
    dst = there(src, far, stream)
    dst.to_host().sync_on(stream)
    release = stream.backend.hold()
    dst.to_host().async_on(stream)
    assert dst.storage.readers
    dst.copy_from(src).async_on(stream)
    assert calls() == asked(dst, src)
    assert dst.storage.writer is src.storage.readers[stream] and not dst.storage.readers
    release()


def waits_of(stream: Any) -> int:
    return sum(waiter == stream.backend._number for waiter, _ in stream.device.backend.waits)


@pytest.mark.parametrize("what", ["source written", "target written", "target read", "read twice"])
def test_work_elsewhere_is_waited_for(
    on: bool, null: na.Device, src: na.Tensor, far: Any, stream: Any, what: str
) -> None:
    dst = there(src, far, stream)
    others = [null.new_stream()] if what == "source written" else [far.new_stream() for _ in "ab"]
    for other in others:
        with na.use_device(other.device):
            add_one(src if what == "source written" else dst).sync_on(other)
            if what != "source written":
                dst.to_host().sync_on(other)
    releases = [other.backend.hold() for other in others]
    if what == "source written":
        add_one(src).async_on(others[0])
    elif what == "target written":
        with na.use_device(far):
            add_one(dst).async_on(others[0])
    else:
        for other in others[: 1 + (what == "read twice")]:
            dst.to_host().async_on(other)
    before = waits_of(stream)
    dst.copy_from(src).async_on(stream)
    assert waits_of(stream) == before + 1 + (what == "read twice")
    assert calls() == asked(dst, src)
    for release in releases:
        release()
    stream.synchronize()
    before = waits_of(stream)
    dst.copy_from(src).sync_on(stream)
    assert waits_of(stream) == before, "all is done"


def test_reads_of_a_source_are_not_waited_for(
    on: bool, null: na.Device, src: na.Tensor, far: Any, stream: Any
) -> None:
    dst, other = there(src, far, stream), null.new_stream()
    src.to_host().sync_on(other)
    release = other.backend.hold()
    src.to_host().async_on(other)
    before = waits_of(stream)
    dst.copy_from(src).sync_on(stream)
    assert waits_of(stream) == before
    release()


def test_parts_of_tensors_and_other_dtypes(on: bool, src: na.Tensor, far: Any, stream: Any) -> None:
    dst = there(src, far, stream)
    part = src[2:4]
    assert calls() == asked(dst, src)
    new = there(part, far, stream)
    assert calls() == asked(new, part)
    dst[4:6].copy_from(part).sync_on(stream)
    assert calls() == asked(dst[4:6], part)
    with na.use_device(src.device):  # type: ignore[arg-type]
        empty = na.zeros((0, 3)).sync()
    before = library().null_others()
    for nothing in (empty, src[:0]):
        assert na.to_device(nothing, far).sync_on(stream).shape == nothing.shape
    assert library().null_others() == before, "nothing to copy"


@pytest.mark.parametrize("which", ["source", "target"])
def test_memory_of_a_graph_is_waited_for(
    on: bool, null: na.Device, src: na.Tensor, far: Any, stream: Any, which: str
) -> None:
    """The graph knows its own launches, and notes other uses of its memory."""
    dst = there(src, far, stream)
    device, t = (null, src) if which == "source" else (far, dst)
    own = device.new_stream()
    with na.use_device(device):
        add_one(t).sync_on(own)
        graph = add_one(t).graph_on(own)
    graph.launch().sync_on(own)
    assert not graph._attached.stale
    dst.copy_from(src).sync_on(stream)
    assert graph._attached.stale
    graph.launch().sync_on(own)
    release = own.backend.hold()
    graph.launch().async_on(own)
    before = waits_of(stream)
    dst.copy_from(src).async_on(stream)
    assert waits_of(stream) == before + 1
    release()
    own.synchronize()
    stream.synchronize()
    assert graph._attached.stale, "the next launch looks again"


@pytest.mark.parametrize("which", ["near", "far", "to_host"])
def test_a_graph_captured_while_copies_wait_for_locks(
    on: bool, null: na.Device, src: na.Tensor, far: Any, stream: Any, which: str
) -> None:
    """The graph notes the copy, and waits for it."""
    dst = there(src, far, stream)
    dst.copy_from(src).sync_on(stream)
    dst.to_host().sync_on(stream)
    copy = dst.to_host if which == "to_host" else lambda: dst.copy_from(src)
    thread = threading.Thread(target=lambda: copy().async_on(stream))
    device, t = (null, src) if which == "far" else (far, dst)
    own = device.new_stream()
    with na.use_device(device):
        add_one(t).sync_on(own)
        with device.submit_lock:
            thread.start()
            thread.join(0.1)
            graph = add_one(t).graph_on(own)
            graph.launch().sync_on(own)  # what is not over is waited for in any case
            assert not graph._attached.stale and thread.is_alive()
        thread.join()
    assert graph._attached.stale
    own.synchronize()
    stream.synchronize()


def test_many_readers_are_forgotten_when_they_are_done(on: bool, src: na.Tensor, far: Any) -> None:
    streams = [far.new_stream() for _ in range(MANY_READERS + 2)]
    for stream in streams:
        there(src, far, stream)
    assert set(src.storage.readers) == {streams[-1]} | set(streams[-2:-1])


@pytest.mark.parametrize("which", ["near", "far"])
def test_both_devices_are_locked(
    on: bool, null: na.Device, src: na.Tensor, far: Any, stream: Any, which: str
) -> None:
    dst = there(src, far, stream)
    dst.copy_from(src).sync_on(stream)
    before = library().null_others()
    thread = threading.Thread(target=lambda: dst.copy_from(src).async_on(stream))
    with (null if which == "near" else far).submit_lock:
        thread.start()
        thread.join(0.1)
        assert (thread.is_alive(), library().null_others()) == (True, before)
    thread.join()
    assert library().null_others() == before + 1
    stream.synchronize()


def test_the_first_device_is_locked_first(
    on: bool, null: na.Device, src: na.Tensor, far: Any, stream: Any
) -> None:
    """Whichever the copy goes to: a thread that waits for the first one holds no other."""
    dst, own = there(src, far, stream), null.new_stream()
    back = na.zeros(8).sync_on(own)
    for _ in range(2):
        back.copy_from(dst).sync_on(own)
    first, second = sorted((null, far), key=lambda device: device.ordinal)
    for copy, at in ((lambda: dst.copy_from(src), stream), (lambda: back.copy_from(dst), own)):
        thread = threading.Thread(target=lambda copy=copy, at=at: copy().async_on(at))
        with first.submit_lock:
            thread.start()
            thread.join(0.1)
            assert second.submit_lock.acquire(blocking=False)
            second.submit_lock.release()
        thread.join()
        at.synchronize()


def test_threads_that_copy_both_ways_end(
    on: bool, null: na.Device, src: na.Tensor, far: Any
) -> None:
    streams = null.new_stream(), far.new_stream()
    dst = there(src, far, streams[1])
    other = na.zeros(8).sync_on(streams[0])

    def run(copy: Callable[[], Any], stream: Any) -> None:
        for _ in range(200):
            copy().sync_on(stream)

    work = [
        (lambda: dst.copy_from(src), streams[1]), (lambda: other.copy_from(dst), streams[0])
    ]  # fmt: skip
    threads = [threading.Thread(target=run, args=one, daemon=True) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "a deadlock"


def test_a_copy_that_the_driver_refuses(on: bool, src: na.Tensor, far: Any, stream: Any) -> None:
    dst = there(src, far, stream)
    writer, readers, copies = dst.storage.writer, dict(src.storage.readers), counters.copies
    library().null_fail_once(1, 0)
    with pytest.raises(DriverError, match="cuMemcpyPeerAsync"):
        dst.copy_from(src).async_on(stream)
    assert (dst.storage.writer, src.storage.readers, counters.copies) == (writer, readers, copies)
    dst.copy_from(src).sync_on(stream)
    np.testing.assert_equal(counters.copies, copies + 1)


def test_the_device_is_entered(on: bool, src: na.Tensor, far: Any, stream: Any) -> None:
    dst = there(src, far, stream)
    dst.copy_from(src).sync_on(stream)
    native.core.forget_current()
    entered = far.backend.entered
    dst.copy_from(src).async_on(stream)
    assert far.backend.entered == entered + 1
    stream.synchronize()
