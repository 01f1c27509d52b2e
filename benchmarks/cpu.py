"""`numbasync bench cpu`: the CPU device beside Numba's simulator, loops by hand and Warp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from numba import cuda, get_num_threads

import numbasync as na
from benchmarks import compiling, cpu_operations, peer_registry, report, targets
from benchmarks.cpu_cases import CASES, Array, Case
from benchmarks.cpu_limits import Prepare, Result, in_unit, measure_case
from numbasync.device.device import Device
from numbasync.errors import CallerError

OURS = "numbasync"
METHOD = (
    "Medians and quartiles of {repeats} repeats (3 of the simulator) of one call that is waited "
    "for, arrays on the device already, garbage collection off but for compilations; answers "
    "compared with NumPy's before, one call to warm up. The first call, with compilation, is on a "
    "few blocks. At most about {limit:g} s a case and contestant: the simulator is measured on "
    "fewer blocks and scaled linearly, others are skipped. {threads} threads for the loops by hand."
)


def run(
    device: Device, json: Path | None, repeats: int, limit: float = 60.0, only: Sequence[str] = ()
) -> int:
    """Measure and report all cases, or those with one of `only` in their name.

    Returns the exit status.

    Args:
        limit: seconds for a case and contestant.

    Raises:
        CallerError: fewer than 3 repeats, a file that cannot be written, or no such case.
    """
    report.check_options(repeats, json)
    names = [*(case.name for case in CASES), *cpu_operations.NAMES, *compiling.NAMES]

    def wanted(name: str) -> bool:
        return not only or any(text in name for text in only)

    if not any(map(wanted, names)):
        raise CallerError(f"--only {' '.join(only)} is in no case's name: {'; '.join(names)}.")
    results = _of_cases(device, [c for c in CASES if wanted(c.name)], repeats, limit)
    results += na.run(cpu_operations.measured(device, OURS, repeats, wanted))
    results += compiling.measured(device, wanted)
    method = METHOD.format(repeats=repeats, limit=limit, threads=get_num_threads())
    record = {
        **report.head("the CPU device", method, device), "unit": "seconds a call",
        "results": [asdict(result) for result in results], "targets": compiling.judged(results),
    }  # fmt: skip
    report.show_head(record)
    report.show_table(f"{record['what']}: {record['unit']}", TITLES, rows(record), texts=2)
    if record["targets"]:
        report.show_table("targets", targets.TITLES, targets.rows(record["targets"]))
    if json is not None:
        report.save(record, json)
    return 0


def _of_cases(device: Device, cases: list[Case], repeats: int, limit: float) -> list[Result]:
    results: list[Result] = []
    simulated: list[Result] = []
    if cases:
        simulated = peer_registry.module("simulator").measured(cases, limit)
    for case in cases:
        results += [result for result in simulated if result.case == case.name]
        kernel = na.launcher(cuda.jit(case.body))
        own = measure_case(case, OURS, _prepare(device, kernel, case), repeats, limit)
        # The engine of a kernel is known when it has run.
        results.append(replace(own, by=f"{OURS}, {kernel.cpu_engine().name}"))
        for peer in peer_registry.of_cpu():
            prepare = peer.of_case(case)
            if prepare is not None:
                results.append(measure_case(case, peer.NAME, prepare, repeats, limit))
    return results


def _prepare(device: Device, kernel: na.Launcher, case: Case) -> Prepare:
    stream = device.new_stream()

    def prepare(blocks: int) -> tuple[Callable[[], object], Callable[[], Array]]:
        args: list[Any] = [
            na.from_host(a).sync_on(stream) if hasattr(a, "shape") else a
            for a in case.inputs(blocks)
        ]
        configured = kernel[case.grid(blocks), case.block, stream]
        return (
            lambda: configured(*args).sync_on(stream),
            lambda: args[0].to_host().sync_on(stream),
        )

    return prepare


# --- the report ---

TITLES = ("case", "by", "a call", "quartiles", "first call", "of numbasync", "")


def rows(record: report.Record) -> list[tuple[str, ...]]:
    """A row of text for each result, in the order of `TITLES`."""
    own = {r["case"]: r["median"] for r in record["results"] if r["by"].startswith(OURS)}
    lines: list[tuple[str, ...]] = []
    for r in record["results"]:
        base = own.get(r["case"])
        quartiles = "" if r["low"] is None else f"{in_unit(r['low'])} to {in_unit(r['high'])}"
        ratio = "" if base is None or r["median"] is None else f"{r['median'] / base:.3g}"
        median, first = in_unit(r["median"]), in_unit(r["first"])
        lines.append((r["case"], r["by"], median, quartiles, first, ratio, r["note"]))
    return lines


def markdown(record: report.Record) -> str:
    """The run as a Markdown table."""
    table = report.markdown_table(TITLES, rows(record), texts=2)
    if not record.get("targets"):  # older files have none
        return table
    return f"{table}\n{report.markdown_table(targets.TITLES, targets.rows(record['targets']))}"
