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

from numba import cuda, float32, int32

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync_kernels.nn.matmul_warpgroups import ROW_BYTES, dtype_of

KEYS = 128  # of a step
STAGES = 2
COLUMNS = ROW_BYTES // 2  # of a tile in shared memory
LOWEST = -1e30  # where a maximum begins: finite, so that differences are
NEVER = float32(-math.inf)  # the score of a key that a query does not see
MANY_KEYS = 1024
BAND = 8  # heads whose keys are in the L2 cache at the same time
TURNS = 2 * 128  # threads that meet when one warpgroup lets the next one multiply
LOG2_E = math.log2(math.e)


@cuda.jit(device=True)
def visible(score: Any, row: Any, column: Any, shift: Any) -> Any:
    """The score, if the query sees the key. The difference is of 32 bits: of its parts only
    constants differ between elements.
    """
    return score if int32(column - row) <= shift else NEVER


@cuda.jit(device=True)
def existing(score: Any, row: Any, column: Any, keys: Any) -> Any:
    """The score, if there is such a key."""
    return score if int32(column) < keys else NEVER


@cuda.jit(device=True)
def head_and_block(number: Any, heads: Any, blocks: Any, causal: Any) -> Any:
    """The head of a tile, and its place along the queries. If causal: of a band of heads, those
    with many keys come first, and tiles with as many keys are neighbours.
    """
    if causal:
        band = number // (BAND * blocks)
        rest = number % (BAND * blocks)
        height = min(heads - band * BAND, BAND)
        return band * BAND + rest % height, blocks - 1 - rest // height
    return number // blocks, number % blocks


