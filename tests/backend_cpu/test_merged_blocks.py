"""Grid-stride loops: blocks whose threads know only their place in the grid run as larger ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, types

import numbasync as na
from numbasync.backend.cpu.kernel.merged_blocks import merged
from numbasync.backend.cpu.regions import Settings
from numbasync.backend.cpu.regions.any_blocks import MOST_MERGED
from numbasync.backend.cpu.regions.build import write_module
from numbasync.backend.cpu.target import lower
from numbasync.errors import OutOfBoundsError
from tests.common import host

pytestmark = pytest.mark.usefixtures("cpu")  # whichever device is tested
N = 5003


def copied(z, x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] = x[i]


def copied_by_while(z, x):
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    while i < x.size:
        z[i] = x[i]
        i += cuda.gridDim.x * cuda.blockDim.x


def summed(z, x):
    first = cuda.grid(1)
    total = float32(0)
    for i in range(first, x.size, cuda.gridsize(1)):
        total += x[i]
    if first < z.size:
        z[first] = total


def by_thread(z, x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] = x[i] + cuda.threadIdx.x


def by_block(z, x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] = x[i] + cuda.blockIdx.x


def by_extent(z, x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] = x[i] + cuda.blockDim.x


def by_blocks(z, x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] = x[i] + cuda.gridDim.x


def by_lane(z, x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] = x[i] + cuda.laneid


def by_shared_memory(z, x):
    part = cuda.shared.array(4, float32)
    part[0] = x[0]
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] = x[i] + part[0]


def with_barrier(z, x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] = x[i]
    cuda.syncthreads()


def block_after_block(z, x):
    for i in range(cuda.blockIdx.x, x.size, cuda.gridDim.x):
        z[i] = x[i]


def once(z, x):
    i = cuda.grid(1)
    if i < x.size:
        z[i] = x[i]


def most_merged(body: Any) -> int:
    array = types.Array(types.float32, 1, "C")
    module = lower(cuda.jit(body), [array, array])
    _, code = write_module(module.text, module.name, Settings(row=True))
    return code.most_merged


@pytest.mark.parametrize("body", [copied, copied_by_while])
def test_loops_over_the_grid_may_be_merged(body: Any) -> None:
    assert most_merged(body) == MOST_MERGED


def test_numbers_kept_for_threads_limit_a_block() -> None:
    assert 1024 < most_merged(summed) < MOST_MERGED


@pytest.mark.parametrize(
    "body",
    [by_thread, by_block, by_extent, by_blocks, by_lane, by_shared_memory, with_barrier,
     block_after_block, once],
)  # fmt: skip
def test_what_depends_on_blocks_stays_in_them(body: Any) -> None:
    assert most_merged(body) == 0


# One kernel of each, for blocks of whatever size.
launchers = cache(lambda body: na.launcher(cuda.jit(body)))


@pytest.mark.parametrize("body", [copied, copied_by_while, by_thread, by_block, by_extent])
@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (7, 33), (64, 32), (13, 1), (2, 1024)])
def test_any_blocks_copy_alike(body: Any, blocks: int, threads: int) -> None:
    x = np.arange(N, dtype=np.float32)
    z = na.from_host(np.zeros(N, np.float32)).sync()
    launchers(body)[blocks, threads](z, na.from_host(x).sync()).sync()
    place = np.arange(N) % (blocks * threads)
    more = {by_thread: place % threads, by_block: place // threads, by_extent: threads}
    np.testing.assert_array_equal(host(z), x + more.get(body, 0))


def test_sums_of_each_thread_are_its_own() -> None:
    x = np.arange(N, dtype=np.float32) % 7
    z = na.from_host(np.zeros(600, np.float32)).sync()
    na.launcher(cuda.jit(summed))[20, 30](z, na.from_host(x).sync()).sync()
    np.testing.assert_array_equal(host(z), [x[i::600].sum() for i in range(600)])


def test_an_error_names_the_launchs_block_and_thread() -> None:
    z = na.from_host(np.zeros(N - 1, np.float32)).sync()
    x = na.from_host(np.zeros(N, np.float32)).sync()
    block, thread = divmod((N - 1) % (7 * 32), 32)
    place = rf"block \({block}, 0, 0\), thread \({thread}, 0, 0\).*index {N - 1} "
    with pytest.raises(OutOfBoundsError, match=place):
        launchers(copied)[7, 32](z, x).sync()


@pytest.mark.parametrize("parts", [1, 4, 64])
@pytest.mark.parametrize(("blocks", "threads"), [(64, 256), (132, 256), (7, 33), (100_000, 32)])
def test_merged_blocks_have_the_threads_of_the_launch(
    blocks: int, threads: int, parts: int
) -> None:
    shape = merged((blocks, 1, 1), (threads, 1, 1), 4096, parts)
    assert shape.grid[0] * shape.block[0] == blocks * threads
    assert shape.block[0] <= 4096
    assert min(parts, blocks) <= shape.grid[0] <= blocks


def test_blocks_of_more_axes_stay_as_they_are() -> None:
    for grid, block in (((8, 2, 1), (32, 1, 1)), ((8, 1, 1), (8, 4, 1))):
        shape = merged(grid, block, MOST_MERGED, 1)
        assert (shape.grid, shape.block) == (grid, block)
