"""Reports: a table for people, JSON for machines, and the machine that it was run on."""

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
from numbasync.bench.measure import Timing
from numbasync.device import Device
from numbasync.errors import CallerError

PACKAGES = (
    "numba", "numba-cuda", "cuda-core", "cuda-bindings", "numpy", "uvloop", "cupy-cuda13x",
    "cupy-cuda12x",
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


def record(what: str, method: str, device: Device, timings: Sequence[Timing], base: str) -> Record:
    """Everything about one run. `base` names the timing that ratios refer to."""
    return {
        **head(what, method, device),
        "unit": "host microseconds a call",
        "base": base,
        "timings": [asdict(t) for t in timings],
    }


def rows(found: Record) -> list[tuple[str, str, str, str]]:
    """Name, median, quartiles and ratio to the base, of each timing."""
    medians = {t["name"]: t["median"] for t in found["timings"]}
    base = medians.get(found["base"])
    return [
        (
            t["name"],
            f"{t['median']:.2f}",
            f"{t['low']:.2f} to {t['high']:.2f}",
            "" if base is None else f"{t['median'] / base:.2f}",
        )
        for t in found["timings"]
    ]


def header(found: Record) -> list[str]:
    """The machine and the versions, a line each."""
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    return [", ".join(f"{k}: {v}" for k, v in found["machine"].items()), versions]


def markdown(found: Record) -> str:
    """The run as a Markdown table."""
    return markdown_table((found["what"], "us", "quartiles", f"of {found['base']}"), rows(found))


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


def show(found: Record) -> None:
    """Print the run, as a table of `rich` if that is installed."""
    titles = ("", "median", "quartiles", f"of {found['base']}")
    show_table(found, titles, rows(found))


def show_table(
    found: Record, titles: Sequence[str], lines: Sequence[Sequence[str]], texts: int = 1
) -> None:
    """Print the machine, the versions and a table."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print("\n".join([*header(found), "", markdown_table(titles, lines, texts)]))
        return
    table = Table(title=f"{found['what']}: {found['unit']}")
    for i, title in enumerate(titles):
        table.add_column(title, justify="left" if i < texts else "right", no_wrap=i < texts)
    for line in lines:
        table.add_row(*line)
    console = Console()
    if not console.is_terminal:
        console.width = PAGE
    for said in header(found):
        console.print(said, highlight=False)
    console.print(table)


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is measured."""
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise CallerError(f"--json {path}: {error.strerror}; name a file to write to.") from None


def save(found: Record, path: Path) -> None:
    """Write the run as JSON."""
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
