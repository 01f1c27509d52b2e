"""Blocks of a cluster: their ranks, tiles that one block loads for several, and arrivals at another
block's barrier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.launch import grid as grids
from tests.backend_cpu.tensor_core_kernels import PART, SIDE, shared_matmul
from tests.common import full

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _has_clusters(device: na.Device) -> None:
    if device.limits.max_cluster == 1:
        pytest.skip("the device has no clusters")


@cuda.jit
def ranks(out, x):
    block = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    tc.cluster_sync()
    out[block, 0], out[block, 1] = tc.cluster_rank(), tc.cluster_size() + x[0][0]


def expected(grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> Any:
    z, y, x = np.unravel_index(np.arange(np.prod(grid)), grid[::-1])
    wide, high, deep = cluster
    rank = x % wide + wide * (y % high + high * (z % deep))
    return np.stack([rank, np.full_like(rank, wide * high * deep)], axis=1)


@pytest.mark.parametrize("cluster", [None, 2, (2, 2), (1, 2, 4), 8])
def test_ranks(device: na.Device, cluster: Any) -> None:
    """On a GPU, Numba itself launches the first kernel, which takes a tuple of arrays."""
    extents = grids.dim3(cluster or 1, "cluster", "ranks")
    grid = (8, 4, 4)
    kernel = na.launcher(cluster=cluster)(ranks)
    zero = na.zeros(1, np.int32).sync()
    for x in ((zero,), na.zeros((1, 1), np.int32).sync()):
        out = na.zeros((128, 2), np.int32).sync()
        kernel[grid, 64](out, x).sync()
        np.testing.assert_array_equal(out.to_host().sync(), expected(grid, extents))


def test_a_launcher_without_clusters_has_the_same_kernel(device: na.Device) -> None:
    x = na.zeros((1, 1), np.int32).sync()
    together = na.launcher(cluster=2)(ranks)
    alone = na.launcher(ranks)
    for kernel, blocks, size in ((together, 4, 2), (alone, 3, 1), (together, 2, 2), (alone, 1, 1)):
        out = na.zeros((blocks, 2), np.int32).sync()
        kernel[blocks, 32](out, x).sync()
        assert set(out.to_host().sync()[:, 1]) == {size}


@pytest.mark.parametrize("shape", [(128, 64, 64), full((256, 192, 320))])
def test_a_tile_that_two_blocks_share(device: na.Device, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = (RNG.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
    want = a.astype(np.float32) @ b.astype(np.float32).T
    ta = na.tensor_map(na.from_host(a).sync(), (SIDE, SIDE))
    tb = na.tensor_map(na.from_host(b).sync(), (PART, SIDE))
    for _ in range(3):  # the second and the third launch are fast ones
        out = na.full((m, n), 7).sync()
        shared_matmul[(m // SIDE, n // SIDE), 160](out, ta, tb, k).sync()
        np.testing.assert_array_equal(out.to_host().sync(), want)


async def test_clusters_in_a_graph(device: na.Device) -> None:
    kernel = na.launcher(cluster=(2, 2))(ranks)
    x, out = await na.zeros((1, 1), np.int32), await na.zeros((16, 2), np.int32)
    graph = kernel[(4, 4), 32](out, x).graph()
    for _ in range(2):
        await na.fill(out, -1)
        await graph.launch()
        np.testing.assert_array_equal(await out.to_host(), expected((4, 4, 1), (2, 2, 1)))


ALL = na.shared_layout(a=tc.tile(np.float16, (2, 16, 64)), full=tc.barriers(2))


@na.launcher(cluster=4)
@cuda.jit
def from_two_blocks(out: na.KernelOutput, x: na.KernelInput):
    """Rank 1 loads a box for all, and rank 2 one for the ranks 0 and 3."""
    thread, rank = cuda.threadIdx.x, tc.cluster_rank()
    both = rank == 0 or rank == 3
    if thread == 0:
        for i in range(2):
            tc.barrier_init(ALL.full, i, 1)
        tc.fence_barrier_init()
    tc.cluster_sync()
    if thread == 0:
        tc.barrier_expect(ALL.full, 0, 2048)
        if both:
            tc.barrier_expect(ALL.full, 1, 2048)
        if rank == 1:
            tc.load_tile(ALL.a, (0, 0, 0), x, (0, 0), ALL.full, 0, 15)
        if rank == 2:
            tc.load_tile(ALL.a, (1, 0, 0), x, (16, 0), ALL.full, 1, (1 << 0) | (1 << 3))
        tc.barrier_wait(ALL.full, 0, 0)
        tc.store_tile(out, (rank, 0, 0, 0), ALL.a, (0, 0, 0))
        if both:
            tc.barrier_wait(ALL.full, 1, 0)
            tc.store_tile(out, (rank, 1, 0, 0), ALL.a, (1, 0, 0))
        tc.commit_stores()
        tc.wait_stores(0)
    tc.cluster_sync()


def test_masks(device: na.Device) -> None:
    x = RNG.integers(1, 9, (32, 64)).astype(np.float16)
    out = na.zeros((4, 2, 16, 64), np.float16).sync()
    source = na.tensor_map(na.from_host(x).sync(), (16, 64))
    from_two_blocks[4, 32](na.tensor_map(out, (1, 1, 16, 64)), source).sync()
    want = np.zeros((4, 2, 16, 64))
    want[:, 0], want[0, 1], want[3, 1] = x[:16], x[16:], x[16:]
    np.testing.assert_array_equal(out.to_host().sync(), want)
