"""`python -m numbasync.cpu_cuda program.py ...`: a program for `numba.cuda`, on the CPU device."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from numbasync.cpu_cuda.replacing import switch

USAGE = "usage: python -m numbasync.cpu_cuda [-m MODULE | PROGRAM.py] [ARGUMENT ...]"


def main() -> int:
    """Run the program that the arguments name, as `python` would."""
    given = sys.argv[1:]
    is_module = given[:1] == ["-m"]
    if len(given) <= is_module or given[0] in ("-h", "--help"):
        print(USAGE, file=sys.stderr)  # noqa: T201
        return 2
    switch(True)
    if is_module:
        sys.argv = given[1:]
        sys.path.insert(0, "")
        runpy.run_module(given[1], run_name="__main__", alter_sys=True)
        return 0
    if not Path(given[0]).exists():
        print(f"there is no program {given[0]}\n{USAGE}", file=sys.stderr)  # noqa: T201
        return 2
    sys.argv = given
    sys.path.insert(0, str(Path(given[0]).resolve().parent))
    runpy.run_path(given[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
