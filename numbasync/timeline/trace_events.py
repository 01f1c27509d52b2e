"""A timeline in the Trace Event Format, which Perfetto and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A group
of tracks is a process, a track a thread. A flow leads from the enqueueing of an operation to its
work and on to the wait for it; another one from work to what waited for it on another stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from numbasync.timeline.records import TracedOperation
from numbasync.timeline.tracks import HOST, Line, Slice, Track

Event = dict[str, Any]
Place = tuple[int, int, Slice]  # process, thread, slice


def events(
    tracks: list[Track],
    operations: list[TracedOperation],
    lines: Sequence[Line] = (),
) -> list[Event]:
    """The events: names first, the others by time, in microseconds."""
    groups = {group: i + 1 for i, group in enumerate(dict.fromkeys(t.group for t in tracks))}
    named: list[Event] = []
    timed: list[Event] = []
    by_operation: dict[int, list[Place]] = defaultdict(list)
    for group, pid in groups.items():
        title = "host: tasks and threads" if group == HOST else group
        named.append(_named("process_name", pid, 0, title))
    for tid, track in enumerate(tracks, 1):
        pid = groups[track.group]
        named.append(_named("thread_name", pid, tid, track.name))
        named.append(
            {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid,
             "args": {"sort_index": tid}}
        )  # fmt: skip
        for piece in track.slices:
            timed.append(_slice(piece, pid, tid))
            if piece.operation is not None:
                by_operation[piece.operation].append((pid, tid, piece))
    timed += _flows(by_operation, operations)
    timed += _counted(groups, lines)
    return named + sorted(timed, key=lambda event: (event["ts"], -event.get("dur", 0.0)))


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(piece: Slice, pid: int, tid: int) -> Event:
    began = _us(piece.began)
    return {
        "ph": "X", "name": piece.name, "cat": piece.what, "ts": began,
        "dur": round(_us(piece.ended) - began, 3), "pid": pid, "tid": tid, "args": piece.details,
    }  # fmt: skip


def _flow(phase: str, name: str, number: int, at: float, place: Place) -> Event:
    """A point of a flow, inside of a slice: a time at its end would belong to none."""
    pid, tid, piece = place
    inside = min(max(at, piece.began), piece.began + 0.999 * (piece.ended - piece.began))
    event = {"ph": phase, "name": name, "cat": name, "id": number, "ts": _us(inside),
             "pid": pid, "tid": tid}  # fmt: skip
    return event | {"bp": "e"} if phase == "f" else event


def _flows(places: dict[int, list[Place]], operations: list[TracedOperation]) -> list[Event]:
    """What leads from slice to slice, as far as it leads forward in time."""
    found: list[Event] = []
    number = 0
    by_stream = {(op.stream, op.sequence): i for i, op in enumerate(operations) if op.sequence}
    for i, op in enumerate(operations):
        own = places.get(i, [])
        ways = [p for p in own if p[2].what == "enqueue"] + [
            p for p in own if p[2].what == "work" and p[2].part == len(op.spans) - 1
        ]
        ways += [p for p in own if p[2].what in ("await", "block")][:1]
        number += 1
        found += _path("operation", number, ways)
        first = [p for p in own if p[2].what == "work" and p[2].part == 0]
        for stream, sequence in op.waits_for:
            # The stream waited for all that the other one held: the last that is known of.
            other = by_stream.get((stream, sequence))
            if other is None or not first:
                continue
            last = [p for p in places.get(other, []) if p[2].what == "work"][-1:]
            number += 1
            found += _path("order", number, last + first)
    return found


def _path(name: str, number: int, places: list[Place]) -> list[Event]:
    if len(places) < 2:
        return []
    points: list[Event] = []
    for k, place in enumerate(places):
        phase = "s" if k == 0 else "f" if k == len(places) - 1 else "t"
        at = points[-1]["ts"] / 1e6 if points else place[2].began
        points.append(_flow(phase, name, number, at, place))
    forward = all(a["ts"] <= b["ts"] for a, b in pairwise(points))
    return points if forward else []


def _counted(groups: dict[str, int], lines: Sequence[Line]) -> list[Event]:
    """The numbers over time of the groups that there are."""
    return [
        {
            "ph": "C", "name": f"{line.name}, us" if line.unit == "us" else line.name,
            "ts": _us(at), "pid": groups[line.group], "tid": 0, "args": {"value": value},
        }
        for line in lines
        if line.group in groups
        for at, value in line.points
    ]  # fmt: skip
