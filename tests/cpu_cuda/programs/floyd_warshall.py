"""Shortest paths between all pairs: Floyd and Warshall, a launch for each node between."""

import numpy as np
from numba import cuda


@cuda.jit
def relax(k, dist, before):
    i, j = cuda.grid(2)
    n = dist.shape[0]
    if i >= n or j >= n:
        return
    through = dist[i, k] + dist[k, j]
    if through < dist[i, j]:
        dist[i, j] = through
        before[i, j] = before[k, j]


n = 40
rng = np.random.default_rng(6)
weights = np.where(rng.random((n, n)) < 0.2, rng.integers(1, 20, (n, n)), np.inf)
np.fill_diagonal(weights, 0)
before = np.tile(np.arange(n)[:, None], (1, n))
d, p = cuda.to_device(weights), cuda.to_device(before)
threads = (16, 16)
blocks = tuple(-(-n // t) for t in threads)
for k in range(n):
    relax[blocks, threads](k, d, p)
cuda.synchronize()
expected = weights.copy()
for k in range(n):
    expected = np.minimum(expected, expected[:, k, None] + expected[None, k])
np.testing.assert_array_equal(d.copy_to_host(), expected)
last = p.copy_to_host()
assert all(last[0, j] != j or expected[0, j] == np.inf or j == 0 for j in range(n))
print("paths", int(expected[np.isfinite(expected)].sum()))
