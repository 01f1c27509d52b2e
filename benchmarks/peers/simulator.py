"""Numba's CUDA simulator, in a process of its own, since it is chosen when Numba is imported.

Run as a program, this module measures the named cases and writes a line of JSON for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from benchmarks.cpu_cases import CASES, Array, Case
from benchmarks.cpu_limits import Prepare, Result, measure_case

NAME = "Numba's simulator"
REPEATS = 3
GRACE = 30.0  # seconds for the start and the first blocks, before there is an estimate


def measured(cases: Sequence[Case], limit: float) -> list[Result]:
    """The results of all cases by the simulator, within about `limit` seconds each."""
    names = [case.name for case in cases]
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-m", "benchmarks.peers.simulator", str(limit), *names]
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors = process.communicate(timeout=GRACE + 3 * limit * len(cases))
        why = errors.strip().splitlines()[-1:] or ["no answer"]
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        why = ["it took too long"]
    results = {r.case: r for r in (Result(**json.loads(line)) for line in output.splitlines())}
    return [results.get(name, Result(name, NAME, note=f"not measured: {why[0]}")) for name in names]


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
            result = measure_case(case, NAME, _prepare(case), REPEATS, limit, scales=True)
            print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    _main(float(sys.argv[1]), sys.argv[2:])
