"""Matrix products of any layout against float64, on whichever kernel the device gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import numbasync as na
from numbasync.errors import CallerError, DTypeError, ShapeError
from numbasync_kernels import nn
from numbasync_kernels.nn.gelu import gelu_reference
from numbasync_kernels.nn.split_tf32 import RIGHT, split_tf32
from tests.common import full

# Beside the unit of the result: sums of k products, rounded in float32 in an unknown order.
UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
SIZES = [(1, 1, 1), (64, 64, 64), (130, 70, 40), (33, 257, 72), (200, 129, 300), (5, 8, 1000)]


def normal(*shape: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def checked(
    got: Any, a: Any, b: Any, want: Any = None, operand_unit: float = 0.0, slope: float = 1.0
) -> None:
    """Compare a result with the product in float64, up to the bound of the docstring."""
    sizes = np.abs(a.astype(float)) @ np.abs(b.astype(float))
    exact = a.astype(float) @ b.astype(float) if want is None else want
    bound = slope * sizes * (a.shape[1] * 2.0**-23 + 2 * operand_unit)
    bound += np.abs(exact) * UNITS[str(got.dtype)] + 2.0**-24
    assert (np.abs(got - exact) <= 1.01 * bound).all(), (np.abs(got - exact) / bound).max()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("transposed", [full(False), True])
async def test_products(device: na.Device, size: tuple[int, int, int], transposed: bool) -> None:
    m, n, k = size
    for dtype in (np.float16, np.float32):
        a = normal(m, k, seed=1).astype(dtype)
        b = normal(k, n, seed=2).astype(dtype)
        left, right = await na.from_host(a), await na.from_host(np.ascontiguousarray(b.T))
        if not transposed:
            right = await na.dup(right.T)
        out = await na.full((m, n), np.nan, dtype)
        given = await nn.gemm(out, left, right.T if transposed else right)
        assert given.shape == (m, n)
        checked(await out.to_host(), a, b)


async def test_products_without_elements_or_terms(device: na.Device) -> None:
    for dtype in (np.float16, np.float32):
        for m, n, k in [(0, 5, 3), (4, 0, 3), (4, 5, 0)]:
            left, right = await na.zeros((m, k), dtype), await na.zeros((k, n), dtype)
            out = await na.full((m, n), 7, dtype)
            await nn.gemm(out, left, right)
            np.testing.assert_array_equal(await out.to_host(), np.zeros((m, n)))


async def test_products_of_float32_on_tensor_cores(device: na.Device) -> None:
    a = normal(70, 100, seed=1).astype(np.float32)
    b = normal(100, 90, seed=2).astype(np.float32)
    left, right = await na.from_host(a), await na.from_host(b)
    out = await na.full((70, 90), np.nan, np.float32)
    await nn.gemm(out, left, right, precision="tf32")
    checked(await out.to_host(), a, b, operand_unit=2.0**-10)


async def test_products_of_float32_as_three_of_tf32(device: na.Device) -> None:
    for m, n, k in [(70, 90, 101), (33, 64, 7)]:
        a, b = normal(m, k, seed=1).astype(np.float32), normal(k, n, seed=2).astype(np.float32)
        left, right = await na.from_host(a), await na.from_host(b)
        out = await na.full((m, n), np.nan, np.float32)
        await nn.gemm(out, left, right, precision="tf32x3")
        checked(await out.to_host(), a, b, operand_unit=2.0**-20)


async def test_an_operand_as_parts_that_tf32_holds(device: na.Device) -> None:
    x = normal(5, 9, seed=3).astype(np.float32)
    out = await na.full((5, 28), np.nan, np.float32)
    await split_tf32(out, x, RIGHT)
    parts = (await out.to_host())[:, :27].reshape(5, 3, 9)
    np.testing.assert_array_equal(parts[:, 0] + parts[:, 1], x)
    np.testing.assert_array_equal(parts[:, 0], parts[:, 2])
    assert not (parts[:, 0].copy().view(np.uint32) & 0x1FFF).any()
    assert not (await out.to_host())[:, 27].any()


async def test_products_of_bfloat16(device: na.Device) -> None:
    a = normal(70, 100, seed=1).astype(bfloat16)
    b = normal(100, 90, seed=2).astype(bfloat16)
    left, right = await na.from_host(a), await na.from_host(b)
    out = await na.full((70, 90), 7, bfloat16)
    await nn.gemm(out, left, right)
    checked((await out.to_host()), a, b)


@pytest.mark.parametrize("size", [(1, 1, 1), (33, 70, 40), (64, 32, 130)], ids=str)
async def test_products_of_int8_are_exact(device: na.Device, size: tuple[int, int, int]) -> None:
    m, n, k = size
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (k, n)))
    left, right = await na.from_host(a), await na.from_host(b.T.copy())
    out = await na.full((m, n), 7, np.int32)
    for given in (right.T, await na.dup(right.T)):
        await nn.gemm(out, left, given)
        np.testing.assert_array_equal(await out.to_host(), a.astype(int) @ b.astype(int))


@pytest.mark.full
async def test_views_at_any_place(device: na.Device) -> None:
    a = normal(50, 99, seed=1).astype(np.float16)
    b = normal(99, 77, seed=2).astype(np.float16)
    left, right = await na.from_host(a), await na.from_host(b)
    out = await na.full((40, 33), np.nan, np.float16)
    await nn.gemm(out, left[3:43, 1:60], right[5:64, 11:44])
    checked(await out.to_host(), a[3:43, 1:60], b[5:64, 11:44])


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
async def test_what_is_done_at_the_end(device: na.Device, activation: str | None) -> None:
    a, b = (normal(*s, seed=5).astype(np.float16) / 4 for s in [(67, 40), (40, 130)])
    bias = normal(130, seed=3).astype(np.float32)
    residual = normal(67, 130, seed=4).astype(np.float16)
    tensors = [await na.from_host(x) for x in (a, b, bias, residual)]
    out = await na.full((67, 130), np.nan, np.float32)
    await nn.gemm(out, *tensors[:2], bias=tensors[2], activation=activation, residual=tensors[3])
    want = a.astype(float) @ b.astype(float) + bias
    if activation == "relu":
        want = np.maximum(want, 0)
    if activation == "gelu":
        want = gelu_reference(want)
    want = want + residual
    got = await out.to_host()
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-5)
    np.testing.assert_allclose(nn.gemm_reference(a, b, bias, activation, residual), want)


def test_what_is_refused(device: na.Device) -> None:
    def zeros(*shape: int, dtype: Any = np.float16) -> na.Tensor:
        return na.zeros(shape, dtype).sync()

    out, a, b = zeros(4, 6), zeros(4, 5), zeros(5, 6)
    integers = zeros(4, 6, dtype=np.int32), zeros(4, 5, dtype=np.int8), zeros(5, 6, dtype=np.int8)
    for call, error, text in [
        (lambda: nn.gemm(out, b, a), ShapeError, "write"),
        (lambda: nn.gemm(out, a, zeros(5, 6, dtype=np.float32)), DTypeError, "equal"),
        (lambda: nn.gemm(zeros(4, 6, dtype=np.int32), a, b), DTypeError, "C-contiguous"),
        (lambda: nn.gemm(out, *integers[1:]), DTypeError, "C-contiguous tensor of int32"),
        (lambda: nn.gemm(*integers, activation="relu"), CallerError, "its sums are int32"),
        (lambda: nn.gemm(out, a, b, bias=zeros(5)), ShapeError, "bias"),
        (lambda: nn.gemm(out, a, b, residual=zeros(4, 5)), ShapeError, "residual"),
        (lambda: nn.gemm(out, a, b, activation="tanh"), CallerError, "'relu'"),
        (lambda: nn.gemm(out, a, b, precision="half"), CallerError, "tf32"),
    ]:
        with pytest.raises(error, match=text):
            call()
