"""`numbasync bench algorithms`: reductions, scans, sorts and counts of large arrays.

The times are the device's, between two events on a stream. On the CPU device the arrays are small,
and NumPy's functions, on one core, stand beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, Run
from benchmarks.peer_registry import has_own_processor
from benchmarks.plain_kernels import device_time
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync.device.device import Device
from numbasync.testing.timing.timer import Stopwatch

LARGE, FEW = 2**28, 2**16  # elements on a GPU, and on the CPU device; of sums, else an eighth
MOST = 16  # of the largest
BINS = 256
CALLS = 3
METHOD = (
    "{what}: device time between two events of a call that follows another one on the stream, so "
    "that the host's time is not in it. Sorts and counts are of an eighth of the elements. On the "
    "CPU device, NumPy's functions by the clock."
)
# What a library's answers are compared with.
REFERENCES: dict[str, Callable[[Any], Any]] = {
    "sum": np.sum,
    "cumsum": np.cumsum,
    "sort": np.sort,
    "argsort": lambda x: np.argsort(x, kind="stable"),
    "topk": lambda x: np.sort(x)[::-1][:MOST],
    "histogram": lambda x: np.histogram(x, BINS, (0, 100))[0],
}
SORTS = ("sort", "argsort", "topk")  # of int32, the others of float32


def size_of(what: str, size: int) -> int:
    return size if what in ("sum", "cumsum") else size // 8


@cache
def numbers(what: str, size: int) -> np.ndarray[Any, Any]:
    """The same for all libraries: whole numbers, which all of them sort and count alike."""
    rng = np.random.default_rng(46)
    count = size_of(what, size)
    if what in SORTS:
        return rng.integers(-(2**31), 2**31, count, np.int32)
    return rng.integers(0, 100, count, np.uint8).astype(np.float32)


def check_answer(what: str, size: int, answer: Any) -> None:
    """Compare the first and last parts of an answer with NumPy's.

    Raises:
        AssertionError: they differ by more than float32 rounds.
    """
    expected = _expected(what, size)
    got = np.asarray(answer).reshape(-1)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    rtol = 1e-4 if what in ("sum", "cumsum") else 0
    for part in (slice(0, 10_000), slice(-10_000, None)):
        np.testing.assert_allclose(got[part], expected[part], rtol=rtol)


@cache
def _expected(what: str, size: int) -> np.ndarray[Any, Any]:
    x = numbers(what, size)
    exact = x.astype(np.float64) if what in ("sum", "cumsum") else x
    return np.asarray(REFERENCES[what](exact)).reshape(-1)


def _numpys(what: str, x: np.ndarray[Any, Any]) -> Run:
    async def run(calls: int) -> float:
        with Stopwatch() as watch:
            for _ in range(calls):
                REFERENCES[what](x)
        return watch.seconds

    return run


def _own(device: Device, size: int) -> list[Case]:
    stream = device.new_stream()
    al = na.algorithms
    calls: dict[str, Callable[[Any], na.DeviceOp[Any]]] = {
        "sum": al.sum,
        "cumsum": al.cumsum,
        "sort": al.sort,
        "argsort": al.argsort,
        "topk": lambda t: al.topk(t, MOST).map(lambda pair: pair[0]),
        "histogram": lambda t: al.histogram(t, BINS, (0, 100)).map(lambda pair: pair[0]),
    }
    cases = []
    for what, call in calls.items():
        t = na.from_host(numbers(what, size)).sync_on(stream)

        def op(call: Any = call, t: Any = t) -> na.DeviceOp[Any]:
            return call(t)  # type: ignore[no-any-return]

        async def check(what: str = what, op: Any = op) -> None:
            check_answer(what, size, await op().to_host().schedule(stream))

        cases.append(Case(f"numbasync: {what}", device_time(stream, op, op, 1), check))
        if not has_own_processor(device):

            async def right() -> None:
                pass

            cases.append(Case(f"NumPy: {what}", _numpys(what, numbers(what, size)), right))
    return cases


async def tables(device: Device, rounds: int) -> list[report.Record]:
    size = LARGE if has_own_processor(device) else FEW
    targets = [
        Target(f"{what} / {peer}", f"numbasync: {what}", f"{peer}: {what}", bound, 0.9)
        for peer, what, bound in (
            ("PyTorch", "sum", 1 / 0.97), ("CuPy", "sum", 1 / 0.97), ("CuPy", "cumsum", 1.0),
            ("CuPy", "sort", 1.0), ("PyTorch", "topk", 1.0), ("CuPy", "histogram", 1.0),
        )
    ]  # fmt: skip
    base = "PyTorch: sum" if has_own_processor(device) else "NumPy: sum"
    return [
        await table(
            device, rounds, "algorithms", f"algorithms of {size:,} elements", _own(device, size),
            calls=CALLS, method=METHOD, base=base, targets=targets,
            unit="device microseconds a call", sizes=(size,),
        )
    ]  # fmt: skip
