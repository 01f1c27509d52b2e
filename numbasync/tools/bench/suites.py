"""The suites of `numbasync bench`: one of them, or all in one process and one run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import numbasync as na
from numbasync.device.device import Device
from numbasync.tools.bench import (
    alloc,
    awaiting,
    batches,
    copying,
    decode,
    devices,
    embeddings,
    flight,
    graphs,
    launch,
    plain_kernels,
    ready_kernels,
    report,
)

Suite = Callable[[Device, int], Awaitable[list[report.Record]]]


async def _kernels(device: Device, rounds: int) -> list[report.Record]:
    plain = await plain_kernels.tables(device, rounds)
    ready = await ready_kernels.tables(device, rounds)
    more = await decode.tables(device, rounds) + await embeddings.tables(device, rounds)
    return plain + ready + more


async def _dask(device: Device, rounds: int) -> list[report.Record]:
    _ = na.dask  # without the extra, an error that says so
    from numbasync.tools.bench import clusters

    return await clusters.tables(device, rounds)


# Each gives the tables of a device, measured in so many rounds.
SUITES: dict[str, Suite] = {
    "launch": launch.tables,
    "await": awaiting.tables,
    "flight": flight.tables,
    "alloc": alloc.tables,
    "copy": copying.tables,
    "graph": graphs.tables,
    "batch": batches.tables,
    "kernels": _kernels,
    "devices": devices.tables,
    "dask": _dask,
}
OUTSIDE = frozenset(("dask",))  # of "all": it starts other processes, and needs an extra
METHOD = (
    "One process and one run; each table has its own method. Ratios, and targets, are of medians "
    "of one table."
)


def run(what: str, device: Device, rounds: int, json: Path | None) -> int:
    """Run the suite `what`, or "all". Returns the exit status.

    Each table is printed, and `json` written, as soon as the table is complete.

    Raises:
        CallerError: fewer than 3 rounds, or a file that cannot be written.
    """
    report.check_options(rounds, json)
    record = {**report.head(f"bench {what}", METHOD, device), "tables": []}
    report.show_head(record)
    suites = [name for name in SUITES if name not in OUTSIDE] if what == "all" else [what]
    with na.use_device(device):
        na.run(_all(suites, device, rounds, record, json))
    return 0


async def _all(
    suites: list[str], device: Device, rounds: int, record: report.Record, json: Path | None
) -> None:
    for name in suites:
        for table in await SUITES[name](device, rounds):
            record["tables"].append(table)
            report.show(table)
            if json is not None:
                report.save(record, json)
