"""Bitonic sorting, a launch a step; and a counter that threads take tickets from."""

import numpy as np
from numba import cuda


@cuda.jit
def compare_and_swap(values, keys, j, k):
    i = cuda.grid(1)
    other = i ^ j
    if other > i:
        ascending = (i & k) == 0
        if (values[i] > values[other]) == ascending:
            values[i], values[other] = values[other], values[i]
            keys[i], keys[other] = keys[other], keys[i]


@cuda.jit
def compact(values, limit, kept, count):
    i = cuda.grid(1)
    if i < values.size and values[i] < limit:
        place = cuda.atomic.add(count, 0, 1)
        kept[place] = values[i]


@cuda.jit
def locked_sums(lock, total, each):
    i = cuda.grid(1)
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += each[i // cuda.blockDim.x]
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


n = 256
values = np.random.default_rng(4).permutation(n).astype(np.float32)
d_values, d_keys = cuda.to_device(values), cuda.to_device(np.arange(n))
k = 2
while k <= n:
    j = k // 2
    while j > 0:
        compare_and_swap[n // 64, 64](d_values, d_keys, j, k)
        j //= 2
    k *= 2
np.testing.assert_array_equal(d_values.copy_to_host(), np.arange(n))
np.testing.assert_array_equal(d_keys.copy_to_host(), np.argsort(values))

kept, count = np.zeros(n, np.float32), np.zeros(1, np.int32)
compact[4, 64](values, np.float32(100), kept, count)
assert count[0] == 100
np.testing.assert_array_equal(np.sort(kept[:100]), np.arange(100))

total = np.zeros(1)
locked_sums[10, 4](np.zeros(1, np.int32), total, np.arange(10.0))
assert total[0] == 45
