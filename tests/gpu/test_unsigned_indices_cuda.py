"""Indices that are unsigned on GPUs: the same numbers, with fewer instructions."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numba import cuda, float32

import numbasync as na
from numbasync.backend.cuda import unsigned_indices
from numbasync.errors import KernelCompileError
from tests.common import host

pytestmark = pytest.mark.cuda
TILE = 16


@na.launcher
@cuda.jit
def product(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
    a = cuda.shared.array((TILE, TILE), float32)
    b = cuda.shared.array((TILE, TILE), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    row, column = cuda.blockIdx.y * TILE + i, cuda.blockIdx.x * TILE + j
    total = float32(0)
    for start in range(0, x.shape[1], TILE):
        a[i, j] = x[row, start + j]
        b[i, j] = y[start + i, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += a[i, k] * b[k, j]
        cuda.syncthreads()
    z[row, column] = total


@na.launcher
@cuda.jit
def from_the_end(z: na.KernelOutput, x: na.KernelInput):
    for i in range(cuda.grid(1), z.shape[0], cuda.gridsize(1)):
        z[i] = x[i - 3] + x[-1 - i] + x[-2]


@na.launcher
@cuda.jit
def mistyped(z: na.KernelOutput, x: na.KernelInput):
    for i in range(z.shape[0]):
        z[i] = x[i] + "1"


def test_a_product_equals_numpys(device: na.Device) -> None:
    draw = np.random.default_rng(1)
    x, y = (draw.integers(0, 9, (64, 64)).astype(np.float32) for _ in range(2))
    z = na.zeros((64, 64)).sync()
    for _ in range(2):
        product[(4, 4), (TILE, TILE)](z, x, y).sync()
        np.testing.assert_array_equal(host(z), x @ y)


def test_products_indices_are_not_tested_for_signs(
    monkeypatch: pytest.MonkeyPatch, device: na.Device
) -> None:
    def sign_tests(kernel: na.Launcher) -> int:
        tensors = [na.empty((64, 64)).sync() for _ in range(3)]
        ptx = kernel[(4, 4), (TILE, TILE)].explain(*tensors).ptx
        return len(re.findall(r"shr\.s64\s.*, 63;", ptx))

    unsigned = sign_tests(na.launcher(cuda.jit(product.py_func)))
    monkeypatch.setattr(unsigned_indices, "with_unsigned_indices", lambda _: None)
    assert unsigned < sign_tests(na.launcher(cuda.jit(product.py_func)))


def test_negative_indices_count_from_the_end(device: na.Device) -> None:
    x = np.arange(100, dtype=np.float32)
    z = na.zeros(50).sync()
    from_the_end[1, 32](z, x).sync()
    i = np.arange(50)
    np.testing.assert_array_equal(host(z), x[i - 3] + x[-1 - i] + x[-2])


def test_a_mistake_is_reported_in_the_original_kernel(device: na.Device) -> None:
    with pytest.raises(KernelCompileError, match=r'z\[i\] = x\[i\] \+ "1"') as refusal:
        mistyped[1, 1](na.zeros(4), na.zeros(4)).sync()
    assert "__numbasync_unsigned" not in str(refusal.value)


def test_a_changed_global_reaches_the_next_variant(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def scaled(z: na.KernelOutput):
        for i in range(z.shape[0]):
            z[i] = FACTOR

    global FACTOR
    results = []
    for dtype, factor in ((np.float32, 2), (np.float64, 3)):
        FACTOR = factor
        z = na.zeros(4, dtype).sync()
        scaled[1, 1](z).sync()
        results.append(host(z)[0])
    assert results == [2, 3]


FACTOR = 1
