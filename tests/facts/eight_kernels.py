"""The eight kernels by which unsigned indices were judged; docs/architecture.md, decision 25."""

from __future__ import annotations

import math
from typing import Any

from numba import cuda, float32

TILE = 16
RESULTS = 4
WIDE, PADDED = TILE * RESULTS, TILE + 1


def naive_product(z: Any, x: Any, y: Any) -> None:
    row, column = cuda.grid(2)
    if row < z.shape[0] and column < z.shape[1]:
        total = float32(0)
        for k in range(x.shape[1]):
            total += x[row, k] * y[k, column]
        z[row, column] = total


def tiled_product(z: Any, x: Any, y: Any) -> None:
    a = cuda.shared.array((TILE, TILE), float32)
    b = cuda.shared.array((TILE, TILE), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    row, column = cuda.blockIdx.y * TILE + i, cuda.blockIdx.x * TILE + j
    total = float32(0)
    for start in range(0, x.shape[1], TILE):
        a[i, j] = x[row, start + j]
        b[i, j] = y[start + i, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += a[i, k] * b[k, j]
        cuda.syncthreads()
    z[row, column] = total


def product_of_registers(z: Any, x: Any, y: Any) -> None:
    """Each thread has 4 x 4 results."""
    a = cuda.shared.array((TILE, WIDE), float32)
    b = cuda.shared.array((TILE, WIDE), float32)
    sums = cuda.local.array((RESULTS, RESULTS), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    top, left = cuda.blockIdx.y * WIDE, cuda.blockIdx.x * WIDE
    for r in range(RESULTS):
        for c in range(RESULTS):
            sums[r, c] = 0
    for start in range(0, x.shape[1], TILE):
        for r in range(RESULTS):
            a[j, i + r * TILE] = x[top + i + r * TILE, start + j]
            b[i, j + r * TILE] = y[start + i, left + j + r * TILE]
        cuda.syncthreads()
        for k in range(TILE):
            for r in range(RESULTS):
                for c in range(RESULTS):
                    sums[r, c] += a[k, i + r * TILE] * b[k, j + c * TILE]
        cuda.syncthreads()
    for r in range(RESULTS):
        for c in range(RESULTS):
            z[top + i + r * TILE, left + j + c * TILE] = sums[r, c]


def transpose(z: Any, x: Any) -> None:
    tile = cuda.shared.array((TILE, PADDED), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + i < x.shape[0] and left + j < x.shape[1]:
        tile[i, j] = x[top + i, left + j]
    cuda.syncthreads()
    if left + i < z.shape[0] and top + j < z.shape[1]:
        z[left + i, top + j] = tile[j, i]


def softmax(z: Any, x: Any) -> None:
    """A block has a row."""
    shared = cuda.shared.array(256, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    largest = float32(-math.inf)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        largest = max(largest, x[row, k])
    shared[t] = largest
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            shared[t] = max(shared[t], shared[t + half])
        cuda.syncthreads()
        half //= 2
    largest = shared[0]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        total += math.exp(x[row, k] - largest)
    shared[t] = total
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    for k in range(t, x.shape[1], cuda.blockDim.x):
        z[row, k] = math.exp(x[row, k] - largest) / shared[0]


def loop_over_the_grid(z: Any, x: Any) -> None:
    for i in range(cuda.grid(1), z.size, cuda.gridsize(1)):
        z[i] = x[i] * 2 + 1


def sums_of_columns(z: Any, x: Any) -> None:
    column = cuda.grid(1)
    if column < x.shape[1]:
        total = float32(0)
        for row in range(x.shape[0]):
            total += x[row, column]
        z[column] = total


def convolution(z: Any, x: Any, weights: Any) -> None:
    """5 x 5; the edges repeat."""
    rows, columns = x.shape
    row, column = cuda.grid(2)
    if row < rows and column < columns:
        total = float32(0)
        for i in range(5):
            for j in range(5):
                r = min(max(row + i - 2, 0), rows - 1)
                c = min(max(column + j - 2, 0), columns - 1)
                total += x[r, c] * weights[i, j]
        z[row, column] = total
