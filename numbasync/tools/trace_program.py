"""`numbasync trace`: a program runs as Python runs it, in a trace."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from numbasync.errors import CallerError
from numbasync.timeline.timeline import Timeline, trace


def run(program: Path, arguments: Sequence[str], out: Path) -> int:
    """Run `program`, print the summary of its timeline, and write that to `out`.

    Returns:
        The exit status of the program. Its errors are raised when the timeline is written.

    Raises:
        CallerError: there is no such program, or `out` ends in none of the known ways.
    """
    if not program.is_file():
        raise CallerError(f"there is no program {str(program)!r}.")
    if not out.name.endswith((".html", ".png", ".json", ".json.gz")):
        raise CallerError(f"--out {out}: write a name that ends in .html, .png, .json or .json.gz.")
    words, path = sys.argv, sys.path[:]
    sys.argv, sys.path[:1] = [str(program), *arguments], [str(program.resolve().parent)]
    t = trace()
    try:
        with t:
            runpy.run_path(str(program), run_name="__main__")
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    finally:
        sys.argv, sys.path[:] = words, path
        _write(t, out)


def _write(t: Timeline, out: Path) -> None:
    if out.suffix == ".html":
        t.to_html(out)
    elif out.suffix == ".png":
        t.to_png(out)
    else:
        t.save(out)
    print(f"{t.summary()}\nwritten to {out}")
