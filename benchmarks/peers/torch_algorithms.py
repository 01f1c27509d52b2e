"""PyTorch's reductions, scans and sorts: device time between two events."""

from __future__ import annotations

from typing import Any

from benchmarks.algorithms import BINS, MOST, check_answer, numbers
from benchmarks.measure import Case
from benchmarks.peers.torch_peer import on
from benchmarks.peers.torch_plain import timed_by_events


def of_algorithms(ordinal: int, size: int) -> list[Case]:
    """The functions by their names in PyTorch; `sort` is not stable, as its default is."""
    torch, stream, inside = on(ordinal)
    calls = {
        "sum": torch.sum,
        "cumsum": lambda x: torch.cumsum(x, 0),
        "sort": lambda x: torch.sort(x).values,
        "argsort": lambda x: torch.sort(x, stable=True).indices,
        "topk": lambda x: torch.topk(x, MOST).values,
        "histogram": lambda x: torch.histc(x, BINS, 0, 100),
    }
    return [_case(torch, stream, inside, what, call, size) for what, call in calls.items()]


def _case(torch: Any, stream: Any, inside: Any, what: str, call: Any, size: int) -> Case:
    with inside:
        x = torch.from_numpy(numbers(what, size)).to("cuda")
    stream.synchronize()

    async def check() -> None:
        with inside:
            check_answer(what, size, call(x).cpu().numpy())

    return Case(f"PyTorch: {what}", timed_by_events(torch, stream, inside, lambda: call(x)), check)
