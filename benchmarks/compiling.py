"""Compiling long kernels: for the CPU device, and by Numba for a GPU, which need not be there.

Processor time, in one process, each kernel as a new function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda, from_dtype, types

import numbasync as na
from benchmarks import targets
from benchmarks.cpu_limits import Result
from benchmarks.long_kernels import LONG, LongCase
from benchmarks.targets import Target
from numbasync.device.device import Device
from numbasync.testing.timing.timer import Stopwatch, turns

NAMES = tuple(case.name for case in LONG)
THEIRS = "numba.cuda, as far as PTX"
OURS = "numbasync"
CAPABILITY = (9, 0)  # of the GPU that Numba compiles for
REPEATS = 3
TARGETS = tuple(
    Target(f"{case.name} / {THEIRS}", f"{OURS}: {case.name}", f"{THEIRS}: {case.name}", 2.0, 1.5)
    for case in LONG
)


def measured(device: Device, wanted: Callable[[str], bool]) -> list[Result]:
    """Two results for every case whose name is wanted: numbasync's and Numba's.

    Numba's result is a reason where Numba cannot compile for a GPU here.
    """
    cases = [case for case in LONG if wanted(case.name)]
    if not cases:
        return []
    why = _why_not()
    _ours(device, LONG[-1])  # loads the compiler, and compiles the helpers of all kernels
    contestants = {OURS: lambda case: _ours(device, case), **({} if why else {THEIRS: _theirs})}
    results = []
    for case in cases:
        samples: dict[str, list[float]] = {name: [] for name in contestants}
        for name, _ in turns(list(contestants), REPEATS, warm_up=0):
            samples[name].append(contestants[name](case))
        results += [Result.of(case.name, name, each) for name, each in samples.items()]
        if why:
            results.append(Result(case.name, THEIRS, note=f"skipped: {why}"))
    return results


def judged(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The targets of the cases that are among the results."""
    cases = {r.case for r in results}
    names = [(f"{r.by}: {r.case}", r) for r in results]
    figures = [{"name": n, "median": r.median, "unit": "s"} for n, r in names if r.median]
    missing = [{"name": n, "why": r.note} for n, r in names if not r.median]
    bounds = [t for t in TARGETS if t.ours.partition(": ")[2] in cases]
    return targets.judge(bounds, figures, missing)


def _ours(device: Device, case: LongCase) -> float:
    kernel = na.launcher(cuda.jit(case.body()))
    stream = device.new_stream()
    zeros = [np.zeros(shape, dtype) if shape else dtype(0) for dtype, shape in case.arguments]
    args = [na.from_host(z).sync_on(stream) if np.ndim(z) else z for z in zeros]
    with Stopwatch(time.process_time) as watch:
        kernel[1, case.block, stream](*args).sync_on(stream)
    return watch.seconds


def _theirs(case: LongCase) -> float:
    body = case.body()
    signature = tuple(
        types.Array(from_dtype(np.dtype(dtype)), len(shape), "C") if shape
        else from_dtype(np.dtype(dtype))
        for dtype, shape in case.arguments
    )  # fmt: skip
    with _without_a_gpu(), Stopwatch(time.process_time) as watch:
        cuda.compile_ptx(body, signature, cc=CAPABILITY)
    return watch.seconds


def _why_not() -> str:
    """Why Numba cannot compile for a GPU here; "" if it can."""
    try:
        _theirs(LONG[-1])
    except Exception as error:  # the driver, NVVM and their packages raise many types
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return ""


@contextmanager
def _without_a_gpu() -> Iterator[None]:
    """Numba compiles device functions for the current GPU: here, for one of `CAPABILITY`."""
    from numba.cuda import dispatcher

    module: Any = dispatcher
    original = module.get_current_device
    module.get_current_device = lambda: SimpleNamespace(compute_capability=CAPABILITY)
    try:
        yield
    finally:
        module.get_current_device = original
