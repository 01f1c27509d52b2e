"""Reductions against NumPy: each operator, axis and dtype, and sizes around a kernel's bounds."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms.operators import OPERATORS
from numbasync.algorithms.reduce_kernels import EACH, THREADS, block_of
from numbasync.dtypes import of_name
from numbasync.errors import (
    CallerError,
    DTypeError,
    KernelCompileError,
    NumbasyncError,
    OperationError,
    ShapeError,
)
from tests.common import full, host, mostly_full, put

CHUNK = THREADS * EACH
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
RNG = np.random.default_rng(46)


def numbers(shape: Any, dtype: str = "float32") -> np.ndarray:
    """Numbers of both signs and of a few sizes, each exact in every dtype of the kind."""
    if dtype == "bool":
        return RNG.random(shape) < 0.7
    whole = RNG.integers(0 if dtype.startswith("u") else -9, 10, shape)
    if dtype.startswith("c"):
        whole = whole + 1j * RNG.integers(-9, 10, shape)
    return (whole / 4 if dtype.startswith("f") else whole).astype(dtype)


def reference(op: str, x: np.ndarray, axis: Any = None, keepdims: bool = False) -> Any:
    if op == "norm":
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        return np.sqrt((abs(wide) ** 2).sum(axis=axis, keepdims=keepdims)).astype(
            x.real.dtype if x.dtype.kind in "fc" else np.float64
        )
    if x.dtype == np.float16 and op in ("var", "std", "mean"):
        return getattr(np, op)(x.astype(np.float32), axis=axis, keepdims=keepdims).astype(x.dtype)
    return getattr(np, op)(x, axis=axis, keepdims=keepdims)


def compare(op: str, x: np.ndarray, axis: Any = None, keepdims: bool = False) -> None:
    result = algorithms.reduce(put(x), op, axis, keepdims)
    got, expected = host(result), np.asarray(reference(op, x, axis, keepdims))
    assert got.shape == expected.shape and got.dtype == expected.dtype
    rtol = 2e-3 if x.dtype == np.float16 else 2e-6
    if op in ("var", "std") and x.dtype != np.float16:
        rtol = 46 * 2**-24 * 7  # two levels of `reduce`'s bound, with a mean below the deviation
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol / 8)


@pytest.mark.parametrize("n", [9, 16, full(64), full(65), 128, full(256), full(512)])
def test_rows_of_a_warp(device: na.Device, n: int) -> None:
    compare("sum", numbers((11, n)), axis=1)


@pytest.mark.parametrize("n", [1, 2, 8, 513, 1000, 1009, CHUNK, CHUNK + 1, 4 * CHUNK, 100_003])
@pytest.mark.full
def test_sizes(device: na.Device, n: int) -> None:
    for op in ("sum", "argmin"):
        compare(op, numbers(n))
        compare(op, numbers((3, n)), axis=1)
    assert 8 < block_of(9, 1).chunk < 513  # the sizes lie on both sides of each kernel's bounds


@pytest.mark.full
def test_three_levels(device: na.Device) -> None:
    x = np.zeros(CHUNK * CHUNK + 1, np.int8)
    x[[0, 5, CHUNK * CHUNK]] = 1, 2, 7
    assert host(algorithms.sum(put(x))) == 10
    assert host(algorithms.argmax(put(x))) == CHUNK * CHUNK


@pytest.mark.parametrize("columns", [1, 2, 8, 9, 32, 33, 100])
@pytest.mark.full
def test_columns(device: na.Device, columns: int) -> None:
    for n in (1, 7, 128, 129, 1025):
        compare("sum", numbers((2, n, columns)), axis=1)
    compare("argmax", numbers((2, 300, columns)), axis=1)
    compare("var", numbers((2, 300, columns)), axis=1)


@pytest.mark.parametrize(
    "axis", mostly_full([None, 0, 1, 2, -1, (0, 1), (1, 2), (0, 2), (2, 0), ()], 1)
)
def test_axes(device: na.Device, axis: Any) -> None:
    x = numbers((3, 20, 1))
    compare("sum", x, axis)
    compare("sum", x, axis, keepdims=True)
    if not isinstance(axis, tuple):
        compare("argmax", x, axis, keepdims=True)


@pytest.mark.parametrize("op", [full(op) for op in OPERATORS])
def test_operators(device: na.Device, op: str) -> None:
    compare(op, numbers((3, 20)), axis=1)
    compare(op, numbers((3, 9000)))
    if op not in ("argmin", "argmax"):
        compare(op, numbers((3, 20, 5)), axis=(0, 2))


@pytest.mark.parametrize("dtype", [full(d) for d in (*INTEGERS, *FLOATS, "bool")])
def test_dtypes(device: na.Device, dtype: str) -> None:
    x = numbers((3, 20), dtype)
    for op in OPERATORS:
        if op not in ("var", "std") or dtype != "bool":
            compare(op, x, axis=1)
    wrapped = np.full((1, 20), np.iinfo(dtype).max if x.dtype.kind in "iu" else 1, dtype)
    with np.errstate(over="ignore"):
        compare("sum", wrapped, axis=1)
        compare("prod", wrapped, axis=1)
    compare("min", wrapped, axis=1)


@pytest.mark.parametrize("dtype", [full("complex64"), full("complex128")])
def test_complex_numbers(device: na.Device, dtype: str) -> None:
    x = numbers((3, 20), dtype)
    for op in ("sum", "prod", "mean", "any", "all", "count_nonzero", "norm"):
        compare(op, x, axis=1)


@pytest.mark.full
def test_bfloat16(device: na.Device) -> None:
    x = numbers((3, 20))
    for op in ("sum", "max", "argmax", "mean"):
        got = host(algorithms.reduce(put(x.astype(of_name("bfloat16"))), op, 1))
        expected = reference(op, x, 1)
        if op != "argmax":
            expected = expected.astype(of_name("bfloat16"))
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def test_nan_wins(device: na.Device) -> None:
    x = np.array([[3, np.nan, -np.inf, np.nan], [np.inf, -1, -np.inf, np.inf]], np.float32)
    x = np.repeat(x, 5, axis=1)
    compare("argmax", x, axis=1)


@pytest.mark.parametrize("dtype", [full(d) for d in FLOATS])
def test_special_numbers(device: na.Device, dtype: str) -> None:
    rows = [
        [3, np.nan, -1, 5],
        [np.inf, 1, 2, 3],
        [np.inf, -np.inf, 1, 1],
        [-0.0, -0.0, -0.0, -0.0],
    ]
    x = np.array(rows, dtype)
    for op in OPERATORS:
        with np.errstate(all="ignore"):
            if op != "norm":
                np.testing.assert_array_equal(
                    host(algorithms.reduce(put(x), op, 1)), reference(op, x, 1), err_msg=op
                )
    signs = np.signbit(host(algorithms.sum(put(x), axis=1)))
    assert signs[3], "a sum of negative zeros is one"


@pytest.mark.full
def test_variance_beside_a_large_mean(device: na.Device) -> None:
    x = numbers(20_000) + np.float32(2**12)
    exact = x.astype(np.float64)
    # What reduce states, of two levels; a difference of sums would have an error of about one half.
    rtol = 46 * 2**-24 * (6 + 2**12 / exact.std())
    np.testing.assert_allclose(host(algorithms.var(put(x))), exact.var(), rtol=rtol)
    np.testing.assert_allclose(host(algorithms.var(put(x), ddof=1)), exact.var(ddof=1), rtol=rtol)


def test_no_elements(device: na.Device) -> None:
    for op, expected in (("sum", 0), ("prod", 1), ("any", 0), ("all", 1), ("norm", 0)):
        got = host(algorithms.reduce(put(np.empty((3, 0), np.float32)), op, 1))
        assert got.tolist() == [expected] * 3
        assert host(algorithms.reduce(put(np.empty((0, 3), np.int8)), op, 1)).shape == (0,)
    assert np.isnan(host(algorithms.mean(put(np.empty(0)))))
    for op in ("min", "max", "argmin", "argmax"):
        with pytest.raises(ShapeError, match="of no elements"):
            algorithms.reduce(put(np.empty((3, 0))), op)
        assert host(algorithms.reduce(put(np.empty((0, 3))), op, 1)).shape == (0,)


def test_not_contiguous(device: na.Device) -> None:
    x = numbers((20, 11))
    t = put(x)
    got = host(algorithms.sum(t.T, axis=1))
    np.testing.assert_allclose(got, x.sum(axis=0), rtol=1e-6)
    np.testing.assert_allclose(
        host(algorithms.sum(t[::2].T, axis=1)), x[::2].sum(axis=0), rtol=1e-6
    )


def further(a, b):
    return a if abs(a) > abs(b) else b


def test_an_operator_of_the_user(device: na.Device) -> None:
    x = numbers((5, 30), "int32")
    got = host(algorithms.reduce(put(x), further, axis=1))
    assert (abs(got) == abs(x).max(axis=1)).all() and got.dtype == x.dtype
    nothing = algorithms.reduce(put(x[:, :0]), further, axis=1, initial=4)
    assert host(nothing).tolist() == [4] * 5
    with pytest.raises(ShapeError, match="write initial="):
        algorithms.reduce(x[:, :0], further, axis=1)


@pytest.mark.parametrize("op", [max, np.bitwise_or])
def test_what_kernels_know_is_an_operator(device: na.Device, op: Any) -> None:
    x = np.random.default_rng(2).integers(0, 1000, 500).astype(np.int32)
    assert algorithms.reduce(x, op).item().sync() == reduce(op, x.tolist())


def test_a_function_that_cannot_compile_is_named(device: na.Device) -> None:
    with pytest.raises(KernelCompileError, match="reduce by gcd: it takes two numbers"):
        algorithms.reduce(np.arange(3, dtype=np.int32), math.gcd).sync()


def test_operands_are_operations_and_arrays(device: na.Device) -> None:
    x = numbers((4, 12))
    expected = x.sum(axis=1)
    for given in (x, na.from_host(x), put(x).shared(), put(x).partition((1, 12))):
        got = host(algorithms.sum(given, axis=1))
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_the_bits_are_those_of_every_run(device: na.Device) -> None:
    x = RNG.standard_normal((4, 500)).astype(np.float32)
    t = put(x)
    rows = host(algorithms.sum(t, axis=1))
    alone = [host(algorithms.sum(t[i : i + 1], axis=1))[0] for i in range(4)]  # other grids
    assert rows.tobytes() == np.array(alone).tobytes()
    # The tree that the kernels' module states: 32 threads, 16 elements each, four neighbours at a
    # time, in four sums; then halves.
    whole = RNG.standard_normal((4, 32 * EACH)).astype(np.float32)
    rows = host(algorithms.sum(put(whole), axis=1))
    each = whole.reshape(4, EACH // 4, 32, 4)
    fours = each[:, 0].copy()
    for k in range(1, EACH // 4):
        fours += each[:, k]
    sums = (fours[..., 0] + fours[..., 1]) + (fours[..., 2] + fours[..., 3])
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    assert rows.tobytes() == sums[:, 0].tobytes()


def test_in_a_graph(device: na.Device) -> None:
    x = put(np.ones((3, 40), np.float32))
    op = algorithms.sum(x, axis=1)
    host(algorithms.sum(x, axis=1))  # compiled beforehand
    graph = op.graph()
    z = graph.take_output()
    assert z is not None
    na.fill(x, 2.0).sync()
    graph.launch().sync()
    assert host(z).tolist() == [80] * 3


def test_runs_where_its_tensor_is(device: na.Device) -> None:
    others = [d for d in na.devices(device.kind) if d is not device]
    if not others:
        pytest.skip("one device of this kind")
    with na.use_device(others[0]):
        x = put(numbers((3, 20)))
    assert algorithms.sum(x, axis=1).sync().device is others[0]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: algorithms.sum(x, axis=2), ShapeError, "axis 2, of 2 axes"),
        (lambda x: algorithms.sum(x, axis=(0, -2)), ShapeError, "twice"),
        (lambda x: algorithms.sum(x, axis="x"), ShapeError, "whole number"),
        (lambda x: algorithms.argmax(x, axis=(0, 1)), ShapeError, "one axis"),
        (lambda x: algorithms.reduce(x, "median"), CallerError, "write one of sum"),
        (lambda x: algorithms.reduce(x, 3), CallerError, "a function of two numbers"),
        (lambda x: algorithms.reduce(x, "sum", initial=1), CallerError, "leave it out"),
        (lambda x: algorithms.sum(x, keepdims=1), CallerError, "True or False"),
        (lambda x: algorithms.var(x, ddof=-1), CallerError, "ddof"),
        (lambda x: algorithms.min(x.astype(complex)), DTypeError, "no order"),
        (lambda x: algorithms.reduce(x > 0, further), DTypeError, "convert it"),
        (lambda x: algorithms.sum([1, 2]), OperationError, "takes a tensor"),
    ],
)
def test_refused_at_once(call: Any, error: type[NumbasyncError], words: str) -> None:
    with pytest.raises(error, match=words):
        call(np.ones((2, 3), np.float32))


@pytest.mark.full
def test_no_races(device: na.Device) -> None:
    """The kernel, under the race finder."""
    from numbasync.algorithms.operators import named
    from numbasync.algorithms.reduce_kernels import reduce_kernel

    operator = named("sum", np.dtype(np.float32))
    for n, columns in ((300, 1), (1024, 1), (50, 5)):
        block = block_of(n, columns)
        kernel = reduce_kernel(
            operator.states, operator.lift, operator.combine, operator.finish, block, True, True,
            operator.out,
        )  # fmt: skip
        axis = 2 if columns == 1 else 1  # as the kernel sees rows of one column
        x = numbers((2, 1, n) if columns == 1 else (2, n, columns))
        z = np.zeros((2, 1, columns), np.float32)

        def expected(*args: Any, x: np.ndarray = x, axis: int = axis) -> Any:
            return (x.sum(axis=axis, keepdims=True),) * 3

        grid = -(-columns // block.columns) * -(-2 // block.rows)
        na.testing.check_kernel(
            kernel,
            (z, z, z, x, x, x, n, 0),
            expected,
            grid=grid,
            block=THREADS,
            rtol=1e-5,
            atol=1e-5,
        )
