"""Histograms: atomics on global memory, and on a block's own in shared memory."""

import numpy as np
from numba import cuda, int32

BINS = 64


@cuda.jit
def histogram(x, xmin, xmax, out):
    nbins = out.shape[0]
    width = (xmax - xmin) / nbins
    start = cuda.grid(1)
    stride = cuda.gridsize(1)
    for i in range(start, x.shape[0], stride):
        number = np.int32((x[i] - xmin) / width)
        if 0 <= number < nbins:
            cuda.atomic.add(out, number, 1)


@cuda.jit
def shared_histogram(values, out):
    local = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    for b in range(t, BINS, cuda.blockDim.x):
        local[b] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    while i < values.size:
        cuda.atomic.add(local, values[i], 1)
        i += cuda.gridsize(1)
    cuda.syncthreads()
    for b in range(t, BINS, cuda.blockDim.x):
        cuda.atomic.add(out, b, local[b])


@cuda.jit
def extremes(x, low, high):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.min(low, 0, x[i])
        cuda.atomic.max(high, 0, x[i])


rng = np.random.default_rng(3)
x = rng.normal(size=5000).astype(np.float32)
d_x = cuda.to_device(x)
low, high = (
    cuda.to_device(np.array([np.inf], np.float32)),
    cuda.to_device(np.array([-np.inf], np.float32)),
)
extremes[8, 64](d_x, low, high)
assert low.copy_to_host()[0] == x.min() and high.copy_to_host()[0] == x.max()

out = np.zeros(10, np.int32)
histogram[8, 64](d_x, np.float32(-2), np.float32(2), out)
numbers = ((x - np.float32(-2)) / (np.float32(4) / 10)).astype(np.int32)  # towards zero
expected = np.bincount(numbers[(numbers >= 0) & (numbers < 10)], minlength=10)
assert abs(out - expected).sum() <= 4, (out, expected)  # values at the edge of two bins

pixels = rng.integers(0, BINS, (60, 70)).astype(np.uint8)
counted = cuda.to_device(np.zeros(BINS, np.int32))
shared_histogram[4, 32](pixels.ravel(), counted)
np.testing.assert_array_equal(counted.copy_to_host(), np.bincount(pixels.ravel(), minlength=BINS))
