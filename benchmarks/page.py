"""Fill a page's tables and figures from JSON files: `python -m benchmarks.page PAGE`.

The tables of `performance/NAME.json` are put between `<!-- NAME -->` and `<!-- end -->`; between
`<!-- NAME: PART -->` and `<!-- end -->`, one of its tables or texts alone, or the `machine`.
Targets are for who measures, and on no page.

In a sentence, `<!-- NAME? ROW -->` is followed by a median, in microseconds where the table names
no other unit, `<!-- NAME? ROW / ROW -->` by the ratio of two medians, `<!-- NAME? ROW - ROW -->` by
their difference, up to `<!-- / -->`. The rows are those of the first table that has them, or of
`<!-- NAME: TABLE? ROW -->`. In a file of `numbasync bench cpu` each case is a table, and its rows
are who did it. None begins a line: Markdown takes a line that begins with a comment out of its
paragraph.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import cpu, report

BLOCK = re.compile(r"(<!-- ([a-z0-9-]+)(?:: ([^\n?]+))? -->\n)(.*?)(<!-- end -->)", re.S)

FIGURE = re.compile(r"(<!-- ([a-z0-9-]+)(?:: ([^\n?]+))?\? ([^\n]+?) -->)([^<\n]*)(<!-- / -->)")
OF_TWO = re.compile(r"(?P<left>.+) (?P<sign>[/-]) (?P<right>.+)")


def figure_of(run: report.Record, rows: str, table: str | None = None) -> str:
    """A figure in a sentence: two digits of a ratio or a difference, or three of a median.

    Raises:
        KeyError: no table has these rows.
    """
    return _rounded(value_of(run, rows, table), 2 if OF_TWO.fullmatch(rows) else 3)


def value_of(run: report.Record, rows: str, table: str | None = None) -> float:
    """The median of a row, or the ratio or the difference of two rows.

    Raises:
        KeyError: no table has these rows.
    """
    two = OF_TWO.fullmatch(rows)
    names = {two["left"], two["right"]} if two else {rows}
    for what, medians in _medians(run):
        if table in (None, what) and medians.keys() >= names:
            if two is None:
                return medians[rows]
            left, right = medians[two["left"]], medians[two["right"]]
            return left / right if two["sign"] == "/" else left - right
    raise KeyError(f"{rows}: no table has these rows.")


def _medians(run: report.Record) -> Iterator[tuple[str, dict[str, float]]]:
    """The tables of a run by their names: the median of each row, in microseconds or in the unit
    that the row names.
    """
    for one in run.get("results", ()):
        same = [each for each in run["results"] if each["case"] == one["case"]]
        yield one["case"], {r["by"]: r["median"] * 1e6 for r in same if r["median"] is not None}
    if "results" not in run:
        for one in report.tables_of(run):
            yield one["what"], {timing["name"]: timing["median"] for timing in one["timings"]}


def _rounded(figure: float, digits: int) -> str:
    """A figure with so many digits, and never with an exponent."""
    text = f"{figure:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text else text


def block_of(run: report.Record, part: str | None = None) -> str:
    """The block of the page for a run: machine, versions and tables; or one part of these."""
    if part == "machine":
        return "\n".join(["", *report.header(run), "", ""])
    if part in run.get("texts", {}):
        return f"\n```text\n{run['texts'][part]}\n```\n\n"
    if part is not None:
        table = {t["what"]: t for t in report.tables_of(run)}[part]
        return f"\n{report.markdown({'tables': [table | {'targets': []}]})}\n"
    if "results" in run:
        tables = cpu.markdown(run | {"targets": []})
    else:
        shown = [table | {"targets": []} for table in report.tables_of(run)]
        tables = report.markdown({"tables": shown})
    return "\n".join([*report.header(run), "", tables.rstrip("\n"), ""])


def filled(page: str, folder: Path) -> str:
    """The page, with the tables and figures of the JSON files in `folder`."""

    def run_of(name: str) -> report.Record:
        run: report.Record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        return run

    def block(found: re.Match[str]) -> str:
        return found[1] + block_of(run_of(found[2]), found[3]) + found[5]

    def figure(found: re.Match[str]) -> str:
        return found[1] + figure_of(run_of(found[2]), found[4], found[3]) + found[6]

    return FIGURE.sub(figure, BLOCK.sub(block, page))


def folder_of(path: Path) -> Path:
    """The folder of the JSON files of a page: its own, `performance` beside it or in `docs`."""
    if path.parent.name == "performance":
        return path.parent
    beside = path.parent / "performance"
    return beside if beside.is_dir() else path.parent / "docs/performance"


def names(page: str) -> list[str]:
    """The names of the page's blocks."""
    return [block[1] for block in BLOCK.findall(page)]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        text = path.read_text(encoding="utf-8")
        path.write_text(filled(text, folder_of(path)), encoding="utf-8")
