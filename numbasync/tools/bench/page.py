"""Fill a page's tables from the JSON files beside it: `python -m numbasync.bench.page PAGE`.

Between `<!-- NAME -->` and `<!-- end -->` comes what `PAGE-without-suffix/NAME.json` says.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from numbasync.tools.bench import cpu, report

BLOCK = re.compile(r"(<!-- ([a-z0-9-]+) -->\n)(.*?)(<!-- end -->)", re.S)


def shown(found: report.Record) -> str:
    """What stands on the page for a run."""
    tables = cpu.markdown(found) if "results" in found else report.markdown(found)
    return "\n".join([*report.header(found), "", tables.rstrip("\n"), ""])


def filled(page: str, folder: Path) -> str:
    """The page, with every table as its JSON file in `folder` says."""

    def fill(block: re.Match[str]) -> str:
        found = json.loads((folder / f"{block[2]}.json").read_text(encoding="utf-8"))
        return block[1] + shown(found) + block[4]

    return BLOCK.sub(fill, page)


def names(page: str) -> list[str]:
    """Which tables the page has."""
    return [block[1] for block in BLOCK.findall(page)]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        text = path.read_text(encoding="utf-8")
        path.write_text(filled(text, path.with_suffix("")), encoding="utf-8")
