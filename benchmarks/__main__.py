"""The command `python -m benchmarks`, also `numbasync bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import cpu, suites
from numbasync.errors import CallerError
from numbasync.tools.cli import add_device, pick_device, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the arguments name. Returns the process's exit status."""
    args = _parser().parse_args(argv)
    return run_command("bench", lambda: _cpu(args) if args.what == "cpu" else _suite(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="numbasync bench", description="Measure, beside other libraries, in one run."
    )
    parser.add_argument(
        "what",
        choices=[*suites.SUITES, "all", "cpu"],
        help="launch: submit one kernel; await: wait for one, short or long; flight: 1,000 at "
        "once; interop: other libraries' arrays; alloc: new arrays; copy: uploads and downloads; "
        "graph: replays; batch: command batches; kernels: plain kernels on large arrays; devices: "
        "copies between two GPUs; all: these ten, in one process; scaling: the same work on "
        "one, two, four and eight GPUs; algorithms: reductions, scans and sorts; dask: tasks of a "
        "cluster; cpu: "
        "what kernels cost without a GPU",
    )
    add_device(parser)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--repeats", type=int, help="of each measurement; default: 15, cpu: 9")
    parser.add_argument("--limit", type=float, help="cpu: seconds for one case; default: 60")
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="TEXT",
        help="cases of cpu, or parts of suites, with one of these in their name",
    )
    return parser


def _suite(args: argparse.Namespace) -> int:
    if args.limit is not None:
        raise CallerError(f"--limit is for bench cpu; leave it out of bench {args.what}.")
    repeats = 15 if args.repeats is None else args.repeats
    return suites.run(args.what, pick_device(args.device), repeats, args.json, args.only)


def _cpu(args: argparse.Namespace) -> int:
    if args.device == "cuda":
        raise CallerError(f"bench cpu measures the CPU device; leave --device {args.device} out.")
    repeats = 9 if args.repeats is None else args.repeats
    limit = 60.0 if args.limit is None else args.limit
    return cpu.run(pick_device("cpu"), args.json, repeats, limit, args.only)


if __name__ == "__main__":
    sys.exit(main())
