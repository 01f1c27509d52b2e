"""Lines of compiled kernels, as coverage.py is told of them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda

from tests.backend_cpu.engines import run_on

pytestmark = pytest.mark.usefixtures("cpu")
FILE = str(Path(__file__).resolve())


@cuda.jit(device=True)
def larger(x, y):  # type: ignore[no-untyped-def]
    if x > y:
        return x
    return y


def summed(z, n):  # type: ignore[no-untyped-def]
    t = cuda.threadIdx.x
    cuda.syncthreads()
    total = 0
    for i in range(n):
        if i > 10:
            continue
        total += i
    if n > 100:
        total = -1
    z[t] = larger(total, 0)


class Data:
    """What coverage.py keeps."""

    def __init__(self, branches: bool) -> None:
        self._branches = branches
        self.seen: dict[str, set[Any]] = {}

    def measured_files(self) -> set[str]:
        return {FILE}

    def has_arcs(self) -> bool:
        return self._branches

    def add_arcs(self, arcs: dict[str, list[Any]]) -> None:
        assert self._branches
        for file, pairs in arcs.items():
            self.seen.setdefault(file, set()).update(pairs)

    def add_lines(self, lines: dict[str, set[int]]) -> None:
        assert not self._branches
        for file, numbers in lines.items():
            self.seen.setdefault(file, set()).update(numbers)


@pytest.fixture
def data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Data:
    kept = Data(request.param)
    session = SimpleNamespace(get_data=lambda: kept)
    module = SimpleNamespace(Coverage=SimpleNamespace(current=lambda: session))
    monkeypatch.setitem(sys.modules, "coverage", module)
    return kept


def launch(n: int) -> None:
    run_on("compiled-lines", cuda.jit(summed), (1, 1, 1), (4, 1, 1), (np.zeros(4), n))


@pytest.mark.parametrize("data", [False], indirect=True)
def test_lines_that_no_thread_passes_are_missing(data: Data) -> None:
    launch(3)
    first = summed.__code__.co_firstlineno
    assert {n - first for n in data.seen[FILE] if n >= first} == {1, 2, 3, 4, 5, 7, 8, 10}
    function = larger.py_func.__code__.co_firstlineno
    assert {n - function for n in data.seen[FILE] if n < first} == {2, 3}
    launch(200)
    assert {n - first for n in data.seen[FILE] if n >= first} == set(range(1, 11))


@pytest.mark.parametrize("data", [True], indirect=True)
def test_steps_between_lines_are_told_with_both_ends(data: Data) -> None:
    launch(3)
    first = summed.__code__.co_firstlineno
    steps = {
        tuple(n + first if n < 0 else n - first for n in pair)
        for pair in data.seen[FILE]
        if abs(pair[0]) >= first
    }
    assert steps == {
        (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 7), (7, 4), (4, 8), (8, 10), (10, 0),
    }  # fmt: skip
