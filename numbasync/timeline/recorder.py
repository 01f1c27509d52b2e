"""The recorder of a trace: notes on the host, with an event in front of each operation on its
stream and one behind it. Their times are read when the device has passed them, not waited for.
"""

from __future__ import annotations

import threading
from asyncio import current_task
from asyncio.events import _get_running_loop
from collections import deque
from contextlib import suppress
from itertools import count
from time import perf_counter_ns
from typing import Any

from numbasync.device.callsite import CallSite
from numbasync.device.device import Device
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.timeline.clock import Clock
from numbasync.timeline.records import TracedCompilation, TracedOperation, TracedWait

READ_PATIENCE_NS = 200_000_000  # for the first comparison of clocks, once a trace is closed
READ_EVERY = 256  # operations, after which the times of those that are done are read


def _task_name() -> str:
    loop = _get_running_loop()
    task = None if loop is None else current_task(loop)
    return "" if task is None else task.get_name()


class Note:
    """An operation that is being enqueued, or is on its stream."""

    __slots__ = (
        "clock", "device", "enqueued", "error", "events", "first", "kernels", "name", "nbytes",
        "number", "parent", "seen", "sequence", "site", "spans", "submission", "submitted",
        "task", "thread", "waits_for",
    )  # fmt: skip

    def __init__(self, submission: Submission, clock: Clock | None, parent: Note | None) -> None:
        self.submission: Submission | None = submission
        self.clock = clock  # None: the stream's times are unknown
        self.parent = parent
        self.task = _task_name()
        self.thread = threading.current_thread().name
        self.waits_for: tuple[tuple[int, int], ...] = ()
        self.first: Any = None  # the event in front of the work that is being enqueued
        self.events: list[tuple[Any, Any]] = []  # in front of work, and behind it
        self.spans: list[tuple[int | None, int | None]] = []  # their times
        self.enqueued = 0
        self.seen = 0  # when an await found that it was done; 0: none has yet
        self.submitted = perf_counter_ns()

    def read(self) -> None:
        """Read the submission's names and places, and let go of it and of its stream."""
        submission = self.submission
        if submission is None:
            return
        self.name, self.kernels, self.site = submission.name, submission.launched, submission.site
        self.device, self.number = submission.stream.device.label, submission.stream.number
        self.sequence, self.nbytes = submission.sequence, submission.nbytes
        self.error = "" if submission.error is None else type(submission.error).__name__
        clock = self.clock
        if clock is not None:
            self.spans = [(clock.time_ns(a), clock.time_ns(b)) for a, b in self.events]

    def settle(self) -> bool:
        """`read`, for good, if the operation is done; whether it is."""
        submission, clock, events = self.submission, self.clock, self.events
        if submission is None:
            return True
        if not submission.done:
            return False
        if events and not (clock is not None and clock.is_known and events[-1][1].query()):
            return False
        if clock is not None:
            for event in (event for pair in events for event in pair):
                clock.bound(event, self.submitted, self.seen or perf_counter_ns())
        self.read()
        self.submission = None
        if clock is not None:
            clock.give(*(event for pair in events for event in pair))
        self.events = []
        return True


