"""`numbasync trace`: a program runs as Python runs it, in a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from numbasync.errors import CallerError
from numbasync.timeline.timeline import ProgramTimeline, Timeline
from numbasync.tools.program import check_program, run_as_main


def run(program: Path, arguments: Sequence[str], out: Path) -> int:
    """Run `program`, print the summary of its timeline, and write that to `out`. A program that
    opens traces of its own has the timeline of the last of them.

    Returns:
        The exit status of the program. Its errors are raised when the timeline is written.

    Raises:
        CallerError: there is no such program, or `out` ends in none of the known ways.
    """
    check_program(program)
    if not out.name.endswith((".html", ".png", ".json", ".json.gz")):
        raise CallerError(f"--out {out}: write a name that ends in .html, .png, .json or .json.gz.")
    whole = ProgramTimeline()
    try:
        return run_as_main(program, arguments, whole)
    finally:
        _write(whole.own or whole, out)
        if whole.own is not None:
            print("It is that of the last trace which the program has opened itself.")


def _write(t: Timeline, out: Path) -> None:
    if out.suffix == ".html":
        t.to_html(out)
    elif out.suffix == ".png":
        t.to_png(out)
    else:
        t.save(out)
    print(f"{t.summary()}\nwritten to {out}")
