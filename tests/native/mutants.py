"""Faults planted in the core's rules, each of which a test must catch.

    python -m tests.native.mutants [part of a name ...] [--jobs 2]

For each fault the core is changed, compiled and tested apart from the checkout, in 10 s. Without a
fault's own tests, given by its name's part, all of `tests/native` runs. `test_mutants.py` holds
that each text that a fault changes is there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# The parts of the core, and what they say.
SOURCES = {path: path.read_text() for path in sorted(ROOT.glob("numbasync/core/*.pxi"))}
LIMIT_S = 120  # of a test run, which a fault may hang
# Those that find most come first.
TESTS = [
    f"tests/{name}.py" if "/" in name else f"tests/native/{name}.py"
    for name in ("test_driver_calls", "test_settling", "test_which_calls", "test_awaited_results",
                 "test_handed_over", "test_rare_cases", "test_locks", "test_across",
                 "test_prepared_calls", "test_gathered", "test_random_programs",
                 "test_short_launches", "test_compositions", "test_core", "test_futures",
                 "test_leaks", "test_changes", "test_core_threads", "test_collectives",
                 "test_packing", "test_memory", "test_pools", "test_held_references",
                 "test_lent_arrays", "test_lent_attributes", "test_lent_places",
                 "test_callers_launch", "test_packed_runs", "ops/test_awaiting",
                 "ops/test_follows_tensors", "launch/test_homes",
                 "device/test_refused_threads", "timeline/test_trace")
]  # fmt: skip


BUILD = """
import sys
from pathlib import Path
from Cython.Build import cythonize
from setuptools import Distribution, Extension
import core_table

work, *flags = sys.argv[1:]
Path(work).mkdir(exist_ok=True)
Path(work, core_table.NAME).write_text(core_table.table(Path("numbasync")))
extension = Extension(
    "numbasync._core", ["numbasync/_core.pyx"], extra_compile_args=flags,
    extra_link_args=[flag for flag in flags if flag.startswith("-fsanitize")],
)
modules = cythonize([extension], build_dir=work, include_path=[work], quiet=True)
command = Distribution({"name": "numbasync", "ext_modules": modules}).get_command_obj("build_ext")
command.build_lib = command.build_temp = work
command.ensure_finalized()
command.run()
"""


class Mutant(NamedTuple):
    """A fault: a text of the source, which is there once, and what stands in its place."""

    name: str
    text: str
    fault: str

    def part(self) -> Path:
        """The part of the core that has the text."""
        counts = {path: text.count(self.text) for path, text in SOURCES.items()}
        if sum(counts.values()) != 1:
            places = {path.name: count for path, count in counts.items() if count}
            raise ValueError(f"{self.name}: it is not in one place, but in {places}:\n{self.text}")
        return max(counts, key=lambda path: counts[path])

    def plant(self, folder: Path) -> None:
        """Change the core of a copy of the checkout."""
        path = folder / self.part().relative_to(ROOT)
        path.write_text(path.read_text().replace(self.text, self.fault))


def read(path: Path) -> list[Mutant]:
    """The faults of a file, whose form its first lines say."""
    faults: list[Mutant] = []
    for line in path.read_text().splitlines():
        kind, rest = line[:1], line[1:]
        if kind == "=":
            faults.append(Mutant(rest.strip(), "", ""))
        elif kind == "-":
            faults[-1] = faults[-1]._replace(text=f"{faults[-1].text}\n{rest}")
        elif kind == "+":
            faults[-1] = faults[-1]._replace(fault=f"{faults[-1].fault}\n{rest}")
    return [Mutant(name, text[1:], fault[1:]) for name, text, fault in faults]


MUTANTS = read(Path(__file__).with_name("faults.txt"))


def build(folder: Path, flags: Sequence[str] = ("-O0", "-w")) -> None:
    """Compile the core of a copy of the checkout in place."""
    work = folder / "build"
    command = [sys.executable, "-c", BUILD, str(work), *flags]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(result.stdout[-2000:] + result.stderr[-2000:])
    module = next((work / "numbasync").glob("_core.*.so"))
    shutil.copy(module, folder / "numbasync")


def copy_of_checkout(folder: Path) -> None:
    ignored = shutil.ignore_patterns("_core.*.so", "__pycache__")
    for name in ("numbasync", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "core_table.py", "kernels", "examples"):
        (folder / name).symlink_to(ROOT / name)


def caught_by(mutant: Mutant | None, tests: Sequence[str] = TESTS) -> str:
    """The first test that fails with the fault; "" if none does. None: without a fault."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        copy_of_checkout(folder)
        if mutant is not None:
            mutant.plant(folder)
        build(folder)
        path = os.pathsep.join(
            [str(folder), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
        )
        env = {**os.environ, "PYTHONPATH": path, "NUMBASYNC_NATIVE": "1"}
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        plugins = ["-p", "numbasync.testing.plugin", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", "-x", "-q", *plugins, *tests]
        try:
            result = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, check=False,
                timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no end after {LIMIT_S} s"
        if result.returncode == 0:
            return ""
        failed = [n for n in result.stdout.splitlines() if n.startswith(("FAILED", "ERROR"))]
        return failed[0].split(" - ")[0] if failed else f"exit status {result.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of faults")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(n in m.name for n in options.names)]
    survivors = endless = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, by in zip(chosen, pool.map(caught_by, chosen), strict=True):
            print(f"{'SURVIVES' if not by else 'caught  '}  {mutant.name}  {by}", flush=True)
            survivors += not by
            endless += by.startswith("no end")
    # Some faults stop the program; on a busy machine the time is up before a test has failed.
    print(f"{len(chosen)} faults, {survivors} survive, {endless} did not end")
    return survivors


if __name__ == "__main__":
    sys.exit(main())
