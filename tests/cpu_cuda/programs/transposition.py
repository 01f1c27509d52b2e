"""Transposition by padded tiles, of arrays in rows, in columns, and with gaps."""

import numpy as np
from numba import cuda, float32
from numba.cuda import syncthreads

TILE = 16
PADDED = TILE + 1
ROWS = 4


@cuda.jit
def transpose(source, target):
    tile = cuda.shared.array((TILE, PADDED), float32)
    bx, by = cuda.blockIdx.x, cuda.blockIdx.y
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x = bx * TILE + tx
    y = by * TILE + ty
    for j in range(0, TILE, ROWS):
        if y + j < source.shape[0] and x < source.shape[1]:
            tile[ty + j, tx] = source[y + j, x]
    syncthreads()
    x = by * TILE + tx
    y = bx * TILE + ty
    for j in range(0, TILE, cuda.blockDim.y):
        if y + j < target.shape[0] and x < target.shape[1]:
            target[y + j, x] = tile[tx, ty + j]


m, n = 45, 70
a = np.random.default_rng(5).random((m, n), dtype=np.float32)
grid = (n + TILE - 1) // TILE, (m + TILE - 1) // TILE
for order in "CF":
    source = cuda.to_device(np.asarray(a, order=order))
    target = cuda.device_array((n, m), np.float32, order=order)
    transpose[grid, (TILE, ROWS)](source, target)
    np.testing.assert_array_equal(target.copy_to_host(), a.T)
wide = cuda.to_device(np.repeat(np.repeat(a, 2, 0), 3, 1))
target = np.zeros((n, m), np.float32)
transpose[grid, (TILE, ROWS)](wide[::2, ::3], target)
np.testing.assert_array_equal(target, a.T)
transpose[grid, (TILE, ROWS)](a[::-1], target)
np.testing.assert_array_equal(target, a[::-1].T)
