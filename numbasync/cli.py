"""The command `numbasync`, also `python -m numbasync`: demo, doctor, bench."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from numbasync import __version__
from numbasync.device import Device, default_device, devices
from numbasync.errors import CallerError, DeviceUnavailableError, NumbasyncError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit status."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except NumbasyncError as error:
        print(f"numbasync {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"numbasync {args.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141  # the reader of a pipe has gone; what shells report for SIGPIPE


def pick_device(kind: str | None) -> Device:
    """The device that `--device` names, or the default one.

    Raises:
        DeviceUnavailableError: there is no usable device of that kind.
    """
    if kind is None:
        return default_device()
    found = devices(kind)
    if not found:
        from numbasync.backend import why_unavailable

        raise DeviceUnavailableError(
            f"--device {kind}: {why_unavailable(kind)}\nWrite --device cpu to run without a GPU."
        )
    return found[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="numbasync", description=__doc__)
    parser.add_argument("--version", action="version", version=f"numbasync {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="run a pipeline of kernels on real photographs")
    demo.add_argument("image", nargs="*", type=Path, help="pictures; default: 12 photographs")
    _add_device(demo)
    demo.add_argument(
        "--out",
        type=Path,
        help="folder for the PNG files; default: next to the pictures, or numbasync-demo",
    )
    demo.add_argument("--full", action="store_true", help="keep the size, however long it takes")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser("doctor", help="say what is installed, found and missing")
    _add_device(doctor)
    doctor.set_defaults(run=_doctor)

    bench = commands.add_parser("bench", help="measure, beside other libraries, in one run")
    bench.add_argument(
        "what", choices=["launch", "cpu"],
        help="launch: submit and await one kernel; cpu: what kernels cost without a GPU",
    )  # fmt: skip
    _add_device(bench)
    bench.add_argument("--json", type=Path, help="also write the figures to this file")
    bench.add_argument("--repeats", type=int, help="of each measurement; default: 15, cpu: 9")
    bench.add_argument("--limit", type=float, default=60.0, help="cpu: seconds for one case")
    bench.add_argument("--only", default="", help="cpu: cases with this in their name")
    bench.set_defaults(run=_bench)
    return parser


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: NUMBASYNC_DEVICE")


# Each command is imported when it is asked for: they need packages that others do not.


def _demo(args: argparse.Namespace) -> int:
    from numbasync import demo

    return demo.run(args.image, pick_device(args.device), args.out, args.full)


def _doctor(args: argparse.Namespace) -> int:
    from numbasync import doctor

    return doctor.run(args.device)


def _bench(args: argparse.Namespace) -> int:
    if args.what == "cpu":
        if args.device == "cuda":
            raise CallerError(
                f"bench cpu measures the CPU device; leave --device {args.device} out."
            )
        from numbasync.bench import cpu

        repeats = 9 if args.repeats is None else args.repeats
        return cpu.run(pick_device("cpu"), args.json, repeats, args.limit, args.only)
    from numbasync.bench import launch

    repeats = 15 if args.repeats is None else args.repeats
    return launch.run(pick_device(args.device), args.json, repeats)
