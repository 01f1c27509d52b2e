"""The recorder of a trace: journals of operations and waits, and marks on the streams, whose times
tell when the device passed what.

A mark is an event, which costs the host about as much as a launch does. So marks take a small part
of the time: a program that only launches gets one now and then, and between two of them it is only
known that the work ran there. Times are read when the device has passed them, not waited for.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import replace
from itertools import count
from time import perf_counter_ns
from typing import Any

from numbasync.device.device import Device, known_devices
from numbasync.device.journal import Row, new_journal, who
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.timeline.activities import Activities
from numbasync.timeline.clock import Clock
from numbasync.timeline.records import (
    TracedCompilation,
    TracedOperation,
    TracedSample,
    TracedWait,
)
from numbasync.timeline.sampler import LAG, Sampler

LONGEST_READ_NS = 200_000_000  # for the first comparison of clocks, once a trace is closed
COMPARE_EVERY = 256  # marks, after which the clocks are compared anew if that is due
READ_AT_A_TIME = 2  # old marks, for each new one
# After a mark none is made for so many times as long as it took, and never for longer than the
# second number: what took long then was no mark. Pauses may come late, all in all by the third: so
# each of some operations that are started together is marked, if there were none for a while.
PAUSE = 200
LONGEST_PAUSE_NS = 3_000_000
LATEST_NS = 20_000_000
NEVER = 1 << 62
NOTE_ERROR_NS = 1_000  # how far the time of a note may be off, which ticks of the processor tell
MOST_OPEN = 10_000  # operations that are being enqueued; of some the end is never told

Spans = tuple[tuple[int, int | None], ...]


class Mark:
    """A point of a stream.

    Attributes:
        stream: the stream's number.
        place: how many operations the journal had.
        recorded: the host's time.
        time: when the device passed it, in nanoseconds of the host's clock; None: not known.
    """

    __slots__ = ("clock", "event", "place", "recorded", "stream", "time")

    def __init__(self, stream: int, place: int, time: int | None, recorded: int) -> None:
        self.stream, self.place, self.time, self.recorded = stream, place, time, recorded
        self.clock: Clock | None = None
        self.event: Any = None  # None: its time was read, or is the host's

    def read(self) -> bool:
        """Read the time, if the device has passed the mark, and let the event go; whether it is
        read.
        """
        clock, event = self.clock, self.event
        if event is None or clock is None:
            return True
        if not (clock.is_known and event.query()):
            return False
        clock.bound(event, self.recorded, perf_counter_ns())
        self.time = clock.time_ns(event)
        self.event = None
        clock.give(event)
        return True


class Note:
    """An operation that is being enqueued, and what the journal does not say of it."""

    __slots__ = ("began", "first", "is_idle", "parent", "spans", "waits_for")

    def __init__(self, parent: Note | None) -> None:
        self.began = perf_counter_ns()
        self.parent = parent
        self.waits_for: tuple[tuple[int, int], ...] = ()
        self.is_idle = False  # the stream had passed all when the operation began
        self.first: Mark | None = None  # in front of the work that is being enqueued
        self.spans: list[tuple[Mark, Mark]] = []  # of the parts between pauses


def _forget_oldest(entries: dict[Any, Any], most: int) -> None:
    if len(entries) > most:
        with suppress(StopIteration, RuntimeError):  # another thread has changed it
            entries.pop(next(iter(entries)), None)


class TraceRecorder:
    """See `tracing.Recorder`. Keeps the newest of each kind of record, `most` at most.

    Args:
        is_exact: mark the stream around each operation, whatever that takes.
        has_marks: mark streams at all.
    """

    def __init__(self, most: int, is_exact: bool, has_marks: bool = True) -> None:
        self.journal, self.waits = new_journal(most), new_journal(most)
        self._most, self.start_ns = most, perf_counter_ns()
        self.end_ns: int | None = None
        self._is_exact, self._has_marks = is_exact, has_marks
        self.journal.due = 0 if has_marks else NEVER
        self.sampler = Sampler(most)
        self._open: dict[Submission, Note] = {}
        self._marks: deque[Mark] = deque(maxlen=2 * most + 2)
        self._unread: deque[Mark] = deque()
        self._compilations: deque[TracedCompilation] = deque(maxlen=most)
        self._clocks: dict[Device, Clock | None] = {}
        self._activities: Activities | None = None
        self._told_by_cupti: set[Device] = set()
        self._reading = threading.Lock()
        self._failures: dict[str, int] = {}
        self._marked = count(1)
        self._errors: dict[tuple[int, int], str] = {}
        self._looks: dict[int, list[tuple[int, int]]] = defaultdict(list)  # see `_look`
        self._is_all_passed = False

    def open(self) -> None:
        """Compare the clocks of the devices that the program uses already, which takes some tens of
        microseconds and would else be a part of the first operation; then look at memory and loops.
        """
        for device in known_devices():
            if self._is_exact:
                self._record_activities(device)
            if self._has_marks and not (
                device in self._told_by_cupti or device.backend.counts_steps
            ):
                self._clock_of(device)
        self.start_ns = perf_counter_ns()
        self.sampler.start()

    def _record_activities(self, device: Device) -> None:
        """Have CUPTI record what GPUs run, where it can: then no event is on their streams."""
        try:
            cupti = device.backend.cupti()
            if cupti is None:
                return
            if self._activities is None:
                activities = Activities(cupti)
                activities.start()
                self._activities = activities
            self._told_by_cupti.add(device)
        except Exception as error:  # no library, or a profiler has it for itself: there are events
            self._failed(device, error)

    # --- the calls of `tracing.Recorder` ---

    def now(self) -> int:
        return perf_counter_ns()

    def mark(self, stream: Stream, idle_at: int = 0) -> None:
        if idle_at and self._has_marks:
            self._marks.append(Mark(stream.number, self.journal.count - 1, idle_at, idle_at))
        self._mark(stream)

    def begin(self, submission: Submission) -> None:
        self._open[submission] = note = Note(None)
        stream = submission.stream
        note.is_idle = stream.backend.passed_ns() is not None
        if not note.is_idle:
            self.reach(submission)

    def prepare(self, submission: Submission, parent: Submission | None = None) -> None:
        self._open[submission] = Note(None if parent is None else self._open.get(parent))
        _forget_oldest(self._open, MOST_OPEN)

    def reach(self, submission: Submission) -> None:
        note = self._open.get(submission)
        if note is not None and note.first is None:
            note.first = self._mark(submission.stream, is_needed=bool(note.spans))

    def pause(self, submission: Submission) -> None:
        note = self._open.get(submission)
        if note is not None:
            self._end_span(note, submission.stream)
            if self._has_marks:
                # What follows the pause is marked, too.
                self.journal.due = min(self.journal.due, perf_counter_ns())

    def drop(self, submission: Submission) -> None:
        self._open.pop(submission, None)

    def commit(self, submission: Submission) -> None:
        note = self._open.pop(submission, None)
        if note is None:
            return  # a signal, say, or what began before the trace
        now, stream = perf_counter_ns(), submission.stream
        passed = stream.backend.passed_ns() if note.is_idle else None
        is_more = note.spans or note.waits_for or note.parent is not None
        self.journal.add(submission, note.began, now, passed or 0, note if is_more else None)
        self._end_span(note, stream)
        if note.is_idle and passed is None and self.journal.due <= now:
            self.mark(stream, note.began)

    def follow(self, stream: Stream, other: Stream) -> None:
        for submission, note in list(self._open.items()):
            if submission.stream is stream:
                note.waits_for += ((other.number, other._sequence),)
                note.first = self._mark(stream)  # what follows is behind the wait

    def awaited(self, submission: Submission, began: int | None) -> None:
        stream, sequence = submission.stream, submission.sequence
        self.waits.add_wait("await", stream, sequence, submission, began or 0)

    def blocked(self, stream: Stream, number: int, began: int) -> None:
        self.waits.add_wait("block", stream, number, None, began)

    def passed(self, stream: Stream, number: int) -> None:
        self.waits.add_wait(None, stream, number, None, 0)

    def failed(self, submission: Submission) -> None:
        place = submission.stream.number, submission.sequence
        self._errors[place] = type(submission.error).__name__
        _forget_oldest(self._errors, self._most)

    def compiled(self, name: str, device: str, began: int) -> None:
        self._compilations.append(
            TracedCompilation(
                kernel=name,
                device=device,
                thread=who()[0],
                began=self._seconds(began),
                ended=self._seconds(perf_counter_ns()),
            )
        )

    # --- marks ---

    def _end_span(self, note: Note, stream: Stream) -> None:
        first, note.first = note.first, None
        if first is not None:
            last = self._mark(stream)
            if last is not None:
                note.spans.append((first, last))

    def _mark(self, stream: Stream, is_needed: bool = True) -> Mark | None:
        """A mark on a stream; None if that failed, or for a stream of another library, which may
        capture it at any time.

        Args:
            is_needed: False: only if there is time for one, or if it needs no event.
        """
        if not self._has_marks:
            return None
        backend, before = stream.backend, perf_counter_ns()
        passed = backend.passed_ns()
        if passed is not None:
            mark = Mark(stream.number, self.journal.count, passed, before)
            self._marks.append(mark)
            return mark
        if type(stream) is not Stream:
            return None
        if stream.device in self._told_by_cupti:
            return None
        # A seeded order must not depend on the time.
        if not (is_needed or self.journal.due <= before or stream.device.backend.counts_steps):
            return None
        try:
            return self._event_on(stream, before)
        except Exception as error:  # a fault, which the program's own calls will raise
            self._failed(stream.device, error)
            return None
        finally:
            if not self._is_exact:
                pause = min(PAUSE * (perf_counter_ns() - before), LONGEST_PAUSE_NS)
                self.journal.due = max(self.journal.due, before - LATEST_NS) + pause

    def _event_on(self, stream: Stream, now: int) -> Mark | None:
        clock = self._clock_of(stream.device)
        if clock is None:
            return None
        mark = Mark(stream.number, self.journal.count, None, now)
        mark.event, mark.clock = clock.take(), clock
        stream.backend.record(mark.event)
        self._unread.append(mark)
        self._marks.append(mark)
        self._read(READ_AT_A_TIME)
        if next(self._marked) % COMPARE_EVERY == 0:
            clock.compare()
        return mark

    def _clock_of(self, device: Device) -> Clock | None:
        if device not in self._clocks:
            self._clocks[device] = clock = Clock(device)
            try:
                clock.compare()
            except Exception as error:  # a lost device, say, as the operation will say
                self._failed(device, error)
                self._clocks[device] = None
        return self._clocks[device]

    def _failed(self, device: Device, error: Exception) -> None:
        text = str(error).partition("\n")[0]
        what = f"times of {device.label} are missing: {type(error).__name__}: {text}"
        self._failures[what] = self._failures.get(what, 0) + 1

    def _read(self, most: int) -> None:
        """Read the times of marks, in order, up to the first that is not passed."""
        if not self._reading.acquire(blocking=False):
            return  # another thread reads them
        try:
            while self._unread and most > 0 and self._unread[0].read():
                self._unread.popleft()
                most -= 1
        finally:
            self._reading.release()

    def settle(self, longest_ns: int = 0) -> None:
        """Read what the devices have passed."""
        for device, clock in list(self._clocks.items()):
            try:
                if clock is not None:
                    clock.compare(longest_ns)
                self._read(len(self._unread))
            except Exception as error:  # a lost device answers nothing
                self._failed(device, error)

    def close(self) -> None:
        """Note the end of the trace, and mark what is in flight then."""
        self.end_ns = perf_counter_ns()
        self.sampler.stop()
        if self._activities is not None:
            self._activities.stop()
        self._open.clear()
        rows = self._rows()
        self._look(rows)
        for device in {row.device for row in rows}:
            for stream in list(device.busy):
                self._mark(stream)
        self.settle(LONGEST_READ_NS)

    def _rows(self) -> list[Row]:
        return [Row._make(row) for row in self.journal.rows()]

    def _look(self, rows: list[Row]) -> None:
        """Note how far streams are seen to be now, without asking them."""
        latest = {row.stream: row.sequence for row in rows if row.sequence}
        now = perf_counter_ns()
        busy = {s.number: s.front for device in {r.device for r in rows} for s in list(device.busy)}
        self._is_all_passed = True
        for stream, number in latest.items():
            front = busy.get(stream, 0)
            passed = front - 1 if front else number
            self._is_all_passed &= passed >= number
            looks = self._looks[stream]
            if not looks or looks[-1][0] < passed:
                looks.append((passed, now))

    # --- reading the records ---

    @property
    def clock_error(self) -> float:
        """How far the device times may be off from the host's, in seconds."""
        errors = [clock.error_ns for clock in self._clocks.values() if clock is not None]
        if self._activities is not None:
            errors.append(self._activities.error_ns)
        return (max(errors, default=0) + NOTE_ERROR_NS) / 1e9

    @property
    def problems(self) -> list[str]:
        """What kept times from being known, and how often."""
        used = {mark.clock for mark in list(self._marks)}
        return [
            text if count == 1 else f"{text} ({count} times)"
            for text, count in list(self._failures.items())
        ] + [
            f"times of {device.label} are missing: its clock could not be compared with the host's"
            for device, clock in list(self._clocks.items())
            if clock in used and clock is not None and not clock.is_known
        ]

    @property
    def is_settled(self) -> bool:
        """Whether the trace is closed, and all that it will ever know is known."""
        return self.end_ns is not None and self._is_all_passed and not self._unread

    def _seconds(self, ns: int) -> float:
        return (ns - self.start_ns) / 1e9

    def records(
        self,
    ) -> tuple[list[TracedOperation], list[TracedWait], list[TracedCompilation]]:
        """Operations in the order in which they were enqueued, waits and compilations."""
        self.settle(0 if self.end_ns is None else LONGEST_READ_NS)
        rows = self._rows()
        if not self._is_all_passed:
            self._look(rows)
        waits = [Row._make(row) for row in self.waits.rows()]
        seen = [(wait.stream, wait.sequence, wait.ended) for wait in waits]
        seen += [(stream, *look) for stream, looks in self._looks.items() for look in looks]
        times = Times(rows, self.journal.count - len(rows), list(self._marks), seen)
        places = {id(row.more): i for i, row in enumerate(rows) if row.more is not None}
        operations = [self._operation(row, times, i, places) for i, row in enumerate(rows)]
        if self._activities is not None:
            for i, spans in self._activities.of(rows).items():
                told = tuple((self._seconds(a), self._seconds(b)) for a, b in spans)
                operations[i] = replace(operations[i], spans=told, is_measured=True)
        found = {(op.stream, op.sequence): op for op in operations if op.sequence}
        on_streams: dict[int, list[TracedOperation]] = defaultdict(list)
        for op in sorted(found.values(), key=lambda op: op.sequence):
            on_streams[op.stream].append(op)
        found_waits = [
            self._wait(found.get((row.stream, row.sequence)), on_streams[row.stream], row)
            for row in waits
            if row.more is not None
        ]
        return operations, found_waits, list(self._compilations)

    @property
    def samples(self) -> list[TracedSample]:
        """Memory in use, and how late loops were."""
        return [
            TracedSample(
                what=what,  # type: ignore[arg-type]  # one of the two
                where=where,
                at=self._seconds(at),
                value=value / 1e9 if what == LAG else value,
            )
            for at, what, where, value in list(self.sampler.samples)
        ]

    def _operation(self, row: Row, times: Times, i: int, places: dict[int, int]) -> TracedOperation:
        spans, is_measured = times.found[i]
        note: Note | None = row.more
        parent = None if note is None else note.parent
        return TracedOperation(
            name=row.name,
            kernels=tuple(map(str, row.launched)),
            shapes=tuple(getattr(name, "shapes", ()) for name in row.launched),
            line="" if row.site is None else str(row.site),
            device=row.device.label,
            stream=row.stream,
            sequence=row.sequence,
            task=row.task,
            thread=row.thread,
            submitted=self._seconds(row.began),
            enqueued=self._seconds(row.ended),
            spans=tuple(
                (self._seconds(a), None if b is None else self._seconds(b)) for a, b in spans
            ),
            is_measured=is_measured,
            nbytes=row.nbytes,
            copied=row.copied,
            waits_for=() if note is None else note.waits_for,
            parent=None if parent is None else places.get(id(parent)),
            error=self._errors.get((row.stream, row.sequence), ""),
        )

    def _wait(
        self, op: TracedOperation | None, on_stream: list[TracedOperation], row: Row
    ) -> TracedWait:
        """A wait for `op`, or for a number that is no operation's.

        Args:
            on_stream: the operations of its stream, in order.
        """
        ended = self._seconds(row.ended)
        began = self._seconds(row.began) if row.began else op.enqueued if op else ended
        ready = None
        if op is not None and op.is_measured:
            # Who waits is woken by a signal behind all that the stream has then.
            at = bisect_right(on_stream, began, key=lambda one: one.enqueued)
            last = max(op, *on_stream[at - 1 : at], key=lambda one: one.sequence)
            if last.is_measured and last.ended is not None:
                # Else it was asked for before, and not woken.
                ready = last.ended if last.ended <= ended + self.clock_error else op.ended
        return TracedWait(
            how=row.more,
            name=row.name or (op.name if op else "a stream"),
            stream=row.stream,
            sequence=row.sequence,
            task=row.task,
            thread=row.thread,
            began=began,
            ready=ready,
            ended=ended,
        )


