"""Atomic additions to an array with which a kernel does nothing else: workers add up alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.typing.typeof import typeof

from numbasync.backend.cpu.regions import Settings
from numbasync.backend.cpu.regions.build import write_module
from numbasync.backend.cpu.regions.own_sums import OwnSums, _Array
from numbasync.backend.cpu.target import lower
from numbasync.backend.declared_signatures import type_of
from tests.backend_cpu.run_regions import Blocks, RecordError

THREADS, BLOCKS, BINS = 64, 40, 16
N = THREADS * BLOCKS
FEW = np.zeros(4, np.int32)


def histogram(bins, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(bins, x[i], 1)


def in_rounds(bins, x):  # type: ignore[no-untyped-def]
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.sub(bins, x[i], i)


def where_it_came(bins, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    x[i] = cuda.atomic.add(bins, x[i], 1)


def read_too(bins, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    cuda.atomic.add(bins, x[i], 1)
    x[i] = bins[0]


def written_too(bins, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    bins[0] = 0
    cuda.atomic.add(bins, x[i], 1)


def largest(bins, x):  # type: ignore[no-untyped-def]
    cuda.atomic.max(bins, 0, x[cuda.grid(1)])


def one_of_two(bins, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    to = bins if x[i] > 3 else x
    cuda.atomic.add(to, 0, 1)


def told_in_order(bins, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    cuda.atomic.add(bins, x[i], 1)
    cuda.threadfence()
    x[0] = 1


def until_it_is_told(bins, x):  # type: ignore[no-untyped-def]
    while x[0] == 0:
        cuda.atomic.add(bins, 0, 1)


def until_a_test_of_it(bins, x):  # type: ignore[no-untyped-def]
    goes_on = True
    while goes_on:
        cuda.atomic.add(bins, 0, 1)
        if x[0] > 0:
            goes_on = False


def behind_a_barrier(bins, x):  # type: ignore[no-untyped-def]
    cuda.atomic.add(bins, x[cuda.grid(1)], 1)
    cuda.syncthreads()
    x[cuda.grid(1)] = 0


def decided(kernel: Any, bins: np.ndarray = FEW, x: np.ndarray = FEW) -> bool:
    keys = [type_of(typeof(a)) for a in (bins, x)]
    module = lower(cuda.jit(kernel), keys)
    return bool(write_module(module.text, module.name, Settings())[1].notes["own_sums"])


@pytest.mark.parametrize("kernel", [histogram, in_rounds])
def test_nothing_else_is_done_with_the_array(kernel: Any) -> None:
    assert decided(kernel)


def test_elements_lie_one_behind_the_other() -> None:
    bins, x = np.zeros(8, np.int32), np.zeros(4, np.int32)
    assert not decided(histogram, bins[::2], x) and not decided(histogram, x, bins[::2])


def test_sums_of_floats_hang_on_the_order() -> None:
    assert not decided(histogram, FEW.astype(np.float32))


ELSE: list[Callable[..., None]] = [
    where_it_came, read_too, written_too, largest, one_of_two, told_in_order, until_it_is_told,
    until_a_test_of_it, behind_a_barrier,
]  # fmt: skip


@pytest.mark.parametrize("kernel", ELSE)
def test_somebody_could_see_that_sums_come_late(kernel: Any) -> None:
    assert not decided(kernel)


@pytest.fixture(scope="module")
def compiled() -> Blocks:
    return Blocks(cuda.jit(histogram), (FEW, FEW))


def values(bins: int = BINS) -> np.ndarray:
    """Indices, from both ends."""
    return np.random.default_rng(2).integers(-bins, bins, N).astype(np.int32)


# Few threads for each bin; more bins than a worker has place for.
@pytest.mark.parametrize("bins", [1, BINS, 1 << 12, 1 << 13, 1 << 14])
def test_sums_are_right(compiled: Blocks, bins: int) -> None:
    x = np.resize(values(bins), 8 << 13)
    memory = np.full(2 * 64 + bins, 7, np.int32)
    expected = memory.copy()
    np.add.at(expected[64:-64], x, 1)
    compiled.launch(x.size // THREADS, THREADS, memory[64:-64], x)
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("shift", [0, -2, 2, BINS, -BINS])
def test_the_array_is_read_under_another_name(compiled: Blocks, shift: int) -> None:
    """One thread after the other, each finds what those before it have added."""
    memory = np.arange(4 * BINS, dtype=np.int32) % 5
    expected = memory.copy()
    at = 2 * BINS
    for k in range(BINS):
        expected[at : at + BINS][expected[at + shift + k]] += 1
    compiled.launch(BLOCKS, THREADS, memory[at : at + BINS], memory[at + shift :][:BINS])
    np.testing.assert_array_equal(memory, expected)


def test_what_was_added_before_an_error_is_there(compiled: Blocks) -> None:
    x = values()
    x[N - 3] = BINS
    bins = np.zeros(BINS, np.int32)
    with pytest.raises(RecordError) as found:
        compiled.launch(BLOCKS, THREADS, bins, x)
    assert found.value.thread == (THREADS - 3, 0, 0)
    expected = np.zeros(BINS, np.int32)
    np.add.at(expected, np.delete(x, N - 3), 1)
    np.testing.assert_array_equal(bins, expected)


def test_several_add_at_once(compiled: Blocks) -> None:
    """Sums are added without locks, but for the last time."""
    text = "\n".join(OwnSums("i32", frozenset(), _Array((0, 1), 2, 3, 4), ()).functions())
    assert "atomicrmw add" in text[text.index("@na.give") :]
    x, bins = values(), np.zeros(BINS, np.int32)

    def work() -> None:
        for _ in range(20):
            compiled.launch(BLOCKS, THREADS, bins, x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = np.zeros(BINS, np.int32)
    np.add.at(expected, x, 80)
    np.testing.assert_array_equal(bins, expected)


def test_loops_over_all_elements() -> None:
    x, bins = values(), np.zeros(BINS, np.int32)
    expected = bins.copy()
    np.subtract.at(expected, x, np.arange(N))
    Blocks(cuda.jit(in_rounds), (bins, x)).launch(3, THREADS, bins, x)
    np.testing.assert_array_equal(bins, expected)


def test_rows_of_large_numbers() -> None:
    def kernel(table, x):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        cuda.atomic.add(table, (x[i] & 3, x[i] >> 2 & 3), 1 << 33)

    table, x = np.zeros((4, 4), np.int64), values() & 15
    Blocks(cuda.jit(kernel), (table, x)).launch(BLOCKS, THREADS, table, x)
    assert table.sum() == N << 33
    np.testing.assert_array_equal(table.ravel() >> 33, np.bincount((x & 3) * 4 + (x >> 2)))
