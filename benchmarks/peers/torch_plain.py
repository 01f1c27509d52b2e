"""PyTorch's elementwise operations, beside plain kernels: device time between two events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import Case, Run
from benchmarks.peers.torch_peer import on
from benchmarks.plain_kernels import ADD, TYPES, count_of, numbers


def of_plain_add(ordinal: int, size: int) -> list[Case]:
    """`add` into an array."""
    return [_add(ordinal, size, "float32", 0)]


def of_plain_types(ordinal: int, size: int) -> list[Case]:
    """`add` of other types."""
    return [_add(ordinal, count_of(size, t), t, 0, f"{ADD} of {t}") for t in TYPES]


def of_plain_views(ordinal: int, size: int) -> list[Case]:
    """`add` of views that start at element 1."""
    return [_add(ordinal, size, "float32", 1)]


def of_plain_neighbours(ordinal: int, size: int) -> list[Case]:
    """`copy_`, which moves as many bytes as a stencil; and `add`, as many as one of rows."""
    torch, stream, inside = on(ordinal)
    with inside:
        source = _repeated(torch, size, "float32", 0)
        target = torch.zeros_like(source)
    stream.synchronize()

    async def check() -> None:
        with inside:
            target.zero_()
            target.copy_(source)
            if not torch.equal(target, source):
                raise AssertionError("a wrong copy")

    run = timed_by_events(torch, stream, inside, lambda: target.copy_(source))
    return [Case("PyTorch: copy_", run, check), _add(ordinal, size, "float32", 0)]


def _add(ordinal: int, size: int, dtype: str, first: int, name: str = ADD) -> Case:
    torch, stream, inside = on(ordinal)
    with inside:
        a, b = (_repeated(torch, size, dtype, seed)[first:] for seed in range(2))
        out = torch.zeros(size, dtype=a.dtype, device="cuda")[first:]
    stream.synchronize()
    sums = np.roll(numbers(dtype, 0) + numbers(dtype, 1), -first)

    async def check() -> None:
        with inside:
            torch.add(a, b, out=out)
            for start in (0, len(out) // 51 // 2 * 51):
                np.testing.assert_array_equal(out[start : start + 51].cpu().numpy(), sums)

    run = timed_by_events(torch, stream, inside, lambda: torch.add(a, b, out=out))
    return Case(name, run, check)


def _repeated(torch: Any, size: int, dtype: str, seed: int) -> Any:
    period = torch.from_numpy(numbers(dtype, seed)).to("cuda")
    return period.repeat(-(-size // len(period)))[:size].clone()


def timed_by_events(
    torch: Any, stream: Any, inside: Any, call: Callable[[], object], per: int = 1
) -> Run:
    """Repetitions of `call`, which is `per` operations, in seconds of the device."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    async def run(calls: int) -> float:
        seconds = 0.0
        with inside:
            for _ in range(calls):
                call()  # keeps the device busy, so that the host's time is not measured
                start.record()
                call()
                stop.record()
                stream.synchronize()
                seconds += start.elapsed_time(stop) / 1e3 / per
        return seconds

    return run
