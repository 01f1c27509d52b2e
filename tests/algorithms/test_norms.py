"""Rows by their mean and variance, and by their mean square, against wider numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms.norms import norm_kernel
from numbasync.algorithms.softmaxes import KEPT, threads_of
from numbasync.errors import CallerError, DTypeError, NumbasyncError, ShapeError
from tests.common import full, host, put

RNG = np.random.default_rng(46)
UNITS = {"float16": 2.0**-24, "float32": 2.0**-24, "float64": 2.0**-53}


def compare(x: np.ndarray, eps: float = 1e-5) -> None:
    n = x.shape[-1]
    scale, shift = RNG.standard_normal((2, n)).astype(np.float32)
    u, terms = UNITS[x.dtype.name], n / threads_of(n)[0]
    half = np.finfo(x.dtype).eps / 2
    wide = x.astype(np.longdouble)
    away = wide - wide.mean(-1, keepdims=True)
    size = np.sqrt(np.square(away).mean(-1, keepdims=True) + eps)
    z = away / size
    worst = 1 + abs(wide).max(-1, keepdims=True) / size
    bound = (terms + 44) * u * abs(scale) * (1 + abs(z)) * worst + 2 * u * abs(shift)
    expected = z * scale + shift
    got = host(algorithms.layer_norm(put(x), put(scale), put(shift), eps=eps))
    assert got.dtype == x.dtype and got.shape == x.shape
    assert (abs(got - expected) <= bound + half * abs(expected)).all()
    expected = wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + eps) * scale
    got = host(algorithms.rms_norm(put(x), scale, eps=eps))
    tiny = np.finfo(x.dtype).smallest_subnormal
    assert (abs(got - expected) <= ((terms / 2 + 24) * u + half) * abs(expected) + tiny).all()


@pytest.mark.parametrize("n", [1, 33, full(512), 513, full(4097), full(KEPT + 1)])
def test_sizes(device: na.Device, n: int) -> None:
    compare((RNG.standard_normal((3, n)) * 3 + 1).astype(np.float32))


@pytest.mark.parametrize("dtype", [full("float16"), "float64"])
def test_dtypes(device: na.Device, dtype: str) -> None:
    compare((RNG.standard_normal((2, 9, 100)) * 3).astype(dtype))


def test_without_scale(device: na.Device) -> None:
    x = np.array([3.0, -4.0], np.float32)
    np.testing.assert_allclose(host(algorithms.layer_norm(put(x))), [1, -1], rtol=1e-5)
    expected = x / np.sqrt(12.5)
    np.testing.assert_allclose(host(algorithms.rms_norm(put(x))), expected, rtol=1e-6)
    shifted = host(algorithms.layer_norm(put(x), shift=np.ones(2, np.float32)))
    np.testing.assert_allclose(shifted, [2, 0], atol=1e-5)


def test_no_elements(device: na.Device) -> None:
    assert host(algorithms.layer_norm(np.zeros((0, 3)))).shape == (0, 3)
    assert host(algorithms.rms_norm(np.zeros((3, 0)))).shape == (3, 0)


ONES = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: algorithms.layer_norm(x, ONES[:2]), ShapeError, r"write one of \(3,\)"),
        (lambda x: algorithms.layer_norm(x, None, ONES > 0), DTypeError, "with shift of bool"),
        (lambda x: algorithms.rms_norm(x.astype(int)), DTypeError, "write floats"),
        (lambda x: algorithms.rms_norm(x, eps=0), CallerError, "a number above 0"),
        (lambda x: algorithms.layer_norm(x, eps="small"), CallerError, "a number above 0"),
    ],
)
def test_refused_at_once(call: Any, error: type[NumbasyncError], words: str) -> None:
    with pytest.raises(error, match=words):
        call(np.ones((2, 3), np.float32))


@pytest.mark.full
def test_no_races(device: na.Device) -> None:
    """The kernel, under the race finder."""
    dtype = np.dtype(np.float32)
    for n, threads, each in ((40, 32, 4), (600, 256, 4), (600, 256, 0)):
        x = RNG.standard_normal((2, n)).astype(np.float32)
        kernel = norm_kernel(dtype, None, None, threads, each, True)

        def expected(*args: Any, x: np.ndarray = x) -> Any:
            away = x - x.mean(1, keepdims=True)
            return (away / np.sqrt(np.square(away).mean(1, keepdims=True) + 1e-5),)

        na.testing.check_kernel(
            kernel, (np.zeros_like(x), x, x[0], x[0], 1e-5), expected,
            grid=1 if threads == 32 else 2, block=256, rtol=1e-4, atol=1e-5,
        )  # fmt: skip
