"""Variables assigned once, as Numba's own walk names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from numba.core import ssa
from numba.core.compiler import run_frontend

from numbasync.facts.assigned_once import assign_once


def straight(x: Any) -> Any:
    return x + 1


def looped(x: Any, n: int) -> Any:
    total, a, b = 0, 1, n
    for i in range(n):
        for j in range(i):
            if x[i] > x[j]:
                a, b = b, a
                total += 1
            elif x[j] < 0:
                break
        else:
            total *= 2
    while a < b:
        a = a + total
    return total, a, b


def on_some_paths(x: Any, y: Any) -> Any:
    if x > 0:
        y = 1
    for _ in range(3):
        if x > 2:
            y = x
        x = y
    return x


def lines(blocks: dict[int, Any]) -> dict[int, list[str]]:
    return {label: [str(s) for s in block.body] for label, block in blocks.items()}


@pytest.mark.parametrize("function", [straight, looped, on_some_paths])
def test_names_and_phis_are_numbas(function: Callable[..., Any]) -> None:
    assert lines(assign_once(run_frontend(function).blocks, ssa)) == lines(
        ssa.reconstruct_ssa(run_frontend(function)).blocks
    )
