"""What the core hands over to Python: each rule that it leaves there, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.device import reactor
from numbasync.device.in_flight import LOOK_EVERY
from numbasync.device.loop_turns import turn_is_due
from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission
from numbasync.device.wait_estimate import kind_of
from numbasync.errors import NumbasyncError, OperationError, StateError
from numbasync.graphs.buffer_leases import LastLaunch
from tests.common import add_one, saxpy
from tests.device.fake_streams import turns
from tests.native.null_device import LOST, launches, library
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


# --- launches ---


def test_launches_under_a_limit_have_a_queue(null: na.Device, on: bool) -> None:
    """Their steps run: those may wait for room."""
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    with na.limit(ops=4):
        na.zip(add_one(z), add_one(z)).async_on(stream)
        assert z.storage.writer.queue is not None
        add_one(z).then(lambda r: add_one(r.z)).async_on(stream)
        assert z.storage.writer.queue is not None


def test_graph_work_on_another_stream_is_awaited(null: na.Device, on: bool) -> None:
    """Its access records name a proxy."""
    first, second, z = null.new_stream(), null.new_stream(), na.zeros(8).sync()
    backend: Any = null.backend
    for stream in (first, second):
        add_one(z).sync_on(stream)
    first.backend.hold()
    add_one(z).async_on(first)
    z.storage.writer = LastLaunch(z.storage.writer)
    add_one(z).async_on(second)
    assert backend.waits == [(second.backend.handle_number, first.backend.handle_number)]


def test_what_a_closure_gives_runs_once(null: na.Device, on: bool) -> None:
    stream, z, x = null.new_stream(), na.zeros(8).sync(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    op = add_one(z)
    add_one(x).then(lambda r: op).async_on(stream)
    for again in (lambda: op, lambda: add_one(x).then(lambda r: op)):
        with pytest.raises(NumbasyncError):
            again().async_on(stream)


def test_a_chain_goes_on_with_any_call(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    for _ in range(2):
        saxpy(z, 1.0, na.zeros(8).sync_on(stream)).sync_on(stream)
        add_one(z).then(lambda r: saxpy(z, 1.0, na.zeros(8))).async_on(stream)
        add_one(z).then_unchecked(lambda r: na.value(add_one(z).sync_on(stream))).async_on(stream)
        with pytest.raises(OperationError, match="item"):
            na.zip(add_one(z), z[:1].item()).then(lambda r: add_one(z)).async_on(stream)
        with pytest.raises(OperationError, match="item"):
            z[:1].item().async_on(stream)


def test_a_closures_call_for_another_stream(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    own = add_one[(1,), (8,), null.new_stream()]
    own(z).sync()
    calls: list[na.DeviceOp[Any]] = []

    def then(_: object) -> na.DeviceOp[Any]:
        calls.append(own(z))
        return calls[-1]

    with pytest.raises(NumbasyncError, match="stream"):
        add_one(z).then(then).async_on(stream)
    calls[0].suppress_warning()


def test_a_simple_operation_runs_once(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    for op in (na.zeros(8), z.to_host(), na.from_host(np.ones(8, np.float32))):
        op.async_on(stream)
        with pytest.raises(NumbasyncError):
            op.async_on(stream)


@pytest.mark.parametrize("way", ["async_on", "sync_on"])
def test_what_is_no_stream(null: na.Device, on: bool, way: str) -> None:
    z = na.zeros(8).sync()
    add_one(z).sync()
    op: Any = add_one(z)
    with pytest.raises(NumbasyncError, match="stream"):
        getattr(op, way)("no stream")
    op.suppress_warning()


def test_the_names_of_launches(null: na.Device, on: bool) -> None:
    """In messages; of several launches of one kernel, once."""
    stream, z, x = null.new_stream(), na.zeros(8).sync(), na.zeros(8).sync()
    for _ in range(2):
        saxpy(z, 1.0, x).sync_on(stream)
        na.zip(add_one(z), add_one(z), saxpy(z, 1.0, x), add_one(z)).async_on(stream)
        submission = z.storage.writer
        assert submission.launched == ("add_one", "saxpy", "add_one")
        assert submission.site.code.co_name == "test_the_names_of_launches"
        stream.synchronize()


# --- awaits ---


def test_an_await_needs_a_loop(null: na.Device, on: bool) -> None:
    z = na.zeros(8).sync()
    add_one(z).sync()
    first = len(launches())
    with pytest.raises(StateError, match="event loops"):
        next(add_one(z).__await__())
    assert len(launches()) == first


def test_awaits_let_the_loop_turn(null: na.Device, on: bool) -> None:
    z, turns = na.zeros(8).sync(), list[int]()
    add_one(z).sync()

    async def main() -> None:
        async def other() -> None:
            while True:
                turns.append(1)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        for _ in range(128):
            await add_one(z)
        task.cancel()

    na.run(main())
    assert len(turns) > 4


def test_a_policy_of_the_program(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync()

    class Policy:
        def next_stream(self) -> na.Stream:
            return stream

    null.policy = Policy()

    async def main() -> None:
        for _ in range(3):
            await add_one(z)
            assert z.storage.writer.stream is stream

    na.run(main())


def test_a_graph_is_awaited_on_its_stream(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    graph = add_one(z).graph_on(stream)

    async def main() -> None:
        for _ in range(3):
            await graph.launch()
            assert z.storage.writer.latest.stream is stream

    na.run(main())


def test_a_poll_of_a_busy_stream(null: na.Device, on: bool) -> None:
    """Nothing is verified, a signal is waited for, and the next await polls again."""
    null.policy = na.StreamPoolRoundRobin(null, 1)
    stream, z = null.policy.next_stream(), na.zeros(8).sync()
    add_one(z).sync()
    state: list[Any] = []

    async def waits() -> None:
        for _ in range(3):
            await add_one(z)  # polled, from the second one of the task on
            library().null_fail(LOST, 2)  # neither the launch nor the poll; nothing else is asked
            await add_one(z)
            library().null_fail(0, 0)
            assert stream.verified == stream._sequence
            state.append(stream.backend.hold())
            await add_one(z)
            state.append("done")

    async def main() -> None:
        task = asyncio.ensure_future(waits())
        for n in range(1, 7, 2):
            await eventually(lambda n=n: len(state) == n or task.done())
            assert not task.done() or await task
            await turns()
            assert len(state) == n and stream.verified < stream._sequence == stream._signalled
            state[-1]()
            await eventually(lambda n=n: len(state) > n)
        await task

    na.run(main())


def test_when_an_await_polls(null: na.Device, on: bool) -> None:
    """Not at the first await of a task, nor beside another one while the loop polls for others, nor
    for work that is known to take long.
    """
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)

    work = Submission(stream, "work")

    def polls() -> bool:
        add_one(z).async_on(stream)
        return stream.has_passed_soon(stream._sequence, work)

    async def main() -> None:
        watcher = reactor.current()
        assert [polls(), polls()] == [False, True]
        watcher._turning = True  # for other tasks, which have a turn afterwards
        assert polls() and turn_is_due()
        watcher._last = 0  # another task has called, too
        assert not polls()
        watcher._turning = False
        assert polls()
        watcher.last_waits.note("other work", 1.0)
        watcher.last_waits.note("other work", 1.0)
        assert polls()
        watcher.last_waits.note("work", 1.0)
        assert polls()  # and is noted: of three waits one is short
        watcher.last_waits.note("work", 1.0)
        assert polls()
        for _ in range(3):
            watcher.last_waits.note("work", 1.0)
        assert not polls()
        assert stream.verified < stream._sequence

    na.run(main())


def test_like_work_has_a_name_and_a_line(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    kinds: list[Any] = []
    for _ in range(2):
        add_one(z).async_on(stream)
        kinds.append(kind_of(z.storage.writer))
    add_one(z).async_on(stream)
    kinds.append(kind_of(z.storage.writer))
    assert kinds[0] == kinds[1] != kinds[2]
    assert (kind_of(None), kind_of(Submission(stream, "work"))) == ("", "work")
    code: Any = test_like_work_has_a_name_and_a_line
    assert kinds[2][:2] == ("add_one(z)", id(code.__code__))


def test_a_signalled_number_is_looked_for(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    backend: Any = stream.backend
    for number in (stream._sequence + 1, 2**32 - 1, 2**32, 2**32 + 1):  # the counter has 32 bits
        stream._sequence = number - 1
        release = backend.hold()
        assert stream.enqueue_signal() == number
        assert not stream.passes_soon(number)
        release()
        assert stream.passes_soon(number)


def test_number_zero_is_never_verified(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    stream.verify(stream.enqueue_signal())
    library().null_fail(1, 0)
    with pytest.raises(NumbasyncError):
        stream.verify(0)


# --- signals ---


def test_a_signal_is_noted(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    stream.backend.hold()
    for _ in range(LOOK_EVERY):
        add_one(z).async_on(stream)
    backend: Any = stream.backend
    assert z.storage.writer.signalled
    assert stream._signalled == backend._last == stream._sequence


def test_a_thread_enters_the_device_for_every_call(null: na.Device) -> None:
    stream, z, y = null.new_stream(), na.zeros(8).sync(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    graph = add_one(z).graph_on(stream)
    graph.launch().sync_on(stream)
    backend: Any = null.backend

    def look() -> None:
        for _ in range(LOOK_EVERY):
            stream.commit(Submission(stream, "work"), signal=False)

    calls: list[Callable[[], Any]] = [
        lambda: na.zeros(8).async_on(stream), lambda: y.to_host().async_on(stream), look,
        lambda: na.from_host(np.ones(8, np.float32)).async_on(stream),
        lambda: graph.launch().async_on(stream),
    ]  # fmt: skip
    for call in calls:
        entered = backend.entered
        native.core.forget_current()
        call()
        assert backend.entered > entered


# --- memory ---


def test_a_limit_of_a_pool(null: na.Device, on: bool) -> None:
    pool, stream = MemoryPool(null.backend, 512), null.new_stream()
    blocks = [pool.allocate(256, stream.backend) for _ in range(2)]
    del blocks
    pool.max_bytes = 256

    def made() -> na.Tensor | None:
        op = na.empty(8)
        op.consume()
        return op.result() if op.try_enqueue(Submission(stream, "work"), pool) else None

    tensors = [made(), made()]
    assert [tensor is None for tensor in tensors] == [False, True]
    tensors.clear()
    assert pool._pool.used == 0


def test_which_arrays_are_copied_at_once(null: na.Device) -> None:
    fast = []
    for on in (False, True):
        native.switch(on)
        ops = [na.from_host(np.ones(n, np.float32)) for n in (1, 0, 2**22)]
        for op in ops:
            op.suppress_warning()
        fast.append([op.has_fast_path for op in ops])
    assert fast == [[True, False, False]] * 2


def test_a_download_of_graph_or_foreign_memory(null: na.Device, on: bool) -> None:
    """Is run by its steps."""
    stream = null.new_stream()
    z, x, y = (na.zeros(8).sync_on(stream) for _ in range(3))
    graph = add_one(x).graph_on(stream)
    y.source = object()  # type: ignore[assignment]  # as `na.from_dlpack` has one
    for tensor, is_fast in ((z, True), (x, False), (y, False), (z[::2], False)):
        op = tensor.to_host()
        op.consume()
        assert op.try_enqueue(Submission(stream, "work"), None) is is_fast
    y.source = None
    assert graph.statistics().launches == 0 == len(launches())


# --- graphs ---


def test_a_graph_behind_a_launch(null: na.Device, on: bool) -> None:
    stream, z, x, y = null.new_stream(), *(na.zeros(8).sync() for _ in range(3))
    saxpy(x, 1.0, y).sync_on(stream)
    graph = add_one(z).graph_on(stream)
    for _ in range(2):
        graph.launch().sync_on(stream)
        na.zip(saxpy(x, 1.0, y), graph.launch()).async_on(stream)
        assert z.storage.writer.latest.launched == ("saxpy", "add_one")
        stream.synchronize()
