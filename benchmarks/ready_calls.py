"""`numbasync bench kernels`: what the host needs to submit a ready kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, timed
from benchmarks.peer_registry import has_own_processor
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync.device.device import Device

SIDE, SIDE_CPU = 1024, 16
CALLS = 100
DTYPES = ("float16", "float32")
METHOD = (
    "{what}: products of square matrices of 1,024, b transposed, with a bias, each built and "
    "submitted to one stream. {calls} calls a round; the queue is drained outside of the timed "
    "part."
)


def name(dtype: str) -> str:
    return f"product of {dtype}, bias"


async def tables(device: Device, rounds: int) -> list[report.Record]:
    targets = [
        Target(f"{name(d)} / PyTorch's", f"numbasync: {name(d)}", f"PyTorch: {name(d)}", 1.5, 1.0)
        for d in DTYPES
    ]
    return [
        await table(
            device, rounds, "ready_calls", "ready kernels, submitted",
            [await _case(device, dtype) for dtype in DTYPES], calls=CALLS, method=METHOD,
            base=f"PyTorch: {name(DTYPES[0])}", targets=targets,
        )
    ]  # fmt: skip


def operands(is_small: bool = False) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The matrices, b as it is stored, of small integers: sums are exact."""
    side = SIDE_CPU if is_small else SIDE
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-1, 2, (side, side)).astype(np.float32) for _ in range(2))
    return a, b


async def _case(device: Device, dtype: str) -> Case:
    from numbasync_kernels.nn import gemm

    stream = device.new_stream()
    a, b = operands(not has_own_processor(device))
    left, right = [await na.from_host(x.astype(dtype)).schedule(stream) for x in (a, b)]
    out = await na.zeros(a.shape, dtype).schedule(stream)
    bias = await na.ones(len(a), dtype).schedule(stream)
    right = right.T

    def call() -> None:
        gemm(out, left, right, bias=bias).async_on(stream)

    async def check() -> None:
        await na.fill(out, np.nan).schedule(stream)
        call()
        np.testing.assert_array_equal(await out.to_host().schedule(stream), a @ b.T + 1)

    return Case(f"numbasync: {name(dtype)}", timed(call, stream.synchronize), check)
