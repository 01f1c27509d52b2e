"""Kernels of transformers against their references; references against SciPy.

Outputs hold NaN before a launch, so what a kernel leaves out is seen. Bounds are those of the
kernels' docstrings, with `U` half an ulp of 1, and a hundredth for what is not of first order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.testing import find_race
from numbasync_kernels import nn
from numbasync_kernels.nn.matmul_threads import matmul_threads
from tests.common import host, mostly_full

U = 1.01 * 2.0**-24

ROWS = [(1, 1), (1, 384), (3, 32), (5, 31), (7, 33), (4, 200), (9, 1000)]
# Sentences, queries, keys, heads, features of a head.
HEADS = [
    (1, 1, 1, 1, 1), (2, 9, 9, 2, 8), (1, 33, 33, 1, 32), (2, 17, 40, 3, 5),
    (1, 8, 512, 1, 64), (1, 3, 7, 2, 128), (3, 16, 16, 12, 32),
]  # fmt: skip


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def unwritten(*shape: int) -> na.Tensor:
    return na.full(shape, np.nan).sync()


def within(got: np.ndarray, want: np.ndarray, bound: np.ndarray | float) -> None:
    away = np.abs(got - want)
    assert (away <= bound).all(), f"{(away - bound).max():.3e} above the bound"


# --- embedding ---


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 384), (3, 7, 130)], ids=str)
def test_embedding(device: na.Device, shape: tuple[int, int, int]) -> None:
    sentences, tokens, width = shape
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 50, (sentences, tokens), np.int32)
    kinds = rng.integers(0, 2, (sentences, tokens), np.int32)
    tables = normal(50, width), normal(9, width, seed=1), normal(2, width, seed=2)
    out = unwritten(*shape)
    nn.embedding(out.partition(nn.EMBEDDING_TILE), ids, kinds, *tables).sync()
    sizes = [np.abs(table) for table in tables]
    bound = 2 * U * nn.embedding_reference(ids, kinds, *sizes)
    within(host(out), nn.embedding_reference(ids, kinds, *tables), bound)


def test_an_invalid_row_number_makes_its_token_nan(device: na.Device) -> None:
    ids = np.array([[0, 4, -1, 5, 3, 2**31 - 1]], np.int32)
    kinds = np.array([[0, 1, 0, 0, 2, 1]], np.int32)
    out = na.zeros((1, 6, 3)).sync()
    tables = normal(5, 3), normal(6, 3), normal(2, 3)
    nn.embedding(out.partition(nn.EMBEDDING_TILE), ids, kinds, *tables).sync()
    assert np.isnan(host(out)).all(axis=2).tolist() == [[False, False, True, True, True, True]]
    assert np.isfinite(host(out)[:, :2]).all()


@pytest.mark.parametrize("n", [1, 255, 256, 1000])
def test_gelu(device: na.Device, n: int) -> None:
    x = np.linspace(-12, 12, n, dtype=np.float32)
    out = unwritten(n)
    nn.gelu(out.partition(nn.GELU_THREADS), x).sync()
    within(host(out), nn.gelu_reference(x), 4 * U * np.abs(x))


# --- rows ---


def norm_bound(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, eps: float) -> np.ndarray:
    width = x.shape[1]
    spread = np.sqrt(x.astype(np.float64).var(axis=1, keepdims=True) + eps)
    z = nn.layer_norm_reference(x, np.ones(width), np.zeros(width), eps)
    largest = np.abs(x).max(axis=1, keepdims=True)
    roundings = -(-width // 32) + 12
    return roundings * U * np.abs(scale) * (1 + np.abs(z)) * (1 + largest / spread) + (
        2 * U * np.abs(shift)
    )


@pytest.mark.parametrize("mean", [0.0, 300.0])
@pytest.mark.parametrize("size", ROWS, ids=str)
def test_layer_norm(device: na.Device, size: tuple[int, int], mean: float) -> None:
    n, width = size
    x = normal(n, width) + np.float32(mean)
    x[0] = 0.1  # no variance at all
    scale, shift = normal(width, seed=1), normal(width, seed=2)
    out = unwritten(n, width)
    nn.layer_norm(out.partition((nn.NORM_ROWS, width)), x, scale, shift, 1e-5).sync()
    want = nn.layer_norm_reference(x, scale, shift, 1e-5)
    within(host(out), want, norm_bound(x, scale, shift, 1e-5))


@pytest.mark.parametrize("size", ROWS, ids=str)
def test_add_layer_norm(device: na.Device, size: tuple[int, int]) -> None:
    n, width = size
    x, residual = normal(n, width), normal(n, width, seed=3)
    scale, shift = normal(width, seed=1), normal(width, seed=2)
    out = unwritten(n, width)
    tile = (nn.NORM_ROWS, width)
    nn.add_layer_norm(out.partition(tile), x, residual, scale, shift, 1e-12).sync()
    want = nn.add_layer_norm_reference(x, residual, scale, shift, 1e-12)
    total = x.astype(np.float64) + residual
    if width > 1:
        within(host(out), want, norm_bound(total, scale, shift, 1e-12))
    else:  # one element is its own mean, whatever rounds
        np.testing.assert_array_equal(host(out), np.tile(shift, (n, 1)))


@pytest.mark.parametrize("grid", [(1, 1), (3, 2), (40, 1)], ids=str)
def test_rows_are_found_by_any_grid(device: na.Device, grid: tuple[int, int]) -> None:
    x = normal(37, 40)
    ones, zeros = np.ones(40, np.float32), np.zeros(40, np.float32)
    block = (32, nn.NORM_ROWS)
    normed, unit = unwritten(37, 40), unwritten(37, 40)
    nn.layer_norm[grid, block](normed, x, ones, zeros, 1e-5).sync()
    nn.unit_rows[grid, block](unit, x).sync()
    within(host(normed), nn.layer_norm_reference(x, ones, zeros, 1e-5), 1e-5)
    within(host(unit), nn.unit_rows_reference(x), 1e-6)


@pytest.mark.parametrize("size", ROWS, ids=str)
def test_unit_rows(device: na.Device, size: tuple[int, int]) -> None:
    n, width = size
    x = normal(n, width)
    x[n // 2] = 0
    out = unwritten(n, width)
    nn.unit_rows(out.partition((nn.UNIT_ROWS, width)), x).sync()
    want = nn.unit_rows_reference(x)
    within(host(out), want, (-(-width // 32) / 2 + 6) * U * np.abs(want))
    assert not host(out)[n // 2].any()


# --- sentences ---


@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 9, 130), (2, 40, 384)], ids=str)
def test_mean_pool(device: na.Device, shape: tuple[int, int, int]) -> None:
    x = normal(*shape)
    mask = np.random.default_rng(5).integers(0, 2, shape[:2], np.int32)
    mask[0] = 0
    want = nn.mean_pool_reference(x, mask)
    bound = shape[1] * U * nn.mean_pool_reference(np.abs(x), mask)
    x[mask == 0] = np.nan  # what is masked is not read
    out = unwritten(shape[0], shape[2])
    nn.mean_pool(out.partition(nn.POOL_TILE), x, mask).sync()
    within(host(out), want, bound)
    assert not host(out)[0].any()


def attention_bound(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, heads: int
) -> np.ndarray:
    sentences, keys, width = len(q), k.shape[1], q.shape[2] // heads
    parts = [x.astype(np.float64).reshape(sentences, -1, heads, width) for x in (q, k)]
    scores = np.einsum("sqhd,skhd->sqhk", *parts) / np.sqrt(width)
    sizes = np.einsum("sqhd,skhd->sqhk", *map(np.abs, parts)) / np.sqrt(width)
    counts = np.broadcast_to((mask != 0)[:, None, None, :], scores.shape)
    largest = np.where(counts, sizes, 0).max(axis=-1)
    reach = np.where(counts, scores, -np.inf).max(axis=-1) - np.where(counts, scores, np.inf).min(
        axis=-1
    )
    reach = np.maximum(reach, 0)  # minus infinity where nothing counts
    off = 2 * ((width + 5) * largest + reach + 4) * U + (2 * keys + 3) * U
    mixed = nn.attention_reference(q, k, np.abs(v), mask, heads)
    return mixed * np.repeat(off, width, axis=-1).reshape(q.shape)


@pytest.mark.parametrize("masked", ["nothing", "some"])
@pytest.mark.parametrize("size", HEADS, ids=str)
def test_attention(device: na.Device, size: tuple[int, ...], masked: str) -> None:
    sentences, queries, keys, heads, width = size
    q = normal(sentences, queries, heads * width)
    k = normal(sentences, keys, heads * width, seed=1)
    v = normal(sentences, keys, heads * width, seed=2)
    mask = np.ones((sentences, keys), np.int32)
    if masked == "some":
        mask = np.random.default_rng(3).integers(0, 2, mask.shape, np.int32)
        mask[0] = 0
    want = nn.attention_reference(q, k, v, mask, heads)
    bound = attention_bound(q, k, v, mask, heads)
    k[mask == 0], v[mask == 0] = np.nan, np.nan  # nothing of what is masked gets through
    out = unwritten(*q.shape)
    tile = nn.attention_tile(heads * width, heads)
    nn.attention(out.partition(tile), q, k, v, mask, heads).sync()
    within(host(out), want, bound)
    if masked == "some":
        assert not host(out)[0].any()


def test_attention_of_great_scores_picks_the_greatest(device: na.Device) -> None:
    """Scores of thousands, either sign: exp of them as they are would be infinite, or nothing."""
    k = normal(1, 20, 16)
    for sign in (1, -1):
        q = np.float32(sign * 3000) * normal(1, 5, 16, seed=1)
        mask = np.ones((1, 20), np.int32)
        v = normal(1, 20, 16, seed=2)
        out = unwritten(1, 5, 16)
        nn.attention(out.partition(nn.attention_tile(16, 1)), q, k, v, mask, 1).sync()
        best = v[0, (q[0] @ k[0].T).argmax(axis=1)]
        np.testing.assert_array_equal(host(out)[0], best)


@pytest.mark.full
def test_attention_of_parts_of_one_product(device: na.Device) -> None:
    parts = normal(2, 11, 3 * 24)
    together = na.from_host(parts).sync()
    mask = np.ones((2, 11), np.int32)
    mask[1, 6:] = 0
    cut = [slice(24 * i, 24 * (i + 1)) for i in range(3)]
    q, k, v = (together[:, :, c] for c in cut)
    out = unwritten(2, 11, 24)
    nn.attention(out.partition(nn.attention_tile(24, 3)), q, k, v, mask, 3).sync()
    a, b, c = (parts[:, :, c] for c in cut)
    want = nn.attention_reference(a, b, c, mask, 3)
    within(host(out), want, attention_bound(a, b, c, mask, 3))


# --- what is refused ---


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def marks(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


# --- on the CPU device, whichever is tested ---

# `layer_norm` is left out, whose threads touch what those of `add_layer_norm` do.
SMALL: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "gemm": (
        lambda o, a, b, bias: nn.gemm(o, a, b, bias=bias, activation="gelu"),
        (zeros(34, 18), normal(34, 40), normal(40, 18), normal(18))),
    "gelu": (lambda o, x: nn.gelu(o.partition(nn.GELU_THREADS), x), (zeros(300), normal(300))),
    "add_layer_norm": (
        lambda o, *rest: nn.add_layer_norm(o.partition((nn.NORM_ROWS, 40)), *rest),
        (zeros(6, 40), normal(6, 40), normal(6, 40), normal(40), normal(40), 1e-12)),
    "unit_rows": (
        lambda o, x: nn.unit_rows(o.partition((nn.UNIT_ROWS, 40)), x),
        (zeros(6, 40), normal(6, 40))),
    "mean_pool": (
        lambda o, x, m: nn.mean_pool(o.partition(nn.POOL_TILE), x, m),
        (zeros(3, 130), normal(3, 4, 130), np.ones((3, 4), np.int32))),
    "embedding": (
        lambda o, *rest: nn.embedding(o.partition(nn.EMBEDDING_TILE), *rest),
        (zeros(2, 3, 130), marks(2, 3), marks(2, 3), normal(4, 130), normal(3, 130),
         normal(2, 130))),
    "attention": (
        lambda o, *rest: nn.attention(o.partition(nn.attention_tile(10, 2)), *rest),
        (zeros(2, 9, 10), normal(2, 9, 10), normal(2, 35, 10), normal(2, 35, 10),
         np.ones((2, 35), np.int32), 2)),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", mostly_full(SMALL, "gelu", "embedding", "unit_rows", "mean_pool"))
def test_no_thread_is_in_anothers_way(name: str) -> None:
    """No race, no read of what nobody wrote, no write outside of a tile; compiled, at that."""
    launch, args = SMALL[name]
    assert find_race(launch, args, orders=1) is None
    kernel = matmul_threads(False) if name == "gemm" else getattr(nn, name)
    assert kernel.cpu_engine() == ("compiled", "")


# --- references ---


def test_references_are_scipys() -> None:
    special = pytest.importorskip("scipy.special", reason="needs the extra demo")
    x = np.linspace(-6, 6, 101)
    np.testing.assert_allclose(
        nn.gelu_reference(x), 0.5 * x * special.erfc(-x / np.sqrt(2)), rtol=1e-12, atol=1e-15
    )
    q, k, v = normal(1, 3, 8), normal(1, 5, 8, seed=1), normal(1, 5, 8, seed=2)
    mask = np.array([[1, 1, 0, 1, 0]])
    scores = q[0].astype(float) @ k[0].T.astype(float) / np.sqrt(8)
    weights = special.softmax(scores[:, mask[0] == 1], axis=1)
    np.testing.assert_allclose(
        nn.attention_reference(q, k, v, mask, 1)[0], weights @ v[0, mask[0] == 1], rtol=1e-12
    )
    normed = nn.layer_norm_reference(normal(4, 9), np.ones(9), np.zeros(9), 0.0)
    np.testing.assert_allclose([normed.mean(axis=1), normed.std(axis=1)], [[0] * 4, [1] * 4],
                               atol=1e-12)  # fmt: skip
