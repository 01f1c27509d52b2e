"""Constant arrays, local arrays, and Horner's scheme."""

import numpy as np
from numba import cuda, float64, uint8

COEFFICIENTS = np.array([1.0, -2.0, 0.5, 3.0])
TABLE = np.arange(12, dtype=np.int32).reshape(3, 4)
KERNEL = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]], np.float32) / 16


@cuda.jit
def polynomial(x, out):
    c = cuda.const.array_like(COEFFICIENTS)
    i = cuda.grid(1)
    if i < x.size:
        value = 0.0
        for k in range(c.size - 1, -1, -1):
            value = value * x[i] + c[k]
        out[i] = value


@cuda.jit
def look_up(rows, columns, out):
    table = cuda.const.array_like(TABLE)
    i = cuda.grid(1)
    if i < out.size:
        out[i] = table[rows[i], columns[i]]


@cuda.jit
def medians(image, out):
    window = cuda.local.array(9, uint8)
    i, j = cuda.grid(2)
    if not (0 < i < image.shape[0] - 1 and 0 < j < image.shape[1] - 1):
        return
    for a in range(3):
        for b in range(3):
            window[3 * a + b] = image[i + a - 1, j + b - 1]
    for a in range(1, 9):
        held = window[a]
        b = a - 1
        while b >= 0 and window[b] > held:
            window[b + 1] = window[b]
            b -= 1
        window[b + 1] = held
    out[i, j] = window[4]


@cuda.jit
def convolve(image, out):
    k = cuda.const.array_like(KERNEL)
    i, j = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        s = float64(0)
        for a in range(3):
            for b in range(3):
                s += k[a, b] * image[i + a, j + b]
        out[i, j] = s


x = np.linspace(-1, 1, 40)
out = np.zeros(40)
polynomial[2, 32](x, out)
np.testing.assert_allclose(out, np.polynomial.polynomial.polyval(x, COEFFICIENTS))

rng = np.random.default_rng(2)
rows, columns = rng.integers(0, 3, 20), rng.integers(0, 4, 20)
found = np.zeros(20, np.int32)
look_up[1, 32](rows, columns, found)
np.testing.assert_array_equal(found, TABLE[rows, columns])

image = rng.integers(0, 256, (20, 24)).astype(np.uint8)
result = image.copy()
medians[(3, 3), (8, 8)](image, result)
windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3))
np.testing.assert_array_equal(result[1:-1, 1:-1], np.median(windows, (2, 3)).astype(np.uint8))
blurred = np.zeros((18, 22), np.float32)
convolve[(3, 3), (8, 8)](image, blurred)
np.testing.assert_allclose(blurred, (windows * KERNEL).sum((2, 3)), rtol=1e-5)
