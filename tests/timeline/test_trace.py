"""What a trace notes: operations, waits and compilations, and that nothing else changes."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import native, testing
from numbasync.device import tracing
from numbasync.device.journal import Row
from numbasync.errors import CallerError, DeviceLostError, KernelError, StateError
from numbasync.ops.run import await_op
from numbasync.timeline import recorder, sampler
from numbasync.timeline.clock import Clock
from numbasync.timeline.recorder import TraceRecorder
from numbasync.timeline.tracks import tracks
from tests.common import add_one
from tests.timeline.records import operation

BOTH_WAYS = (False, True) if native.core is not None else (False,)


@pytest.fixture(params=BOTH_WAYS, ids=lambda on: "compiled" if on else "Python")
def core(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the core is on."""
    before = native.core is not None and native.core.is_on()
    native.switch(request.param)
    yield request.param
    native.switch(before)


def names(t: na.Timeline) -> list[str]:
    return [op.name for op in t.operations]


def test_operations_have_their_line_stream_task_and_times(device: na.Device, core: bool) -> None:
    stream = device.new_stream()

    async def main() -> na.Timeline:
        z = await na.zeros(8)
        await add_one(z)
        with na.trace(exact=True) as t:
            await na.spawn(add_one(z), stream)
            await add_one(z)
        assert (await z.to_host())[0] == 3
        return t

    t = na.run(main())
    first, second = t.operations
    assert first.name.startswith("add_one") and first.kernels == ("add_one",)
    assert "test_trace.py" in first.line and "main" in first.line and first.line != second.line
    assert (first.device, first.stream) == (device.label, stream.number)
    assert first.task.startswith("Task-") and first.thread == threading.current_thread().name
    assert first.sequence and second.stream != stream.number
    for op in t.operations:
        assert op.began is not None and op.ended is not None and len(op.spans) == 1
        assert 0 <= op.submitted <= op.enqueued <= t.seconds and op.seconds == op.ended - op.began
        assert op.began >= op.submitted - t.clock_error - 1e-6
    awaits = [wait for wait in t.waits if wait.how == "await"]
    assert [(w.stream, w.sequence) for w in awaits] == [
        (op.stream, op.sequence) for op in t.operations
    ]
    for wait, op in zip(awaits, t.operations, strict=True):
        assert wait.name == op.name and wait.ready == op.ended and wait.task == op.task
        assert wait.began <= wait.ended and wait.wake_seconds is not None


@pytest.mark.parametrize("form", ["sync", "sync_on", "async_on", "prepared", "gather", "asyncio"])
def test_each_form_is_noted_once(device: na.Device, core: bool, form: str) -> None:
    stream, z = device.new_stream(), na.zeros(8).sync()
    add_one(z).sync()
    stream.wait_for(device.policy.next_stream())

    async def gathered() -> None:
        together = na.gather if form == "gather" else asyncio.gather
        await together(add_one(z))

    with na.trace() as t:
        if form == "sync":
            add_one(z).sync()
        elif form == "sync_on":
            add_one(z).sync_on(stream)
        elif form == "async_on":
            add_one(z).async_on(stream)
            stream.synchronize()
        elif form == "prepared":
            add_one.prepare(z).sync_on(stream)
        else:
            na.run(gathered())
    (op,) = (op for op in t.operations if op.kernels)
    assert op.kernels == ("add_one",) and op.ended is not None
    is_awaited = form in ("gather", "asyncio")
    assert ("in gathered" if is_awaited else "in test_each_form") in op.line.replace(
        "test_each_form_is_noted_once.<locals>.gathered", "gathered"
    )
    kind = "await" if is_awaited else "block"
    assert [w.name for w in t.waits if w.how == kind and w.sequence == op.sequence] == [op.name]
    assert z.to_host().sync()[0] == 2


