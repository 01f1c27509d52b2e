"""All the ways in which kernels and device functions are declared and configured."""

import functools
import pickle

import numpy as np
from numba import cuda, float32, float64, int32, njit, void
from numba.cuda import jit as cuda_jit
from numba.cuda.types import Array


def fill(a, v):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = v


kernels = [
    cuda.jit(fill),
    cuda.jit()(fill),
    cuda_jit(fill),
    cuda.jit(void(float64[:], float64))(fill),
    cuda.jit("(float64[:], float64)")(fill),
    cuda.jit((float64[::1], float64))(fill),
    cuda.jit(["void(float64[:], float64)", "void(int64[:], int64)"])(fill),
    cuda.jit(debug=True, opt=False)(fill),
    cuda.jit(fastmath={"contract"})(fill),
    cuda.jit(func_or_sig=fill),
    cuda.jit(device=False)(fill),
    cuda.jit(inline="never")(fill),
    cuda.jit(void(Array(float64, 1, "A"), float64))(fill),
    cuda.jit(launch_bounds=128)(fill),
    cuda.jit(launch_bounds=(128, 2))(fill),
    cuda.jit(lineinfo=True)(fill),
    cuda.jit(cache=False, max_registers=32)(fill),
]
for number, kernel in enumerate(kernels):
    a = np.zeros(7)
    kernel[1, 32](a, float(number))
    assert (a == number).all(), number
    assert kernel.py_func is fill and kernel.__name__ == "fill"
a = np.zeros(7)
kernel = kernels[0]
kernel[np.int32(1), np.array([32])[0]](a, 1)
kernel[(1,), (8,)](a, 2)
kernel[(1, 1, 1), (8, 1, 1), cuda.default_stream(), 0](a, 3)
kernel[1, 8, 0](a, 4)
kernel.configure(1, 8)(a, 5)
kernel.configure(1, 8, stream=0, sharedmem=1024)(a, 6)
kernel[(1.0).__int__(), 8](a, True)
assert (a == 1).all()
for wrong in (
    lambda: kernel(a, 1),
    lambda: kernel[1](a, 1),
    lambda: kernel[1, 8](a),
    lambda: kernel[1, 8]("text", 1),
    lambda: kernel[1, 8]([1.0, 2.0], 1),
):
    try:
        wrong()
    except (ValueError, TypeError, RuntimeError, Exception) as error:
        print(type(error).__name__, str(error).strip().splitlines()[0][:100])
    else:
        raise SystemExit("not refused")


@njit
def shared_function(x):
    return 3 * x + 1


@cuda.jit(device=True)
def powers(x, n=2):
    value = 1
    for _ in range(n):
        value *= x
    return value, -value


@cuda.jit
def calls(a, scale=2):
    i = cuda.grid(1)
    if i < a.size:
        up, down = powers(a[i])
        cube, _ = powers(a[i], n=3)
        a[i] = shared_function(up + down + cube) * scale


b = np.arange(5)
calls[1, 8](b, 2)
np.testing.assert_array_equal(b, (3 * np.arange(5) ** 3 + 1) * 2)


@functools.lru_cache
def kernel_for(n, dtype):
    @cuda.jit
    def inner(out):
        held = cuda.local.array(n, dtype)
        for k in range(n):
            held[k] = k * 0.5
        total = dtype(0)
        for k in range(n):
            total += held[k]
        out[cuda.grid(1)] = total

    return inner


for n, dtype in ((4, float32), (9, float64), (5, int32)):
    out = np.zeros(3)
    kernel_for(n, dtype)[1, 3](out)
    assert (out == sum(int(k / 2) if dtype is int32 else k / 2 for k in range(n))).all()


class Solver:
    rate = 3

    def __init__(self):
        @cuda.jit
        def step(a, n):
            for i in range(cuda.grid(1), n, cuda.gridsize(1)):
                a[i] += rate

        rate = self.rate
        self.step = step

    @cuda.jit
    def in_class(a):
        a[cuda.grid(1)] = 5


solver = Solver()
c = np.zeros(100)
solver.step[2, 16](c, 100)
Solver.in_class[1, 100](c[:100])
assert (c == 5).all()
pickle.loads(pickle.dumps(kernels[0]))[1, 8](a, 9)
assert (a == 9).all()


@cuda.jit
def many(a, pair, nested, names, flag, z):
    i = cuda.grid(1)
    if i < a.size and flag:
        a[i] = pair[0][i] + pair[1] + nested[0][1] + nested[1][0][i] + z.real + names


x = np.ones(4)
many[1, 8](x, (x.copy(), 2), ((1, 2.5), (np.arange(4),)), 1, np.bool_(True), 1 + 2j)
np.testing.assert_array_equal(x, 7.5 + np.arange(4))
print("forms")
