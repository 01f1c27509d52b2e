"""What compiling long kernels costs: for the CPU device, and by Numba for a GPU that need not be
there. Processor time, in one process, each kernel as a new function.
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
from numbasync.device.device import Device
from numbasync.tools.bench import targets
from numbasync.tools.bench.long_kernels import LONG, LongCase
from numbasync.tools.bench.repeats import Result, summary
from numbasync.tools.bench.targets import Target

NAMES = tuple(case.name for case in LONG)
THEIRS = "numba.cuda, as far as PTX"
OURS = "numbasync"
CAPABILITY = (9, 0)  # of the GPU that is compiled for
REPEATS = 3
TARGETS = tuple(
    Target(f"{case.name} / {THEIRS}", f"{OURS}: {case.name}", f"{THEIRS}: {case.name}", 3.0, 2.0)
    for case in LONG
)


def measured(device: Device, wanted: Callable[[str], bool]) -> list[Result]:
    """Two rows for every case whose name is wanted; one of them may say why there is no time."""
    cases = [case for case in LONG if wanted(case.name)]
    if not cases:
        return []
    why = _why_not()
    _ours(device, LONG[-1])  # what is loaded once, and the helpers of all kernels
    found = []
    for case in cases:
        own, theirs = [], []
        for _ in range(REPEATS):
            own.append(_ours(device, case))
            if not why:
                theirs.append(_theirs(case))
        found.append(summary(case.name, OURS, own, None))
        found.append(
            Result(case.name, THEIRS, note=f"skipped: {why}")
            if why
            else summary(case.name, THEIRS, theirs, None)
        )
    return found


def judged(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The targets of the cases that are among the results."""
    about = {r.case for r in results}
    names = [(f"{r.by}: {r.case}", r) for r in results]
    timings = [{"name": n, "median": r.median, "unit": "s"} for n, r in names if r.median]
    missing = [{"name": n, "why": r.note} for n, r in names if not r.median]
    wanted = [t for t in TARGETS if t.ours.partition(": ")[2] in about]
    return targets.judge(wanted, timings, missing)


def _ours(device: Device, case: LongCase) -> float:
    kernel = na.launcher(cuda.jit(case.body()))
    stream = device.new_stream()
    zeros = [np.zeros(shape, kind) if shape else kind(0) for kind, shape in case.kinds]
    args = [na.from_host(z).sync_on(stream) if np.ndim(z) else z for z in zeros]
    began = time.process_time()
    kernel[1, case.block, stream](*args).sync_on(stream)
    return time.process_time() - began


def _theirs(case: LongCase) -> float:
    body = case.body()
    kinds = [types.Array(from_dtype(np.dtype(k)), len(s), "C") if s else from_dtype(np.dtype(k))
             for k, s in case.kinds]  # fmt: skip
    with _without_a_gpu():
        began = time.process_time()
        cuda.compile_ptx(body, tuple(kinds), cc=CAPABILITY)
        return time.process_time() - began


def _why_not() -> str:
    """Why Numba cannot compile for a GPU here; "" if it can."""
    try:
        _theirs(LONG[-1])
    except Exception as error:  # of the driver's, NVVM's and their packages' many kinds
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return ""


@contextmanager
def _without_a_gpu() -> Iterator[None]:
    """Device functions are compiled for the current GPU: here, for the one that is asked for."""
    from numba.cuda import dispatcher

    module: Any = dispatcher
    asked = module.get_current_device
    module.get_current_device = lambda: SimpleNamespace(compute_capability=CAPABILITY)
    try:
        yield
    finally:
        module.get_current_device = asked
