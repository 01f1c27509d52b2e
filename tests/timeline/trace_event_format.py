"""What the Trace Event Format asks of a file, and what Perfetto asks of flows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

PHASES = {"M", "X", "s", "t", "f", "C"}  # those that a timeline uses


def check(data: Any) -> None:
    """Fail where the object of a file does not keep the format's rules."""
    assert set(data) >= {"traceEvents"} and data["displayTimeUnit"] in ("ms", "ns")
    processes, threads = set(), set()
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    flows: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    used = set()
    for event in data["traceEvents"]:
        phase = event["ph"]
        assert phase in PHASES and isinstance(event["name"], str) and event["name"]
        assert type(event["pid"]) is int and type(event["tid"]) is int
        place = event["pid"], event["tid"]
        if phase == "M":
            assert "ts" not in event
            if event["name"] == "process_name":
                processes.add(event["pid"])
            elif event["name"] == "thread_name":
                threads.add(place)
            assert set(event["args"]) <= {"name", "sort_index"}
            continue
        assert type(event["ts"]) in (int, float) and event["ts"] >= 0
        if phase == "X":
            assert event["dur"] >= 0 and isinstance(event["cat"], str) and "args" in event
            slices[place].append((event["ts"], event["ts"] + event["dur"]))
            used.add(place)
        elif phase == "C":
            assert all(type(value) in (int, float) for value in event["args"].values())
            assert min(event["args"].values()) >= 0 and event["pid"] in processes
        else:
            flows[event["cat"], event["id"]].append(event)
            assert event.get("bp", "e") == "e" and ("bp" in event) == (phase == "f")
    assert used <= threads and {pid for pid, _ in used} <= processes
    for pieces in slices.values():
        _check_nested(pieces)
    for points in flows.values():
        _check_flow(points, slices)


def _check_nested(pieces: list[tuple[float, float]]) -> None:
    """Of two slices of a thread one is inside of the other one, or behind it."""
    ends: list[float] = []
    for began, ended in sorted(pieces, key=lambda piece: (piece[0], -piece[1])):
        while ends and ends[-1] <= began + 1e-3:
            ends.pop()
        assert not ends or ended <= ends[-1] + 1e-3, "two slices overlap in part"
        ends.append(ended)


def _check_flow(
    points: list[dict[str, Any]], slices: dict[tuple[int, int], list[tuple[float, float]]]
) -> None:
    """A flow has one start, then steps, then one end, forward in time, each inside of a slice."""
    phases = "".join(point["ph"] for point in points)
    assert phases[0] == "s" and phases[-1] == "f" and set(phases[1:-1]) <= {"t"}, phases
    times = [point["ts"] for point in points]
    assert times == sorted(times)
    for point in points:
        at, around = point["ts"], slices[point["pid"], point["tid"]]
        assert any(began - 1e-3 <= at <= ended + 1e-3 for began, ended in around)
