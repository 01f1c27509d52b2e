"""Attention for decoding, over pages, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import CallerError, DTypeError, OutOfBoundsError, ShapeError
from numbasync_kernels import nn
from numbasync_kernels.nn import attention_decode

LENGTHS = (137, 0, 1, 64, 600)
SHARED = 99 * 1024  # bytes of a block, on GPUs that have least
NOWHERE = -1  # in a page table, where a sequence has no keys


class Cached(NamedTuple):
    """Queries, and keys and values in pages that lie in any order."""

    q: np.ndarray[Any, Any]
    key_pages: np.ndarray[Any, Any]
    value_pages: np.ndarray[Any, Any]
    page_table: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]

    def tensors(self) -> list[na.Tensor]:
        return [na.from_host(x).sync() for x in self]

    def reference(self, scale: float | None = None) -> np.ndarray[Any, Any]:
        table = np.maximum(self.page_table, 0)
        return nn.paged_attention_reference(*self._replace(page_table=table), scale)

    def bound(self, rounding: float) -> Any:
        """The error that is documented, for each element."""
        width, keys = self.q.shape[-1], self.lengths.max()
        largest = np.abs(self.value_pages).max().astype(np.float64)
        size = np.abs(self.q).max() * np.abs(self.key_pages).max() * width**0.5
        exact = 2 * largest * ((width + 4) * size + keys + 8) * 2.0**-24
        return exact + 2 * largest * rounding + rounding * np.abs(self.reference())


def cached(
    queries: tuple[int, ...] = (4, 32), key_heads: int = 2, page_size: int = 5,
    dtype: Any = np.float32, lengths: tuple[int, ...] = LENGTHS,
) -> Cached:  # fmt: skip
    rng = np.random.default_rng(0)
    counts = -(-np.array(lengths) // page_size)
    pages, order = counts.sum() + 2, iter(rng.permutation(counts.sum() + 2))
    table = np.full((len(lengths), counts.max()), NOWHERE, np.int32)
    for sequence, count in enumerate(counts):
        table[sequence, :count] = [next(order) for _ in range(count)]
    shape = pages, page_size, key_heads, queries[-1]
    key_pages, value_pages = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    q = rng.standard_normal((len(lengths), *queries)).astype(dtype)
    return Cached(q, key_pages, value_pages, table, np.array(lengths, np.int32))


# Queries, if there are several, heads and d; key heads; keys of a page.
@pytest.mark.full
@pytest.mark.parametrize(
    ("queries", "key_heads", "page_size"),
    [((4, 32), 2, 16), ((6, 32), 2, 5), ((3, 4, 32), 4, 7), ((2, 20, 32), 1, 1)], ids=str,
)  # fmt: skip
async def test_attention(
    device: na.Device, queries: tuple[int, ...], key_heads: int, page_size: int
) -> None:
    given = cached(queries, key_heads, page_size)
    out = await na.full(given.q.shape, np.nan)
    got = await nn.paged_attention(out, *given.tensors())
    away = np.abs(await got.to_host() - given.reference())
    assert (away <= given.bound(0.0)).all(), away.max()


@pytest.mark.full
async def test_any_number_of_blocks_shares_the_keys(device: na.Device) -> None:
    given = cached()
    tensors = given.tensors()
    kernel = attention_decode.kernel_for(tensors[0], tensors[1], False, SHARED)
    for blocks, multiprocessors in ((1, 1), (7, 1), (200, 1), (1, 20)):
        out = await na.full(given.q.shape, np.nan)
        few = kernel._replace(resident_blocks=blocks)
        await attention_decode.launch(few, multiprocessors, out, *tensors, scale=0.25)
        away = np.abs(await out.to_host() - given.reference(0.25))
        assert (away <= given.bound(0.0)).all(), (blocks, multiprocessors, away.max())


@pytest.mark.full
async def test_tensor_cores(device: na.Device) -> None:
    if device.limits.tensor_cores == "none":
        pytest.skip("float16 is multiplied without tensor cores, as float32 is")
    for queries, lengths in (((4, 32), (37, 0, 70)), ((3, 6, 32), (2, 33)), ((20, 32), (17,))):
        given = cached(queries, 2 if queries[-2] < 20 else 1, 16, np.float16, lengths)
        tensors = given.tensors()
        out = await na.full(given.q.shape, np.nan, np.float16)
        kernel = attention_decode.kernel_for(tensors[0], tensors[1], True, SHARED)
        await attention_decode.launch(kernel, 1, out, *tensors, scale=32**-0.5)
        away = np.abs(await out.to_host() - given.reference())
        assert (away <= given.bound(2.0**-11)).all(), (queries, away.max())


@pytest.mark.full
async def test_more_rows_a_key_than_blocks_along_y(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, dtypes = 65_535, [np.float32, np.float16]  # on every GPU
    if device.kind == "cpu":  # which is slower, most of all with tensor cores, and checks any limit
        most, dtypes = 3, [np.float32]
        limits = replace(device.limits, max_grid=(2**31 - 1, most, most))
        monkeypatch.setattr(device, "limits", limits)
    heads = 16 * most + 1  # of 16 rows a block
    for dtype in dtypes:
        given = cached((heads, 32), 1, 1, dtype, (1,))
        tensors = given.tensors()
        out = await nn.paged_attention(await na.full(given.q.shape, np.nan, dtype), *tensors)
        only = given.value_pages[given.page_table[0, 0], 0]  # each head's weight is 1
        np.testing.assert_array_equal(await out.to_host(), np.broadcast_to(only, given.q.shape))


@pytest.mark.full
async def test_a_graph_replays_with_other_lengths_and_pages(device: na.Device) -> None:
    first, then = cached(), cached(lengths=(0, 600, 3, 70, 5))
    tensors = first.tensors()
    out = await na.zeros(first.q.shape)
    graph = nn.paged_attention(out, *tensors).graph()
    await graph.launch()
    other = first._replace(page_table=then.page_table, lengths=then.lengths)
    await na.memcpy(tensors[3], other.page_table)
    await na.memcpy(tensors[4], other.lengths)
    await graph.launch()
    away = np.abs(await out.to_host() - other.reference())
    assert (away <= other.bound(0.0)).all(), away.max()


@pytest.mark.full
@pytest.mark.parametrize("page", [NOWHERE, 10_000])
async def test_a_page_that_is_not_there(device: na.Device, page: int) -> None:
    if device.kind != "cpu":
        pytest.skip("a GPU checks no index")
    given = cached()
    given.page_table[4, 3] = page
    out = await na.zeros(given.q.shape)
    with pytest.raises(OutOfBoundsError, match="keys"):
        await nn.paged_attention(out, *given.tensors())


def test_what_is_refused(device: na.Device) -> None:
    def zeros(*shape: int, dtype: Any = np.float16) -> na.Tensor:
        return na.zeros(shape, dtype).sync()

    q, pages = zeros(3, 8, 64), zeros(5, 16, 2, 64)
    table, lengths = zeros(3, 4, dtype=np.int32), zeros(3, dtype=np.int32)
    good = {
        "out": q, "q": q, "key_pages": pages, "value_pages": pages, "page_table": table,
        "lengths": lengths,
    }  # fmt: skip
    for changed, error, text in [
        ({"out": zeros(3, 8, 64, dtype=np.float32)}, DTypeError, "out is .*all equal"),
        ({"lengths": zeros(3, dtype=np.int64)}, DTypeError, "lengths is .*write int32"),
        ({"key_pages": zeros(5, 2, 16, 64)[:, :, ::2]}, ShapeError, "key_pages is .*C-contiguous"),
        ({"out": zeros(3, 4, 64)}, ShapeError, r"write \(sequences, heads, d\)"),
        ({"value_pages": zeros(5, 16, 1, 64)}, ShapeError, "write .pages, page size, key heads"),
        ({"q": zeros(3, 8, 32), "out": zeros(3, 8, 32)}, ShapeError, "d is 32 and 64"),
        ({"q": zeros(3, 7, 64), "out": zeros(3, 7, 64)}, ShapeError, "7 heads are no multiple"),
        ({"page_table": lengths}, ShapeError, "the page table has shape"),
        ({"lengths": zeros(2, dtype=np.int32)}, ShapeError, "of 3 sequences: .*the lengths 2"),
        ({"scale": 0.0}, CallerError, "write a positive number"),
    ]:
        with pytest.raises(error, match=text):
            nn.paged_attention(**(good | changed))  # type: ignore[arg-type]