class AttentionKernel(NamedTuple):
    """A kernel of `attention_warpgroups`, and how it is launched.

    Attributes:
        launcher: called with (out, q, k, v, keys, shared_by, scale).
        queries: of a tile.
        threads: of a block.
        box_q, box_k: the boxes of the tensor maps of q, and of k and v.
    """

    launcher: Any
    queries: int
    threads: int
    box_q: tuple[int, int, int]
    box_k: tuple[int, int, int]

    def blocks(self, out: na.Tensor, keys: int, causal: bool, multiprocessors: int) -> int:
        """The blocks of a launch: as many as run at once, each of which goes through several tiles;
        or a block a tile, where tiles take long and not the same time.
        """
        heads, queries, _ = out.shape
        tiles = heads * -(-queries // self.queries)
        return tiles if causal and keys >= MANY_KEYS else min(tiles, multiprocessors)


@cache
def attention_warpgroups(dtype: str, width: int, causal: bool) -> AttentionKernel:
    """The kernel of ``out = softmax(q @ k.T * scale) @ v``, for each head.

    Args:
        dtype: of q, k, v and out: "float16" or "bfloat16". Scores and sums are float32.
        width: of a head, 64 or 128.
        causal: query i sees keys up to ``i + keys - queries`` only; there are at least as many keys
            as queries.

    The launcher's arguments: ``out``, shape (heads, queries, width); tensor maps of q, k and v of
    shapes (heads, queries, width), (key heads, keys, width) and the same; the number of keys; the
    number of query heads that share a key head; and ``scale``. Any number of blocks goes through
    all tiles.

    Error bound: scores are exact to ``width * 2**-23`` of the largest sum of products, weights are
    rounded to the dtype: with u its unit about ``2 u max(abs(v))``, beside the rounding of out.
    Source: T. Dao, FlashAttention-2, 2023; J. Shah and others, FlashAttention-3, 2024.
    """
    groups = 2 if width == 128 else 3  # warpgroups that multiply
    queries_of_tile = 64 * groups
    threads = 128 * (groups + 1)
    given_up, taken = (24, 240) if groups == 2 else (32, 160)
    element = dtype_of(dtype)
    chunks = width // COLUMNS
    layout = na.shared_layout(
        q=tc.tile(element, (chunks, queries_of_tile, COLUMNS)),
        k=tc.tile(element, (STAGES, chunks, KEYS, COLUMNS)),
        v=tc.tile(element, (STAGES, chunks, KEYS, COLUMNS)),
        q_full=tc.barriers(1),
        q_empty=tc.barriers(1),
        k_full=tc.barriers(STAGES),
        k_empty=tc.barriers(STAGES),
        v_full=tc.barriers(STAGES),
        v_empty=tc.barriers(STAGES),
    )
    q_bytes = queries_of_tile * width * 2
    k_bytes = KEYS * width * 2

    @na.launcher(threads=threads)
    @cuda.jit(launch_bounds=(threads, 1), cache=True)
    def attention_by_warpgroups(
        out: na.KernelOutput, q: na.KernelInput, k: na.KernelInput, v: na.KernelInput, keys: int,
        shared_by: int, scale: float,
    ) -> None:  # fmt: skip
        thread = cuda.threadIdx.x
        warpgroup = thread >> 7
        if thread == 0:
            tc.barrier_init(layout.q_full, 0, 1)
            tc.barrier_init(layout.q_empty, 0, groups)
            for i in range(STAGES):
                tc.barrier_init(layout.k_full, i, 1)
                tc.barrier_init(layout.v_full, i, 1)
                tc.barrier_init(layout.k_empty, i, groups)
                tc.barrier_init(layout.v_empty, i, groups)
            tc.fence_barrier_init()
        cuda.syncthreads()
        heads = out.shape[0]
        queries = out.shape[1]
        blocks = (queries + queries_of_tile - 1) // queries_of_tile
        stage = 0
        parity = 0
        q_parity = 0
        if warpgroup == 0:
            tc.give_up_registers(given_up)
            if thread == 0:
                for number in range(cuda.blockIdx.x, heads * blocks, cuda.gridDim.x):
                    head, block = head_and_block(number, heads, blocks, causal)
                    key_head = head // shared_by
                    first_row = block * queries_of_tile
                    last_key = keys
                    if causal:
                        last_key = min(keys, first_row + queries_of_tile + keys - queries)
                    steps = (last_key + KEYS - 1) // KEYS
                    tc.barrier_wait(layout.q_empty, 0, q_parity ^ 1)
                    tc.barrier_expect(layout.q_full, 0, q_bytes)
                    for chunk in range(chunks):
                        corner = head, first_row, chunk * COLUMNS
                        tc.load_tile(layout.q, (chunk, 0, 0), q, corner, layout.q_full, 0)
                    q_parity ^= 1
                    for step in range(steps):
                        start = (steps - 1 - step) * KEYS  # masked keys come first
                        tc.barrier_wait(layout.k_empty, stage, parity ^ 1)
                        tc.barrier_expect(layout.k_full, stage, k_bytes)
                        for chunk in range(chunks):
                            place = stage, chunk, 0, 0
                            corner = key_head, start, chunk * COLUMNS
                            tc.load_tile(layout.k, place, k, corner, layout.k_full, stage)
                        tc.barrier_wait(layout.v_empty, stage, parity ^ 1)
                        tc.barrier_expect(layout.v_full, stage, k_bytes)
                        for chunk in range(chunks):
                            place = stage, chunk, 0, 0
                            corner = key_head, start, chunk * COLUMNS
                            tc.load_tile(layout.v, place, v, corner, layout.v_full, stage)
                        stage += 1
                        if stage == STAGES:
                            stage = 0
                            parity ^= 1
        else:
            tc.take_registers(taken)
            own_row = (warpgroup - 1) * 64
            speaks = thread % 128 == 0
            following_group = 1 if warpgroup == groups else warpgroup + 1
            power = float32(scale * LOG2_E)
            if warpgroup == 1:
                tc.part_arrive(1, TURNS)  # the first turn
            for number in range(cuda.blockIdx.x, heads * blocks, cuda.gridDim.x):
                head, block = head_and_block(number, heads, blocks, causal)
                first_row = block * queries_of_tile
                last_key = keys
                if causal:
                    last_key = min(keys, first_row + queries_of_tile + keys - queries)
                steps = (last_key + KEYS - 1) // KEYS
                row = first_row + own_row + ((thread >> 5) & 3) * 16
                tc.barrier_wait(layout.q_full, 0, q_parity)
                tc.barrier_wait(layout.k_full, stage, parity)
                scores = tc.accumulator(16, KEYS)
                scores = tc.wgmma(
                    scores, layout.q, (0, own_row, 0), layout.k, (stage, 0, 0, 0), False, width
                )
                scores = tc.wgmma_wait(scores, 0)
                if speaks:
                    tc.barrier_arrive(layout.k_empty, stage)
                first_score = row, (steps - 1) * KEYS
                if causal:
                    scores = tc.apply(visible, scores, first_score, int32(keys - queries))
                else:
                    scores = tc.apply(existing, scores, first_score, int32(keys))
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
                        scores, layout.q, (0, own_row, 0), layout.k, (following, 0, 0, 0), False,
                        width,
                    )  # fmt: skip
                    tc.barrier_wait(layout.v_full, stage, parity)
                    sums = tc.wgmma_fragment(sums, left, layout.v, (stage, 0, 0, 0), True)
                    tc.part_arrive(following_group, TURNS)
                    scores = tc.wgmma_wait(scores, 1)
                    if speaks:
                        tc.barrier_arrive(layout.k_empty, following)
                    start = (steps - 1 - step) * KEYS
                    if causal and start + KEYS - 1 > first_row + keys - queries:
                        scores = tc.apply(visible, scores, (row, start), int32(keys - queries))
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
                    tc.barrier_arrive(layout.q_empty, 0)
                tc.barrier_wait(layout.v_full, stage, parity)
                sums = tc.wgmma_fragment(sums, left, layout.v, (stage, 0, 0, 0), True)
                sums = tc.wgmma_wait(sums, 0)
                if speaks:
                    tc.barrier_arrive(layout.v_empty, stage)
                stage += 1
                if stage == STAGES:
                    stage = 0
                    parity ^= 1
                q_parity ^= 1
                upper, lower = tc.sum_over_row(total[0]), tc.sum_over_row(total[1])
                sums = tc.scale_rows(sums, (float32(1.0) / upper, float32(1.0) / lower))
                tc.store(out[head], (row, 0), sums)

    return AttentionKernel(
        attention_by_warpgroups, queries_of_tile, threads, (1, queries_of_tile, COLUMNS),
        (1, KEYS, COLUMNS),
    )  # fmt: skip
