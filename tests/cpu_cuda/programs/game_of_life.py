"""Cells live and die: boolean arrays, neighbours around the edges, three dimensions of a grid."""

import numpy as np
from numba import boolean, cuda


@cuda.jit((boolean[:, :, :], boolean[:, :, :]))
def generation(cells, following):
    b, i, j = cuda.grid(3)
    worlds, m, n = cells.shape
    if b >= worlds or i >= m or j >= n:
        return
    alive = 0
    for di in (-1, 0, 1):
        for dj in (-1, 0, 1):
            if di != 0 or dj != 0:
                alive += cells[b, (i + di) % m, (j + dj) % n]
    following[b, i, j] = alive == 3 or (cells[b, i, j] and alive == 2)


worlds = np.random.default_rng(3).random((3, 20, 26)) < 0.4
a = cuda.to_device(worlds)
b = cuda.device_array_like(a)
grid = tuple((extent + side - 1) // side for extent, side in zip(worlds.shape, (2, 8, 8)))
expected = worlds
for _ in range(6):
    generation[grid, (2, 8, 8)](a, b)
    a, b = b, a
    counts = sum(
        np.roll(expected, (i, j), (1, 2)).astype(int)
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
        if i or j
    )
    expected = (counts == 3) | (expected & (counts == 2))
np.testing.assert_array_equal(a.copy_to_host(), expected)
