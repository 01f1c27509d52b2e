"""Heat spreads: two buffers that change places, and the error of each step by an atomic maximum."""

import numpy as np
from numba import cuda


@cuda.jit
def jacobi(current, following, difference):
    i, j = cuda.grid(2)
    m, n = current.shape
    if 1 <= i < m - 1 and 1 <= j < n - 1:
        value = 0.25 * (
            current[i - 1, j] + current[i + 1, j] + current[i, j - 1] + current[i, j + 1]
        )
        following[i, j] = value
        cuda.atomic.max(difference, 0, abs(value - current[i, j]))


@cuda.jit
def diffuse(buf_0, buf_1, timesteps, k):
    i = cuda.grid(1)
    if i >= len(buf_0):
        return  # outside of the rod
    grid = cuda.cg.this_grid()
    for step in range(timesteps):
        if step % 2 == 0:
            data, next_data = buf_0, buf_1
        else:
            data, next_data = buf_1, buf_0
        if 0 < i < data.size - 1:
            next_data[i] = data[i] + k * (data[i + 1] - 2 * data[i] + data[i - 1])
        else:
            next_data[i] = data[i]
        grid.sync()


def jacobi_on_host(grid, steps):
    for _ in range(steps):
        new = grid.copy()
        new[1:-1, 1:-1] = 0.25 * (
            grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:]
        )
        change = abs(new - grid).max()
        grid = new
    return grid, change


plate = np.zeros((40, 50))
plate[0] = 100.0
d_a, d_b = cuda.to_device(plate), cuda.to_device(plate)
d_change = cuda.to_device(np.zeros(1))
for _ in range(60):
    d_change[0] = 0.0
    jacobi[(3, 4), (16, 16)](d_a, d_b, d_change)
    d_a, d_b = d_b, d_a
expected, change = jacobi_on_host(plate, 60)
np.testing.assert_allclose(d_a.copy_to_host(), expected, rtol=1e-12)
np.testing.assert_allclose(d_change[0], change, rtol=1e-12)

rod = np.zeros(101)
rod[50] = 1.0
first, second = cuda.to_device(rod), cuda.device_array_like(rod)
diffuse[4, 32](first, second, 100, 0.25)
expected = rod.copy()
for _ in range(100):
    expected[1:-1] += 0.25 * (expected[2:] - 2 * expected[1:-1] + expected[:-2])
np.testing.assert_allclose(first.copy_to_host(), expected, atol=1e-14)
