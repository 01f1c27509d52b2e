"""The cases of `bench cpu`: kernels, their inputs, and the answers by NumPy.

A case can be run in part, by fewer blocks, where a contestant is too slow for all of it. The
kernels are plain functions for `cuda.jit`, which Numba's simulator takes too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32

THREADS = 128
TILE = 16
SIDE = 256
BINS = 256

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel and a size.

    Attributes:
        name: the name in the table.
        body: the kernel's function, to be given to `cuda.jit`.
        blocks: the number of blocks of the whole case.
        probe: a number of blocks so small that any contestant takes little time.
        block: the threads of a block.
        grid: gives the grid of so many blocks.
        inputs: makes the arguments for so many blocks; the first is the output.
        answer: computes the output, from these arguments and the number of blocks.
    """

    name: str
    body: Callable[..., None]
    blocks: int
    probe: int
    block: tuple[int, int]
    grid: Callable[[int], tuple[int, int]]
    inputs: Callable[[int], list[Any]]
    answer: Callable[[list[Any], int], Array]


def saxpy(out: Any, a: Any, x: Any, y: Any) -> None:
    """One element a thread."""
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = a * x[i] + y[i]


def block_sum(out: Any, x: Any) -> None:
    """One sum a block, in 7 halving steps; 8 barriers."""
    part = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    part[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            part[t] += part[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = part[0]


def matmul(out: Any, a: Any, b: Any) -> None:
    """One tile of the product a block, by way of tiles in shared memory."""
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    column, row = cuda.grid(2)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        left[i, j] = a[row, k + j]
        right[i, j] = b[k + i, column]
        cuda.syncthreads()
        for m in range(TILE):
            total += left[i, m] * right[m, j]
        cuda.syncthreads()
    out[row, column] = total


def histogram(bins: Any, x: Any) -> None:
    """One atomic addition a thread."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(bins, x[i], 1)


def _random(shape: int | tuple[int, ...]) -> Array:
    return np.random.default_rng(0).random(shape, np.float32)


def _line(blocks: int) -> tuple[int, int]:
    return blocks, 1


def _saxpy(name: str, n: int) -> Case:
    def inputs(blocks: int) -> list[Any]:
        x = _random(min(n, blocks * THREADS))
        return [np.zeros_like(x), 2.0, x, x[::-1].copy()]

    def answer(arguments: list[Any], blocks: int) -> Array:
        _, a, x, y = arguments
        return np.asarray(a * x + y)

    return Case(name, saxpy, -(-n // THREADS), 8, (THREADS, 1), _line, inputs, answer)


def _sums(blocks: int) -> list[Any]:
    return [np.zeros(blocks, np.float32), _random(blocks * THREADS)]


def _products(blocks: int) -> list[Any]:
    a = _random((SIDE, SIDE))
    return [np.zeros_like(a), a, a.T.copy()]


def _tiles(blocks: int) -> tuple[int, int]:
    wide = SIDE // TILE
    return (blocks, 1) if blocks < wide else (wide, blocks // wide)


def _product(arguments: list[Any], blocks: int) -> Array:
    out, a, b = arguments
    wide, high = _tiles(blocks)
    product = np.zeros_like(out)
    rows, columns = high * TILE, wide * TILE
    product[:rows, :columns] = a[:rows] @ b[:, :columns]
    return np.asarray(product)


def _levels(blocks: int) -> list[Any]:
    x = np.random.default_rng(0).integers(0, BINS, blocks * THREADS, np.int32)
    return [np.zeros(BINS, np.int32), x]


CASES = (
    _saxpy("saxpy, 100 k elements", 100_000),
    _saxpy("saxpy, 16 M elements", 1 << 24),
    Case(
        "sums of 128 with 8 barriers, 16 k elements", block_sum, 128, 1, (THREADS, 1), _line,
        _sums, lambda arguments, blocks: arguments[1].reshape(blocks, THREADS).sum(1),
    ),
    Case(
        "tiled matmul, 256 x 256", matmul, (SIDE // TILE) ** 2, 1, (TILE, TILE), _tiles,
        _products, _product,
    ),
    Case(
        "histogram with atomics, 1 M elements", histogram, (1 << 20) // THREADS, 8, (THREADS, 1),
        _line, _levels, lambda arguments, blocks: np.bincount(arguments[1], minlength=BINS),
    ),
)  # fmt: skip
