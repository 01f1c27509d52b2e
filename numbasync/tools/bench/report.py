"""Reports: tables for people, JSON for machines, and the machine that it was run on.

A run is a record: a head, and either one table in it (older files), or a list of `tables`.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from numbasync import __version__
from numbasync.device.device import Device
from numbasync.errors import CallerError
from numbasync.tools.bench import targets
from numbasync.tools.bench.measure import Measured
from numbasync.tools.bench.targets import Target

PACKAGES = (
    "numba", "numba-cuda", "cuda-core", "cuda-bindings", "numpy", "uvloop", "cupy-cuda13x",
    "cupy-cuda12x", "torch", "triton",
)  # fmt: skip
PAGE = 160  # columns of a file, which has no width

Record = dict[str, Any]


def head(what: str, method: str, device: Device) -> Record:
    """What was measured, how, by which versions and on what."""
    versions = {"numbasync": __version__, "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "what": what,
        "method": method,
        "machine": {
            "device": device.name,
            "host": f"{os.cpu_count()} x {platform.machine()}, {platform.system()}",
            **device.backend.versions,
        },
        "versions": versions,
    }


def table(
    what: str, method: str, found: Measured, base: str, wanted: Sequence[Target],
    unit: str = "host microseconds a call",
) -> Record:  # fmt: skip
    """One table of a run. `base` names the timing that ratios refer to; where that is missing,
    they refer to the first one.
    """
    timings = [asdict(t) for t in found.timings]
    missing = [asdict(m) for m in found.missing]
    measured = [t["name"] for t in timings]
    return {
        "what": what,
        "method": method,
        "unit": unit,
        "base": base if base in measured else measured[0],
        "timings": timings,
        "missing": missing,
        "targets": targets.judge(wanted, timings, missing),
    }


def tables_of(found: Record) -> list[Record]:
    """The tables of a run."""
    tables: list[Record] = found.get("tables", [found])
    return tables


def titles(one: Record) -> tuple[str, str, str, str]:
    """The columns of a table."""
    return one["what"], "median" if _is_mixed(one) else "us", "quartiles", f"of {one['base']}"


def rows(one: Record) -> list[tuple[str, str, str, str]]:
    """Name, median, quartiles and ratio to the base, of each timing; what is missing, and why."""
    found = {t["name"]: t for t in one["timings"]}
    base = found.get(one["base"])
    mixed = _is_mixed(one)
    lines = []
    for t in one["timings"]:
        unit = _unit(t)
        shown = f" {unit}" if mixed else ""
        quartiles = f"{t['low']:,.2f} to {t['high']:,.2f}{shown}"
        comparable = base is not None and _unit(base) == unit and base["median"]
        ratio = f"{t['median'] / base['median']:.2f}" if base and comparable else ""
        lines.append((t["name"], f"{t['median']:,.2f}{shown}", quartiles, ratio))
    return [*lines, *((m["name"], "", f"not measured: {m['why']}", "") for m in _missing(one))]


def _missing(one: Record) -> list[Record]:
    found: list[Record] = one.get("missing", [])
    return found


def _unit(t: Record) -> str:
    return str(t.get("unit", "us"))


def _is_mixed(one: Record) -> bool:
    return any(_unit(t) != "us" for t in one["timings"])


def header(found: Record) -> list[str]:
    """The machine and the versions, a line each."""
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    return [", ".join(f"{k}: {v}" for k, v in found["machine"].items()), versions]


def markdown(found: Record) -> str:
    """The run as Markdown tables, with a table of its targets behind each that has some."""
    parts = []
    for one in tables_of(found):
        parts.append(markdown_table(titles(one), rows(one)))
        if one.get("targets"):
            parts.append(markdown_table(targets.TITLES, targets.rows(one["targets"])))
    return "\n".join(parts)


def markdown_table(titles: Sequence[str], lines: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A table whose first `texts` columns are text, and the others numbers."""
    numbers = len(titles) - texts
    return "\n".join(
        [
            f"| {' | '.join(titles)} |",
            f"|{'---|' * texts}{'---:|' * numbers}",
            *(f"| {' | '.join(line)} |" for line in lines),
            "",
        ]
    )


def show(one: Record) -> None:
    """Print a table of a run, and its targets."""
    name, *others = titles(one)
    show_table(f"{name}: {one['unit']}", ("", *others), rows(one))
    if one["targets"]:
        title = f"targets of {name}"
        show_table(title, targets.TITLES, targets.rows(one["targets"]))


def show_head(found: Record) -> None:
    """Print the machine and the versions."""
    print("\n".join(header(found)))


def show_table(
    title: str, titles: Sequence[str], lines: Sequence[Sequence[str]], texts: int = 1
) -> None:
    """Print a table, by `rich` if that is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(f"\n{title}\n\n{markdown_table(titles, lines, texts)}")
        return
    shown = Table(title=title)
    for i, column in enumerate(titles):
        shown.add_column(column, justify="left" if i < texts else "right", no_wrap=i < texts)
    for line in lines:
        shown.add_row(*line)
    console = Console()
    if not console.is_terminal:
        console.width = PAGE
    console.print(shown)


def check_target(path: Path, option: str = "--json") -> None:
    """Refuse a file that cannot be written, before anything is measured."""
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise CallerError(f"{option} {path}: {error.strerror}; name a file to write to.") from None


def save(found: Record, path: Path) -> None:
    """Write the run as JSON."""
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
