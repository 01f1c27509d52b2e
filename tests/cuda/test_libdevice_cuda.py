"""Functions of libdevice that the CPU device does not have."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import libdevice

import numbasync as na
from tests.both.test_cuda_math import nearest

pytestmark = pytest.mark.cuda


def host(tensor: Any) -> np.ndarray:
    return tensor.to_host().sync()


# --- libdevice ---


def test_libdevice_of_integers(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def integers(z: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = libdevice.mulhi(a[i], b[i])
        z[i, 1] = libdevice.hadd(a[i], b[i])
        z[i, 2] = libdevice.rhadd(a[i], b[i])
        z[i, 3] = libdevice.sad(a[i], b[i], np.uint32(7))
        z[i, 4] = libdevice.popc(a[i])
        z[i, 5] = libdevice.clz(b[i])
        z[i, 6] = libdevice.byte_perm(a[i], b[i], 0x5140)
        z[i, 7] = libdevice.mul24(a[i] % 1000, b[i] % 1000)

    a, b = np.random.default_rng(7).integers(-(2**31), 2**31, (2, 40)).astype(np.int32)
    z = na.zeros((40, 8), np.int64).sync()
    integers[1, 40](z, a, b).sync()
    got = host(z).T
    p, q = a.astype(object), b.astype(object)
    np.testing.assert_array_equal(got[0], [int(v) >> 32 for v in p * q])
    np.testing.assert_array_equal(got[1], [int(v) >> 1 for v in p + q])
    np.testing.assert_array_equal(got[2], [int(v) + 1 >> 1 for v in p + q])
    np.testing.assert_array_equal(got[3] % 2**32, [(abs(int(v)) + 7) % 2**32 for v in p - q])
    np.testing.assert_array_equal(got[4], [(int(v) % 2**32).bit_count() for v in p])
    np.testing.assert_array_equal(got[5], [32 - (int(v) % 2**32).bit_length() for v in q])
    low, high = a.view(np.uint8).reshape(40, 4), b.view(np.uint8).reshape(40, 4)
    picked = np.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]], axis=1)
    np.testing.assert_array_equal(got[6] % 2**32, picked.copy().view(np.uint32).ravel())
    np.testing.assert_array_equal(got[7], [(int(v) % 1000) * (int(w) % 1000)
                                           for v, w in zip(a, b, strict=True)])  # fmt: skip


def test_libdevice_of_floats(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def floats(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0], z[i, 1] = libdevice.sincos(x[i])
        z[i, 2] = libdevice.rsqrt(y[i])
        z[i, 3] = libdevice.exp10(x[i])
        z[i, 4] = libdevice.sinpi(x[i])
        z[i, 5] = libdevice.normcdf(x[i])
        z[i, 6] = libdevice.fdim(x[i], y[i])
        z[i, 7] = libdevice.saturatef(np.float32(x[i]))
        z[i, 8] = libdevice.ddiv_rd(x[i], y[i])
        z[i, 9] = libdevice.ddiv_ru(x[i], y[i])
        z[i, 10] = libdevice.double2int_rn(x[i] * 3)
        z[i, 11] = libdevice.double_as_longlong(x[i]) >> 52
        z[i, 12] = libdevice.fma_rn(x[i], y[i], -1.0)
        z[i, 13] = libdevice.rint(y[i] * 4)

    x, y = np.random.default_rng(8).uniform(0.05, 0.95, (2, 64))
    x[::3] *= -1
    z = na.zeros((64, 14), np.float64).sync()
    floats[2, 32](z, x, y).sync()
    got = host(z).T
    near = [np.sin(x), np.cos(x), 1 / np.sqrt(y), 10**x, np.sin(np.pi * x),
            [math.erfc(-v / math.sqrt(2)) / 2 for v in x]]  # fmt: skip
    np.testing.assert_allclose(got[:6], near, rtol=1e-14)
    np.testing.assert_array_equal(got[6], np.maximum(x - y, 0))
    np.testing.assert_array_equal(got[7], np.clip(x.astype(np.float32), 0, 1))
    ratios = [Fraction(p) / Fraction(q) for p, q in zip(x.tolist(), y.tolist(), strict=True)]
    for down, up, ratio in zip(got[8], got[9], ratios, strict=True):
        assert Fraction(float(down)) <= ratio <= Fraction(float(up))
        assert up in (down, np.nextafter(down, np.inf))
    np.testing.assert_array_equal(got[10], np.rint(x * 3))
    np.testing.assert_array_equal(got[11], x.view(np.int64) >> 52)
    fused = [nearest(Fraction(p) * Fraction(q) - 1, np.float64)
             for p, q in zip(x.tolist(), y.tolist(), strict=True)]  # fmt: skip
    np.testing.assert_array_equal(got[12], fused)
    np.testing.assert_array_equal(got[13], np.rint(y * 4))
