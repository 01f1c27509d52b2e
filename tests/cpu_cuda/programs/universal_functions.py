"""Universal functions, also of generalised kind, on arrays of host and device."""

import math

import numpy as np
from numba import cuda, float32, guvectorize, int32, vectorize


@vectorize(["int32(int32, int32)", "float64(float64, float64)"], target="cuda")
def add(a, b):
    return a + b


@cuda.jit(device=True)
def polar_to_cartesian(rho, theta):
    return rho * math.cos(theta), rho * math.sin(theta)


@vectorize([float32(float32, float32, float32, float32)], target="cuda")
def polar_distance(rho1, theta1, rho2, theta2):
    x1, y1 = polar_to_cartesian(rho1, theta1)
    x2, y2 = polar_to_cartesian(rho2, theta2)
    return math.sqrt((x1 - x2) ** 2 + (y1 - y2) ** 2)


@guvectorize(
    ["void(float32[:,:], float32[:,:], float32[:,:])"], "(m,n),(n,p)->(m,p)", target="cuda"
)
def matmul(a, b, c):
    m, n = a.shape
    p = b.shape[1]
    for i in range(m):
        for j in range(p):
            c[i, j] = 0
            for k in range(n):
                c[i, j] += a[i, k] * b[k, j]


@guvectorize([(int32[:], int32[:], int32[:])], "(n),()->(n)", target="cuda")
def shift(x, by, out):
    for i in range(x.shape[0]):
        out[i] = x[i] + by[0]


x = np.arange(12, dtype=np.int32).reshape(3, 4)
np.testing.assert_array_equal(add(x, 3), x + 3)
np.testing.assert_array_equal(add(x, x[:1]), x + x[:1])
np.testing.assert_allclose(add(np.linspace(0, 1, 5), 0.5), np.linspace(0, 1, 5) + 0.5)
d_x = cuda.to_device(x)
d_out = cuda.device_array_like(x)
add(d_x, d_x, out=d_out)
np.testing.assert_array_equal(d_out.copy_to_host(), 2 * x)
assert add.reduce(np.arange(10, dtype=np.int32)) == 45

rng = np.random.default_rng(7)
rho, theta = rng.random((2, 50), dtype=np.float32)
zero = np.zeros(50, np.float32)
np.testing.assert_allclose(polar_distance(rho, theta, zero, zero), rho, rtol=1e-5, atol=1e-6)

a, b = rng.random((5, 3, 4), dtype=np.float32), rng.random((5, 4, 2), dtype=np.float32)
np.testing.assert_allclose(matmul(a, b), a @ b, rtol=1e-5)
np.testing.assert_array_equal(shift(x, np.int32(2)), x + 2)
