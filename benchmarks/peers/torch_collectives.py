"""All-reduce of two GPUs by NCCL, called from PyTorch in one process."""

from __future__ import annotations

import importlib

import numpy as np

from benchmarks.devices import TORCH_QUEUED, TORCH_REDUCE
from benchmarks.measure import Case, drained, timed


def of_reduce(ordinal: int, other: int, nbytes: int) -> list[Case]:
    torch = importlib.import_module("torch")
    nccl = importlib.import_module("torch.cuda.nccl")
    array = torch.from_numpy(np.arange(nbytes // 4, dtype=np.float32))
    places = [f"cuda:{ordinal}", f"cuda:{other}"]
    parts = [array.to(place) for place in places]
    totals = [torch.empty_like(part) for part in parts]

    def drain() -> None:
        for place in places:
            torch.cuda.synchronize(place)

    def enqueue() -> None:
        nccl.all_reduce(parts, totals)

    def reduce() -> None:
        nccl.all_reduce(parts, totals)
        drain()

    async def check() -> None:
        reduce()
        if not all(torch.equal(total.cpu(), 2 * array) for total in totals):
            raise RuntimeError("PyTorch's all_reduce gave another sum")

    return [
        Case(TORCH_REDUCE, timed(reduce, drain), check),
        Case(TORCH_QUEUED, drained(enqueue, drain), check),
    ]
