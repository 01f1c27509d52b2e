"""CuPy's reductions, scans and sorts, which call CUB: device time between two events."""

from __future__ import annotations

from typing import Any

from benchmarks.algorithms import BINS, check_answer, numbers
from benchmarks.measure import Case, Run
from benchmarks.peers.cupy_peer import _on, _stream


def of_algorithms(ordinal: int, size: int) -> list[Case]:
    """The functions by their names in CuPy."""
    cupy = _on(ordinal)
    stream = _stream(cupy)
    calls = {
        "sum": cupy.sum,
        "cumsum": cupy.cumsum,
        "sort": cupy.sort,
        "argsort": lambda x: cupy.argsort(x, kind="stable"),
        "histogram": lambda x: cupy.histogram(x, BINS, (0, 100))[0],
    }
    return [_case(cupy, stream, what, call, size) for what, call in calls.items()]


def _case(cupy: Any, stream: Any, what: str, call: Any, size: int) -> Case:
    with stream:
        x = cupy.asarray(numbers(what, size))
    stream.synchronize()

    async def check() -> None:
        with stream:
            check_answer(what, size, cupy.asnumpy(call(x)))

    return Case(f"CuPy: {what}", device_time(cupy, stream, lambda: call(x)), check)


def device_time(cupy: Any, stream: Any, call: Any) -> Run:
    """Calls on a stream, in seconds of the device."""
    start, stop = (cupy.cuda.Event() for _ in range(2))

    async def run(calls: int) -> float:
        seconds = 0.0
        with stream:
            for _ in range(calls):
                call()  # keeps the device busy, so that the host's time is not measured
                start.record(stream)
                call()
                stop.record(stream)
                stop.synchronize()
                seconds += cupy.cuda.get_elapsed_time(start, stop) / 1e3
        return seconds

    return run
