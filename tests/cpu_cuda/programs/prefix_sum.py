"""Prefix sums of any length: blocks, the sums of blocks, and these added to each block."""

import numpy as np
from numba import cuda, int64

BLOCK = 64


@cuda.jit
def scan_block(x, out, totals):
    """Sklansky's sums of a block, in two buffers."""
    buffers = cuda.shared.array((2, BLOCK), int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    buffers[0, t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    source = 0
    offset = 1
    while offset < BLOCK:
        target = 1 - source
        if t >= offset:
            buffers[target, t] = buffers[source, t] + buffers[source, t - offset]
        else:
            buffers[target, t] = buffers[source, t]
        source = target
        offset *= 2
        cuda.syncthreads()
    if i < x.size:
        out[i] = buffers[source, t]
    if t == BLOCK - 1:
        totals[cuda.blockIdx.x] = buffers[source, t]


@cuda.jit
def add_before(out, sums):
    i = cuda.grid(1)
    if cuda.blockIdx.x > 0 and i < out.size:
        out[i] += sums[cuda.blockIdx.x - 1]


def prefix_sum(d_x):
    blocks = (d_x.size + BLOCK - 1) // BLOCK
    d_out = cuda.device_array_like(d_x)
    d_totals = cuda.device_array(blocks, np.int64)
    scan_block[blocks, BLOCK](d_x, d_out, d_totals)
    if blocks > 1:
        add_before[blocks, BLOCK](d_out, prefix_sum(d_totals))
    return d_out


for size in (1, 64, 65, 5000):
    x = np.random.default_rng(size).integers(0, 100, size)
    found = prefix_sum(cuda.to_device(x)).copy_to_host()
    np.testing.assert_array_equal(found, np.cumsum(x))