class TraceRecorder:
    """See `tracing.Recorder`. Keeps the newest of each kind of record, `most` at most."""

    def __init__(self, most: int) -> None:
        self.start_ns = perf_counter_ns()
        self.end_ns: int | None = None
        self._open: dict[Submission, Note] = {}
        self._notes: deque[Note] = deque(maxlen=most)
        self._unsettled: deque[Note] = deque()
        self._awaited: dict[Submission, Note] = {}  # those of them that may still be awaited
        self._waits: deque[tuple[Any, ...]] = deque(maxlen=most)
        self._compilations: deque[TracedCompilation] = deque(maxlen=most)
        self._clocks: dict[Device, Clock | None] = {}
        self._reading = threading.Lock()
        self._failures: dict[str, int] = {}
        self._counted = count(1)
        self.noted = 0  # operations, those included that are no longer kept

    # --- the calls of `tracing.Recorder` ---

    def now(self) -> int:
        return perf_counter_ns()

    def begin(self, submission: Submission) -> None:
        self.prepare(submission)
        self.reach(submission)

    def prepare(self, submission: Submission, parent: Submission | None = None) -> None:
        clock = self._clock_of(submission.stream)
        above = None if parent is None else self._open.get(parent)
        self._open[submission] = Note(submission, clock, above)

    def reach(self, submission: Submission) -> None:
        note = self._open.get(submission)
        if note is not None and note.first is None and note.clock is not None:
            note.first = self._recorded(note.clock, submission.stream)

    def pause(self, submission: Submission) -> None:
        note = self._open.get(submission)
        if note is not None:
            self._end_span(note)

    def drop(self, submission: Submission) -> None:
        self._open.pop(submission, None)

    def commit(self, submission: Submission) -> None:
        note = self._open.pop(submission, None)
        if note is None:
            return  # a signal, say, or what began before the trace
        note.enqueued = perf_counter_ns()
        self._end_span(note)
        self._notes.append(note)
        self._unsettled.append(note)
        self._awaited[submission] = note
        self.noted = next(self._counted)
        if self.noted % READ_EVERY == 0:
            self.settle()

    def follow(self, stream: Stream, other: Stream) -> None:
        for note in list(self._open.values()):
            submission = note.submission
            if submission is not None and submission.stream is stream:
                note.waits_for += ((other.number, other._sequence),)
                if note.first is not None:  # what follows is behind the wait
                    try:
                        stream.backend.record(note.first)
                    except Exception as error:
                        self._failed(stream.device, error)

    def awaited(self, submission: Submission, began: int | None) -> None:
        note = self._awaited.pop(submission, None)
        if note is not None:
            note.seen = perf_counter_ns()
        self._waited("await", submission.name, submission.stream, submission.sequence, began)

    def blocked(self, stream: Stream, number: int, began: int) -> None:
        self._waited("block", "", stream, number, began)

    def compiled(self, name: str, device: str, began: int) -> None:
        self._compilations.append(
            TracedCompilation(
                kernel=name,
                device=device,
                thread=threading.current_thread().name,
                began=self._seconds(began),
                ended=self._seconds(perf_counter_ns()),
            )
        )

    # --- inside ---

    def _waited(self, how: str, name: str, stream: Stream, number: int, began: int | None) -> None:
        ended, thread = perf_counter_ns(), threading.current_thread().name
        self._waits.append((how, name, stream.number, number, _task_name(), thread, began, ended))

    def _clock_of(self, stream: Stream) -> Clock | None:
        if type(stream) is not Stream:
            return None  # of another library, which may capture it at any time
        device = stream.device
        if device not in self._clocks:
            self._clocks[device] = clock = Clock(device)
            try:
                clock.compare()
            except Exception as error:  # a lost device, say, as the operation will say
                self._failed(device, error)
                self._clocks[device] = None
        return self._clocks[device]

    def _end_span(self, note: Note) -> None:
        first, note.first = note.first, None
        if first is not None and note.clock is not None and note.submission is not None:
            last = self._recorded(note.clock, note.submission.stream)
            if last is not None:
                note.events.append((first, last))

    def _recorded(self, clock: Clock, stream: Stream) -> Any:
        """An event that was recorded on the stream; None if that failed."""
        try:
            event = clock.take()
            stream.backend.record(event)
        except Exception as error:  # a fault, which the operation's own calls will raise
            self._failed(stream.device, error)
            return None
        return event

    def _failed(self, device: Device, error: Exception) -> None:
        text = str(error).partition("\n")[0]
        what = f"times of {device.label} are missing: {type(error).__name__}: {text}"
        self._failures[what] = self._failures.get(what, 0) + 1

    def settle(self, patience_ns: int = 0) -> None:
        """Read the times of the operations that are done, in order, up to the first that is not."""
        if not self._reading.acquire(blocking=False):
            return  # another thread reads them
        try:
            for device, clock in list(self._clocks.items()):
                try:
                    if clock is not None:
                        clock.compare(patience_ns)
                except Exception as error:  # a lost device answers nothing
                    self._failed(device, error)
            while self._unsettled:
                note = self._unsettled[0]
                submission = note.submission
                try:
                    if not note.settle():
                        break
                    if submission is not None:
                        self._awaited.pop(submission, None)
                except Exception as error:
                    if note.submission is not None:
                        self._failed(note.submission.stream.device, error)
                    break
                self._unsettled.popleft()
        finally:
            self._reading.release()

    def close(self) -> None:
        """Note the end of the trace."""
        self.end_ns = perf_counter_ns()
        self._open.clear()
        self.settle(READ_PATIENCE_NS)

    # --- reading the records ---

    @property
    def clock_error(self) -> float:
        """How far the device times may be off from the host's, in seconds."""
        return max((c.error_ns for c in self._clocks.values() if c is not None), default=0) / 1e9

    @property
    def problems(self) -> list[str]:
        """What kept times from being known, and how often."""
        return [
            text if count == 1 else f"{text} ({count} times)"
            for text, count in list(self._failures.items())
        ] + [
            f"times of {device.label} are missing: its clock could not be compared with the host's"
            for device, clock in list(self._clocks.items())
            if clock is not None and not clock.is_known
        ]

    @property
    def is_settled(self) -> bool:
        """Whether the trace is closed, and all that it will ever know is known."""
        return self.end_ns is not None and not self._unsettled

    def _seconds(self, ns: int) -> float:
        return (ns - self.start_ns) / 1e9

    def records(
        self,
    ) -> tuple[list[TracedOperation], list[TracedWait], list[TracedCompilation]]:
        """Operations in the order in which they were enqueued, waits and compilations."""
        self.settle(0 if self.end_ns is None else READ_PATIENCE_NS)
        notes = list(self._notes)
        for note in self._unsettled.copy():
            with suppress(Exception):  # `settle` has noted it
                note.read()
        places = {id(note): i for i, note in enumerate(notes)}
        operations = [self._operation(note, places) for note in notes]
        found = {(op.stream, op.sequence): op for op in operations if op.sequence}
        waits = [self._wait(found, *wait) for wait in list(self._waits)]
        return operations, waits, list(self._compilations)

    def _operation(self, note: Note, places: dict[int, int]) -> TracedOperation:
        site: CallSite | None = note.site
        return TracedOperation(
            name=note.name,
            kernels=note.kernels,
            line="" if site is None else str(site),
            device=note.device,
            stream=note.number,
            sequence=note.sequence,
            task=note.task,
            thread=note.thread,
            submitted=self._seconds(note.submitted),
            enqueued=self._seconds(note.enqueued),
            spans=tuple(
                (self._seconds(a), None if b is None else self._seconds(b))
                for a, b in note.spans
                if a is not None
            ),
            nbytes=note.nbytes,
            waits_for=note.waits_for,
            parent=None if note.parent is None else places.get(id(note.parent)),
            error=note.error,
        )

    def _wait(
        self,
        found: dict[tuple[int, int], TracedOperation],
        how: Any,
        name: str,
        stream: int,
        sequence: int,
        task: str,
        thread: str,
        began: int | None,
        ended: int,
    ) -> TracedWait:
        op = found.get((stream, sequence))
        start = self._seconds(began) if began is not None else op.enqueued if op else None
        end = self._seconds(ended)
        return TracedWait(
            how=how,
            name=name or (op.name if op else "a stream"),
            stream=stream,
            sequence=sequence,
            task=task,
            thread=thread,
            began=end if start is None else start,
            ready=None if op is None else op.ended,
            ended=end,
        )
