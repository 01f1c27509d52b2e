"""Kernels of batches as GPUs have them, on every device."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.batch import Tuning
from numbasync.batch.codegen import columns, writer
from numbasync.batch.codegen.writer import KernelText
from tests.common import full, mostly_full

TUNED = Tuning()
LOOPS = Tuning(unroll=False)
F32 = np.float32


def aligned_and_not(array: np.ndarray[Any, Any]) -> list[na.Tensor]:
    """Its elements where blocks of memory begin, and one element further."""
    found = []
    for first in (0, 1):
        memory = np.concatenate([np.zeros(first, array.dtype), array.reshape(-1)])
        found.append(na.from_host(memory).sync()[first:].reshape(*array.shape))
    return found


@pytest.mark.parametrize(
    "dtype", mostly_full([np.float16, F32, np.float64, np.int32, np.int64, np.bool_], F32, np.bool_)
)
def test_every_types_elements_move_four_at_once(device: na.Device, dtype: Any) -> None:
    a = np.random.default_rng(1).integers(0, 2 if dtype is np.bool_ else 100, 3001).astype(dtype)
    for tensor in aligned_and_not(a):
        b = na.CommandBatch(tuning=TUNED)
        x = b.use(tensor)
        y, z = b.maximum(x, x), b.add(x, x)
        words = max(1, 4 // np.dtype(dtype).itemsize)
        assert b.plan().source().count("load4(") == words
        b.execute_sync()
        assert b.kernels_launched == 1
        np.testing.assert_array_equal(b.read_sync(y), a)
        np.testing.assert_array_equal(b.read_sync(z), a + a)


def test_what_is_broadcast_is_found_by_neighbours(device: na.Device) -> None:
    r = np.random.default_rng(2)
    a, row, column = (r.integers(0, 99, shape).astype(F32) for shape in ((40, 36), 36, (40, 1)))
    odd, few = (r.integers(0, 99, shape).astype(F32) for shape in ((200, 7), 7))
    b = na.CommandBatch(tuning=TUNED)
    y = b.upload(a) + b.upload(row) * 2 - b.upload(column)
    z = b.upload(odd) * b.upload(few)
    sources = [b.plan().source(k) for k in range(2)]
    assert [s.count("load4(") for s in sources] == [2, 1]  # of `row`; of `few` one by one
    b.execute_sync()
    np.testing.assert_array_equal(b.read_sync(y), a + row * 2 - column)
    np.testing.assert_array_equal(b.read_sync(z), odd * few)


# By a warp, four at once; by a block, the last ones cut off; not a multiple of four.
@pytest.mark.parametrize(("cols", "loads"), [(128, 1), full(1032, 3), (601, 0)])
def test_threads_keep_their_columns(device: na.Device, cols: int, loads: int) -> None:
    a = np.random.default_rng(cols).integers(-99, 99, (5, cols)).astype(F32)
    top = a.max(1, keepdims=True)
    for tensor in aligned_and_not(a):
        b = na.CommandBatch(tuning=Tuning(row_elements=12))
        x = b.use(tensor)
        y = x - b.max(x, 1, keepdims=True)
        b.keep(y)
        total = b.sum(y, 1) if cols != 601 else None
        place = b.argmax(x, 1) if cols != 128 else None
        source = b.plan().source()
        assert source.count("= load4(") == loads
        assert (" < cols:" in source) == (cols != 128)
        b.execute_sync()
        assert b.kernels_launched == 1
        np.testing.assert_array_equal(b.read_sync(y), a - top)
        if total is not None:
            np.testing.assert_array_equal(b.read_sync(total), (a - top).sum(1))
        if place is not None:
            np.testing.assert_array_equal(b.read_sync(place), a.argmax(1))


@pytest.mark.full
def test_a_sum_has_equal_bits_however_loaded(device: na.Device) -> None:
    r = np.random.default_rng(3)
    alone = ((False, TUNED), (True, LOOPS))
    beside = ((False, LOOPS), (True, TUNED))
    for shape, axis, ways in (
        ((30_001,), None, alone), ((2, 17_000), 1, alone), ((3, 520), 1, beside),
    ):  # fmt: skip
        a = r.normal(0, 1, shape)
        found = []
        for tensor in aligned_and_not(a):
            for more, tuning in ways:
                b = na.CommandBatch(tuning=tuning)
                x = b.use(tensor)
                ids = [b.sum(x, axis), *([b.max(b.exp(x), axis)] if more else [])]
                b.execute_sync()
                assert b.kernels_launched == 1
                found.append(b.read_sync(ids[0]))
        np.testing.assert_allclose(found[0], a.sum(axis), rtol=1e-12)
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)


@pytest.mark.full
def test_rows_beyond_threads_are_walked_in_loops(device: na.Device) -> None:
    a = np.random.default_rng(4).normal(0, 1, (3, 256)).astype(F32)
    found = []
    for words in (4, 3):  # for as many elements of a thread as 4
        b = na.CommandBatch(tuning=Tuning(kept_words=words, warp_most=0))
        e = b.exp(b.upload(a))
        y = e / b.sum(e, 1, keepdims=True)
        del e
        assert ("for j in" in b.plan().source()) == (words < 4)
        b.execute_sync()
        found.append(b.read_sync(y))
    np.testing.assert_array_equal(*found)  # its bits, too
    want = np.exp(a)
    np.testing.assert_allclose(found[0], want / want.sum(1, keepdims=True), rtol=1e-5)


def texts(b: na.CommandBatch) -> list[KernelText]:
    return list(b.plan().prepared.texts)


# Shape, axis, what the kernel's text and its grid show, the tuning with which there is a second
# reduction, if any. Blocks share results where there are few; threads of a block do, with as many
# side by side as there are results, at most a warp; what is cut off is loaded only if something is.
COLUMNS = {
    "few, shared": (
        (16_400, 3), 0, ("lane = cuda.threadIdx.x % 4", "if t < extent"), (4, 16), None,
    ),
    "shared": ((2048, 40), 0, ("lane = cuda.threadIdx.x % 32", "arrived"), (4, 16), TUNED),
    "of a block": ((100, 33), 0, ("lane = cuda.threadIdx.x % 32", "if t < extent"), (2, 2), LOOPS),
    "of a thread": ((7, 5000), 0, ("lane = cuda.threadIdx.x % 256", "j6 = "), (20, 20), TUNED),
    "in the middle": ((3, 64, 8), 1, ("outer = np.uint32(q) // inner",), (2, 2), TUNED),
}  # fmt: skip


@pytest.mark.parametrize("case", mostly_full(COLUMNS, "shared", "of a thread"))
def test_threads_and_blocks_share_results_of_columns(device: na.Device, case: str) -> None:
    shape, axis, shown, (least, most), beside = COLUMNS[case]
    a = np.random.default_rng(6).normal(0, 1, shape)
    found = []
    for tuning in (TUNED, LOOPS):
        b = na.CommandBatch(tuning=tuning)
        x = b.upload(a)
        total = b.sum(x, axis)
        place = b.argmax(x, axis) if tuning is beside else None
        (text,) = texts(b)
        assert least <= text.grid <= most
        if tuning.unroll:
            assert [s for s in shown if s not in text.source] == []
        b.execute_sync()
        assert b.kernels_launched == 1
        found.append(b.read_sync(total))
        if place is not None:
            np.testing.assert_array_equal(b.read_sync(place), a.argmax(axis))
    np.testing.assert_allclose(found[0], a.sum(axis), rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(*found)  # its bits, too


@pytest.mark.full
@pytest.mark.parametrize(
    ("shape", "axis"), [full((500, 40), 0), ((3, 50, 8), 1), full((2, 20_000), 1)]
)
def test_what_belongs_to_a_result_is_read_once(
    device: na.Device, shape: tuple[int, ...], axis: int
) -> None:
    a = np.random.default_rng(9).normal(0, 1, shape)
    b = na.CommandBatch(tuning=TUNED)
    mean = b.upload(a.mean(axis, keepdims=True))
    variance = b.mean((b.upload(a) - mean) ** 2, axis)
    loads = re.findall(r"x1[,\[].*", b.plan().source())
    assert loads[1:] in (["x1[q]"], ["x1[row]"])  # the first one is the parameter
    b.execute_sync()
    np.testing.assert_allclose(b.read_sync(variance), a.var(axis), rtol=1e-9)


@pytest.mark.full
def test_any_number_of_threads_reduces_columns(device: na.Device) -> None:
    a = np.random.default_rng(10).integers(-99, 99, (3001, 3)).astype(F32)
    b = na.CommandBatch(tuning=Tuning(threads=160, at_once=7))
    y = b.sum(b.upload(a), 0)
    (text,) = texts(b)
    assert text.block == 160 and text.counters == 1
    b.execute_sync()
    np.testing.assert_array_equal(b.read_sync(y), a.sum(0))


def test_columns_that_take_64_bits_for_an_index(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (writer, columns):
        monkeypatch.setattr(module, "WIDE", 50)
    a = np.random.default_rng(11).integers(-99, 99, (3, 64, 9)).astype(F32)
    b = na.CommandBatch(tuning=TUNED)
    x = b.upload(a)
    y = b.max(x + b.upload(a[0, :, 0:1].copy()), 1)
    assert "np.uint32(" not in b.plan().source()
    b.execute_sync()
    np.testing.assert_array_equal(b.read_sync(y), (a + a[0, :, 0:1]).max(1))


@pytest.mark.full
def test_columns_of_long_expressions_are_walked_in_loops(device: na.Device) -> None:
    a = np.random.default_rng(7).normal(0, 1, (600, 5))
    b = na.CommandBatch(tuning=TUNED)
    y = x = b.upload(a)
    want = a
    for k in range(80):
        y, want = (y + k) * x, (want + k) * a
        y, want = b.tanh(y), np.tanh(want)
    total = b.sum(y, 0)
    del y
    assert "for j in" in b.plan().source()
    b.execute_sync()
    np.testing.assert_allclose(b.read_sync(total), want.sum(0), rtol=1e-9)


# Columns, and the threads that have a row.
@pytest.mark.parametrize(
    ("cols", "lanes"), [full(1, 1), (3, 1), full(4, 1), full(5, 2), full(16, 4), (100, 16)]
)
def test_a_warps_threads_take_rows_of_few_columns(device: na.Device, cols: int, lanes: int) -> None:
    # With a warp that has too few of them, or not. `test_batch.py` has loops of 16 lanes.
    cut, full = (71, TUNED), (64, Tuning(unroll=False, kept_words=1))
    for rows, tuning in (cut, full) if cols in (1, 5) else (cut,):
        a = np.random.default_rng(8).normal(0, 1, (rows, cols)).astype(F32)
        b = na.CommandBatch(tuning=tuning)
        x = b.upload(a)
        e = b.exp(x - b.max(x, 1, keepdims=True) if cols == 5 else x)
        y = e / b.sum(e, 1, keepdims=True)
        del e
        (text,) = texts(b)
        assert text.grid == -(-rows * lanes // text.block)
        assert ("if there:" in text.source) == (rows == 71 and lanes > 1)
        b.execute_sync()
        e = np.exp(a - a.max(1, keepdims=True))
        np.testing.assert_allclose(b.read_sync(y), e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.full
def test_other_tunings_give_the_same(device: na.Device) -> None:
    a = np.random.default_rng(5).normal(0, 1, 3000).astype(F32)
    found = []
    for tuning in (TUNED, Tuning(elements=3), Tuning(threads=64, elements=8, splits=3)):
        b = na.CommandBatch(tuning=tuning)
        x = b.upload(a)
        y = b.exp(x) + 1
        b.execute_sync()
        found.append(b.read_sync(y))
    np.testing.assert_allclose(found[0], np.exp(a) + 1, rtol=1e-6)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_large_blocks_are_compiled_soon(device: na.Device) -> None:
    b = na.CommandBatch()
    top = b.max(b.upload(np.zeros((3, 16_384), F32)), 1)
    assert top.shape == (3,)
    assert b.planned().texts[0].block == 512
    assert "range(1, 16)" not in b.plan().source()  # which compilers write out