def test_a_waiting_stream_says_for_what(device: na.Device, core: bool) -> None:
    first, second = device.new_stream(), device.new_stream()
    z, y = na.zeros(8).sync_on(first), na.zeros(8).sync_on(second)
    add_one(z).sync_on(first)
    gate = testing.gate(first)
    gate.close()
    with na.trace() as t:
        add_one(z).async_on(first)
        na.memcpy(y, z).async_on(second)
        assert [op.ended for op in t.operations] == [None, None]
        gate.open()
        second.synchronize()
    writer, reader = t.operations
    assert reader.waits_for == ((first.number, writer.sequence),)
    assert writer.ended is not None and reader.began is not None
    assert reader.began >= writer.ended - 2 * t.clock_error


def test_compilations_are_noted_and_no_device_time(
    device: na.Device, caplog: pytest.LogCaptureFixture
) -> None:
    @na.launcher
    @cuda.jit  # type: ignore[untyped-decorator]
    def add_seven(z: na.KernelOutput) -> None:
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] += 7

    na.zeros(2).sync()
    caplog.set_level(logging.INFO, logger="numbasync.compile")
    with na.trace() as t:
        add_seven(na.zeros(3)).sync()
    (compilation,) = t.compilations
    assert (compilation.kernel, compilation.device) == ("add_seven", device.label)
    (op,) = t.operations
    for began, ended in op.spans:
        assert ended is not None
        # A GPU passes the mark of an end some time after the host has told it to.
        both = min(ended, compilation.ended) - max(began, compilation.began)
        assert both < (compilation.ended - compilation.began) / 2
    assert op.enqueued - op.submitted >= compilation.ended - compilation.began
    assert "add_seven" in caplog.text and device.label in caplog.text


def test_errors_graphs_and_parts(device: na.Device, core: bool) -> None:
    stream, z = device.new_stream(), na.zeros(4).sync()
    graph = add_one(z).graph_on(stream)
    graph.launch().sync_on(stream)
    with na.trace() as t:
        graph.launch().sync_on(stream)
        bad = na.value(1).map(lambda n: n / 0)
        with pytest.raises(ZeroDivisionError):
            bad.sync()
    assert t.operations[0].kernels == ("add_one",) and t.operations[0].seconds >= 0
    assert all(op.sequence == 0 for op in t.operations[1:])


def test_copies_say_how_many_bytes_and_how_fast(device: na.Device, core: bool) -> None:
    a = np.ones((64, 64), np.float32)
    x, y = na.zeros(a.shape).sync(), na.zeros(a.shape).sync()
    pinned = na.pinned(a.shape, np.float32)
    pinned[...] = 1
    with na.trace(exact=True) as t:
        na.from_host(a).sync()
        y.to_host().sync()
        na.memcpy(x, y).sync()
        na.memcpy(x, a).sync()
        na.memcpy(pinned, x).sync()
        na.memcpy(x, pinned).sync()
        add_one(na.from_host(a[0])).sync()
    assert [op.copied for op in t.operations] == [*6 * [a.nbytes], a[0].nbytes]
    details = [
        s.details
        for track in tracks(t.operations, [], [], t.seconds)
        for s in track.slices
        if s.what == "work"
    ]
    assert all(op.is_measured for op in t.operations)
    assert sorted((d["bytes copied"], d["GB/s"]) for d in details) == sorted(
        (op.copied, round(op.copied / op.seconds / 1e9, 3)) for op in t.operations
    )


def test_large_uploads_count_each_byte_once(device: na.Device) -> None:
    a = np.ones(5_000_000, np.float32)
    with na.trace() as t:
        x = na.from_host(a).sync()
        x.to_host().sync()
    assert [op.copied for op in t.operations] == [a.nbytes, a.nbytes]


def test_copies_between_devices_say_how_many_bytes() -> None:
    first, second = na.devices("cpu")
    with na.use_device(first):
        x = na.zeros(1000).sync()
    with na.trace() as t:
        na.to_device(x, second).sync()
    assert [(op.device, op.copied) for op in t.operations] == [(second.label, 4000)]


