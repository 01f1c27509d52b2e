"""Kernels of numba-cuda-mlir: the launch by numbasync, and its own.

Its compiler reads the kernel's global names, so it is imported with this module.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import numbasync as na
from benchmarks.measure import Case, timed
from benchmarks.work import BLOCKS, THREADS, N, check, check_run

cuda = importlib.import_module("numba_cuda_mlir.cuda")


@cuda.jit
def saxpy(z: Any, a: Any, x: Any) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


def of_launch(ordinal: int) -> list[Case]:
    """Submitting a prepared launch and a call of its kernel, and a launch by itself."""
    device = na.devices("cuda")[ordinal]
    stream = device.new_stream()
    z, x = na.zeros(N).sync_on(stream), na.ones(N).sync_on(stream)
    form = na.launcher(saxpy)[BLOCKS, THREADS]
    run = form.prepare(z, 2.0, x)
    with na.use_device(device):
        their_z = cuda.to_device(np.zeros(N, np.float32))
        their_x = cuda.to_device(np.ones(N, np.float32))
    theirs = cuda.stream()
    configured = saxpy[BLOCKS, THREADS, theirs]

    def prepared_launch() -> None:
        run.async_on(stream, a=2.0)

    def build_and_submit() -> None:
        form(z, 2.0, x).async_on(stream)

    def launch() -> None:
        configured(their_z, 2.0, their_x)

    async def check_prepared() -> None:
        await check_run(z, lambda: run(a=2.0))

    async def check_built() -> None:
        await check_run(z, lambda: form(z, 2.0, x))

    async def check_launch() -> None:
        their_z.copy_to_device(np.zeros(N, np.float32))
        cuda.synchronize()
        launch()
        theirs.synchronize()
        check(their_z.copy_to_host())

    drain = stream.synchronize
    return [
        Case(
            "numbasync: a kernel of numba-cuda-mlir, build + submit",
            timed(build_and_submit, drain), check_built,
        ),
        Case(
            "numbasync: a kernel of numba-cuda-mlir, prepared launch",
            timed(prepared_launch, drain), check_prepared,
        ),
        Case("numba-cuda-mlir: launch", timed(launch, theirs.synchronize), check_launch),
    ]  # fmt: skip
