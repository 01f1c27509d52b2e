"""PyTorch beside command batches: eager calls, and `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import batches
from benchmarks.measure import Case, drained
from benchmarks.peers.torch_peer import on


def of_batch_chain(ordinal: int) -> list[Case]:
    """relu, scale, add, compiled."""
    torch, stream, inside = on(ordinal)
    a = batches.numbers(batches.LARGE)
    with inside:
        x = torch.from_numpy(a).to("cuda")
    compiled = torch.compile(lambda x: torch.relu(x) * 2.0 + x)

    def check_array(y: Any) -> None:
        # PyTorch may compute a product and a sum by one instruction.
        np.testing.assert_allclose(y.cpu().numpy(), batches.expected(a), rtol=2.0**-22)

    return [_case(stream, inside, batches.TORCH_CHAIN, lambda: compiled(x), check_array)]


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

    def check_dot(y: Any) -> None:
        assert abs(float(y) / total - 1) < 1e-4, "a wrong sum"

    return [
        _case(stream, inside, batches.TORCH_DOT, lambda: torch.dot(x, y), check_dot),
        _case(stream, inside, batches.TORCH_SOFTMAX, lambda: softmax(m), _check_shares),
        _case(stream, inside, batches.COMPILED_SOFTMAX, lambda: compiled(m), _check_shares),
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

    def check_columns(y: Any) -> None:
        bound = 1e-4 * np.abs(sums).max()
        np.testing.assert_allclose(y.cpu().numpy(), sums, rtol=1e-4, atol=bound)

    def check_rows(y: Any) -> None:
        expected = a.reshape(-1, 16)[:64].sum(axis=1)
        np.testing.assert_allclose(y[:64].cpu().numpy(), expected, rtol=1e-5, atol=1e-5)

    cases: list[Case] = []
    for eager, compiled, call, data, check in (
        (batches.TORCH_TALL, batches.COMPILED_TALL, lambda m: m.sum(0), m, check_columns),
        (batches.TORCH_NARROW, batches.COMPILED_NARROW, lambda m: m.sum(1), narrow, check_rows),
        (batches.TORCH_SHARES, batches.COMPILED_SHARES, softmax, m, _check_shares),
    ):
        for name, function in ((eager, call), (compiled, torch.compile(call))):
            cases.append(_case(stream, inside, name, partial(function, data), check))
    return cases


def _check_shares(y: Any) -> None:
    batches.check_shares(y[:64].cpu().numpy())


def _case(
    stream: Any, inside: Any, name: str, call: Callable[[], Any], check: Callable[[Any], None]
) -> Case:
    async def check_result() -> None:
        with inside:
            y = call()
            stream.synchronize()
        check(y)

    def run() -> None:
        with inside:
            call()

    return Case(name, drained(run, stream.synchronize), check_result)
