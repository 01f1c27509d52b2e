"""`numbasync bench cpu`: the CPU device beside Numba's simulator, plain loops and Warp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numba import cuda, get_num_threads

import numbasync as na
from numbasync.device.device import Device
from numbasync.errors import CallerError
from numbasync.tools.bench import awaits, compiling, report, targets
from numbasync.tools.bench.cpu_cases import CASES, Array, Case
from numbasync.tools.bench.peers import by_hand, simulator, warp_cpu
from numbasync.tools.bench.repeats import Prepare, Result, measure_case, shown

BY_HAND = "parallel njit by hand"
METHOD = (
    "Medians and quartiles of {repeats} repeats ({simulator} of the simulator) of one call that "
    "is waited for, arrays on the device already; answers compared with NumPy's before, one call "
    "to warm up. The first call, with compilation, is on a few blocks. At most about {limit:g} s "
    "a case and contestant: the simulator is measured on fewer blocks and scaled linearly, others "
    "are skipped. {threads} threads for the loops by hand."
)


def run(
    device: Device, json: Path | None, repeats: int, limit: float = 60.0, only: str = ""
) -> int:
    """The command. Returns the exit status."""
    if repeats < 3:
        raise CallerError(f"--repeats {repeats}: quartiles need 3 rounds or more.")
    if json is not None:
        report.check_target(json)
    cases = [case for case in CASES if only in case.name]
    others = (*awaits.NAMES, *compiling.NAMES)
    if not cases and not any(only in name for name in others):
        names = "; ".join([*(c.name for c in CASES), *others])
        raise CallerError(f"--only {only!r} is in no case's name: {names}.")
    results = _of_cases(device, cases, repeats, limit)
    ours = _name(None)
    results += na.run(awaits.measured(device, ours, repeats, lambda name: only in name))
    results += compiling.measured(device, lambda name: only in name)
    method = METHOD.format(
        repeats=repeats, simulator=simulator.REPEATS, limit=limit, threads=get_num_threads()
    )
    found = _record(method, device, results)
    report.show_head(found)
    report.show_table(f"{found['what']}: {found['unit']}", TITLES, rows(found), texts=2)
    if found["targets"]:
        report.show_table("targets", targets.TITLES, targets.rows(found["targets"]))
    if json is not None:
        report.save(found, json)
    return 0


def engine_of(kernel: na.Launcher) -> str:
    """What runs a kernel's launches on the CPU device: "compiled" or "interpreted"."""
    return kernel.cpu_engine().name


def _name(kernel: na.Launcher | None) -> str:
    return "numbasync" if kernel is None else f"numbasync, {engine_of(kernel)}"


def _of_cases(device: Device, cases: list[Case], repeats: int, limit: float) -> list[Result]:
    simulated = simulator.measured(cases, limit) if cases else []
    results: list[Result] = []
    for case, theirs in zip(cases, simulated, strict=True):
        results.append(theirs)
        kernel = na.launcher(cuda.jit(case.body))
        mine = measure_case(case, "numbasync", _prepare(device, kernel, case), repeats, limit)
        # Asked for afterwards: what runs a kernel is known when it has run.
        results.append(Result(**{**asdict(mine), "by": _name(kernel)}))
        results.append(measure_case(case, BY_HAND, by_hand.of_case(case), repeats, limit))
        if warp_cpu.installed() and case.body.__name__ in warp_cpu.WITHOUT_BARRIERS:
            results.append(
                measure_case(case, warp_cpu.NAME, warp_cpu.of_case(case), repeats, limit)
            )
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


def _record(method: str, device: Device, results: list[Result]) -> report.Record:
    found = report.head("the CPU device", method, device)
    if warp_cpu.installed():
        found["versions"]["warp-lang"] = warp_cpu.version()
    return {**found, "unit": "seconds a call", "results": [asdict(r) for r in results],
            "targets": compiling.judged(results)}  # fmt: skip


def rows(found: report.Record) -> list[tuple[str, ...]]:
    """A row of text for each result, in the order of `TITLES`."""
    ours = {r["case"]: r["median"] for r in found["results"] if r["by"].startswith("numbasync")}
    lines: list[tuple[str, ...]] = []
    for r in found["results"]:
        base = ours.get(r["case"])
        quartiles = "" if r["low"] is None else f"{shown(r['low'])} to {shown(r['high'])}"
        ratio = "" if base is None or r["median"] is None else f"{r['median'] / base:.3g}"
        lines.append(
            (r["case"], r["by"], shown(r["median"]), quartiles, shown(r["first"]), ratio, r["note"])
        )
    return lines


def markdown(found: report.Record) -> str:
    """The run as a Markdown table."""
    table = report.markdown_table(TITLES, rows(found), texts=2)
    if not found.get("targets"):  # or a run of before there were some
        return table
    return f"{table}\n{report.markdown_table(targets.TITLES, targets.rows(found['targets']))}"
