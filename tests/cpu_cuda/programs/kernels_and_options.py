"""Kernels with options and signatures, in classes and closures; what can be asked of them."""

import numpy as np
from numba import cuda, float32, float64, int32, int64, void


@cuda.jit("void(float64[:], float64)", fastmath=True, lineinfo=True)
def declared(a, value):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += value


@cuda.jit([void(int32[:], int32), void(float32[:], float32)], max_registers=64)
def several(a, value):
    i = cuda.grid(1)
    if i < a.shape[0]:
        a[i] = value


@cuda.jit(cache=True, opt=True)
def lazy(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 1


@cuda.jit(int64(int64, int64), device=True, forceinline=True)
def larger(a, b):
    return a if a > b else b


@cuda.jit(device=True)
def greatest_divisor(a, b):
    while b:
        a, b = b, a % b
    return larger(a, b)


@cuda.jit
def divisors(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = greatest_divisor(a[i], b[i])


class Model:
    """A class that has kernels, and arrays on the device."""

    def __init__(self, n):
        self.state = cuda.to_device(np.zeros(n))
        self.grid = (n + 31) // 32, 32

    @staticmethod
    @cuda.jit
    def advance(state, by):
        i = cuda.grid(1)
        if i < state.size:
            state[i] += by

    def run(self, steps):
        kernel = self.advance[self.grid]
        for step in range(steps):
            kernel(self.state, step)
        return self.state.copy_to_host()


def made(function):
    """A kernel that applies a function."""
    inner = cuda.jit(device=True)(function)

    @cuda.jit
    def apply(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = inner(x[i])

    return apply


a = np.zeros(10)
declared[1, 32](a, 2)  # an integer for a declared float
declared[1, 32](a, np.float32(0.5))
assert (a == 2.5).all()
b, c = np.zeros(4, np.int32), np.zeros(4, np.float32)
several[1, 4](b, 3)
several[1, 4](c, 1.5)
assert (b == 3).all() and (c == 1.5).all()
assert len(several.overloads) == 2 and len(several.signatures) == 2
for dtype in (np.int8, np.uint16, np.float32, np.complex128):
    d = np.ones(5, dtype)
    lazy[1, 32](d)
    assert (d == 2).all()
lazy.forall(5, tpb=64)(d)
assert (d == 3).all() and lazy.py_func.__name__ == "lazy" and "lazy" in repr(lazy)

x, y = np.arange(1, 40), np.arange(40, 1, -1)
out = np.zeros(39, np.int64)
divisors[2, 32](x, y, out)
np.testing.assert_array_equal(out, np.gcd(x, y))

assert (Model(70).run(5) == 10).all()
v, found = np.arange(6.0), np.zeros(6)
made(lambda t: t * t)[1, 32](v, found)
np.testing.assert_array_equal(found, v * v)
made(lambda t: t if t > 2 else -t)[1, 32](v, found)
np.testing.assert_array_equal(found, np.where(v > 2, v, -v))

block = 16, 2
grid = tuple(int(np.ceil(n / b)) for n, b in zip((20, 3), block))
assert grid == (2, 2)
lazy[np.int64(1), (np.int32(8), 1, 1)](d)
assert cuda.runtime is not None and float64 is not None
try:
    lazy[1, 2048](d)
except Exception as error:
    assert "1024" in str(error) or "INVALID" in str(error), error
else:
    raise SystemExit("too many threads")
