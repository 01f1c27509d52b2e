"""Fill a page's tables from JSON files: `python -m numbasync.tools.bench.page PAGE`.

The tables of `performance/NAME.json` are put between `<!-- NAME -->` and `<!-- end -->`; between
`<!-- NAME: PART -->` and `<!-- end -->`, one of its tables or texts alone, or the `machine`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from numbasync.tools.bench import cpu, report

BLOCK = re.compile(r"(<!-- ([a-z0-9-]+)(?:: ([^\n]+?))? -->\n)(.*?)(<!-- end -->)", re.S)


def block_of(run: report.Record, part: str | None = None) -> str:
    """The block of the page for a run: machine, versions and tables; or one part of these."""
    if part == "machine":
        return "\n".join(["", *report.header(run), "", ""])
    if part in run.get("texts", {}):
        return f"\n```text\n{run['texts'][part]}\n```\n\n"
    if part is not None:
        table = {t["what"]: t for t in report.tables_of(run)}[part]
        return f"\n{report.markdown({'tables': [table]})}\n"
    tables = cpu.markdown(run) if "results" in run else report.markdown(run)
    return "\n".join([*report.header(run), "", tables.rstrip("\n"), ""])


def filled(page: str, folder: Path) -> str:
    """The page, with the tables of the JSON files in `folder`."""

    def fill(block: re.Match[str]) -> str:
        run = json.loads((folder / f"{block[2]}.json").read_text(encoding="utf-8"))
        return block[1] + block_of(run, block[3]) + block[5]

    return BLOCK.sub(fill, page)


def names(page: str) -> list[str]:
    """The names of the page's blocks."""
    return [block[1] for block in BLOCK.findall(page)]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        text = path.read_text(encoding="utf-8")
        path.write_text(filled(text, path.parent / "performance"), encoding="utf-8")
