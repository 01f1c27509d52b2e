"""The table of planted mistakes in docs/testing.md; `python -m tests.planted_bugs.table` writes
it.
"""

from __future__ import annotations

import re
from pathlib import Path

import numbasync as na
from numbasync.testing import KernelFailure
from tests.planted_bugs.cases import Case
from tests.planted_bugs.planted import PLANTED

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BEGIN, END = "<!-- planted mistakes: begin -->", "<!-- planted mistakes: end -->"


def caught(case: Case) -> KernelFailure | None:
    """What a planted mistake is caught as, on the CPU device."""
    with na.use_device(na.devices("cpu")[0]):
        try:
            case.check()
        except KernelFailure as failure:
            return failure
    return None


def row(kind: str, case: Case) -> str:
    """The table's line of one mistake, made by running it."""
    found = caught(case)
    what = "nothing" if found is None else f"`{type(found).__name__}`"
    return f"| {kind} | `{case.name}` | {what} | {_place(found)} |"


def rows() -> list[str]:
    """The table's lines."""
    found = [row(kind, case) for kind, cases in PLANTED.items() for case in cases]
    return ["| planted | kernel | caught as | the report names |", "|---|---|---|---|", *found]


def _place(failure: KernelFailure | None) -> str:
    said = str(failure)
    accesses = re.findall(r"planted\.py:(\d+)", said)
    if accesses:
        return "thread and line" if len(accesses) == 1 else "both threads and lines"
    first = re.search(r"first at (\(.*?\))", said)
    return f"element {first[1]}, who wrote it" if first else ""


def kept(page: str) -> list[str]:
    """The lines of the table on the page."""
    return page.split(BEGIN)[1].split(END)[0].strip().splitlines()


def main() -> None:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, behind = rest.split(END)
    PAGE.write_text("\n".join([before + BEGIN, "", *rows(), "", END + behind]))


if __name__ == "__main__":
    main()
