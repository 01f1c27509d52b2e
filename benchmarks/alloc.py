"""`numbasync bench alloc`: new arrays of 1,024 float32 elements, from a pool."""

from __future__ import annotations

import numpy as np

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, awaited, timed
from benchmarks.tables import table
from benchmarks.targets import Target
from benchmarks.work import N
from numbasync.device.device import Device

CALLS = 500
EMPTY = "numbasync: empty, build + async_on"
ZEROS = "numbasync: zeros, build + async_on"
BASE, CUPY_ZEROS = "CuPy: empty", "CuPy: zeros"
METHOD = (
    "A new array of 1,024 float32 elements, dropped at once, so that its memory is used again; "
    "{calls} calls a round on one stream, which is drained outside of the timed part."
)
TARGETS = (
    Target("empty(1024), build + async_on / CuPy's empty", EMPTY, BASE, 1.2, 1.0),
    Target("zeros(1024), build + async_on / CuPy's zeros", ZEROS, CUPY_ZEROS, 1.3, 1.0),
)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    return [
        await table(
            device, rounds, "alloc", "a new array", _own(device), calls=CALLS, method=METHOD,
            base=BASE, targets=TARGETS,
        )
    ]  # fmt: skip


def _own(device: Device) -> list[Case]:
    stream = device.new_stream()

    def empty() -> na.Tensor:
        return na.empty(N).async_on(stream)

    def zeros() -> na.Tensor:
        return na.zeros(N).async_on(stream)

    async def check_empty() -> None:
        tensor = empty()
        np.testing.assert_equal((tensor.shape, tensor.dtype), ((N,), np.dtype(np.float32)))
        filled = await na.fill(tensor, 3)
        np.testing.assert_array_equal(await filled.to_host(), np.full(N, 3, np.float32))

    async def check_zeros() -> None:
        np.testing.assert_array_equal(await zeros().to_host(), np.zeros(N, np.float32))

    return [
        Case(EMPTY, timed(empty, stream.synchronize), check_empty),
        Case(
            "numbasync: empty, await", awaited(lambda: na.empty(N).schedule(stream)), check_empty
        ),
        Case(ZEROS, timed(zeros, stream.synchronize), check_zeros),
    ]  # fmt: skip
