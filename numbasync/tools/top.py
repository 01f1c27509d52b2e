"""`numbasync top`: a program runs, and meanwhile a table shows what its devices do.

A thread looks a few times a second. It asks no device anything, so a program whose device hangs is
shown as well, and a seeded order stays as it is.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from numbasync.backend.protocols import counters
from numbasync.device.device import Device, known_devices
from numbasync.errors import MissingExtraError
from numbasync.tools.program import check_program, run_as_main

MOST_STREAMS = 20  # of a device; the others are counted
HEADS = ("device", "stream", "in flight", "bytes", "the oldest in flight", "submitted at")


@dataclass(frozen=True, slots=True)
class Row:
    """What a device, or one of its streams, does now.

    Attributes:
        device: the device's label.
        stream: the stream's number; None: all of the device.
        in_flight: how many operations are enqueued and were not seen to be done.
        nbytes: bytes that they hold; of a device, those that its pool has in use.
        oldest: the name of the first of them, or a sentence about the device.
        line: the line of the program that submitted it.
    """

    device: str
    stream: int | None
    in_flight: int
    nbytes: int
    oldest: str
    line: str


def look() -> list[Row]:
    """A row for each device that the program has used, and for each of its streams with work."""
    return [row for device in known_devices() for row in _rows(device)]


def _rows(device: Device) -> list[Row]:
    streams = sorted(device.busy, key=lambda stream: stream.number)
    own: list[Row] = []
    for stream in streams:
        submissions, nbytes = stream.submissions, stream.nbytes
        if submissions:
            first = submissions[0]
            line = "" if first.site is None else str(first.site)
            own.append(Row(device.label, stream.number, len(submissions), nbytes, first.name, line))
    stats = device.pool.stats()
    state = "lost" if device.lost is not None else f"{len(own)} of its streams at work"
    more = len(own) - MOST_STREAMS
    if more > 0:
        state += f", of which {more} are not shown"
    in_flight = sum(row.in_flight for row in own)
    whole = Row(device.label, None, in_flight, stats.used_current, state, "")
    return [whole, *own[:MOST_STREAMS]]


class Watching:
    """Shows `look` in a block, every so many seconds, and once more at the end.

    Args:
        show: called with a title and the rows, on a thread of its own.
    """

    def __init__(self, every: float, show: Callable[[str, list[Row]], None]) -> None:
        self._every, self._show = every, show
        self._began = perf_counter()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="numbasync top", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._end.wait(self._every):
            self._look()

    def _look(self) -> None:
        seconds, launches = perf_counter() - self._began, counters.launches
        title = f"after {seconds:.1f} s: {launches:,} launches, {counters.copies:,} copies"
        with suppress(RuntimeError):  # the streams changed meanwhile
            self._show(title, look())


def run(program: Path, arguments: Sequence[str], every: float) -> int:
    """Run `program`, with a table of what its devices do on the standard error.

    Returns:
        The exit status of the program.

    Raises:
        CallerError: there is no such program.
        MissingExtraError: rich, which draws the table, is not installed.
    """
    check_program(program)
    if importlib.util.find_spec("rich") is None:
        raise MissingExtraError("its table needs rich: pip install 'numbasync[demo]'")
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    # Where the standard error is no terminal, the last table is printed, and nothing before.
    with Live(console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty()) as live:

        def show(title: str, rows: list[Row]) -> None:
            live.update(_table(title, rows), refresh=console.is_terminal)

        return run_as_main(program, arguments, Watching(every, show))


def _table(title: str, rows: list[Row]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, expand=True)
    for name in HEADS:
        table.add_column(
            name, justify="right" if name in {"in flight", "bytes", "stream"} else "left",
            no_wrap=name != "submitted at", overflow="ellipsis",
        )  # fmt: skip
    for row in rows:
        stream = "all" if row.stream is None else str(row.stream)
        table.add_row(
            row.device, stream, f"{row.in_flight:,}", f"{row.nbytes:,}", row.oldest, row.line,
            style="bold" if row.stream is None else None,
        )  # fmt: skip
    return table
