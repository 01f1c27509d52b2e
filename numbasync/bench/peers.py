"""The same launch by other libraries, as their own manuals write it."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import numpy as np

from numbasync.bench.measure import Case, timed
from numbasync.device import Device

CUDA_SOURCE = """
extern "C" __global__ void saxpy(float* z, double a, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = a * x[i] + z[i];
}
"""


def of_launch(device: Device, n: int, threads: int) -> list[Case]:
    """Launching `saxpy` on `n` elements by each installed library that can use `device`."""
    if device.kind != "cuda":
        return []
    cases = _numba(n, threads)
    if importlib.util.find_spec("cupy") is not None:
        cases += _cupy(n, threads)
    return cases


def _numba(n: int, threads: int) -> list[Case]:
    from numba import cuda

    @cuda.jit
    def saxpy(z: Any, a: Any, x: Any) -> None:
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = a * x[i] + z[i]

    stream = cuda.stream()
    blocks = -(-n // threads)
    with warnings.catch_warnings():
        # Said once, when the configuration is made: a small grid is what is measured.
        warnings.simplefilter("ignore")
        _ = saxpy[blocks, threads, stream]
    z, x = cuda.to_device(np.zeros(n, np.float32)), cuda.to_device(np.ones(n, np.float32))

    def launch() -> None:
        saxpy[blocks, threads, stream](z, 2.0, x)

    def launch_and_wait() -> None:
        saxpy[blocks, threads, stream](z, 2.0, x)
        stream.synchronize()

    async def check() -> None:
        z.copy_to_device(np.zeros(n, np.float32))
        launch_and_wait()
        np.testing.assert_array_equal(z.copy_to_host(), np.full(n, 2.0, np.float32))

    return [
        Case("Numba: launch", timed(launch, stream.synchronize), check),
        Case("Numba: launch + synchronize", timed(launch_and_wait, stream.synchronize), check),
    ]


def _cupy(n: int, threads: int) -> list[Case]:
    import cupy

    kernel = cupy.RawKernel(CUDA_SOURCE, "saxpy")
    blocks = -(-n // threads)
    stream = cupy.cuda.Stream(non_blocking=True)
    z, x = cupy.zeros(n, cupy.float32), cupy.ones(n, cupy.float32)
    cupy.cuda.Device().synchronize()
    # A fair call: scalars as NumPy scalars of the kernel's types, made once.
    args = (z, np.float64(2.0), x, np.int32(n))

    def launch() -> None:
        kernel((blocks,), (threads,), args, stream=stream)

    def launch_and_wait() -> None:
        kernel((blocks,), (threads,), args, stream=stream)
        stream.synchronize()

    async def check() -> None:
        with stream:
            z.fill(0)
        launch_and_wait()
        np.testing.assert_array_equal(cupy.asnumpy(z), np.full(n, 2.0, np.float32))

    return [
        Case("CuPy RawKernel: launch", timed(launch, stream.synchronize), check),
        Case(
            "CuPy RawKernel: launch + synchronize",
            timed(launch_and_wait, stream.synchronize),
            check,
        ),
    ]
