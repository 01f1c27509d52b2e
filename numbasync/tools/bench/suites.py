"""The suites of `numbasync bench`, one of them or all in one process and one run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import numbasync as na
from numbasync.device.device import Device
from numbasync.errors import CallerError
from numbasync.tools.bench import (
    alloc,
    awaiting,
    batches,
    copying,
    flight,
    graphs,
    launch,
    report,
)

Suite = Callable[[Device, int], Awaitable[list[report.Record]]]

SUITES: dict[str, Suite] = {
    "launch": launch.tables,
    "await": awaiting.tables,
    "flight": flight.tables,
    "alloc": alloc.tables,
    "copy": copying.tables,
    "graph": graphs.tables,
    "batch": batches.tables,
}
METHOD = (
    "One process and one run; each table has its own method. Ratios, and targets, are of medians "
    "of one table."
)


def run(what: str, device: Device, rounds: int, json: Path | None, plot: Path | None) -> int:
    """The command: the suite `what`, or "all". Returns the exit status.

    Every table is printed, and the file written, as soon as it is there.
    """
    if rounds < 3:
        raise CallerError(f"--repeats {rounds}: quartiles need 3 rounds or more.")
    if json is not None:
        report.check_target(json)
    if plot is not None:
        from numbasync.tools.bench import chart

        chart.check()
        report.check_target(plot, "--plot")
    found = {**report.head(f"bench {what}", METHOD, device), "tables": []}
    report.show_head(found)
    wanted = list(SUITES) if what == "all" else [what]
    with na.use_device(device):
        na.run(_all(wanted, device, rounds, found, json))
    if plot is not None:
        from numbasync.tools.bench import chart

        chart.draw(found, plot)
    return 0


async def _all(
    wanted: list[str], device: Device, rounds: int, found: report.Record, json: Path | None
) -> None:
    for name in wanted:
        for table in await SUITES[name](device, rounds):
            found["tables"].append(table)
            report.show(table)
            if json is not None:
                report.save(found, json)
