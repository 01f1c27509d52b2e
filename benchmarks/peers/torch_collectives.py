"""Collectives of the GPUs of one process by NCCL, called from PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from benchmarks.measure import Case, drained, timed
from benchmarks.scaling import COLLECTIVES, awaited_on, queued_on


def of_collective(ordinal: int, which: int, nbytes: int, *counts: int) -> list[Case]:
    """The collective `COLLECTIVES[which]` of so many GPUs, `ordinal` the first of them; `nbytes` as
    in the suite.
    """
    devices = importlib.import_module("torch").cuda.device_count()
    first = [ordinal, *(i for i in range(devices) if i != ordinal)]
    return [case for n in counts for case in _cases(COLLECTIVES[which], nbytes, first[:n])]


def _cases(name: str, nbytes: int, ordinals: list[int]) -> list[Case]:
    torch = importlib.import_module("torch")
    nccl = importlib.import_module("torch.cuda.nccl")
    count = len(ordinals)
    array = torch.from_numpy(np.arange(nbytes // 4, dtype=np.float32) % 1024)
    share = array[: len(array) // count]
    places = [f"cuda:{ordinal}" for ordinal in ordinals]
    taken, given = {
        "all_reduce": (array, array), "reduce_scatter": (array, share), "all_gather": (share, array)
    }[name]  # fmt: skip
    parts = [taken.to(place) for place in places]
    results = [torch.empty_like(given, device=place) for place in places]
    expected: list[Any] = {
        "all_reduce": lambda: [array * count] * count,
        "reduce_scatter": lambda: list((array * count).chunk(count)),
        "all_gather": lambda: [share.repeat(count)] * count,
    }[name]()

    def drain() -> None:
        for place in places:
            torch.cuda.synchronize(place)

    def enqueue() -> None:
        getattr(nccl, name)(parts, results)

    def call() -> None:
        enqueue()
        drain()

    async def check() -> None:
        call()
        if not all(
            torch.equal(got.cpu(), want) for got, want in zip(results, expected, strict=True)
        ):
            raise RuntimeError(f"PyTorch's {name} gave something else")

    return [
        Case(awaited_on(count, "PyTorch"), timed(call, drain), check),
        Case(queued_on(count, "PyTorch"), drained(enqueue, drain), check),
    ]
