"""Sparse matrices: products with vectors by threads and by warps; PageRank; conjugate gradients."""

import numpy as np
from numba import cuda


@cuda.jit
def rows_by_threads(data, columns, starts, x, y):
    row = cuda.grid(1)
    if row < y.size:
        total = 0.0
        for e in range(starts[row], starts[row + 1]):
            total += data[e] * x[columns[e]]
        y[row] = total


@cuda.jit
def rows_by_warps(data, columns, starts, x, y):
    lane = cuda.threadIdx.x % 32
    row = cuda.grid(1) // 32
    if row < y.size:
        total = 0.0
        for e in range(starts[row] + lane, starts[row + 1], 32):
            total += data[e] * x[columns[e]]
        for shift in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, shift)
        if lane == 0:
            y[row] = total


@cuda.reduce
def add(a, b):
    return a + b


@cuda.jit
def damp(y, factor, base):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = factor * y[i] + base


@cuda.jit
def axpy(a, x, y):
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] += a * x[i]


@cuda.jit
def multiply(a, b, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = a[i] * b[i]


n = 120
rng = np.random.default_rng(11)
dense = np.where(rng.random((n, n)) < 0.1, rng.random((n, n)), 0)
starts = np.concatenate([[0], (dense != 0).sum(1).cumsum()])
columns = np.nonzero(dense)[1].copy()
data, x = dense[dense != 0], rng.random(n)
y, z = np.zeros(n), np.zeros(n)
rows_by_threads[4, 32](data, columns, starts, x, y)
rows_by_warps[n // 4, 128](data, columns, starts, x, z)
np.testing.assert_allclose(y, dense @ x)
np.testing.assert_allclose(z, dense @ x)

links = dense / np.maximum(dense.sum(0), 1e-30)
values, rank = links[dense != 0], cuda.to_device(np.full(n, 1 / n))
following = cuda.device_array_like(rank)
expected = np.full(n, 1 / n)
for _ in range(20):
    rows_by_threads[4, 32](values, columns, starts, rank, following)
    damp[4, 32](following, 0.85, 0.15 / n)
    rank, following = following, rank
    expected = 0.85 * links @ expected + 0.15 / n
np.testing.assert_allclose(rank.copy_to_host(), expected)

spd = dense @ dense.T + n * np.eye(n)
starts, columns, data = np.arange(0, n * n + 1, n), np.tile(np.arange(n), n), spd.ravel()
d_data, d_columns, d_starts = map(cuda.to_device, (data, columns, starts))
b = rng.random(n)
solution, r, p = (cuda.to_device(v) for v in (np.zeros(n), b, b))
ap, product = cuda.device_array(n), cuda.device_array(n)


def dot(u, v):
    multiply[2, 64](u, v, product)
    return add(product)


old = dot(r, r)
for _ in range(200):
    rows_by_threads[4, 32](d_data, d_columns, d_starts, p, ap)
    alpha = old / dot(p, ap)
    axpy[4, 32](alpha, p, solution)
    axpy[4, 32](-alpha, ap, r)
    new = dot(r, r)
    if new < 1e-20:
        break
    damp[4, 32](p, new / old, 0.0)
    axpy[4, 32](1.0, r, p)
    old = new
np.testing.assert_allclose(spd @ solution.copy_to_host(), b, atol=1e-8)
print("sparse")
