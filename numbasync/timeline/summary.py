"""What a timeline comes to: how busy streams were, what was waited for longest, and what to do."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from numbasync import notebook
from numbasync.timeline.records import TracedCompilation, TracedOperation, TracedWait

MOST_WAITS = 5
MOST_STEPS = 100  # of a critical path
MOST_NAMED = 6  # of these, in the table
# What advice is given for: parts of the time of the trace, and seconds.
MUCH = 0.05
LATE = 1e-3

Spans = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUse:
    """How busy a stream was.

    Attributes:
        device: the device's label.
        stream: the stream's number.
        operations: how many ran on it.
        busy: seconds in which it ran them, or may have: see `TracedOperation.is_measured`.
        longest_gap: seconds between two of them, at most.

    Examples:
        >>> with na.trace() as t:
        ...     z = await na.zeros(3)
        >>> [(use.device, use.operations, use.busy > 0) for use in t.summary().streams]
        [('cpu:0', 1, True)]
    """

    device: str
    stream: int
    operations: int
    busy: float
    longest_gap: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TraceSummary:
    """What a timeline comes to; `print` it for a table. Made by `Timeline.summary()`.

    Attributes:
        seconds: how long the trace was open.
        operations: how many there were.
        streams: how busy each stream was, the busiest first.
        busy: seconds in which any stream ran something.
        overlap: the part of `busy` in which two streams or more did: 0.0 to 1.0.
        blocked: seconds in which a thread with a running task was blocked, so that its loop stood
            still.
        compiling: seconds of compilations, each counted.
        longest_waits: the longest awaits and blocking waits, the longest first.
        critical_path: what the longest of these waited for, in order: each operation began when the
            one before it ended.
        advice: what would help, in sentences.

    Examples:
        >>> with na.trace() as t:
        ...     z = await saxpy(na.zeros(3), 2.0, na.ones(3)).first()
        >>> s = t.summary()
        >>> s.operations, s.overlap, [op.kernels[-1] for op in s.critical_path]
        (1, 0.0, ['saxpy'])
        >>> print(s)
        1 operation in ... ms; streams were busy for ... ms, and 0 % of that together
        ...
    """

    seconds: float
    operations: int
    streams: tuple[StreamUse, ...]
    busy: float
    overlap: float
    blocked: float
    compiling: float
    longest_waits: tuple[TracedWait, ...]
    critical_path: tuple[TracedOperation, ...]
    advice: tuple[str, ...]

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The table's names and texts."""
        rows = [
            (
                f"stream {use.stream} of {use.device}",
                ", ".join(
                    (
                        counted(use.operations, "operation"),
                        f"busy {_ms(use.busy)} ({_percent(use.busy, self.seconds)})",
                        f"longest gap {_ms(use.longest_gap)}",
                    )
                ),
            )
            for use in self.streams
        ]
        for wait in self.longest_waits:
            late = wait.wake_seconds
            woken = "" if late is None else f", went on {_ms(late)} after the work's end"
            who = wait.task or wait.thread
            rows.append(
                (f"{wait.how} of {who}", f"{_ms(wait.ended - wait.began)} for {wait.name}{woken}")
            )
        if len(self.critical_path) > 1:
            last = [
                f"{op.name} ({'' if op.is_measured else 'at most '}{_ms(op.seconds)})"
                for op in self.critical_path[-MOST_NAMED:]
            ]
            more = len(self.critical_path) - len(last)
            before = [f"{more} before"] if more else []
            rows.append(("the longest waited for", " -> ".join(before + last)))
        return rows + [("advice", sentence) for sentence in self.advice]

    @property
    def title(self) -> str:
        """The sentence above the table."""
        return (
            f"{counted(self.operations, 'operation')} in {_ms(self.seconds)}; streams were busy "
            f"for {_ms(self.busy)}, and {_percent(self.overlap, 1.0)} of that together"
        )

    def __str__(self) -> str:
        rows = self.rows
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join([self.title, *(f"{name:<{width}}  {text}" for name, text in rows)])

    def __repr__(self) -> str:
        return f"<TraceSummary, {self.title}>"

    def _repr_html_(self) -> str:
        return notebook.table(self.title, self.rows)


