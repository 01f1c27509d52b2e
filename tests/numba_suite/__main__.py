"""numba-cuda's own tests judge the CPU device: what passes, what fails, and why.

    python -m tests.numba_suite [--json FILE] [--markdown FILE] [--jobs N] [--beyond] [pattern]

runs every test that Numba's simulator runs, with the kernels on numbasync's CPU device. A
`pattern` such as `sync` or `test_atomics` chooses files. Each file has a process and a time
limit of its own; one that crashes, or hangs, fails the test that it was in and goes on.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numbasync
from tests.numba_suite.child import suite
from tests.numba_suite.outcome import FAILED, KINDS, SKIPPED, Outcome, markdown, reasons

PACKAGES = ("cudapy", "doc_examples")
FILE_SECONDS = 600.0
TEST_SECONDS = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.numba_suite", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="part of the files' names")
    parser.add_argument("--json", type=Path, help="write every test's outcome to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument("--jobs", type=int, default=1, help="files at a time")
    parser.add_argument("--seconds", type=float, default=FILE_SECONDS, help="limit of a file")
    parser.add_argument(
        "--beyond", action="store_true", help="also run what Numba's simulator leaves out"
    )
    args = parser.parse_args(argv)
    modules = _modules(args.pattern)
    with ThreadPoolExecutor(args.jobs) as pool:
        found = pool.map(partial(_file, limit=args.seconds, beyond=args.beyond), modules)
        outcomes = [o for of_file in found for o in of_file]
    _summary(outcomes)
    if args.json is not None:
        args.json.write_text(json.dumps(_record(outcomes), indent=1) + "\n", encoding="utf-8")
    if args.markdown is not None:
        args.markdown.write_text(markdown(outcomes), encoding="utf-8")
    return 0


def _modules(pattern: str) -> list[str]:
    """The test modules of the numba-cuda that is installed; none of them is imported here."""
    home = suite()
    return [
        f"{package}.{path.stem}"
        for package in PACKAGES
        for path in sorted((home / package).glob("test_*.py"))
        if pattern in path.stem
    ]


def _file(module: str, limit: float, beyond: bool) -> list[Outcome]:
    """Run one module, in as many processes as its crashes need."""
    file = module.removeprefix("cudapy.").replace(".", "/")
    outcomes: list[Outcome] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes"
        while True:
            left = limit - (time.perf_counter() - began)
            done = [o.test for o in outcomes]
            status = _child(module, out, done, left, beyond)
            ended, begun = _read(file, out)
            outcomes += ended
            if begun is not None:
                outcomes.append(Outcome(file, begun, FAILED, _death(status), TEST_SECONDS))
            elif status not in (0, None):
                outcomes.append(Outcome(file, "(module)", FAILED, _death(status), 0.0))
            if status == 0 or begun is None:
                break
            if time.perf_counter() - began > limit - 1:
                reason = f"the file's {limit:.0f} s are over; later tests were not run"
                outcomes.append(Outcome(file, "(rest)", SKIPPED, reason, 0.0))
                break
    counts = Counter(o.kind for o in outcomes)
    print(f"{file}: " + ", ".join(f"{counts[kind]} {kind}" for kind in KINDS), flush=True)
    return outcomes


def _child(module: str, out: Path, done: Sequence[str], left: float, beyond: bool) -> int | None:
    """Exit status of a process that runs the tests that are not done; None if it was ended."""
    out.write_text("")
    seconds = min(TEST_SECONDS, max(left, 1.0))
    given = {"module": module, "out": str(out), "done": done, "seconds": seconds, "beyond": beyond}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.numba_suite.child", json.dumps(given)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return process.wait(max(left, 1.0) + 1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _read(file: str, out: Path) -> tuple[list[Outcome], str | None]:
    """The tests that have ended, and the one that had only begun."""
    ended: list[Outcome] = []
    begun: str | None = None
    for line in out.read_text(encoding="utf-8").splitlines():
        record: dict[str, Any] = json.loads(line)
        begun = record.get("begin")
        if "end" in record:
            ended.append(
                Outcome(file, record["end"], record["kind"], record["reason"], record["seconds"])
            )
    return ended, begun


def _death(status: int | None) -> str:
    if status is not None and status < 0:
        return f"the process crashed with signal {-status}"
    return f"took longer than {TEST_SECONDS:.0f} s" if status in (1, None) else f"exit {status}"


def _summary(outcomes: Sequence[Outcome]) -> None:
    counts = Counter(o.kind for o in outcomes)
    print("\n" + ", ".join(f"{counts[kind]} {kind}" for kind in KINDS))
    print("\nfailed because")
    for reason, count in reasons(outcomes, FAILED)[:40]:
        print(f"{count:>5}  {reason}")


def _record(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "versions": {
            "numbasync": numbasync.__version__,
            "Python": platform.python_version(),
            **{p: metadata.version(p) for p in ("numba", "numba-cuda", "numpy")},
        },
        "counts": dict(Counter(o.kind for o in outcomes)),
        "outcomes": [asdict(o) for o in outcomes],
    }


if __name__ == "__main__":
    sys.exit(main())
