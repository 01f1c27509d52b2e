"""Kernels, which elements each thread of them visits, and what a call of them would launch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from numbasync.backend.cpu.limits import LIMITS
from numbasync.launch import grid as grids
from numbasync.launch.plan import DEFAULT


def by_x(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += 1


def by_x_and_y(z: na.KernelOutput):
    i, j = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] += 1


def by_all(z: na.KernelOutput):
    i, j, k = cuda.grid(3)
    if i < z.shape[0] and j < z.shape[1] and k < z.shape[2]:
        z[i, j, k] += 1


def by_y(z: na.KernelOutput):
    j = cuda.threadIdx.y + cuda.blockIdx.y * cuda.blockDim.y
    if j < z.shape[1]:
        for i in range(z.shape[0]):
            z[i, j] += 1


def flat(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.size:
        z[i // z.shape[1], i % z.shape[1]] += 1


def flat_by_product(z: na.KernelOutput):
    i = cuda.grid(1)
    n, m = z.shape
    if i < n * m:
        z[i // m, i % m] += 1


def by_thread(z: na.KernelOutput):
    if cuda.threadIdx.x < z.shape[0]:
        z[cuda.threadIdx.x] += 1


def by_block(z: na.KernelOutput):
    if cuda.blockIdx.x < z.shape[0]:
        z[cuda.blockIdx.x] += 1


def by_nothing(z: na.KernelOutput):
    for i in range(z.shape[0]):
        z[i] += 1


def counts(z: na.KernelOutput):
    cuda.atomic.add(z, 0, 1)


Visits = Callable[[Any, Any, Any, tuple[int, ...]], Iterator[tuple[int, ...]]]


def along(*axes: int) -> Visits:
    """Visits of a kernel that asks for its place along these axes and walks along the others."""

    def visits(
        block: Any, thread: Any, size: Any, shape: tuple[int, ...]
    ) -> Iterator[tuple[int, ...]]:
        own = [
            (block[a] * size[a] + thread[a],) if a in axes else range(n)
            for a, n in enumerate(shape)
        ]
        for at in itertools.product(*own):
            if all(i < n for i, n in zip(at, shape, strict=True)):
                yield at

    return visits


def in_order(block: Any, thread: Any, size: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    i = block[0] * size[0] + thread[0]
    if i < np.prod(shape):
        yield tuple(map(int, np.unravel_index(i, shape)))


def one_of(which: int) -> Visits:
    def visits(block: Any, thread: Any, size: Any, shape: Any) -> Iterator[tuple[int, ...]]:
        i = (block, thread)[which][0]
        if i < shape[0]:
            yield from ((i, *at) for at in itertools.product(*map(range, shape[1:])))

    return visits


# The visits of a kernel, the least rank of its output, and of a launch of the whole output,
# without a wish: ranks for which it covers every element. Others are refused.
KERNELS: dict[Callable[..., None], tuple[Visits, int, set[int]]] = {
    by_x: (along(0), 1, {1, 2, 3}),
    by_x_and_y: (along(0, 1), 2, {2, 3}),
    by_all: (along(0, 1, 2), 3, {3}),
    by_y: (along(1), 2, {2, 3}),
    flat: (in_order, 2, set()),
    flat_by_product: (in_order, 2, set()),
    by_thread: (one_of(1), 1, {1}),
    by_block: (one_of(0), 1, set()),
    by_nothing: (along(), 1, {1, 2, 3}),
    counts: (along(), 1, set()),
}


def meta(shape: tuple[int, ...]) -> na.Tensor:
    return na.meta(shape, np.int32).sync()


def launched(kernel: na.Launcher, *args: Any) -> grids.Geometry:
    """What a call would launch, without compiling it."""
    request = kernel.planner._request(kernel.bind(args), DEFAULT)
    return grids.resolve(request, LIMITS, 1024, lambda: 256)
