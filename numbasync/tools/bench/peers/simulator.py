"""Numba's CUDA simulator, which is chosen when Numba is imported: so in a process of its own.

Run as a program, it measures the named cases and writes a line of JSON for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from numbasync.tools.bench.cpu_cases import CASES, Array, Case
from numbasync.tools.bench.repeats import Prepare, Result, measure_case

NAME = "Numba's simulator"
REPEATS = 3
GRACE = 30.0  # to start, and for the first blocks, which nothing can be estimated from


def measured(cases: Sequence[Case], limit: float) -> list[Result]:
    """Every case by the simulator, within about `limit` seconds each."""
    names = [case.name for case in cases]
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-m", "numbasync.tools.bench.peers.simulator", str(limit), *names]
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said, complaint = process.communicate(timeout=GRACE + 3 * limit * len(cases))
        why = complaint.strip().splitlines()[-1:] or ["no answer"]
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        why = ["it took too long"]
    found = {r.case: r for r in (Result(**json.loads(line)) for line in said.splitlines())}
    return [found.get(name, Result(name, NAME, note=f"not measured: {why[0]}")) for name in names]


def _prepare(case: Case) -> Prepare:
    from numba import cuda

    kernel = cuda.jit(case.body)

    def prepare(blocks: int) -> tuple[Callable[[], object], Callable[[], Array]]:
        out, *rest = case.inputs(blocks)
        args = [cuda.to_device(a) if hasattr(a, "shape") else a for a in (out, *rest)]
        grid = case.grid(blocks)
        return lambda: kernel[grid, case.block](*args), args[0].copy_to_host

    return prepare


def _main(limit: float, names: Sequence[str]) -> None:
    for case in CASES:
        if case.name in names:
            found = measure_case(case, NAME, _prepare(case), REPEATS, limit, scales=True)
            print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    _main(float(sys.argv[1]), sys.argv[2:])
