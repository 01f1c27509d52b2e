"""Swapped axes, products with vectors, and sparse products, against references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import LaunchError
from numbasync_kernels import matrix
from tests.common import full, host

U = 2.0**-24
RNG = np.random.default_rng(46)


@pytest.mark.parametrize("dtype", ["float32", *map(full, ("uint8", "float16", "complex128"))])
def test_swap_axes(device: na.Device, dtype: str) -> None:
    for shape in ((1, 1, 1), (1, 33, 70), (3, 40, 31)):
        x = RNG.integers(0, 99, shape).astype(dtype)
        for blocks in (1, 5):
            out = na.zeros((shape[0], shape[2], shape[1]), dtype).sync()
            matrix.swap_axes[blocks, (32, 8)](out, x).sync()
            np.testing.assert_array_equal(host(out), matrix.swap_axes_reference(x))
    with pytest.raises(LaunchError, match=r"x.shape\[2\], x.shape\[1\]"):
        matrix.swap_axes[1, (32, 8)](out, x[:2]).sync()


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
    x = RNG.standard_normal((1, 33, 40)).astype(np.float32)
    out = np.zeros((1, 40, 33), np.float32)
    na.testing.check_kernel(
        matrix.swap_axes, (out, x), lambda *_: matrix.swap_axes_reference(x), grid=2, block=(32, 8)
    )
