"""Attention for decoding: a few queries of each sequence against keys and values in pages."""

from __future__ import annotations

import math
from functools import cache
from numbers import Real
from typing import Any

import numpy as np

import numbasync as na
from numbasync_kernels.fits import FLOATS, name_of
from numbasync_kernels.nn.attention_decode_mma import decode_by_tensor_cores, warps_of_block
from numbasync_kernels.nn.attention_decode_shares import MERGERS, TILE, PartsKernel, merge
from numbasync_kernels.nn.attention_decode_warps import WARPS, decode_by_warps
from numbasync_kernels.nn.operands import check_are_tensors

DTYPES = FLOATS
WIDTHS = (32, 64, 128, 256)
DEVICES = ("warps", "warpgroups")  # kinds of tensor cores
RESIDENT_WARPS = 12  # of a multiprocessor, without tensor cores
FEW = 8  # results for each multiprocessor, of which each is merged by several warps
LOG2_E = math.log2(math.e)


def paged_attention(
    out: na.Tensor,
    q: na.Tensor,
    key_pages: na.Tensor,
    value_pages: na.Tensor,
    page_table: na.Tensor,
    lengths: na.Tensor,
    *,
    scale: float | None = None,
) -> na.DeviceOp[na.Tensor]:
    """``softmax(q @ k.T * scale) @ v`` of every sequence and head, where a sequence's keys and
    values lie in pages; as an operation that gives `out`.

    Args:
        out, q: shape ``(sequences, heads, d)``, or ``(sequences, queries, heads, d)`` for several
            queries a sequence, of which the last sees all keys, and each one before sees one key
            less than the next. float16, bfloat16 or float32; d is 32, 64, 128 or 256.
        key_pages, value_pages: shape ``(pages, page size, key heads, d)``, of the same dtype. Any
            page size. The number of heads is a multiple of that of key heads, and neighbouring
            heads share one.
        page_table: shape ``(sequences, most pages)``, int32: key i of a sequence is row ``i % page
            size`` of the page ``page_table[sequence, i // page size]``. Numbers of pages that hold
            keys of the sequence are from 0 to pages - 1; others are not read. A wrong number reads
            other memory, or is a fault, on a GPU; the CPU device raises `OutOfBoundsError`.
        lengths: shape ``(sequences,)``, int32: the keys of each sequence, those of its queries
            among them; at most ``most pages * page size``. A query that sees no key, such as those
            of length 0, gives 0.
        scale: positive; default ``1 / sqrt(d)``.

    All tensors are C-contiguous. The layout of pages is that of vLLM and of FlashInfer's "NHD": a
    token's keys lie side by side, as a layer writes them.

    Reads each key and value once for up to 16 rows (queries of a sequence times heads that share
    the key), and nothing behind a sequence's length. float16 and bfloat16 are multiplied by tensor
    cores, on GPUs that have them; elsewhere every second row reads a key again, from the L1 cache.
    Tiles of 16 keys are shared evenly among the blocks that run at once, whatever the lengths;
    what they compute of the same queries is merged by a second kernel. The operation may be
    captured in a graph, and replayed with other lengths and pages.

    Error bound, to first order, of an element, with v the largest ``abs(value)`` of its head and
    sequence, s the largest ``sum(abs(q) abs(k)) * scale``, and u = 2**-24:
    ``2 v ((d + 4) s + keys + 8) u``; with tensor cores, where weights are rounded to the dtype,
    also ``2 v`` times the dtype's unit (2**-11 of float16, 2**-8 of bfloat16). To that comes the
    rounding to the dtype of `out`.
    Source: T. Dao and others, Flash-Decoding for long-context inference, 2023; W. Kwon and others,
    Efficient Memory Management for Large Language Model Serving with PagedAttention, 2023; the
    even shares: M. Osama and others, Stream-K, 2023.

    Raises:
        ShapeError, DTypeError, CallerError: the arguments do not fit.

    Examples:
        >>> from numbasync_kernels import nn
        >>> pages = await na.ones((2, 4, 1, 32))  # two pages of 4 keys, of one head
        >>> q, out = await na.ones((1, 1, 32)), await na.zeros((1, 1, 32))
        >>> table = await na.from_host(np.array([[1, 0]], np.int32))
        >>> lengths = await na.from_host(np.array([6], np.int32))
        >>> _ = await nn.paged_attention(out, q, pages, pages, table, lengths)
        >>> (await out.to_host())[0, 0, :3].round(3).tolist()
        [1.0, 1.0, 1.0]
    """
    _check(out, q, key_pages, value_pages, page_table, lengths, scale)
    device = out.device
    if device is None:
        raise na.errors.CallerError(f"paged_attention into {out!r}: it is on no device.")
    limits = device.limits
    on_tensor_cores = limits.tensor_cores in DEVICES
    kernel = kernel_for(q, key_pages, on_tensor_cores, limits.max_dynamic_shared_bytes)
    multiprocessors = limits.multiprocessors
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return launch(
        kernel, multiprocessors, out, q, key_pages, value_pages, page_table, lengths, factor
    )


