"""Mapped partitions: a few blocks that each visit many tiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from tests.common import host, visit_striding, visit_tile

# Shape and tile: extents that the tile does not divide, at every rank.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((n,), (128,)) for n in (1, 31, 127, 128, 129, 251, 1000)),
    ((1, 1), (16, 8)),
    ((31, 129), (16, 32)),
    ((33, 2), (4, 4)),
    ((1, 1, 1), (2, 2, 2)),
    ((7, 9, 31), (4, 2, 8)),
]
ALL = "all"


def tiles_of(part: na.Partition) -> int:
    return math.prod(part.grid)


def of_blocks(blocks: int | str, part: na.Partition) -> na.Partition:
    """The partition mapped to so many blocks, at most as many as it has tiles."""
    return part.map(tiles_of(part) if blocks == ALL else min(int(blocks), tiles_of(part)))


# --- kernels that see their tiles ---


@na.launcher
@cuda.jit
def visit_2(t: na.Tile):
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    if i < t.shape[0] and j < t.shape[1]:
        cuda.atomic.add(t, (i, j), 1)


@na.launcher
@cuda.jit
def visit_3(t: na.Tile):
    i, j, k = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    if i < t.shape[0] and j < t.shape[1] and k < t.shape[2]:
        cuda.atomic.add(t, (i, j, k), 1)


VISIT = {1: visit_tile, 2: visit_2, 3: visit_3}


@na.launcher
@cuda.jit
def mark_1(t: na.Tile):
    i = cuda.threadIdx.x
    if i < t.shape[0]:
        t[i] = cuda.blockIdx.x


@na.launcher(axes=(1, 0))
@cuda.jit
def mark_2(t: na.Tile):
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    if i < t.shape[0] and j < t.shape[1]:
        t[i, j] = cuda.blockIdx.x


@na.launcher
@cuda.jit
def mark_3(t: na.Tile):
    i, j, k = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    if i < t.shape[0] and j < t.shape[1] and k < t.shape[2]:
        t[i, j, k] = cuda.blockIdx.x


MARK = {1: mark_1, 2: mark_2, 3: mark_3}


@na.launcher
@cuda.jit
def reverse_tile(t: na.Tile):
    own = cuda.shared.array(64, np.float32)
    i = cuda.threadIdx.x
    n = t.shape[0]
    if i < n:
        own[i] = t[i]
    cuda.syncthreads()
    if i < n:
        t[i] = own[n - 1 - i]


@pytest.mark.parametrize("blocks", [1, 2, 3, ALL], ids="blocks={}".format)
@pytest.mark.parametrize(("shape", "tile"), SHAPES, ids=str)
def test_each_tile_is_visited_exactly_once(
    device: na.Device, shape: tuple[int, ...], tile: tuple[int, ...], blocks: int | str
) -> None:
    counts = na.zeros(shape, np.int32).sync()
    VISIT[len(shape)](of_blocks(blocks, counts.partition(tile))).sync()
    assert (host(counts) == 1).all()


@pytest.mark.parametrize("blocks", [1, 2, 3, ALL], ids="blocks={}".format)
@pytest.mark.parametrize(("shape", "tile"), SHAPES, ids=str)
def test_a_block_takes_every_nth_tile_in_order(
    device: na.Device, shape: tuple[int, ...], tile: tuple[int, ...], blocks: int | str
) -> None:
    owners = na.full(shape, -1, np.int32).sync()
    part = of_blocks(blocks, owners.partition(tile))
    MARK[len(shape)](part).sync()
    assert part.blocks is not None
    coordinates = [i // t for i, t in zip(np.indices(shape), tile, strict=True)]
    want = np.ravel_multi_index(coordinates, part.grid) % part.blocks
    np.testing.assert_array_equal(host(owners), want)


@pytest.mark.parametrize("blocks", [1, 2, 3, ALL], ids="blocks={}".format)
@pytest.mark.parametrize("n", [1, 31, 64, 65, 251, 1000], ids="n={}".format)
def test_shared_memory_is_reusable_at_the_next_visit(
    device: na.Device, n: int, blocks: int | str
) -> None:
    z = na.arange(n).sync()
    reverse_tile(of_blocks(blocks, z.partition(64))).sync()
    want = [np.arange(n, dtype=np.float32)[i : i + 64][::-1] for i in range(0, n, 64)]
    np.testing.assert_array_equal(host(z), np.concatenate(want))


def test_a_body_may_return_before_using_its_tile(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def upper_half(t: na.Tile):
        i = cuda.threadIdx.x
        if i >= t.shape[0] or 2 * i < t.shape[0]:
            return
        t[i] += 1

    z = na.zeros(100, np.int32).sync()
    upper_half(z.partition(16).map(3)).sync()
    # Six whole tiles, and four elements at the edge.
    assert host(z).tolist() == 6 * ([0] * 8 + [1] * 8) + [0] * 2 + [1] * 2


def test_the_tile_at_the_edge_is_clipped(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def extents(t: na.Tile):
        i, j = cuda.threadIdx.x, cuda.threadIdx.y
        if i < t.shape[0] and j < t.shape[1]:
            t[i, j] = 10 * t.shape[0] + t.shape[1]

    z = na.zeros((5, 7), np.int32).sync()
    extents(z.partition((2, 4)).map(2)).sync()
    want = np.array([[24] * 4 + [23] * 3] * 4 + [[14] * 4 + [13] * 3])
    np.testing.assert_array_equal(host(z), want)


def test_nothing_outside_a_mapped_view_is_touched(device: na.Device) -> None:
    poison = -7
    z = na.full((9, 12), poison, np.int32).sync()
    visit_2(z[2:8, 1:11:3].partition((4, 3)).map(2)).sync()
    want = np.full((9, 12), poison)
    want[2:8, 1:11:3] += 1
    np.testing.assert_array_equal(host(z), want)


def test_a_block_keeps_its_place_over_all_visits(device: na.Device) -> None:
    """Sums without atomics between blocks: what a persistent schedule is for."""

    @na.launcher
    @cuda.jit
    def sums(t: na.Tile, partial: na.KernelOutput):
        own = cuda.shared.array(1, np.int32)
        i = cuda.threadIdx.x
        if i == 0:
            own[0] = 0
        cuda.syncthreads()
        if i < t.shape[0]:
            cuda.atomic.add(own, 0, t[i])
        cuda.syncthreads()
        if i == 0:
            partial[cuda.blockIdx.x] += own[0]

    values = np.arange(1000, dtype=np.int32)
    z = na.from_host(values).sync()
    partial = na.zeros(3, np.int32).sync()
    sums(z.partition(64).map(3), partial).sync()
    want = [sum(values[s : s + 64].sum() for s in range(64 * b, 1000, 3 * 64)) for b in range(3)]
    assert host(partial).tolist() == want


def test_tiles_of_several_parameters_are_visited_together(device: na.Device) -> None:
    @na.launcher(threads=4)
    @cuda.jit
    def add_rows(total: na.Tile, a, x: na.Tile):
        i = cuda.threadIdx.x
        if i < total.shape[0]:
            for j in range(x.shape[1]):
                total[i] += a * x[i, j]

    rows = np.arange(7 * 5, dtype=np.float64).reshape(7, 5)
    x, total = na.from_host(rows).sync(), na.zeros(7).sync()
    # Grids (4,) and (4, 1): the same tiles in the same order.
    result = add_rows(total.partition(2).map(3), 2, x.partition((2, 5)).map(3)).sync()
    np.testing.assert_array_equal(host(total), 2 * rows.sum(axis=1))
    assert result.a == 2


def test_integers_knowing_their_width_pass_the_walk(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def bits(t: na.Tile, x):
        i = cuda.threadIdx.x
        if i < t.shape[0]:
            t[i] = cuda.popc(t[i]) + x

    z = na.from_host(np.arange(10, dtype=np.uint32)).sync()
    bits(z.partition(4).map(2), 100).sync()
    assert host(z).tolist() == [100 + i.bit_count() for i in range(10)]


# --- kernels that walk themselves ---


@na.launcher
@cuda.jit
def walk(counts: na.KernelOutput, owners: na.KernelOutput, grid):
    """Visit the tiles of two axes in C order; the block has the tile's shape."""
    for t in range(cuda.blockIdx.x, grid[0] * grid[1], cuda.gridDim.x):
        i = t // grid[1] * cuda.blockDim.x + cuda.threadIdx.x
        j = t % grid[1] * cuda.blockDim.y + cuda.threadIdx.y
        if i < counts.shape[0] and j < counts.shape[1]:
            cuda.atomic.add(counts, (i, j), 1)
            owners[i, j] = cuda.blockIdx.x


