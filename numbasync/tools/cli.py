"""The command `numbasync`, also `python -m numbasync`: demo, cluster-demo, doctor, trace, bench,
new, completion.
"""

from __future__ import annotations

import _thread
import argparse
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from numbasync import __version__
from numbasync.cache_folder import sigterm_as_exit
from numbasync.device.device import Device, default_device, devices
from numbasync.errors import CallerError, DeviceUnavailableError, NumbasyncError
from numbasync.tools.completion import SHELLS


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the process's exit status."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["bench"]:  # the benchmarks read its arguments
        return run_command("bench", lambda: _bench(words[1:]))
    args = _parser().parse_args(words)
    return run_command(args.command, lambda: int(args.run(args)))


def run_command(command: str, run: Callable[[], int]) -> int:
    """Call `run`, whose errors and interruptions become a line. Returns the exit status."""
    try:
        with sigterm_as_exit(), _no_lost_interrupt():
            return run()
    except NumbasyncError as error:
        print(f"numbasync {command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"numbasync {command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141  # the pipe's reader has closed it; shells report this status for SIGPIPE


@contextmanager
def _no_lost_interrupt() -> Iterator[None]:
    """Ctrl-C ends the command wherever it comes. Python raises it where the main thread happens to
    be, and only prints what is raised in a finalizer or a callback of the garbage collector
    (Dask has one): what it would print is raised again, a moment later.
    """
    before = sys.unraisablehook

    def raise_again(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        # Not here: what a hook raises is lost, too.
        threading.Timer(0.02, _thread.interrupt_main).start()

    sys.unraisablehook = raise_again
    try:
        yield
    finally:
        sys.unraisablehook = before


def pick_device(kind: str | None) -> Device:
    """The device that `--device` names, or the default one.

    Raises:
        DeviceUnavailableError: there is no usable device of that kind.
    """
    if kind is None:
        return default_device()
    candidates = devices(kind)
    if not candidates:
        from numbasync.backend import why_unavailable

        raise DeviceUnavailableError(
            f"--device {kind}: {why_unavailable(kind)}\nWrite --device cpu to run without a GPU."
        )
    return candidates[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="numbasync", description=__doc__)
    parser.add_argument("--version", action="version", version=f"numbasync {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="run a pipeline of kernels on real photographs")
    demo.add_argument("image", nargs="*", type=Path, help="pictures; default: 12 photographs")
    add_device(demo)
    demo.add_argument(
        "--out",
        type=Path,
        help="folder for the PNG files; default: next to the pictures, or numbasync-demo",
    )
    demo.add_argument("--full", action="store_true", help="keep the size, however long it takes")
    demo.add_argument(
        "--scene", choices=("heat", "wave", "life", "bodies"), help="a simulation, and no pictures"
    )
    demo.set_defaults(run=_demo)

    cluster = commands.add_parser(
        "cluster-demo", help="a Dask cluster prices an option, or equalises pictures"
    )
    cluster.add_argument(
        "address", nargs="?", help="of a scheduler; default: a cluster started here"
    )
    cluster.add_argument("--workers", type=int, help="default: one for each processor, 8 at most")
    cluster.add_argument("--paths", type=float, default=1e8, help="default: 1e8")
    cluster.add_argument(
        "--images", nargs="?", const="", metavar="FOLDER",
        help="equalise the pictures of a folder, of any size; default: photographs",
    )  # fmt: skip
    cluster.add_argument(
        "--out", type=Path, default=Path("numbasync-equalised"), help="folder for the pictures"
    )
    cluster.add_argument("--device", help="of each worker; default: the GPUs in turn, or the CPU")
    cluster.set_defaults(run=_cluster_demo)

    doctor = commands.add_parser("doctor", help="say what is installed, found and missing")
    add_device(doctor)
    doctor.set_defaults(run=_doctor)

    trace = commands.add_parser("trace", help="run a program, and show what ran when")
    trace.add_argument("program", type=Path, help="the file of the program")
    trace.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    trace.add_argument(
        "--out", type=Path, default=Path("timeline.html"),
        help=".html: a page; .png: a picture; .json, .json.gz: Perfetto; default: timeline.html",
    )  # fmt: skip
    trace.set_defaults(run=_trace)

    top = commands.add_parser("top", help="run a program, and show what its devices do meanwhile")
    top.add_argument("program", type=Path, help="the file of the program")
    top.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    top.add_argument("--every", type=_seconds, default=0.5, help="seconds; default: 0.5")
    top.set_defaults(run=_top)

    # For the list of commands: `main` hands its arguments on.
    commands.add_parser("bench", help="measure, beside other libraries; needs a checkout")

    new = commands.add_parser("new", help="write a kernel, its test and a pyproject to a folder")
    new.add_argument("path", help="of the folder, with the project's name, such as work/my-kernels")
    new.add_argument("--in", dest="where", type=Path, default=Path(), help="default: here")
    new.set_defaults(run=_new)

    completion = commands.add_parser(
        "completion", help="print the script by which a shell completes this command",
        description="For bash: numbasync completion bash > "
        "~/.local/share/bash-completion/completions/numbasync; for zsh: to a file _numbasync in a "
        "folder of $fpath; for tcsh: to a file that ~/.cshrc sources. Repeat it after updates.",
    )  # fmt: skip
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=_completion)
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.01 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: write seconds, from 0.01 to 3600")
    return seconds


def add_device(parser: argparse.ArgumentParser) -> None:
    """Let the command be told a kind of device."""
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: NUMBASYNC_DEVICE")


# Each command is imported on use, since it may need packages that other commands do not.


def _demo(args: argparse.Namespace) -> int:
    if args.scene is not None:
        from numbasync.tools import demo_scenes

        if args.image:
            raise CallerError(f"--scene {args.scene} takes no pictures; leave them out.")
        return demo_scenes.run(args.scene, pick_device(args.device), args.out)
    from numbasync.tools import demo

    return demo.run(args.image, pick_device(args.device), args.out, args.full)


def _cluster_demo(args: argparse.Namespace) -> int:
    from numbasync.tools import cluster_demo

    return cluster_demo.run(
        args.address, args.workers, args.device, int(args.paths), args.images, args.out
    )


def _doctor(args: argparse.Namespace) -> int:
    from numbasync.tools import doctor

    return doctor.run(args.device)


def _trace(args: argparse.Namespace) -> int:
    from numbasync.tools import trace_program

    return trace_program.run(args.program, args.arguments, args.out)


def _top(args: argparse.Namespace) -> int:
    from numbasync.tools import top

    return top.run(args.program, args.arguments, args.every)


def _new(args: argparse.Namespace) -> int:
    from numbasync.tools import new_project

    return new_project.run(args.path, args.where)


def _completion(args: argparse.Namespace) -> int:
    from numbasync.tools import completion

    return completion.run(args.shell, _parser())


def _bench(arguments: Sequence[str]) -> int:
    from numbasync.tools import bench

    return bench.run(arguments)
