"""The suites of `numbasync bench`: one of them, or all in one process and one run."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numbasync as na
from benchmarks import (
    algorithms,
    alloc,
    awaiting,
    batches,
    block_collectives,
    chains,
    copying,
    decode,
    devices,
    embeddings,
    flight,
    graphs,
    host_work,
    interop,
    kernel_waits,
    launch,
    peer_registry,
    plain_kernels,
    ready_calls,
    ready_kernels,
    report,
    scaling,
    traced,
)
from numbasync.device.device import Device
from numbasync.errors import CallerError

# Measures tables of a device in so many rounds. When it has returned, their memory is free again.
Part = Callable[[Device, int], Awaitable[list[report.Record]]]


async def _dask(device: Device, rounds: int) -> list[report.Record]:
    _ = na.dask  # without the extra, an error that says so
    from benchmarks import clusters

    return await clusters.tables(device, rounds)


SUITES: dict[str, Sequence[Part]] = {
    "launch": (launch.tables,),
    "await": (awaiting.tables, kernel_waits.tables),
    "flight": (flight.tables,),
    "trace": (traced.tables,),
    "interop": (interop.tables,),
    "alloc": (alloc.tables,),
    "copy": (copying.tables,),
    "graph": (graphs.tables, chains.tables, host_work.tables),
    "batch": (batches.host, batches.chain, batches.reduce, batches.tall, batches.small),
    "kernels": (
        *plain_kernels.TABLES, ready_kernels.products, ready_kernels.attention,
        decode.tables, embeddings.tables, ready_calls.tables,
    ),
    "devices": (devices.tables,),
    "scaling": scaling.SUITE,
    "algorithms": (algorithms.tables, block_collectives.tables),
    "dask": (_dask,),
}  # fmt: skip
# Of "all": Dask and scaling start other processes; algorithms have a run of their own.
OUTSIDE = frozenset(("algorithms", "dask", "scaling"))
METHOD = (
    "One process and one run; each table has its own method. Ratios, and targets, are of medians "
    "of one table."
)


def run(what: str, device: Device, rounds: int, json: Path | None, only: Sequence[str] = ()) -> int:
    """Run the suite `what`, or "all", or their parts with one of `only` in their name, as in
    "batches.small". Returns the exit status.

    Each table is printed, and `json` written, as soon as its part of the suite is complete; then
    unused memory is given back, so that the next part, and the peers, have the whole device.

    Raises:
        CallerError: fewer than 3 rounds, a file that cannot be written, or no such part.
    """
    report.check_options(rounds, json)
    names = [name for name in SUITES if name not in OUTSIDE] if what == "all" else [what]
    parts = [part for name in names for part in SUITES[name]]
    wanted = [part for part in parts if not only or any(text in _name(part) for text in only)]
    if not wanted:
        raise CallerError(
            f"--only {' '.join(only)} is in no part's name: {', '.join(map(_name, parts))}."
        )
    record = {**report.head(f"bench {what}", METHOD, device), "tables": []}
    report.show_head(record)
    with na.use_device(device):
        na.run(_all(wanted, device, rounds, record, json))
    return 0


def _name(part: Part) -> str:
    """A part's module and function."""
    return f"{part.__module__.rpartition('.')[2]}.{part.__name__}"


async def _all(
    parts: Sequence[Part], device: Device, rounds: int, record: report.Record, json: Path | None
) -> None:
    for part in parts:
        for table in await part(device, rounds):
            record["tables"].append(table)
            report.show(table)
            if json is not None:
                report.save(record, json)
        gc.collect()  # what the peers leave in cycles
        for each in na.devices(device.kind):
            each.pool.trim()
        peer_registry.give_back()
