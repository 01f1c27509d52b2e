"""Reports: tables for people, JSON for machines, and the machine that was measured.

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

from benchmarks import targets
from benchmarks.measure import Measured
from benchmarks.targets import Target
from numbasync import __version__
from numbasync.device.device import Device
from numbasync.errors import CallerError

PACKAGES = (
    "numba", "numba-cuda", "cuda-core", "cuda-bindings", "numpy", "uvloop", "cupy-cuda13x",
    "cupy-cuda12x", "torch", "triton", "jax", "rmm-cu13", "warp-lang", "distributed",
)  # fmt: skip
PAGE = 160  # columns of a file, which has no width

Record = dict[str, Any]


def head(what: str, method: str, device: Device) -> Record:
    """The start of a run's record: its title, its method, the machine and the versions."""
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
    what: str, method: str, measured: Measured, base: str, bounds: Sequence[Target],
    unit: str = "host microseconds a call",
) -> Record:  # fmt: skip
    """One table of a run. Ratios refer to the figure named `base`, or to the first figure where
    there is none of that name.
    """
    figures = [asdict(figure) for figure in measured.figures]
    missing = [asdict(each) for each in measured.missing]
    names = [figure["name"] for figure in figures]
    return {
        "what": what,
        "method": method,
        "unit": unit,
        "base": base if base in names else names[0],
        "timings": figures,
        "missing": missing,
        "targets": targets.judge(bounds, figures, missing),
    }


def tables_of(run: Record) -> list[Record]:
    """The tables of a run."""
    tables: list[Record] = run.get("tables", [run])
    return tables


def titles(table: Record) -> tuple[str, str, str, str]:
    """The columns of a table."""
    unit = "median" if _is_mixed(table) else "us"
    return table["what"], unit, "quartiles", f"of {table['base']}"


def rows(table: Record) -> list[tuple[str, str, str, str]]:
    """Name, median, quartiles and ratio to the base, of each figure; then each missing case, with
    its reason.
    """
    base = {f["name"]: f for f in table["timings"]}.get(table["base"])
    mixed = _is_mixed(table)
    lines = []
    for figure in table["timings"]:
        unit = _unit(figure)
        suffix = f" {unit}" if mixed else ""
        quartiles = f"{figure['low']:,.2f} to {figure['high']:,.2f}{suffix}"
        comparable = base is not None and _unit(base) == unit and base["median"]
        ratio = f"{figure['median'] / base['median']:.2f}" if base and comparable else ""
        lines.append((figure["name"], f"{figure['median']:,.2f}{suffix}", quartiles, ratio))
    missing = table.get("missing", [])
    return [*lines, *((m["name"], "", f"not measured: {m['why']}", "") for m in missing)]


def _unit(figure: Record) -> str:
    return str(figure.get("unit", "us"))


def _is_mixed(table: Record) -> bool:
    return any(_unit(figure) != "us" for figure in table["timings"])


def header(run: Record) -> list[str]:
    """The machine and the versions, a line each."""
    versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items())
    return [", ".join(f"{k}: {v}" for k, v in run["machine"].items()), versions]


def markdown(run: Record) -> str:
    """The run as Markdown: each table, and behind it its targets if it has some."""
    parts = []
    for table in tables_of(run):
        parts.append(markdown_table(titles(table), rows(table)))
        if table.get("targets"):
            parts.append(markdown_table(targets.TITLES, targets.rows(table["targets"])))
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


def show(table: Record) -> None:
    """Print a table of a run, and its targets."""
    name, *others = titles(table)
    show_table(f"{name}: {table['unit']}", ("", *others), rows(table))
    if table["targets"]:
        show_table(f"targets of {name}", targets.TITLES, targets.rows(table["targets"]))


def say(line: str) -> None:
    """Print a line between the tables."""
    print(line)


def show_head(run: Record) -> None:
    """Print the machine and the versions."""
    print("\n".join(header(run)))


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
    table = Table(title=title)
    for i, column in enumerate(titles):
        table.add_column(column, justify="left" if i < texts else "right", no_wrap=i < texts)
    for line in lines:
        table.add_row(*line)
    console = Console()
    if not console.is_terminal:
        console.width = PAGE
    console.print(table)


def check_options(rounds: int, json: Path | None) -> None:
    """Refuse `--repeats` and `--json` that cannot be followed, before anything is measured.

    Raises:
        CallerError: fewer than 3 rounds, or a file that cannot be written.
    """
    if rounds < 3:
        raise CallerError(f"--repeats {rounds}: quartiles need 3 rounds or more.")
    if json is None:
        return
    try:
        with json.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise CallerError(f"--json {json}: {error.strerror}; name a file to write to.") from None


def save(run: Record, path: Path) -> None:
    """Write the run as JSON."""
    path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
