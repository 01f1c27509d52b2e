"""Shared memory of a size that the launch says, for several arrays."""

import numpy as np
from numba import cuda, float32, float64, int32


@cuda.jit
def reverse(d):
    s = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    tr = d.size - t - 1
    s[t] = d[t]
    cuda.syncthreads()
    d[t] = s[tr]


@cuda.jit
def two_arrays(x, y, out, n):
    f32 = cuda.shared.array(0, dtype=float32)
    i32 = cuda.shared.array(0, dtype=int32)[n:]  # behind the floats, whose size is the same
    t = cuda.threadIdx.x
    f32[t] = x[t]
    i32[t] = y[t]
    cuda.syncthreads()
    k = n - 1 - t
    out[t] = f32[k] * i32[k]


@cuda.jit
def mean_of_neighbours(x, out, radius):
    tile = cuda.shared.array(0, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    width = cuda.blockDim.x
    for k in range(t, width + 2 * radius, width):
        j = cuda.blockIdx.x * width + k - radius
        tile[k] = x[min(max(j, 0), x.size - 1)]
    cuda.syncthreads()
    if i < x.size:
        total = 0.0
        for k in range(2 * radius + 1):
            total += tile[t + k]
        out[i] = total / (2 * radius + 1)


data = np.arange(64, dtype=np.int32)
reverse[1, 64, 0, 64 * 4](data)
np.testing.assert_array_equal(data, np.arange(64)[::-1])

x, y = np.random.default_rng(1).random(32, dtype=np.float32), np.arange(32, dtype=np.int32)
out = np.zeros(32, np.float32)
two_arrays[1, 32, cuda.default_stream(), 2 * 32 * 4](x, y, out, 32)
np.testing.assert_array_equal(out, (x * y.astype(np.float32))[::-1])

wave = np.sin(np.arange(100.0))
found = np.zeros(100)
mean_of_neighbours[4, 32, 0, (32 + 6) * 8](wave, found, 3)
padded = np.pad(wave, 3, "edge")
np.testing.assert_allclose(found, np.convolve(padded, np.ones(7) / 7, "valid"))
