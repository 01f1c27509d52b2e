"""What `dot_product_attention` asks of its arguments."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import numbasync as na
from numbasync_kernels.fits import FLOATS
from numbasync_kernels.nn.operands import check_are_tensors

DTYPES = FLOATS
MASKS = ("bool", *FLOATS)
WIDTHS = (32, 64, 128)
NAME = "dot_product_attention"


@cache
def _is_one_of(dtype: np.dtype[Any], names: tuple[str, ...]) -> bool:
    return dtype.name in names  # NumPy computes the name each time


def check_tensors(
    out: na.Tensor, q: na.Tensor, k: na.Tensor, v: na.Tensor, is_packed: bool, causal: bool
) -> None:
    """
    Raises:
        ShapeError, DTypeError: the tensors do not fit.
    """
    errors = na.errors
    check_are_tensors(NAME, out=out, q=q, k=k, v=v)
    form = "(tokens, heads, d)" if is_packed else "(..., heads, length, d)"
    for name, t in {"out": out, "q": q, "k": k, "v": v}.items():
        if t.dtype != q.dtype or not _is_one_of(t.dtype, DTYPES):
            raise errors.DTypeError(f"{NAME}: {name} is {t!r}; write {DTYPES}, all equal.")
        if t.ndim < 3 or not t.size or (is_packed and t.ndim > 3):
            raise errors.ShapeError(f"{NAME}: {name} is {t!r}; write the shape {form}.")
        if not t.is_contiguous and (t.ndim > 3 or t is out):
            raise errors.ShapeError(
                f"{NAME}: {name} is {t!r}, not C-contiguous; write a copy: await {name}.dup()"
            )
    if q.shape[-1] not in WIDTHS or k.shape[-1] != q.shape[-1]:
        raise errors.ShapeError(
            f"{NAME}: d is {q.shape[-1]} and {k.shape[-1]}; write 32, 64 or 128, equal."
        )
    if out.shape != q.shape or k.shape != v.shape or k.shape[:-3] != q.shape[:-3]:
        raise errors.ShapeError(
            f"{NAME} of shapes {q.shape}, {k.shape} and {v.shape} into {out.shape}: "
            "write (..., heads, queries, d) and (..., key heads, keys, d)."
        )
    axis = -2 if is_packed else -3
    if q.shape[axis] % k.shape[axis]:
        raise errors.ShapeError(
            f"{NAME}: {q.shape[axis]} heads are no multiple of {k.shape[axis]} key heads."
        )
    if is_packed and q.shape[0] != k.shape[0]:
        raise errors.ShapeError(
            f"{NAME}(offsets=...) of {q.shape[0]} and {k.shape[0]} tokens: queries and keys are of "
            "the same tokens."
        )
    if causal and not is_packed and k.shape[-2] < q.shape[-2]:
        raise errors.ShapeError(
            f"{NAME}(causal=True) of {q.shape[-2]} queries and {k.shape[-2]} keys: "
            "some queries would see no key."
        )


def flat_lengths(lengths: na.Tensor | None, batch: tuple[int, ...]) -> na.Tensor | None:
    """The lengths of all sequences of a batch of this shape, along one axis.

    Raises:
        ShapeError, DTypeError: they are no int32 for each sequence.
    """
    if lengths is None:
        return None
    check_are_tensors(NAME, lengths=lengths)
    if lengths.dtype != np.int32 or not lengths.is_contiguous:
        raise na.errors.DTypeError(f"{NAME}: lengths are {lengths!r}; write C-contiguous int32.")
    if lengths.shape not in (batch, (math.prod(batch),)):
        raise na.errors.ShapeError(
            f"{NAME}: lengths are {lengths!r}; write the shape {batch or (1,)}, a length for each "
            "sequence."
        )
    return lengths if lengths.ndim == 1 else lengths.reshape(-1)


def check_offsets(offsets: na.Tensor, longest: int | None) -> None:
    """
    Raises:
        ShapeError, DTypeError, CallerError: they do not say where sequences begin and end.
    """
    check_are_tensors(NAME, offsets=offsets)
    if offsets.dtype != np.int32 or not offsets.is_contiguous:
        raise na.errors.DTypeError(f"{NAME}: offsets are {offsets!r}; write C-contiguous int32.")
    if offsets.ndim != 1 or offsets.shape[0] < 2:
        raise na.errors.ShapeError(
            f"{NAME}: offsets are {offsets!r}; write the shape (sequences + 1,): where each "
            "sequence begins, and where the last one ends."
        )
    if longest is not None and (type(longest) is not int or longest < 1):
        raise na.errors.CallerError(f"{NAME}(longest={longest!r:.60}): write an int, at least 1.")


class MaskPages(NamedTuple):
    """A mask as the kernel takes it.

    Attributes:
        pages: the mask, of shape (n, queries or 1, keys).
        shared_by: so many heads, one behind the other, share a page; then the next one follows, and
            behind the last the first again.
        is_added: to scores; else true where a key is seen.
    """

    pages: na.Tensor | None
    shared_by: int
    is_added: bool


def mask_pages(mask: na.Tensor | None, q: na.Tensor, keys: int) -> MaskPages:
    """
    Raises:
        ShapeError, DTypeError: the mask does not fit.
    """
    if mask is None:
        return MaskPages(None, 1, False)
    check_are_tensors(NAME, mask=mask)
    if not _is_one_of(mask.dtype, MASKS):
        raise na.errors.DTypeError(f"{NAME}: mask is {mask!r}; write one of {', '.join(MASKS)}.")
    queries, outer = q.shape[-2], q.shape[:-2]
    lengthened = (1,) * (q.ndim - mask.ndim) + mask.shape
    *pages, rows, columns = lengthened
    used = [i for i, n in enumerate(pages) if n > 1]
    own = slice(used[0], used[-1] + 1) if used else slice(0, 0)
    fits = len(lengthened) == q.ndim and rows in (1, queries) and columns == keys
    if not (fits and mask.ndim and tuple(pages[own]) == outer[own] and mask.is_contiguous):
        raise na.errors.ShapeError(
            f"{NAME} of {queries} queries and {keys} keys of heads {outer}: mask is {mask!r}; "
            "write a C-contiguous mask of shape (keys,), (queries, keys) or (batch, heads, "
            "queries, keys), in which all but the keys may be 1."
        )
    return MaskPages(
        mask.reshape(math.prod(pages), rows, keys),
        math.prod(outer[own.stop :]) if used else 1,
        mask.dtype != np.bool_,
    )