def kernel_for(
    q: na.Tensor, key_pages: na.Tensor, on_tensor_cores: bool, shared_bytes: int
) -> PartsKernel:
    """The kernel of these queries and keys.

    Args:
        on_tensor_cores: whether tensor cores are to multiply, where they can.
        shared_bytes: shared memory that a block may have.
    """
    width = q.shape[-1]
    if on_tensor_cores and q.dtype.itemsize == 2:
        warps = warps_of_block(width, key_pages.shape[2], shared_bytes)
        return decode_by_tensor_cores(name_of(q.dtype), width, warps)
    rows = _rows_a_key(q, key_pages)
    of_a_warp = min(rows, 2)
    warps = min(-(-rows // of_a_warp), WARPS)
    launcher = decode_by_warps(width, q.dtype.itemsize, of_a_warp)
    return PartsKernel(launcher, of_a_warp * warps, warps, max(RESIDENT_WARPS // warps, 1))


def _rows_a_key(q: na.Tensor, key_pages: na.Tensor) -> int:
    queries = q.shape[1] if q.ndim == 4 else 1
    return queries * (q.shape[-2] // key_pages.shape[2])


def launch(
    kernel: PartsKernel,
    multiprocessors: int,
    out: na.Tensor,
    q: na.Tensor,
    key_pages: na.Tensor,
    value_pages: na.Tensor,
    page_table: na.Tensor,
    lengths: na.Tensor,
    scale: float,
) -> na.DeviceOp[na.Tensor]:
    """`paged_attention` by one of its kernels, with blocks for so many multiprocessors."""
    sequences, heads, width = q.shape[0], *q.shape[-2:]
    _, page_size, key_heads, _ = key_pages.shape
    rows = _rows_a_key(q, key_pages)
    asked, answered = (
        t if t.ndim == 4 else t.reshape(sequences, 1, heads, width) for t in (q, out)
    )
    keys, values = key_pages.reshape(-1), value_pages.reshape(-1)
    units = key_heads // kernel.together
    row_blocks = -(-rows // kernel.rows)
    most_tiles = sequences * units * -(-page_table.shape[1] * page_size // TILE)
    blocks = min(max(multiprocessors * kernel.resident_blocks // row_blocks, 1), most_tiles)
    slots = (blocks + sequences * units) * kernel.together
    results = out.size // width
    beside = MERGERS if results < FEW * multiprocessors else 1
    power = scale * LOG2_E
    held = na.zip(
        na.empty((slots, rows, width + 2), np.float32),
        na.empty((sequences, units, 2), np.int32),
    )

    def compute(parts: tuple[na.Tensor, na.Tensor]) -> na.DeviceOp[Any]:
        launched: na.DeviceOp[Any] = kernel.launcher[(row_blocks, blocks), (32, kernel.warps)](
            *parts, asked, keys, values, page_table, lengths, page_size, power
        )
        return launched

    def finish(computed: Any) -> na.DeviceOp[na.Tensor]:
        merged: na.DeviceOp[Any] = merge(width, beside)[
            -(-results * beside // MERGERS), (32, MERGERS)
        ](answered, computed[0], computed[1], lengths, key_heads, power)
        result: na.DeviceOp[na.Tensor] = merged.first()
        return result if answered is out else result.reshape(out.shape)

    return held.then(compute).then(finish)


@cache
def _is_supported(dtype: np.dtype[Any]) -> bool:
    return dtype.name in DTYPES  # NumPy computes the name each time


def _check(
    out: na.Tensor,
    q: na.Tensor,
    key_pages: na.Tensor,
    value_pages: na.Tensor,
    page_table: na.Tensor,
    lengths: na.Tensor,
    scale: float | None,
) -> None:
    errors = na.errors
    check_are_tensors(
        "paged_attention", out=out, q=q, key_pages=key_pages, value_pages=value_pages,
        page_table=page_table, lengths=lengths,
    )  # fmt: skip
    floats = {"out": out, "q": q, "key_pages": key_pages, "value_pages": value_pages}
    integers = {"page_table": page_table, "lengths": lengths}
    for name, t in floats.items():
        if t.dtype != q.dtype or not _is_supported(t.dtype):
            raise errors.DTypeError(f"paged_attention: {name} is {t!r}; write {DTYPES}, all equal.")
    for name, t in integers.items():
        if t.dtype != np.int32:
            raise errors.DTypeError(f"paged_attention: {name} is {t!r}; write int32.")
    for name, t in (floats | integers).items():
        if not t.is_contiguous or not t.size:
            raise errors.ShapeError(
                f"paged_attention: {name} is {t!r}; write a C-contiguous tensor that is not empty."
            )
    if q.ndim not in (3, 4) or out.shape != q.shape:
        raise errors.ShapeError(
            f"paged_attention of queries {q.shape} into {out.shape}: write (sequences, heads, d) "
            "or (sequences, queries, heads, d) of both."
        )
    if key_pages.ndim != 4 or value_pages.shape != key_pages.shape:
        raise errors.ShapeError(
            f"paged_attention of pages {key_pages.shape} and {value_pages.shape}: write (pages, "
            "page size, key heads, d) of both."
        )
    if q.shape[-1] not in WIDTHS or key_pages.shape[-1] != q.shape[-1]:
        raise errors.ShapeError(
            f"paged_attention: d is {q.shape[-1]} and {key_pages.shape[-1]}; write one of "
            f"{WIDTHS}, equal."
        )
    if q.shape[-2] % key_pages.shape[2]:
        raise errors.ShapeError(
            f"paged_attention: {q.shape[-2]} heads are no multiple of {key_pages.shape[2]} key "
            "heads."
        )
    if page_table.ndim != 2 or lengths.ndim != 1:
        raise errors.ShapeError(
            f"paged_attention: the page table has shape {page_table.shape}, the lengths "
            f"{lengths.shape}; write (sequences, most pages) and (sequences,)."
        )
    if page_table.shape[0] != q.shape[0] or lengths.shape[0] != q.shape[0]:
        raise errors.ShapeError(
            f"paged_attention of {q.shape[0]} sequences: the page table has "
            f"{page_table.shape[0]}, the lengths {lengths.shape[0]}; write as many of each."
        )
    if scale is not None and not (isinstance(scale, Real) and scale > 0):
        raise errors.CallerError(f"paged_attention(scale={scale!r:.60}): write a positive number.")


def paged_attention_reference(
    q: np.ndarray[Any, Any],
    key_pages: np.ndarray[Any, Any],
    value_pages: np.ndarray[Any, Any],
    page_table: np.ndarray[Any, Any],
    lengths: np.ndarray[Any, Any],
    scale: float | None = None,
) -> np.ndarray[Any, Any]:
    """What `paged_attention` approximates, in float64; shape of `q`."""
    asked = q.astype(np.float64).reshape(q.shape[0], -1, *q.shape[-2:])
    queries, heads, width = asked.shape[1:]
    factor = 1 / math.sqrt(width) if scale is None else scale
    result = np.zeros_like(asked)
    for sequence, length in enumerate(lengths):
        held = []
        for pages in (key_pages, value_pages):
            rows = pages[page_table[sequence]].reshape(-1, *pages.shape[2:])[: max(length, 0)]
            held.append(np.repeat(rows.astype(np.float64), heads // pages.shape[2], axis=1))
        for query in range(queries):
            count = length - queries + 1 + query
            if count > 0:
                k, v = (x[:count] for x in held)
                scores = np.einsum("hd,khd->hk", asked[sequence, query], k) * factor
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                mixed = np.einsum("hk,khd->hd", weights, v)
                result[sequence, query] = mixed / weights.sum(-1, keepdims=True)
    return result.reshape(q.shape)
