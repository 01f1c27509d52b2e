"""The plugin's options, and their values in a session."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from numbasync.testing.plugin.sanitizer import TOOLS

SEEDS = 20


@dataclass(frozen=True, slots=True)
class Options:
    """The values of a session's options.

    Attributes:
        device: `auto`, `cpu`, `cuda` or `all`.
        seeds: how many seeds the `seeds` fixture gives.
        races: number of thread orders of checked runs on the CPU device; 0 for unchecked runs.
        seed: of checks that name none.
        strict: whether tests may leave something behind.
        coverage: whether kernels run as Python, where a tracer sees their lines.
        sanitizer: the tool to run CUDA tests under; "" for none.
        lines: whether kernels are compiled with line numbers for that tool.
        cuda_on_cpu: whether programs for `numba.cuda` use the CPU device.
        benchmarks: the file for the results of `benchmark_kernel`.
    """

    device: str
    seeds: int
    races: int
    seed: int
    strict: bool
    coverage: bool
    sanitizer: str
    lines: bool
    cuda_on_cpu: bool
    benchmarks: Path | None

    def repeated(self) -> list[str]:
        """The options by which another session repeats a test in the same way."""
        arguments = [f"--numbasync-device={self.device}"]
        arguments += [f"--numbasync-seeds={self.seeds}"] if self.seeds != SEEDS else []
        arguments += [f"--kernel-races={self.races}"] if self.races else []
        arguments += [f"--kernel-seed={self.seed}"] if self.seed else []
        arguments += ["--strict-leaks"] if self.strict else []
        arguments += ["--cuda-on-cpu"] if self.cuda_on_cpu else []
        return arguments


def of(config: pytest.Config) -> Options:
    """A session's options."""

    def value(name: str) -> Any:
        return config.getoption(name)

    return Options(
        str(value("numbasync_device")), int(value("numbasync_seeds")), int(value("kernel_races")),
        int(value("kernel_seed")), bool(value("strict_leaks")), bool(value("kernel_coverage")),
        str(value("compute_sanitizer") or ""), bool(value("kernel_lines")),
        bool(value("cuda_on_cpu")),
        value("kernel_benchmarks"),
    )  # fmt: skip


def add_options(parser: pytest.Parser) -> None:
    """Add all options but `--device`, which a project may define itself."""
    add_device_option(parser, "--numbasync-device")
    group = parser.getgroup("numbasync")
    group.addoption(
        "--numbasync-seeds", type=_at_least(1), default=SEEDS, metavar="N",
        help=f"how many seeds the `seeds` fixture gives (default: {SEEDS})",
    )  # fmt: skip
    group.addoption(
        "--kernel-races", type=_at_least(0), default=0, metavar="N",
        help="run tests of the `device` fixture on the CPU device N times, every access of their "
        "kernels watched: threads in forward, reverse and shuffled orders; check_kernel tries at "
        "least N shuffled orders",
    )  # fmt: skip
    group.addoption(
        "--kernel-seed", type=_at_least(0), default=0, metavar="S",
        help="seed of check_kernel's orders and fillings, as its reports say it",
    )  # fmt: skip
    group.addoption(
        "--strict-leaks", action="store_true",
        help="a test fails that leaves device memory, work in flight, tasks or operations that "
        "were never run",
    )  # fmt: skip
    group.addoption(
        "--cuda-on-cpu", action="store_true",
        help="let programs for numba.cuda use the CPU device; with --kernel-races=N each test runs "
        "N times, every access of its kernels watched",
    )  # fmt: skip
    group.addoption(
        "--kernel-coverage", action="store_true",
        help="tell coverage.py which lines of kernels run, on the CPU device",
    )  # fmt: skip
    group.addoption(
        "--compute-sanitizer", choices=TOOLS, metavar="TOOL",
        help=f"run each test on a CUDA device in a process of its own under this tool: "
        f"{', '.join(TOOLS)}",
    )  # fmt: skip
    group.addoption(
        "--kernel-benchmarks", type=Path, metavar="FILE",
        help="write what `benchmark_kernel` has measured to this JSON file",
    )  # fmt: skip
    group.addoption("--kernel-lines", action="store_true", help="compile kernels with lineinfo")


def _at_least(least: int) -> Callable[[str], int]:
    def number(said: str) -> int:
        if not said.isdecimal() or int(said) < least:
            raise argparse.ArgumentTypeError(f"{said!r}: a whole number of at least {least}")
        return int(said)

    return number


def add_device_option(parser: pytest.Parser, name: str) -> None:
    """Add the option that chooses the devices, under this name."""
    parser.getgroup("numbasync").addoption(
        name,
        dest="numbasync_device",
        choices=["auto", "cpu", "cuda", "all"],
        default="auto",
        help="devices for the `device` fixture: one kind, all that are usable, or auto: the one "
        "of NUMBASYNC_DEVICE, else a GPU if there is one, else the CPU device",
    )
