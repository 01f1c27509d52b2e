"""The table of all algorithms in the reference, of their docstrings and of the last measurements.

`python -m tests.subpackages` writes it, with all else in the documents that is counted.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

from numbasync import algorithms

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "docs/performance/algorithms-h200.json"
TABLE = re.compile(r"(?<=<!-- all algorithms -->\n).*?(?=<!-- these are all -->)", re.S)
# Where a source is told, if not by the function itself.
KERNELS = {"scans": "scan_kernels", "sorts": "sort_kernels", "topk": "top_kernels"}
ERROR = re.compile(r"(?:[Ee]rror bound|(?:Relative|Absolute) error|relative error of)(.*)", re.S)
YEAR = re.compile(r"\b(?:19|20)\d\d\b")


def names() -> list[str]:
    """All algorithms, in the order of the reference."""
    page = (ROOT / "docs/reference/algorithms.md").read_text(encoding="utf-8")
    (members,) = re.findall(r"::: numbasync\.algorithms\n.*?members:\n((?: +- \w+\n)+)", page, re.S)
    return re.findall(r"- (\w+)", members)


def error_of(text: str) -> str:
    """The bound that a docstring states, or whose it is."""
    found = ERROR.search(text)
    for literal in re.findall(r"``([^`]+)``", found[1] if found else ""):
        if not literal.startswith("2**"):  # which is what a letter stands for
            return f"`{' '.join(literal.split())}`"
    others = [n for n in re.findall(r"(?:[Ss]ee|of) `(\w+)`", text) if n in names()]
    return f"as `{others[-1]}`" if others and "Exact" not in text else "exact"


def source_of(name: str, function: Any) -> str:
    """Whose algorithm it is, as its docstring or that of its kernels says."""
    package, _, own = function.__module__.rpartition(".")
    kernels = sys.modules.get(f"{package}.{KERNELS.get(name, KERNELS.get(own))}")
    for text in (inspect.getdoc(function), kernels and kernels.__doc__):
        found = re.search(r"Source[^:]*: ([^;]+?)(?:;|\n\n|$)", text or "", re.S)
        if found:
            said = " ".join(found[1].split())
            return f"{said.split(', ')[0]}, {YEAR.findall(said)[-1]}"
    return ""


def times_of() -> dict[str, str]:
    """By algorithm, the last medians: ours, and those of other libraries."""
    found: dict[str, list[str]] = {}
    for table in json.loads(MEASURED.read_text(encoding="utf-8"))["tables"]:
        for timing in table["timings"]:
            library, _, name = timing["name"].partition(": ")
            shown = f"{timing['median']:,.0f}"
            found.setdefault(name, []).append(
                shown if library == "numbasync" else f"{library} {shown}"
            )
    return {name: "; ".join(shown) for name, shown in found.items()}


def table() -> str:
    """A row for each algorithm."""
    times = times_of()
    rows = ["| | | error | source | us: ours; others |", "|---|---|---|---|---|"]
    for name in names():
        function = getattr(algorithms, name)
        text = inspect.getdoc(function) or ""
        sentence = " ".join(text.split("\n\n")[0].split())
        first = re.split(r"; see|\. ", sentence)[0].rstrip(".")
        cells = (f"`{name}`", first, error_of(text), source_of(name, function), times.get(name, ""))
        rows.append("| " + " | ".join(cells).replace("``", "`") + " |")
    return "\n".join(rows) + "\n"


def filled(text: str) -> str:
    """A page, with the table where it has one."""
    return TABLE.sub(lambda _: table(), text)
