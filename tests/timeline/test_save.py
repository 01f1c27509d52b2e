"""Saved timelines keep the rules of the Trace Event Format, and say what ran."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import numbasync as na
from numbasync.errors import CallerError
from numbasync.timeline.trace_events import events
from numbasync.timeline.tracks import Slice, _lanes, lines, tracks
from tests.common import add_one
from tests.timeline.records import operation
from tests.timeline.trace_event_format import check


async def program(device: na.Device) -> na.Timeline:
    """Awaits, blocking calls, two streams that wait for each other, an error and a graph."""
    streams = [device.new_stream() for _ in range(2)]
    z = await na.zeros(8)
    graph = add_one(z).graph()
    with na.trace() as t:
        y = na.spawn(na.ones(8), streams[0])
        await na.gather(*(add_one(z) for _ in range(4)), y)
        na.memcpy(z, await y).async_on(streams[1])
        add_one(await y).async_on(streams[0])
        await graph.launch()
        with pytest.raises(ZeroDivisionError):
            await na.value(1).map(lambda n: n / 0)
        await streams[0].done()
        streams[1].synchronize()
    return t


def of(data: dict[str, Any], phase: str, **wanted: Any) -> list[dict[str, Any]]:
    return [
        event for event in data["traceEvents"]
        if event["ph"] == phase and all(event[name] == value for name, value in wanted.items())
    ]  # fmt: skip


def test_a_saved_timeline_keeps_the_rules(device: na.Device, tmp_path: Path) -> None:
    t = na.run(program(device))
    plain, packed = t.save(tmp_path / "x.json"), t.save(str(tmp_path / "x.json.gz"))
    data = json.loads(plain.read_text())
    assert json.loads(gzip.decompress(packed.read_bytes())) == data
    check(data)
    titles = {event["args"]["name"] for event in of(data, "M", name="process_name")}
    assert titles == {"host: tasks and threads", device.label}
    work = of(data, "X", cat="work")
    assert len(work) == sum(len(op.spans) for op in t.operations)
    assert {event["args"]["kernels"] for event in work if "kernels" in event["args"]} == {"add_one"}
    assert all("test_save.py" in event["args"]["line"] for event in of(data, "X", cat="enqueue"))
    assert {event["cat"] for event in data["traceEvents"] if event["ph"] == "s"} >= {"operation"}
    ends = of(data, "f", cat="operation")
    assert len(ends) >= len([op for op in t.operations if op.spans]) - 2
    counters = {event["name"]: event["args"]["value"] for event in of(data, "C")}
    assert counters["operations in flight"] == counters["bytes in flight"] == 0


def test_other_names_of_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=r"\.json or \.json\.gz"):
        na.trace().save(tmp_path / "x.txt")
    check(json.loads(na.trace().save(tmp_path / "empty.json").read_text()))


def test_partly_overlapping_works_get_their_own_lines() -> None:
    pieces = [(0, 10), (1, 3), (3, 9), (2, 4), (10, 12), (11, 13), (5, 5)]
    made = [Slice("await", str(i), a, b) for i, (a, b) in enumerate(pieces)]
    tracks = _lanes("host", "Task-1", made)
    assert [track.name for track in tracks] == ["Task-1", "Task-1 (2)"]
    assert [[s.name for s in track.slices] for track in tracks] == [
        ["0", "1", "2", "6", "4"], ["3", "5"],
    ]  # fmt: skip
    check({"traceEvents": events(tracks, []), "displayTimeUnit": "ms"})


def test_order_between_streams_is_a_flow(tmp_path: Path) -> None:

    writer = operation("writer", 1, 1, (0.0, 2.0))
    reader = operation("reader", 2, 1, (2.0, 3.0), waits_for=((1, 1), (9, 9)))
    late = operation("late", 3, 1, (0.0, 1.0), waits_for=((2, 1),))  # clocks that disagree
    found = events(tracks([writer, reader, late], [], [], 3.0), [writer, reader, late])
    check({"traceEvents": found, "displayTimeUnit": "ms"})
    (start,) = (e for e in found if e["ph"] == "s" and e["cat"] == "order")
    (end,) = (e for e in found if e["ph"] == "f" and e["cat"] == "order")
    assert (
        start["id"] == end["id"]
        and start["tid"] != end["tid"]
        and end["ts"] == 2e6 == start["ts"] + 2e6
    )


def test_samples_are_counters_of_device_and_host(device: na.Device) -> None:
    ops = [operation("k", 1, 1, (0.0, 1.0), device=device.label)]
    samples = [
        na.TracedSample(what="memory in use", where=device.label, at=0.5, value=4096),
        na.TracedSample(what="memory in use", where="cuda:9", at=0.5, value=1),  # which ran nothing
        na.TracedSample(what="loop lag", where="MainThread", at=0.25, value=2e-3),
    ]
    made = events(tracks(ops, [], [], 1.0), ops, lines(ops, samples))
    found = [e for e in made if e["ph"] == "C"]
    names = {e["pid"]: e["args"]["name"] for e in made if e["name"] == "process_name"}
    shown = {(e["name"], names[e["pid"]], e["ts"], e["args"]["value"]) for e in found}
    assert ("bytes in use", device.label, 5e5, 4096) in shown
    assert ("loop lag of MainThread, us", "host: tasks and threads", 2.5e5, 2000.0) in shown
    assert len([e for e in found if e["name"] == "bytes in use"]) == 1
