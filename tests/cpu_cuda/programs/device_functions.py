"""Functions for kernels: of several results, factories, constants, defaults, tuples."""

import math
from functools import lru_cache

import numpy as np
from numba import cuda

WEIGHTS = np.array([0.25, 0.5, 0.25])
SCALE = 3
NAMES = ("a", "b")


@cuda.jit(device=True)
def divide(a, b):
    return a // b, a % b


@cuda.jit("float64(float64, float64)", device=True)
def norm(x, y):
    return math.hypot(x, y)


@cuda.jit(device=True)
def clamp(value, low=0.0, high=1.0):
    return min(max(value, low), high)


@lru_cache
def power_kernel(exponent):
    @cuda.jit
    def raise_all(a):
        i = cuda.grid(1)
        if i < a.size:
            a[i] = a[i] ** exponent * SCALE

    return raise_all


@cuda.jit
def divide_all(a, b, quotients, rests):
    i = cuda.grid(1)
    if i < a.size:
        quotients[i], rests[i] = divide(a[i], b)


@cuda.jit
def smooth(x, out):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        total = 0.0
        for k in range(3):
            total += WEIGHTS[k] * x[i + k - 1]
        out[i] = clamp(total)


@cuda.jit
def of_tuples(pair, shape, out):
    i = cuda.grid(1)
    x, y = pair
    if i < shape[0]:
        out[i] = norm(x[i], y[i]) + shape[1]


a = np.arange(-20, 20)
quotients, rests = np.zeros_like(a), np.zeros_like(a)
divide_all[2, 32](a, 7, quotients, rests)
np.testing.assert_array_equal(quotients, a // 7)
np.testing.assert_array_equal(rests, a % 7)

for exponent in (2, 3):
    b = np.arange(6)
    power_kernel(exponent)[1, 32](b)
    np.testing.assert_array_equal(b, SCALE * np.arange(6) ** exponent)

x = np.random.default_rng(8).random(50) * 3 - 1
out = np.zeros(50)
smooth[1, 64](x, out)
np.testing.assert_allclose(out[1:-1], np.clip(np.convolve(x, WEIGHTS, "valid"), 0, 1))

y = np.random.default_rng(9).random(50)
of_tuples[1, 64]((cuda.to_device(x), cuda.to_device(y)), (50, 2), out)
np.testing.assert_allclose(out, np.hypot(x, y) + 2)
