"""Fill a page's tables from the JSON files beside it: `python -m numbasync.tools.bench.page PAGE`.

The tables of `PAGE-without-suffix/NAME.json` are put between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from numbasync.tools.bench import cpu, report

BLOCK = re.compile(r"(<!-- ([a-z0-9-]+) -->\n)(.*?)(<!-- end -->)", re.S)


def block_of(run: report.Record) -> str:
    """The block of the page for a run: machine, versions and tables."""
    tables = cpu.markdown(run) if "results" in run else report.markdown(run)
    return "\n".join([*report.header(run), "", tables.rstrip("\n"), ""])


def filled(page: str, folder: Path) -> str:
    """The page, with the tables of the JSON files in `folder`."""

    def fill(block: re.Match[str]) -> str:
        run = json.loads((folder / f"{block[2]}.json").read_text(encoding="utf-8"))
        return block[1] + block_of(run) + block[4]

    return BLOCK.sub(fill, page)


def names(page: str) -> list[str]:
    """The names of the page's blocks."""
    return [block[1] for block in BLOCK.findall(page)]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        text = path.read_text(encoding="utf-8")
        path.write_text(filled(text, path.with_suffix("")), encoding="utf-8")
