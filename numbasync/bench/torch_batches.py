"""What batches are compared with of PyTorch: eager calls, and `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.bench import batches
from numbasync.bench.measure import Case
from numbasync.bench.torch_peer import on


def of_batch_chain(ordinal: int) -> list[Case]:
    """relu, scale, add, compiled."""
    torch, stream, inside = on(ordinal)
    a = batches.numbers(batches.LARGE)
    with inside:
        x = torch.from_numpy(a).to("cuda")
    compiled = torch.compile(lambda x: torch.relu(x) * 2.0 + x)

    def right(found: Any) -> None:
        # A product and a sum may be one operation there.
        np.testing.assert_allclose(found.cpu().numpy(), batches.wanted(a), rtol=2.0**-22)

    return [_case(stream, inside, batches.TORCH_CHAIN, lambda: compiled(x), right)]


def of_batch_reduce(ordinal: int) -> list[Case]:
    """dot, and softmax, eager and compiled."""
    torch, stream, inside = on(ordinal)
    a = batches.numbers(batches.LARGE)
    with inside:
        x = torch.from_numpy(a).to("cuda")
        y = x.clone()
        rows = batches.numbers(batches.ROWS * batches.COLUMNS)
        m = torch.from_numpy(rows.reshape(batches.ROWS, batches.COLUMNS)).to("cuda")
    total = float(np.dot(a.astype(np.float64), a.astype(np.float64)))

    def softmax(m: Any) -> Any:
        return torch.softmax(m, dim=1)

    compiled = torch.compile(softmax)

    def near(found: Any) -> None:
        assert abs(float(found) / total - 1) < 1e-4  # a wrong answer ends the run

    def shares(found: Any) -> None:
        np.testing.assert_allclose(found[:64].sum(dim=1).cpu().numpy(), 1, rtol=1e-5)

    return [
        _case(stream, inside, batches.TORCH_DOT, lambda: torch.dot(x, y), near),
        _case(stream, inside, batches.TORCH_SOFTMAX, lambda: softmax(m), shares),
        _case(stream, inside, batches.COMPILED_SOFTMAX, lambda: compiled(m), shares),
    ]


def _case(
    stream: Any, inside: Any, name: str, call: Callable[[], Any], right: Callable[[Any], None]
) -> Case:
    async def check() -> None:
        with inside:
            found = call()
            stream.synchronize()
        right(found)

    def run() -> None:
        with inside:
            call()

    return batches.case(name, run, stream.synchronize, check)
