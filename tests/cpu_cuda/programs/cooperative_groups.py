"""A grid that waits for all of its blocks, and groups within."""

import numpy as np
from numba import cuda, int32

SIGNATURE = (int32[:, ::1],)


@cuda.jit(SIGNATURE)
def sequential_rows(M):
    col = cuda.grid(1)
    g = cuda.cg.this_grid()
    rows = M.shape[0]
    cols = M.shape[1]
    for row in range(1, rows):
        opposite = cols - col - 1
        M[row, col] = M[row - 1, opposite] + 1
        g.sync()


A = np.zeros((64, 128), dtype=np.int32)
blockdim = 32
overload = sequential_rows.overloads[SIGNATURE]
griddim = A.shape[1] // blockdim
if hasattr(overload, "max_cooperative_grid_blocks"):
    assert overload.max_cooperative_grid_blocks(blockdim) >= griddim
sequential_rows[griddim, blockdim](A)
np.testing.assert_array_equal(A, np.tile(np.arange(64)[:, None], (1, 128)))


@cuda.jit
def normalise(x, total):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    cuda.atomic.add(total, 0, x[i])
    grid.sync()
    x[i] = x[i] / total[0]


x = np.random.default_rng(6).random(256)
expected = x / x.sum()
normalise[8, 32](x, np.zeros(1))
np.testing.assert_allclose(x, expected)
