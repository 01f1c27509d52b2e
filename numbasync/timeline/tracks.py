"""A timeline as tracks, of slices none of which overlaps another one in part, and as counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numbasync.timeline.records import (
    TracedCompilation,
    TracedOperation,
    TracedSample,
    TracedWait,
)

BOUNDS = "bounds"  # a detail of work whose times were not measured
HOST = "host"  # the group of the tracks of tasks and threads


@dataclass(slots=True)
class Slice:
    """A stretch of time.

    Attributes:
        what: `"work"` of a device; of the host `"enqueue"`, `"await"`, `"block"`, `"compile"`.
        operation: the place in the list of operations of what it is of; None: of none.
        part: which span of the operation it is, for work.
    """

    what: str
    name: str
    began: float
    ended: float
    operation: int | None = None
    part: int = 0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Track:
    """A line of slices: of a stream, a task or a thread, in a group of lines."""

    group: str
    name: str
    slices: list[Slice]


@dataclass(slots=True)
class Line:
    """A number over time, of a group of tracks.

    Attributes:
        unit: `""`, `"B"` or `"us"`.
        points: when it became what, in order. It keeps a value until the next.
    """

    group: str
    name: str
    unit: str
    points: list[tuple[float, float]]


def tracks(
    operations: list[TracedOperation],
    waits: list[TracedWait],
    compilations: list[TracedCompilation],
    seconds: float,
) -> list[Track]:
    """The host's tracks, then those of each device's streams.

    Args:
        seconds: where what has no end yet ends.
    """
    host: dict[str, list[Slice]] = defaultdict(list)
    devices: dict[tuple[str, int], list[Slice]] = defaultdict(list)
    places = {(op.stream, op.sequence): i for i, op in enumerate(operations) if op.sequence}
    for i, op in enumerate(operations):
        details = {
            "kernels": _counted(op.kernels), "arrays": _arrays(op), "line": op.line,
            "bytes": op.nbytes, "bytes copied": op.copied, "error": op.error, "stream": op.stream,
        }  # fmt: skip
        shown = {name: value for name, value in details.items() if value}
        host[_line(op.task, op.thread)].append(
            Slice("enqueue", op.name, op.submitted, op.enqueued, i, 0, shown)
        )
        if op.copied and op.is_measured and op.seconds:
            shown["GB/s"] = round(op.copied / op.seconds / 1e9, 3)
        stream = devices[op.device, op.stream]
        for part, (began, ended) in enumerate(op.spans):
            own = shown if ended is not None else {**shown, "unfinished": True}
            end = seconds if ended is None else ended
            work = Slice("work", op.name, max(began, 0.0), end, i, part, own)
            if not op.is_measured:
                work.details = {**own, BOUNDS: "these times are bounds"}
                if stream and _is_one(stream[-1], work):
                    work = _joined(stream.pop(), work)
            stream.append(work)
    for wait in waits:
        place = places.get((wait.stream, wait.sequence))
        told: dict[str, Any] = {"stream": wait.stream}
        if wait.wake_seconds is not None:
            told["woken after the end, us"] = round(wait.wake_seconds * 1e6, 1)
        host[_line(wait.task, wait.thread)].append(
            Slice(wait.how, wait.name, wait.began, wait.ended, place, 0, told)
        )
    for compiled in compilations:
        host[compiled.thread].append(
            Slice("compile", compiled.kernel, compiled.began, compiled.ended, None, 0,
                  {"device": compiled.device})
        )  # fmt: skip
    found = [track for name, slices in host.items() for track in _lanes(HOST, name, slices)]
    for device, number in sorted(devices):
        found += _lanes(device, f"stream {number}", devices[device, number])
    return found


def lines(operations: Sequence[TracedOperation], samples: Sequence[TracedSample]) -> list[Line]:
    """Operations and bytes in flight of each device, its memory in use, and how late loops were."""
    changes: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    for op in operations:
        if op.sequence and op.spans:
            changes[op.device].append((op.enqueued, 1, op.nbytes))
            if op.ended is not None:
                changes[op.device].append((max(op.ended, op.enqueued), -1, -op.nbytes))
    found: list[Line] = []
    for device, steps in changes.items():
        ops = Line(device, "operations in flight", "", [])
        nbytes = Line(device, "bytes in flight", "B", [])
        count = held = 0
        for at, more, more_bytes in sorted(steps, key=lambda step: (step[0], -step[1])):
            count, held = count + more, held + more_bytes
            ops.points.append((max(at, 0.0), count))
            nbytes.points.append((max(at, 0.0), held))
        found += [ops, nbytes]
    sampled: dict[tuple[str, str], Line] = {}
    for sample in samples:
        is_memory = sample.what == "memory in use"
        name, unit = ("bytes in use", "B") if is_memory else (f"loop lag of {sample.where}", "us")
        group = sample.where if is_memory else HOST
        line = sampled.setdefault((group, name), Line(group, name, unit, []))
        value = sample.value if is_memory else round(sample.value * 1e6, 1)
        line.points.append((max(sample.at, 0.0), value))
    return found + list(sampled.values())


def _counted(names: tuple[str, ...]) -> str:
    """Names, each once: `saxpy x 100, add`."""
    return ", ".join(name if n == 1 else f"{name} x {n}" for name, n in Counter(names).items())


def _is_one(first: Slice, second: Slice) -> bool:
    """Whether both lie within the same bounds of a stream."""
    return BOUNDS in first.details and first.ended == second.ended


def _joined(first: Slice, second: Slice) -> Slice:
    """Works of which only common bounds are known, as the last of them."""
    count = first.details.get("operations", 1) + 1
    name = first.name.removesuffix(f" and {count - 2} more")
    second.name, second.began = f"{name} and {count - 1} more", min(first.began, second.began)
    second.details["operations"] = count
    return second


def _arrays(op: TracedOperation) -> str:
    """The shapes of the last kernel's arrays: `z (1000,), x (1000,)`."""
    return ", ".join(f"{name} {shape}" for name, shape in op.shapes[-1]) if op.shapes else ""


def _line(task: str, thread: str) -> str:
    return task or thread


def _lanes(group: str, name: str, slices: Iterable[Slice]) -> list[Track]:
    """Tracks of these slices, as few as possible: each new slice lies inside of the last one that
    has not ended, or behind it.
    """
    lanes: list[tuple[Track, list[float]]] = []  # with the ends of the slices that are open
    for piece in sorted(slices, key=lambda s: (s.began, -s.ended)):
        piece.ended = max(piece.ended, piece.began)
        for _, ends in lanes:
            while ends and ends[-1] <= piece.began:
                ends.pop()
        free = (lane for lane in lanes if not lane[1] or piece.ended <= lane[1][-1])
        lane = next(free, None)
        if lane is None:
            title = name if not lanes else f"{name} ({len(lanes) + 1})"
            lane = Track(group, title, []), []
            lanes.append(lane)
        lane[0].slices.append(piece)
        lane[1].append(piece.ended)
    return [track for track, _ in lanes]