def test_a_graph_launch_lists_its_kernels(device: na.Device, core: bool) -> None:
    stream, z = device.new_stream(), na.zeros(4).sync()
    graph = na.zip(*(add_one(z) for _ in range(3)), add_one(z)).graph_on(stream)
    with na.trace() as t:
        graph.launch().sync_on(stream)
        na.run(await_op(graph.launch()))
    assert [op.kernels for op in t.operations] == [("add_one",) * 4] * 2
    slices = [s for track in tracks(t.operations, [], [], 1.0) for s in track.slices]
    assert {s.details["kernels"] for s in slices} == {"add_one x 4"}


def test_memory_and_the_loop_are_looked_at(device: na.Device, monkeypatch: Any) -> None:
    monkeypatch.setattr(sampler, "EVERY_S", 1e-4)

    async def main() -> tuple[na.Timeline, int]:
        small = await na.zeros(8)
        before = device.memory_stats().used_current
        with na.trace() as t:
            kept = await na.zeros(1000)
            while not any(s.what == "loop lag" for s in t.samples):
                await asyncio.sleep(0)
        assert kept.nbytes == 4000 and small.nbytes == 32
        return t, before

    t, before = na.run(main())
    used = [s.value for s in t.samples if s.what == "memory in use" and s.where == device.label]
    assert used[0] == before and used[-1] == before + 4096
    lags = [s for s in t.samples if s.what == "loop lag"]
    assert {s.where for s in lags} == {threading.current_thread().name}
    assert all(s.value > 0 and 0 <= s.at <= t.seconds for s in lags)
    assert all(thread.name != "numbasync trace" for thread in threading.enumerate())


