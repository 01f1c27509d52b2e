"""Times, half precision, complex numbers, booleans, and enumerations as arguments."""

import enum

import numpy as np
from numba import cuda, types


class Mode(enum.IntEnum):
    ADD = 1
    SUBTRACT = 2


@cuda.jit
def gaps(times, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = times[i + 1] - times[i]


@cuda.jit([types.void(types.NPDatetime("D")[:], types.NPTimedelta("D"), types.boolean[:])])
def is_later(days, limit, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = days[i] - days[0] > limit


@cuda.jit
def halves(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] * a[i] + np.float16(1)


@cuda.jit
def rotate(z, by, flags):
    i = cuda.grid(1)
    if i < z.size:
        flags[i] = z[i].real > 0
        z[i] = z[i] * by


@cuda.jit
def combine(a, b, mode, out):
    i = cuda.grid(1)
    if i < out.size:
        if mode == Mode.ADD:
            out[i] = a[i] + b[i]
        elif mode == Mode.SUBTRACT:
            out[i] = a[i] - b[i]


days = np.array(["2020-01-01", "2020-01-05", "2020-03-01"], "datetime64[D]")
between = np.zeros(2, "timedelta64[D]")
gaps[1, 32](days, between)
np.testing.assert_array_equal(between, np.diff(days))
later = np.zeros(3, np.bool_)
is_later[1, 32](days, np.timedelta64(10, "D"), later)
assert later.tolist() == [False, False, True]

half = np.arange(5, dtype=np.float16)
found = np.zeros_like(half)
halves[1, 32](half, found)
np.testing.assert_array_equal(found, half * half + 1)
z = np.array([1 + 2j, -3j, 2], np.complex64)
flags = np.zeros(3, np.bool_)
rotated = z * 1j
rotate[1, 32](z, 1j, flags)
np.testing.assert_allclose(z, rotated)
assert flags.tolist() == [True, False, True]
x, y = np.arange(4), np.arange(4) ** 2
out = np.zeros(4, np.int64)
combine[1, 32](x, y, Mode.SUBTRACT, out)
np.testing.assert_array_equal(out, x - y)
combine[1, 32](x, y, Mode.ADD, out)
np.testing.assert_array_equal(out, x + y)
