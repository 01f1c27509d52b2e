"""Attention by warpgroups of tensor cores (`wgmma`), for GPUs of capability 9.0.

A block goes through tiles of queries of one head. One thread of the first warpgroup copies queries,
and blocks of keys and values, by tensor maps, into shared memory; the other warpgroups have 64
queries each. Scores never leave registers: the product with the values takes its left operand from
there. The scores of the next keys are multiplied while the values of these are; the warpgroups take
turns, so that one multiplies while another takes exponentials. While a tile is finished, the next
one's queries and keys are on their way.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.kernel_names import cuda, float32, int32
from numbasync_kernels.fits import dtype_of
from numbasync_kernels.nn.attention_tiles import (
    KEYS,
    begin_in_out,
    corner_of,
    existing,
    heads_of,
    masked,
    page_of,
    sequence_of,
    steps_of,
    tile_at,
    visible,
    with_queries,
)
from numbasync_kernels.nn.matmul_warpgroups import ROW_BYTES

STAGES = 2
SLOTS = 2  # for queries
LOWEST = -1e30  # where a maximum begins: finite, so that differences are
MANY_KEYS = 1024
TURNS = 2 * 128  # threads that meet when one warpgroup lets the next one multiply
LOG2_E = math.log2(math.e)


@cuda.jit(device=True)
def inverse(total: Any) -> Any:
    """The reciprocal of a sum of weights; 0 for a query that sees no key."""
    return float32(0.0) if total == float32(0.0) else float32(1.0) / total


class AttentionKernel(NamedTuple):
    """A kernel of `attention_warpgroups`, and how it is launched.

    Attributes:
        launcher: called with the arguments that `attention_warpgroups` says.
        queries: of a tile.
        threads: of a block.
        columns: of a box of a tensor map; boxes of q have `queries` rows, those of k and v `KEYS`.
        swizzle: of the maps.
    """

    launcher: Any
    queries: int
    threads: int
    columns: int

    @property
    def swizzle(self) -> int:
        return 2 * self.columns

    def blocks(self, tiles: int, keys: int, causal: bool, multiprocessors: int) -> int:
        """The blocks of a launch: as many as run at once, each of which goes through several tiles;
        or a block a tile, where tiles take long and not the same time.
        """
        return tiles if causal and keys >= MANY_KEYS else min(tiles, multiprocessors)


@cache
def attention_warpgroups(dtype: str, width: int, causal: bool, groups: int = 2) -> AttentionKernel:
    """The kernel of ``out = softmax(q @ k.T * scale) @ v``, for each head.

    Args:
        dtype: of q, k, v and out: "float16" or "bfloat16". Scores and sums are float32.
        width: of a head: 32, 64 or 128.
        causal: query i sees keys up to ``i + keys - queries`` only; there are at least as many keys
            as queries.
        groups: warpgroups that multiply, each 64 queries of a tile: 2; or 3, of a width below 128.

    The launcher's arguments, where "all heads" are those of all sequences: ``out``, shape (all
    heads * queries, width); tensor maps of q, k and v, of shapes (all heads, queries, width), (all
    key heads, keys, width) and the same; all heads; the heads of a sequence; how many share a key
    head; queries; keys; and ``scale``. The rest may be None: ``lengths``, the keys that exist of
    each sequence; ``offsets``; ``mask``, shape (n, queries or 1, keys), how many heads share one of
    the n, and whether it is added to scores. With ``offsets``, sequences lie one behind the other:
    ``out`` has the shape (tokens, heads * width), the maps are of (tokens, heads, width), with
    boxes of one head, and ``queries`` is at least the longest sequence. Any number of blocks goes
    through all tiles.

    Error bound: scores are exact to ``width * 2**-23`` of the largest sum of products, weights are
    rounded to the dtype: with u its unit about ``2 u max(abs(v))``, beside the rounding of out.
    Source: T. Dao, FlashAttention-2, 2023; J. Shah and others, FlashAttention-3, 2024.
    """
    rows = 64 * groups
    threads = 128 * (groups + 1)
    given_up, taken = (24, 240) if groups == 2 else (32, 160)
    element = dtype_of(dtype)
    columns = min(width, ROW_BYTES // 2)
    chunks = width // columns
    layout = na.shared_layout(
        q=tc.tile(element, (SLOTS, chunks, rows, columns), 2 * columns),
        k=tc.tile(element, (STAGES, chunks, KEYS, columns), 2 * columns),
        v=tc.tile(element, (STAGES, chunks, KEYS, columns), 2 * columns),
        q_full=tc.barriers(SLOTS),
        q_empty=tc.barriers(SLOTS),
        k_full=tc.barriers(STAGES),
        k_empty=tc.barriers(STAGES),
        v_full=tc.barriers(STAGES),
        v_empty=tc.barriers(STAGES),
    )
    q_bytes = rows * width * 2
    k_bytes = KEYS * width * 2

    @na.launcher(threads=threads)
    @cuda.jit(launch_bounds=(threads, 1), cache=True)
    def attention_by_warpgroups(
        out: na.KernelOutput, q: na.KernelInput, k: na.KernelInput, v: na.KernelInput,
        all_heads: int, heads: int, shared_by: int, queries: int, keys: int, scale: float,
        lengths: na.KernelInput = None, offsets: na.KernelInput = None,
        mask: na.KernelInput = None, mask_shared: int = 1, mask_added: int = 0,
    ) -> None:  # fmt: skip
        thread = cuda.threadIdx.x
        warpgroup = thread >> 7
        if thread == 0:
            tc.prefetch_map(q)
            tc.prefetch_map(k)
            tc.prefetch_map(v)
            for i in range(SLOTS):
                tc.barrier_init(layout.q_full, i, 1)
                tc.barrier_init(layout.q_empty, i, groups)
            for i in range(STAGES):
                tc.barrier_init(layout.k_full, i, 1)
                tc.barrier_init(layout.v_full, i, 1)
                tc.barrier_init(layout.k_empty, i, groups)
                tc.barrier_init(layout.v_empty, i, groups)
            tc.fence_barrier_init()
        cuda.syncthreads()
        blocks = (queries + rows - 1) // rows
        tiles = all_heads * blocks
        slot = 0
        q_parity = 0
        stage = 0
        parity = 0
        number = with_queries(
            cuda.blockIdx.x, tiles, all_heads, heads, blocks, causal, rows, offsets
        )
        if warpgroup == 0:
            tc.give_up_registers(given_up)
            if thread == 0:
                while number < tiles:
                    head, block = tile_at(number, all_heads, heads, blocks, causal, offsets)
                    first, count, seen = sequence_of(head, heads, queries, keys, lengths, offsets)
                    first_row = block * rows
                    shift = 0 if offsets is not None else keys - queries
                    steps = steps_of(first_row, rows, shift, seen, causal)
                    own_head, key_head = heads_of(head, heads, shared_by, offsets)
                    tc.barrier_wait(layout.q_empty, slot, q_parity ^ 1)
                    tc.barrier_expect(layout.q_full, slot, q_bytes)
                    for chunk in range(chunks):
                        place = slot, chunk, 0, 0
                        corner = corner_of(own_head, first, first_row, chunk * columns, offsets)
                        tc.load_tile(layout.q, place, q, corner, layout.q_full, slot)
                    slot += 1
                    if slot == SLOTS:
                        slot = 0
                        q_parity ^= 1
                    for step in range(steps):
                        start = (steps - 1 - step) * KEYS  # masked keys come first
                        tc.barrier_wait(layout.k_empty, stage, parity ^ 1)
                        tc.barrier_expect(layout.k_full, stage, k_bytes)
                        for chunk in range(chunks):
                            place = stage, chunk, 0, 0
                            corner = corner_of(key_head, first, start, chunk * columns, offsets)
                            tc.load_tile(layout.k, place, k, corner, layout.k_full, stage)
                        tc.barrier_wait(layout.v_empty, stage, parity ^ 1)
                        tc.barrier_expect(layout.v_full, stage, k_bytes)
                        for chunk in range(chunks):
                            place = stage, chunk, 0, 0
                            corner = corner_of(key_head, first, start, chunk * columns, offsets)
                            tc.load_tile(layout.v, place, v, corner, layout.v_full, stage)
                        stage += 1
                        if stage == STAGES:
                            stage = 0
                            parity ^= 1
                    number = with_queries(
                        number + cuda.gridDim.x, tiles, all_heads, heads, blocks, causal, rows,
                        offsets,
                    )  # fmt: skip
        else:
            tc.take_registers(taken)
            own_row = (warpgroup - 1) * 64
            speaks = thread % 128 == 0
            following_group = 1 if warpgroup == groups else warpgroup + 1
            power = float32(scale * LOG2_E)
            if mask is not None:
                power = float32(LOG2_E)  # scores are scaled before the mask is added
            if warpgroup == 1:
                tc.part_arrive(1, TURNS)  # the first turn
            while number < tiles:
                head, block = tile_at(number, all_heads, heads, blocks, causal, offsets)
                first, count, seen = sequence_of(head, heads, queries, keys, lengths, offsets)
                first_row = block * rows
                shift = 0 if offsets is not None else keys - queries
                steps = steps_of(first_row, rows, shift, seen, causal)
                row = first_row + own_row + ((thread >> 5) & 3) * 16
                page = page_of(head, mask, mask_shared)
                tc.barrier_wait(layout.q_full, slot, q_parity)
                tc.barrier_wait(layout.k_full, stage, parity)
                own_queries = slot, 0, own_row, 0
                scores = tc.accumulator(16, KEYS)
                scores = tc.wgmma(
                    scores, layout.q, own_queries, layout.k, (stage, 0, 0, 0), False, width
                )
                scores = tc.wgmma_wait(scores, 0)
                if speaks:
                    tc.barrier_arrive(layout.k_empty, stage)
                corner = row, (steps - 1) * KEYS
                if mask is not None:
                    scores = tc.apply(
                        masked, scores, corner, mask, page, mask_added, float32(scale)
                    )
                if causal:
                    scores = tc.apply(visible, scores, corner, int32(shift))
                if not causal or lengths is not None:
                    scores = tc.apply(existing, scores, corner, int32(seen))
                most = tc.row_max(scores, (float32(LOWEST), float32(LOWEST)))
                weights = tc.exp2_rows(scores, power, most)
                total = tc.row_sum(weights, False)
                left = tc.to_fragment(weights, element)
                sums = tc.accumulator(16, width)
                for step in range(1, steps):
                    following = stage + 1
                    following_parity = parity
                    if following == STAGES:
                        following = 0
                        following_parity = parity ^ 1
                    tc.barrier_wait(layout.k_full, following, following_parity)
                    tc.part_sync(warpgroup, TURNS)
                    scores = tc.wgmma(
                        scores, layout.q, own_queries, layout.k, (following, 0, 0, 0), False, width
                    )
                    tc.barrier_wait(layout.v_full, stage, parity)
                    sums = tc.wgmma_fragment(sums, left, layout.v, (stage, 0, 0, 0), True)
                    tc.part_arrive(following_group, TURNS)
                    scores = tc.wgmma_wait(scores, 1)
                    if speaks:
                        tc.barrier_arrive(layout.k_empty, following)
                    start = (steps - 1 - step) * KEYS
                    if mask is not None:
                        scores = tc.apply(
                            masked, scores, (row, start), mask, page, mask_added, float32(scale)
                        )
                    if causal and start + KEYS - 1 > first_row + shift:
                        scores = tc.apply(visible, scores, (row, start), int32(shift))
                    higher = tc.row_max(scores, most)
                    factor = (
                        tc.exp2((most[0] - higher[0]) * power),
                        tc.exp2((most[1] - higher[1]) * power),
                    )
                    weights = tc.exp2_rows(scores, power, higher)
                    added = tc.row_sum(weights, False)
                    total = total[0] * factor[0] + added[0], total[1] * factor[1] + added[1]
                    most = higher
                    sums = tc.wgmma_wait(sums, 0)
                    if speaks:
                        tc.barrier_arrive(layout.v_empty, stage)
                    left = tc.to_fragment(weights, element)
                    sums = tc.scale_rows(sums, factor)
                    stage = following
                    parity = following_parity
                if speaks:
                    tc.barrier_arrive(layout.q_empty, slot)
                tc.barrier_wait(layout.v_full, stage, parity)
                sums = tc.wgmma_fragment(sums, left, layout.v, (stage, 0, 0, 0), True)
                sums = tc.wgmma_wait(sums, 0)
                if speaks:
                    tc.barrier_arrive(layout.v_empty, stage)
                slot += 1
                if slot == SLOTS:
                    slot = 0
                    q_parity ^= 1
                stage += 1
                if stage == STAGES:
                    stage = 0
                    parity ^= 1
                upper, lower = tc.sum_over_row(total[0]), tc.sum_over_row(total[1])
                sums = tc.scale_rows(sums, (inverse(upper), inverse(lower)))
                begin, column = begin_in_out(head, heads, first, queries, width, offsets)
                tc.store(out[: begin + count], (begin + row, column), sums)
                number = with_queries(
                    number + cuda.gridDim.x, tiles, all_heads, heads, blocks, causal, rows, offsets
                )

    return AttentionKernel(attention_by_warpgroups, rows, threads, columns)