def test_a_trace_goes_without_a_thread(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    z = na.zeros(4).sync()
    add_one(z).sync()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with na.trace() as t:
            add_one(z).sync()
        with pytest.raises(RuntimeError, match="new thread"):
            na.flight_recorder(hang_after=1)
    assert len(t.operations) == 1 and tracing.recorder is None


def test_threads_and_an_end_in_the_middle(device: na.Device) -> None:
    z = na.zeros(4).sync()
    add_one(z).sync()
    per_thread = 50

    def launch() -> None:
        stream = device.new_stream()
        own = na.zeros(4).sync_on(stream)
        for _ in range(per_thread):
            add_one(own).async_on(stream)
        stream.synchronize()

    threads = [threading.Thread(target=launch) for _ in range(3)]
    with na.trace() as t:
        for thread in threads:
            thread.start()
        threads[0].join()
    for thread in threads:
        thread.join()
    ours = [op for op in t.operations if op.thread == threads[0].name and op.kernels]
    assert len(ours) == per_thread and all(op.ended is not None for op in ours)
    assert [op.sequence for op in ours] == sorted(op.sequence for op in ours)


def test_one_trace_at_a_time_once(device: na.Device) -> None:
    with na.trace() as t:
        with pytest.raises(StateError, match="open already"), na.trace():
            pass
        na.zeros(2).sync()
    assert tracing.recorder is None
    na.zeros(2).sync()
    assert len(t.operations) == 1
    with pytest.raises(StateError, match="opened before"), t:
        pass
    with pytest.raises(CallerError, match="max_operations"):
        na.trace(0)
    with pytest.raises(CallerError, match="exact"):
        na.trace(exact="yes")  # type: ignore[arg-type]
    assert repr(na.trace()) == "<Timeline, not opened>" and "1 operation on 1 stream" in repr(t)


def test_the_newest_are_kept_and_streams_are_released(device: na.Device, core: bool) -> None:
    z = na.zeros(4).sync()
    add_one(z).sync()
    stream = device.new_stream()
    gone = weakref.ref(stream)
    with na.trace(max_operations=10) as t:
        add_one(z).sync_on(stream)
        del stream
        for _ in range(600):
            add_one(z).sync()
        gc.collect()
        assert gone() is None
    assert len(t.operations) == len(t.waits) == 10 and t.dropped == 591
    assert [op.submitted for op in t.operations] == sorted(op.submitted for op in t.operations)


def test_notes_hold_nothing_once_they_are_gone(device: na.Device, core: bool) -> None:
    z = na.zeros(4).sync()
    add_one(z).sync()
    before = sys.getrefcount(device)
    with na.trace(max_operations=10) as t:
        for _ in range(600):
            add_one(z).sync()
        assert sys.getrefcount(device) < before + 100
    del t
    gc.collect()
    assert sys.getrefcount(device) < before + 20


def test_a_trace_does_not_change_values(device: na.Device, core: bool) -> None:
    async def main() -> list[np.ndarray[Any, Any]]:
        values = []
        for k in range(4):
            z = await na.full(5, k)
            await na.gather(*(add_one(z) for _ in range(3)))
            values.append(await add_one(z).output().to_host())
        return values

    without = na.run(main())
    with na.trace() as t:
        traced = na.run(main())
    np.testing.assert_array_equal(without, traced)
    assert len(t.operations) == 4 * 5


def test_a_trace_does_not_change_failures(device: na.Device, core: bool) -> None:
    z = na.zeros(4).sync()
    add_one(z).sync()
    with na.trace() as t, testing.inject(device, "kernel"), pytest.raises(KernelError):
        add_one(z).sync()
    assert t.operations[-1].error == "KernelError" and t.operations[-1].kernels == ("add_one",)


def test_a_launch_is_noted_whose_change_fails(device: na.Device, core: bool) -> None:
    z = na.zeros(4).sync()
    add_one(z).sync()

    def fails(_: object) -> None:
        raise KeyError("k")

    with na.trace() as t, pytest.raises(KeyError):
        add_one(z).map(fails).sync()
    (op,) = t.operations
    assert op.kernels == ("add_one",) and op.sequence and op.error == ""


def test_a_device_that_is_lost_leaves_a_timeline(
    device: na.Device, stream: na.Stream, core: bool
) -> None:
    z = na.zeros(4).sync()
    add_one(z).sync()
    with na.trace() as t:
        add_one(z).sync_on(stream)
        with testing.inject(device, "device"), pytest.raises(DeviceLostError):
            add_one(z).sync_on(stream)
    assert t.operations[0].ended is not None and t.summary().operations == len(t.operations) >= 1
    assert (na.ones(4).to_host().sync() == 1).all()  # a new start, which lets go of what it held


def behind_a_gate(z: na.Tensor, stream: na.Stream) -> None:
    """A launch on a stream that is not idle, so that only an event tells when it was passed."""
    with testing.gate(stream):
        add_one(z).async_on(stream)
    stream.synchronize()


def test_times_that_are_missing_are_explained(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch, core: bool
) -> None:
    z = na.zeros(4).sync()
    add_one(z).sync_on(stream)

    def no_event(self: Clock) -> None:
        raise RuntimeError("no events are left\nand nobody knows why")

    with monkeypatch.context() as patch, na.trace() as t:
        patch.setattr(Clock, "take", no_event)
        behind_a_gate(z, stream)
    (op,) = t.operations
    assert not op.is_measured and op.ended is not None and t.waits[0].ready is None
    assert op.began == op.submitted and op.ended == t.waits[0].ended
    text = f"times of {device.label} are missing: RuntimeError: no events are left"
    (problem,) = t.problems
    assert problem.startswith(text) and problem in t.summary().advice


def test_times_are_known_when_the_clocks_are(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch, core: bool
) -> None:
    """Beside other programs, a device may pass what compares the clocks after a trace has ended."""
    z = na.zeros(4).sync()
    add_one(z).sync_on(stream)
    with monkeypatch.context() as patch:
        patch.setattr(Clock, "compare", lambda self, patience_ns=0: False)
        with na.trace() as t:
            behind_a_gate(z, stream)
        assert [op.is_measured for op in t.operations] == [False]
        (problem,) = t.problems
        assert device.label in problem and "clock could not be compared" in problem
    (op,) = t.operations
    assert op.is_measured and op.began is not None and op.ended is not None and t.problems == []
    assert op.began >= op.submitted - t.clock_error - 1e-6


def test_work_that_runs_later_ends_later(device: na.Device, core: bool) -> None:
    z = na.zeros(1 << 22).sync()
    add_one(z).sync()
    with na.trace() as t:
        add_one(z).sync()
    (op,) = t.operations
    assert op.is_measured
    assert op.ended is not None and op.enqueued < op.ended <= t.waits[0].ended + t.clock_error


def test_operations_that_are_started_together_are_measured(
    device: na.Device, stream: na.Stream, core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LONGEST_PAUSE_NS", 100_000)  # however long a mark takes
    z = na.zeros(4).sync()
    add_one(z).sync_on(stream)
    with na.trace() as t:
        with testing.gate(stream):
            for _ in range(8):
                add_one(z).async_on(stream)
        stream.synchronize()
    assert [op.is_measured for op in t.operations] == [True] * 8


@pytest.mark.parametrize(("ended", "ready"), [(6, 5), (3, 2)], ids=["woken", "asked before"])
def test_a_wait_is_ready_when_its_signal_is(ended: int, ready: int) -> None:
    """The signal of an await is behind what its stream had when that began."""
    first, second, later = (
        operation("k", 1, n, span, submitted=at, enqueued=at)
        for n, at, span in ((1, 0.1, (1.0, 2.0)), (2, 0.2, (2.0, 5.0)), (3, 0.9, (5.0, 9.0)))
    )
    times = TraceRecorder(10, is_exact=False)
    row = Row("k", (), None, None, 1, 1, 0, 0, "", "", "await", 300_000_000, ended * 10**9, 0)
    times.start_ns = 0
    assert times._wait(first, [first, second, later], row).ready == ready


@pytest.mark.parametrize("exact", [False, True])
def test_what_follows_too_quickly_has_common_bounds(
    device: na.Device, stream: na.Stream, core: bool, exact: bool
) -> None:
    z = na.zeros(4).sync()
    add_one(z).sync_on(stream)
    with na.trace(exact=exact) as t:
        with testing.gate(stream):
            for _ in range(100):
                add_one(z).async_on(stream)
        stream.synchronize()
    ops = t.operations
    assert ops[0].is_measured
    assert all(op.is_measured for op in ops) is exact
    ends = [op.ended for op in ops]
    for op in ops:
        assert op.began is not None and op.ended is not None and op.ended >= op.began
        assert op.began >= op.submitted - t.clock_error
    assert ends == sorted(ends)
    work = [s for track in tracks(ops, [], [], t.seconds) for s in track.slices if s.what == "work"]
    assert sum(s.details.get("operations", 1) for s in work) == 100
    assert (len(work) == 100) is exact


def test_a_note_takes_the_running_tasks_name(device: na.Device, core: bool) -> None:
    """Also of tasks that run with the same context variables, one after the other."""
    z = na.zeros(4).sync()

    async def launch() -> None:
        add_one(z).async_on(device.policy.next_stream())
        await add_one(z)
        await asyncio.sleep(0)
        add_one(z).sync()

    async def main() -> None:
        shared = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            *(loop.create_task(launch(), name=name, context=shared) for name in ("one", "two"))
        )

    na.run(main())
    with na.trace() as t:
        na.run(main())
    assert Counter(op.task for op in t.operations) == {"one": 3, "two": 3}
    assert {wait.task for wait in t.waits if wait.name} == {"one", "two"}


def test_clocks_are_compared_when_a_trace_is_opened(device: na.Device) -> None:
    na.zeros(3).sync()
    with na.trace() as t:
        assert t._recorder is not None and device in t._recorder._clocks
    with na.flight_recorder() as recorder:  # which has no events
        assert not recorder._recorder._clocks


def test_batches_of_requests_have_tasks_with_their_names(device: na.Device) -> None:
    def find(rows: np.ndarray[Any, Any]) -> na.DeviceOp[Any]:
        return add_one(na.from_host(rows)).first().to_host()

    async def main() -> na.Timeline:
        async with na.serve.MicroBatcher(find, max_batch=2, collate=np.array) as batcher:
            await batcher(0.0)  # compiles, in a task of its own
            with na.trace() as t:
                await asyncio.gather(*(batcher(float(i)) for i in range(4)))
        return t

    t = na.run(main())
    seen = sorted({op.task.rpartition(".")[2] for op in t.operations})
    assert seen == ["find, batch 2", "find, batch 3"]