class Times:
    """When the device was at the operations of a journal.

    Args:
        rows: of the journal.
        first: the place of the first of them.
        seen: streams, numbers that they were seen to have passed, and when.

    Attributes:
        found: for each row the spans, and whether they were measured. If not, the span is from the
            submission, or the mark in front of it, to when the stream was seen to have passed it.
    """

    def __init__(
        self, rows: list[Row], first: int, marks: list[Mark], seen: list[tuple[int, int, int]]
    ) -> None:
        self._rows, self._first = rows, first
        self._marks: dict[int, list[Mark]] = defaultdict(list)
        for mark in marks:
            self._marks[mark.stream].append(mark)
        self._places: dict[int, list[int]] = {}
        for stream, own in self._marks.items():
            own.sort(key=lambda mark: mark.place)
            self._places[stream] = [mark.place for mark in own]
        # The operation in front of each on its stream, or -1.
        self._before: list[int] = []
        latest: dict[int, int] = {}
        for i, row in enumerate(rows):
            self._before.append(latest.get(row.stream, -1))
            latest[row.stream] = i
        # Per stream, rising numbers, and when they were seen to be passed, at the earliest.
        self._seen: dict[int, tuple[list[int], list[int]]] = {}
        by_stream: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for stream, number, at in seen:
            by_stream[stream].append((number, at))
        for stream, pairs in by_stream.items():
            earliest: list[tuple[int, int]] = []
            for number, at in sorted(pairs, reverse=True):
                earliest.append((number, min(at, earliest[-1][1]) if earliest else at))
            numbers, ends = zip(*reversed(earliest), strict=True)
            self._seen[stream] = list(numbers), list(ends)
        self.found: list[tuple[Spans, bool]] = [((), False)] * len(rows)
        behind: dict[int, int] = {}
        for i in reversed(range(len(rows))):
            self.found[i] = self._spans(i, behind.get(rows[i].stream))
            if rows[i].sequence:
                behind[rows[i].stream] = i

    def _spans(self, i: int, following: int | None) -> tuple[Spans, bool]:
        row, note = self._rows[i], self._rows[i].more
        if not row.sequence:
            return (), False
        if row.passed:
            return ((row.began, row.passed),), True
        if note is not None and note.spans:
            spans = tuple((a.time, b.time) for a, b in note.spans if a.time is not None)
            return spans, bool(spans) and all(b is not None for _, b in spans)
        front, behind = self._around(i)
        began, ended = row.began, None if behind is None else behind.time
        if front is not None and front.time is not None:
            began = max(began, front.time)
            is_own = front.recorded >= row.began - NOTE_ERROR_NS
            is_own &= front.place > self._first + self._before[i]
            is_own &= following is None or (
                behind is not None and behind.place <= self._first + following
            )
            if is_own and ended is not None:
                return ((began, max(began, ended)),), True
        ends = [ended, self._seen_end(row)]
        if following is not None:  # the stream passes one behind the other
            later = self._rows[following]
            ends += [later.began if later.passed else self._end(following)]
        known = [max(end, began) for end in ends if end is not None]
        return ((began, min(known) if known else None),), False

    def _around(self, i: int) -> tuple[Mark | None, Mark | None]:
        """The marks in front of an operation, and behind it."""
        stream, place = self._rows[i].stream, self._first + i
        marks = self._marks.get(stream, [])
        at = bisect_right(self._places.get(stream, []), place)
        return marks[at - 1] if at else None, marks[at] if at < len(marks) else None

    def _end(self, i: int) -> int | None:
        spans = self.found[i][0]
        return spans[-1][1] if spans else None

    def _seen_end(self, row: Row) -> int | None:
        """When an operation was seen to be passed, or one behind it, at the earliest."""
        numbers, ends = self._seen.get(row.stream, ([], []))
        at = bisect_right(numbers, row.sequence - 1)
        return ends[at] if at < len(ends) else None