@pytest.mark.parametrize("blocks", [1, 2, 3, ALL], ids="blocks={}".format)
@pytest.mark.parametrize("n", [1, 31, 127, 129, 251, 1000], ids="n={}".format)
def test_a_walking_kernel_visits_each_element_once(
    device: na.Device, n: int, blocks: int | str
) -> None:
    counts = na.zeros(n, np.int32).sync()
    visit_striding(of_blocks(blocks, counts.partition(128))).sync()
    assert (host(counts) == 1).all()


def test_a_walking_kernels_block_has_the_tiles_shape(device: na.Device) -> None:
    counts, owners = (na.zeros((9, 11), np.int32).sync() for _ in range(2))
    part = counts.partition((4, 2)).map(5)
    walk(part, owners, part.grid).sync()
    assert (host(counts) == 1).all()
    i, j = np.indices((9, 11))
    np.testing.assert_array_equal(host(owners), (i // 4 * 6 + j // 2) % 5)


def test_the_grid_has_one_axis_whatever_the_tensor(device: na.Device) -> None:
    @na.launcher(threads=7)
    @cuda.jit
    def extents(z: na.KernelOutput, seen: na.KernelOutput):
        seen[0], seen[1], seen[2] = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z
        seen[3] = cuda.blockDim.x

    seen = na.zeros(4, np.int32).sync()
    extents(na.zeros((8, 8, 8)).partition((2, 2, 2)).map(lambda p: p.map(6)), seen).sync()
    assert host(seen).tolist() == [6, 1, 1, 7]


def test_partitions_with_that_grid_are_taken(device: na.Device) -> None:
    a, b, c = (na.zeros(n).sync() for n in (100, 30, 50))

    @na.launcher
    @cuda.jit
    def three(a: na.KernelOutput, b: na.KernelOutput, c: na.KernelOutput):
        if cuda.threadIdx.x == 0:
            b[10 * cuda.blockIdx.x] = c[10 * cuda.blockIdx.x] = 1
        for i in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
            a[i] = 1

    three(a.partition(10).map(3), b.partition(10), c.partition_prefix(10)).sync()
    assert host(a).tolist() == [1] * 100
    assert np.flatnonzero(host(b)).tolist() == np.flatnonzero(host(c)).tolist() == [0, 10, 20]


def test_an_explicit_grid_must_be_the_blocks(device: na.Device) -> None:
    counts = na.zeros(100, np.int32).sync()
    part = counts.partition(10).map(3)
    visit_striding[3, 10](part).sync()
    visit_tile[(3, 1), 10](part).sync()
    assert (host(counts) == 2).all()