def counted(n: int, what: str) -> str:
    """A number of things, in words."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.0f} %"


def summarize(
    operations: Sequence[TracedOperation],
    waits: Sequence[TracedWait],
    compilations: Sequence[TracedCompilation],
    seconds: float,
) -> TraceSummary:
    """The summary of a timeline."""
    by_stream: dict[tuple[str, int], Spans] = defaultdict(list)
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for op in operations:
        if op.spans:
            counts[op.device, op.stream] += 1
            by_stream[op.device, op.stream] += [
                (a, seconds if b is None else b) for a, b in op.spans
            ]
    merged = {key: _union(spans) for key, spans in by_stream.items()}
    uses = [
        StreamUse(
            device=device, stream=stream, operations=counts[device, stream],
            busy=_length(spans), longest_gap=_longest_gap(spans),
        )
        for (device, stream), spans in merged.items()
    ]  # fmt: skip
    busy = _length(_union([span for spans in merged.values() for span in spans]))
    several = _several(merged.values())
    longest = sorted(waits, key=lambda wait: wait.began - wait.ended)[:MOST_WAITS]
    blocking = [wait for wait in waits if wait.how == "block" and wait.task]
    blocked = _length(_union([(wait.began, wait.ended) for wait in blocking]))
    compiling = sum(one.ended - one.began for one in compilations)
    return TraceSummary(
        seconds=seconds,
        operations=len(operations),
        streams=tuple(sorted(uses, key=lambda use: -use.busy)),
        busy=busy,
        overlap=several / busy if busy else 0.0,
        blocked=blocked,
        compiling=compiling,
        longest_waits=tuple(longest),
        critical_path=tuple(critical_path(operations, longest[0])) if longest else (),
        advice=tuple(_advice(operations, waits, compilations, seconds, busy, several, blocking)),
    )


def _union(spans: Spans) -> Spans:
    """The same stretches of time, in order, without overlaps."""
    found: Spans = []
    for began, ended in sorted(spans):
        if found and began <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ended)
        else:
            found.append((began, ended))
    return found


def _length(spans: Iterable[tuple[float, float]]) -> float:
    return sum(ended - began for began, ended in spans)


def _longest_gap(spans: Spans) -> float:
    """Between stretches that are in order and do not overlap."""
    return max((b[0] - a[1] for a, b in pairwise(spans)), default=0.0)


def _several(streams: Iterable[Spans]) -> float:
    """How long two streams or more were busy."""
    changes = sorted(
        (at, step)
        for spans in streams
        for span in spans
        for at, step in zip(span, (1, -1), strict=True)
    )
    total, count, before = 0.0, 0, 0.0
    for at, step in changes:
        total += (at - before) * (count > 1)
        count, before = count + step, at
    return total


def critical_path(operations: Sequence[TracedOperation], wait: TracedWait) -> list[TracedOperation]:
    """What a wait waited for: its operation, what that had to wait for on its stream or on another
    one, and so on, back to an operation that began as soon as the host had enqueued it.
    """
    streams: dict[int, list[TracedOperation]] = defaultdict(list)
    for op in operations:
        if op.sequence:
            streams[op.stream].append(op)
    for ops in streams.values():
        ops.sort(key=lambda op: op.sequence)

    def up_to(stream: int, sequence: int) -> TracedOperation | None:
        """The last operation of a stream up to a number, which may be a signal's."""
        ops = streams[stream]
        at = bisect_left(ops, sequence + 1, key=lambda op: op.sequence)
        return ops[at - 1] if at else None

    path: list[TracedOperation] = []
    here = up_to(wait.stream, wait.sequence)
    while here is not None and len(path) < MOST_STEPS:
        path.append(here)
        before = [up_to(here.stream, here.sequence - 1), *(up_to(*one) for one in here.waits_for)]
        done = [one for one in before if one is not None and one.ended is not None]
        last = max(done, key=lambda one: one.ended or 0.0, default=None)
        here = last if last is not None and (last.ended or 0.0) > here.submitted else None
    return path[::-1]


def _advice(
    operations: Sequence[TracedOperation],
    waits: Sequence[TracedWait],
    compilations: Sequence[TracedCompilation],
    seconds: float,
    busy: float,
    several: float,
    blocking: Sequence[TracedWait],
) -> Iterable[str]:
    longest = max(blocking, key=lambda wait: wait.ended - wait.began, default=None)
    if longest is not None and (
        longest.ended - longest.began > LATE
        or sum(wait.ended - wait.began for wait in blocking) > MUCH * seconds
    ):
        yield (
            f"The event loop stood still in {counted(len(blocking), 'blocking call')}, the longest "
            f"{_ms(longest.ended - longest.began)} for {longest.name}: await operations there."
        )
    compiling = sum(one.ended - one.began for one in compilations)
    if compiling > MUCH * seconds:
        yield (
            f"Compiling took {_ms(compiling)}: call kernel.compile beforehand, or keep the kernels "
            "on disk with cache=True."
        )
    launched = [op for op in operations if op.kernels and op.spans]
    measured = [op.seconds for op in launched if op.is_measured]
    if len(launched) >= 100 and measured:
        run = median(measured)
        enqueue = median(op.enqueued - op.submitted for op in launched)
        if run < enqueue:
            yield (
                f"Kernels run for {_ms(run)} and take the host {_ms(enqueue)} to enqueue: replay "
                "them as a graph, or fuse array operations in a batch."
            )
    used = {(op.device, op.stream) for op in operations if op.spans}
    if len(used) > 1 and busy > MUCH * seconds and several < MUCH * busy:
        yield (
            f"{len(used)} streams took turns, and hardly ran together: start independent "
            "operations with na.gather, and see waits_for for what they wait for."
        )
    late = [wait.wake_seconds for wait in waits if wait.how == "await" and wait.wake_seconds]
    if len(late) >= 5 and median(late) > LATE:
        yield (
            f"Tasks went on {_ms(median(late))} after their work had ended, half of them later: "
            "something else keeps the event loop busy."
        )
