"""A program runs as Python runs it, in this process: what `numbasync trace` and `top` look at."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from numbasync.errors import CallerError


def check_program(program: Path) -> None:
    """Raise if there is no such program."""
    if not program.is_file():
        raise CallerError(f"there is no program {str(program)!r}.")


def run_as_main(
    program: Path, arguments: Sequence[str], inside: AbstractContextManager[object]
) -> int:
    """Run `program` inside of a block, with its `arguments`. Returns its exit status."""
    words, path = sys.argv, sys.path[:]
    sys.argv, sys.path[:1] = [str(program), *arguments], [str(program.resolve().parent)]
    try:
        with inside:
            runpy.run_path(str(program), run_name="__main__")
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    finally:
        sys.argv, sys.path[:] = words, path
