"""Sums: a tree in shared memory, shuffles of a warp, `cuda.reduce`, and votes."""

import numpy as np
from numba import cuda, float64, int32


@cuda.reduce
def sum_reduce(a, b):
    return a + b


max_reduce = cuda.Reduce(lambda a, b: a if a > b else b)


@cuda.jit
def tree(data, out):
    shared = cuda.shared.array(128, float64)
    tid = cuda.threadIdx.x
    i = cuda.grid(1)
    shared[tid] = data[i] if i < data.size else 0.0
    cuda.syncthreads()
    s = cuda.blockDim.x // 2
    while s > 0:
        if tid < s:
            shared[tid] += shared[tid + s]
        cuda.syncthreads()
        s >>= 1
    if tid == 0:
        out[cuda.blockIdx.x] = shared[0]


@cuda.jit(device=True)
def warp_sum(value):
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    return value


@cuda.jit
def by_warps(data, out):
    partial = cuda.shared.array(32, int32)
    i = cuda.grid(1)
    value = int32(0)
    if i < data.size:
        value = data[i]
    value = warp_sum(value)
    if cuda.laneid == 0:
        partial[cuda.threadIdx.x // cuda.warpsize] = value
    cuda.syncthreads()
    if cuda.threadIdx.x < 32:
        count = cuda.blockDim.x // cuda.warpsize
        value = partial[cuda.threadIdx.x] if cuda.threadIdx.x < count else int32(0)
        value = warp_sum(value)
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(out, 0, value)


@cuda.jit
def votes(x, any_large, ballots, counted):
    i = cuda.grid(1)
    is_large = x[i] > 90
    if cuda.any_sync(0xFFFFFFFF, is_large) and cuda.laneid == 0:
        any_large[i // 32] = 1
    mask = cuda.ballot_sync(0xFFFFFFFF, is_large)
    if cuda.laneid == 0:
        ballots[i // 32] = mask
    counted[cuda.blockIdx.x] = cuda.syncthreads_count(1 if is_large else 0)


rng = np.random.default_rng(4)
data = rng.random(1000)
assert np.isclose(sum_reduce(data), data.sum()) and max_reduce(data) == data.max()
assert np.isclose(sum_reduce(cuda.to_device(data), init=5.0), data.sum() + 5)
result = cuda.device_array(1, np.float64)
sum_reduce(cuda.to_device(data), res=result)
assert np.isclose(result.copy_to_host()[0], data.sum())
partial = cuda.device_array(8, np.float64)
tree[8, 128](data, partial)
np.testing.assert_allclose(partial.copy_to_host().sum(), data.sum())

whole = rng.integers(0, 100, 1000).astype(np.int32)
total = np.zeros(1, np.int32)
by_warps[4, 256](whole, total)
assert total[0] == whole.sum()

large, ballots, counted = np.zeros(4, np.int32), np.zeros(4, np.uint32), np.zeros(2, np.int32)
votes[2, 64](whole[:128].copy(), large, ballots, counted)
rows = (whole[:128] > 90).reshape(4, 32)
np.testing.assert_array_equal(large, rows.any(1))
np.testing.assert_array_equal(ballots, (rows * 2 ** np.arange(32)).sum(1))
np.testing.assert_array_equal(counted, rows.reshape(2, 64).sum(1))
