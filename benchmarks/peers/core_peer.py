"""The launch by `cuda.core`, with a configuration that is built once."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import numbasync as na
from benchmarks import interop
from benchmarks.measure import Case, timed
from benchmarks.peers import driver
from benchmarks.work import BLOCKS, THREADS, N, check


def of_launch(ordinal: int) -> list[Case]:
    """`launch` with a prebuilt configuration; scalars are NumPy's, and built once."""
    raw = driver.of(ordinal)
    core: Any = importlib.import_module("cuda.core")
    call, kernel = core.launch, raw.kernel
    stream = raw.core.create_stream()
    config = core.LaunchConfig(grid=BLOCKS, block=THREADS)
    z, x = raw.row(0), raw.row(1)
    a, n = np.float64(2.0), np.int32(N)

    def launch() -> None:
        call(stream, config, kernel, z, a, x, n)

    async def check_row() -> None:
        raw.fill(z, 0)
        launch()
        stream.sync()
        check(raw.read(z))

    return [Case("cuda.core: launch, prebuilt config", timed(launch, stream.sync), check_row)]


def of_interop(ordinal: int) -> list[Case]:
    """Buffers of `cuda.core` in numbasync's launches. They have bytes, and no stream."""
    core: Any = importlib.import_module("cuda.core")
    device = core.Device(ordinal)
    device.set_current()
    stream, ours = device.create_stream(), na.default_device().new_stream()
    buffers = [device.allocate(interop.SIZE, stream=stream) for _ in range(3)]
    stream.sync()
    tensors = [na.as_tensor(buffer) for buffer in buffers]
    for tensor, array in zip(tensors[1:], interop.bytes_of_numbers(), strict=True):
        tensor.copy_from(array.view(tensor.dtype)).sync_on(ours)

    def result() -> Any:
        return tensors[0].to_host().sync_on(ours)

    return [
        interop.case(
            name, interop.launch(ours, *given), ours.synchronize, result,
            terms=interop.bytes_of_numbers,
        )
        for name, given in ((interop.CORE, buffers), (interop.CORE_ONCE, tensors))
    ]  # fmt: skip


def of_reading(ordinal: int) -> list[Case]:
    """One of cuda.core's buffers."""
    core: Any = importlib.import_module("cuda.core")
    device = core.Device(ordinal)
    device.set_current()
    x, _ = interop.bytes_of_numbers()
    buffer = device.allocate(x.size, stream=device.create_stream())
    na.as_tensor(buffer).copy_from(x.view(np.int8)).sync()
    return [interop.reading("cuda.core's buffer", buffer, x)]
