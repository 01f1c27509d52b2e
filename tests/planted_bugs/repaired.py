"""The kernels of `planted` without their mistakes: what shows that the tests are right."""

from __future__ import annotations

from numba import cuda, float32

from tests.planted_bugs import kernels, planted
from tests.planted_bugs.kernels import BLOCK


@cuda.jit
def pairs(out, x):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[2 * i] + x[2 * i + 1]


@cuda.jit
def weighted(out, x):
    weights = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    weights[t] = t + 1
    cuda.syncthreads()
    if i < x.shape[0]:
        out[i] = x[i] * weights[t]


@cuda.jit
def total(total, x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, x[i])


@cuda.jit
def places(out, count, x):
    i = cuda.grid(1)
    if i < x.shape[0] and x[i] > 0.5:
        out[cuda.atomic.add(count, 0, 1)] = 1


@cuda.jit
def shifted(out, x):
    i = cuda.grid(1)
    if 0 < i < out.shape[0]:
        out[i] = x[i - 1]


@cuda.jit
def copied(out, x):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i]


@cuda.jit
def copied_2d(out, x):
    i, j = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j]


REPAIRED = {
    planted.matmul_overwrites_its_tiles: kernels.matmul_shared,
    planted.block_sums_do_not_wait: kernels.block_sums,
    planted.reverse_reads_too_early: kernels.reverse,
    planted.transpose_reads_too_early: kernels.transpose,
    planted.prefix_sums_in_place: kernels.prefix_sums,
    planted.add_up_to_n: kernels.vector_add,
    planted.increment_to_the_edge: kernels.increment_2d,
    planted.stencil_at_the_edge: kernels.stencil,
    planted.stride_without_the_last: kernels.grid_stride,
    planted.sessions_from_the_second: kernels.sessions,
    planted.stride_of_a_block: kernels.grid_stride,
    planted.rows_as_long_as_columns: kernels.flat_image,
    planted.matmul_of_the_transposed: kernels.matmul,
    planted.block_sums_skip: kernels.block_sums,
    planted.every_second_pair: pairs,
    planted.block_sums_of_part: kernels.block_sums,
    planted.histogram_of_old_counts: kernels.histogram,
    planted.matmul_without_padding: kernels.matmul_shared,
    planted.stencil_without_halo: kernels.stencil,
    planted.first_warp_loads: weighted,
    planted.histogram_in_plain: kernels.histogram,
    planted.shared_histogram_in_plain: kernels.histogram,
    planted.total_of_blocks: total,
    planted.maximum_by_comparison: kernels.maximum,
    planted.next_free_place: places,
    planted.shifted_by_one: shifted,
    planted.two_elements_each: copied,
    planted.strides_through_all: copied,
    planted.axes_swapped: copied_2d,
    planted.next_block_first: copied,
}
