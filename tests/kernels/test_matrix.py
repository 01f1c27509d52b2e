"""Swapped axes, products with vectors, and sparse products, against references."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numbasync as na
from numbasync.algorithms.operation import Algorithm
from numbasync.errors import ShapeError
from numbasync_kernels import matrix
from numbasync_kernels.matrix.transpose import _plan, tiles_kernel
from tests.common import full, host

U = 2.0**-24
RNG = np.random.default_rng(46)


# Shape and axes: by tiles, whole and not; by short runs; by long ones, of two lengths; without.
SWAPS = [
    ((70, 33), (0, 1)), ((2, 64, 3, 96), (1, -1)), ((20, 5, 18, 3), (2, 0)), ((3, 40, 31), (1, 0)),
    ((4, 3, 5, 32), (-3, -2)), ((7, 1), (0, 1)), ((2, 0, 3), (0, 2)), ((5, 6), (1, 1)),
]  # fmt: skip


def bits(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(RNG.bytes(size), dtype).reshape(shape)


def swapped(x: Any, axis1: int, axis2: int, *ways: bool) -> Any:
    """The bits of a transpose; by which kernels: `is_aligned`, `is_serial`."""
    op = matrix.transpose(x, axis1, axis2)
    if ways:
        op.suppress_warning()
        op = Algorithm("transpose", x, partial(_plan, axis1, axis2, *ways))
    return host(op.sync())


@pytest.mark.parametrize("dtype", ["float32", *map(full, ("uint8", "float16", "complex128"))])
def test_transpose(device: na.Device, dtype: str) -> None:
    for shape, axes in SWAPS:
        x = bits(shape, dtype)
        want = np.ascontiguousarray(matrix.transpose_reference(x, *axes))
        got = swapped(na.from_host(x).sync(), *axes)
        assert (got.shape, got.tobytes()) == (want.shape, want.tobytes()), (shape, axes)
    x = bits((40, 30), dtype)
    part = na.from_host(x).sync()[3:, ::2]
    assert swapped(part, 0, 1).tobytes() == x[3:, ::2].T.tobytes()
    assert swapped(x, 0, 1).tobytes() == swapped(na.from_host(x), 0, 1).tobytes()
    with pytest.raises(ShapeError, match="axis 2, of 2 axes"):
        matrix.transpose(x, 0, 2)


@pytest.mark.full
def test_transpose_of_any_rank(device: na.Device) -> None:
    extents = st.lists(st.sampled_from([1, 3, 16, 33]), min_size=1, max_size=4)

    @settings(max_examples=40)
    @given(extents, st.integers(0, 3), st.integers(0, 3))
    def check_one(shape: list[int], a: int, b: int) -> None:
        x = bits(tuple(shape), "float32")
        axes = a % len(shape), b % len(shape)
        got = swapped(na.from_host(x).sync(), *axes)
        assert got.tobytes() == x.swapaxes(*axes).tobytes()

    check_one()


TILED = [
    ("uint16", (132, 68), (0, 1)),
    *map(full, (
        ("float32", (70, 33), (0, 1)), ("float32", (2, 128, 3, 96), (1, -1)),
        ("float32", (20, 5, 18, 3), (2, 0)), ("uint8", (144, 2, 8), (0, -1)),
        ("uint8", (3, 70), (0, 1)),
    )),
]  # fmt: skip


@pytest.mark.parametrize("case", TILED, ids=str)
def test_tiles_in_shared_memory(device: na.Device, case: Any) -> None:
    dtype, shape, axes = case
    x = bits(shape, dtype)
    got = swapped(na.from_host(x).sync(), *axes, True, False)
    assert got.tobytes() == x.swapaxes(*axes).tobytes()


@pytest.mark.parametrize("dtype", ["float32", full("float16")])
def test_matvec(device: na.Device, dtype: str) -> None:
    for m, n in ((1, 1), (7, 33), (20, 1000)):
        a, x = (RNG.standard_normal(s).astype(dtype) for s in ((m, n), n))
        out = na.zeros(m, dtype).sync()
        matrix.matvec[min(m, 9), 256](out, a, x).sync()
        want = matrix.matvec_reference(a, x)
        sizes = matrix.matvec_reference(abs(a), abs(x))
        half = np.finfo(dtype).eps / 2 if dtype == "float16" else 0
        assert (abs(host(out) - want) <= (n / 256 + 15) * U * sizes + half * abs(want)).all()


def sparse(m: int, n: int, index: str) -> tuple[Any, Any, Any]:
    """Rows of 0 to 99 elements."""
    lengths = RNG.integers(0, 100, m)
    offsets = np.concatenate(([0], lengths.cumsum())).astype(index)
    columns = RNG.integers(0, n, offsets[-1]).astype(index)
    return RNG.standard_normal(len(columns)).astype(np.float32), columns, offsets


@pytest.mark.parametrize("index", ["int32", full("int64")])
def test_sparse_products(device: na.Device, index: str) -> None:
    values, columns, offsets = sparse(37, 50, index)
    x = RNG.standard_normal((50, 33)).astype(np.float32)
    vector, out = na.zeros(37).sync(), na.zeros((37, 33)).sync()
    matrix.csr_matvec[2, (32, 8)](vector, values, columns, offsets, x[:, 0].copy()).sync()
    matrix.csr_matmul(out, values, columns, offsets, x).sync()
    want = matrix.csr_matmul_reference(values, columns, offsets, x)
    sizes = matrix.csr_matmul_reference(abs(values), columns, offsets, abs(x))
    counts = np.diff(offsets)[:, None]
    assert (abs(host(out) - want) <= (counts + 1) * U * sizes).all()
    first = matrix.csr_matvec_reference(values, columns, offsets, x[:, 0])
    bound = (counts[:, 0] / 32 + 7) * U * sizes[:, 0]
    assert (abs(host(vector) - first) <= bound).all()


@pytest.mark.full
def test_no_races_in_tiles(device: na.Device) -> None:
    x = bits((40, 34), "uint16")
    words = x.ravel().view(np.uint32)
    kernel = tiles_kernel(words.dtype, 2, 32, 32, 1)
    na.testing.check_kernel(
        kernel, (np.zeros_like(words), words, 40, 1, 34),
        lambda *_: x.T.ravel().view(np.uint32),
        grid=4, block=256,
    )  # fmt: skip
