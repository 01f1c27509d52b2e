"""What batches are compared with of PyTorch: eager calls, and `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numbasync.tools.bench import batches
from numbasync.tools.bench.measure import Case
from numbasync.tools.bench.peers.torch_peer import on


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

    return [
        _case(stream, inside, batches.TORCH_DOT, lambda: torch.dot(x, y), near),
        _case(stream, inside, batches.TORCH_SOFTMAX, lambda: softmax(m), _shares),
        _case(stream, inside, batches.COMPILED_SOFTMAX, lambda: compiled(m), _shares),
    ]


def of_batch_tall(ordinal: int) -> list[Case]:
    """Sums of columns, of short rows, and softmax of short rows, eager and compiled."""
    torch, stream, inside = on(ordinal)
    a = batches.numbers(batches.LARGE)
    with inside:
        x = torch.from_numpy(a).to("cuda")
    m, narrow = x.reshape(-1, 64), x.reshape(-1, 16)
    sums = a.reshape(-1, 64).sum(axis=0, dtype=np.float64)

    def softmax(m: Any) -> Any:
        return torch.softmax(m, dim=1)

    def columns(found: Any) -> None:
        bound = 1e-4 * np.abs(sums).max()
        np.testing.assert_allclose(found.cpu().numpy(), sums, rtol=1e-4, atol=bound)

    def rows(found: Any) -> None:
        want = a.reshape(-1, 16)[:64].sum(axis=1)
        np.testing.assert_allclose(found[:64].cpu().numpy(), want, rtol=1e-5, atol=1e-5)

    found: list[Case] = []
    for eager, compiled, call, data, right in (
        (batches.TORCH_TALL, batches.COMPILED_TALL, lambda m: m.sum(0), m, columns),
        (batches.TORCH_NARROW, batches.COMPILED_NARROW, lambda m: m.sum(1), narrow, rows),
        (batches.TORCH_SHARES, batches.COMPILED_SHARES, softmax, m, _shares),
    ):
        for name, function in ((eager, call), (compiled, torch.compile(call))):
            found.append(_case(stream, inside, name, partial(function, data), right))
    return found


def _shares(found: Any) -> None:
    batches.are_shares(found[:64].cpu().numpy())


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
