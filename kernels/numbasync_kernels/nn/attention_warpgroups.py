"""Attention by warpgroups of tensor cores (`wgmma`), for GPUs of capability 9.0.

A block computes 128 queries of one head. One thread of the first warpgroup copies blocks of keys
and values, by tensor maps, into stages of shared memory; the other two warpgroups have 64 queries
each. Scores never leave registers: the product with the values takes its left operand from there.
The scores of the next keys are multiplied while the values of these are; the two warpgroups take
turns, so that one multiplies while the other takes exponentials.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync_kernels.nn.matmul_warpgroups import ROW_BYTES, THREADS, _dtype

QUERIES = 128  # of a block
KEYS = 128  # of a step
STAGES = 2
COLUMNS = ROW_BYTES // 2  # of a tile
LOWEST = -1e30  # below every score
TURNS = 2 * 128  # threads that take turns
LOG2_E = math.log2(math.e)


@cache
def attention_warpgroups(dtype: str, width: int, causal: bool) -> Any:
    """The launcher of ``out = softmax(q @ k.T * scale) @ v``, for each head.

    Args:
        dtype: of q, k, v and out: "float16" or "bfloat16". Scores and sums are float32.
        width: of a head, 64 or 128.
        causal: query i sees keys up to ``i + keys - queries`` only.

    The launcher's arguments: ``out``, shape (heads, queries, width); tensor maps of q, k and v of
    shapes (heads, queries, width), (key heads, keys, width) and the same, with boxes of (1, 128,
    64); the number of query heads that share a key head; and ``scale``. The grid is (blocks of 128
    queries, heads), with `THREADS` threads.

    Error bound: a softmax of scores that are exact to ``width * 2**-23``, weights rounded to the
    dtype: about ``2 u`` of the largest value, with u the dtype's unit, beside the rounding of out.
    Source: T. Dao, FlashAttention-2, 2023; J. Shah and others, FlashAttention-3, 2024.
    """
    element = _dtype(dtype)
    chunks = width // COLUMNS
    layout = na.shared_layout(
        q=tc.tile(element, (chunks, QUERIES, COLUMNS)),
        k=tc.tile(element, (STAGES, chunks, KEYS, COLUMNS)),
        v=tc.tile(element, (STAGES, chunks, KEYS, COLUMNS)),
        q_full=tc.barriers(1),
        k_full=tc.barriers(STAGES),
        k_empty=tc.barriers(STAGES),
        v_full=tc.barriers(STAGES),
        v_empty=tc.barriers(STAGES),
    )
    q_bytes = QUERIES * width * 2
    k_bytes = KEYS * width * 2

    @cuda.jit(device=True)
    def visible(score, row, column, shift):  # type: ignore[no-untyped-def]
        return score if column <= row + shift else float32(LOWEST)

    @cuda.jit(device=True)
    def existing(score, row, column, keys):  # type: ignore[no-untyped-def]
        return score if column < keys else float32(LOWEST)

    @cuda.jit(device=True)
    def masked(scores, row, start, queries, keys):  # type: ignore[no-untyped-def]
        if causal:
            return tc.apply(visible, scores, (row, start), keys - queries)
        return tc.apply(existing, scores, (row, start), keys)

    @na.launcher(threads=THREADS)
    @cuda.jit(launch_bounds=(THREADS, 1), cache=True)
    def attention_by_warpgroups(
        out: na.KernelOutput, q: na.KernelInput, k: na.KernelInput, v: na.KernelInput, keys: int,
        shared_by: int, scale: float,
    ) -> None:  # fmt: skip
        thread = cuda.threadIdx.x
        warpgroup = thread >> 7
        if thread == 0:
            tc.barrier_init(layout.q_full, 0, 1)
            for i in range(STAGES):
                tc.barrier_init(layout.k_full, i, 1)
                tc.barrier_init(layout.v_full, i, 1)
                tc.barrier_init(layout.k_empty, i, 2)
                tc.barrier_init(layout.v_empty, i, 2)
            tc.fence_barrier_init()
        cuda.syncthreads()
        queries = out.shape[1]
        head = cuda.blockIdx.y
        key_head = head // shared_by
        block = cuda.blockIdx.x
        last_key = keys
        if causal:  # the longest rows first
            block = cuda.gridDim.x - 1 - cuda.blockIdx.x
            last_key = min(keys, (block + 1) * QUERIES + keys - queries)
        first_row = block * QUERIES
        steps = (last_key + KEYS - 1) // KEYS
        stage = 0
        parity = 0
        if warpgroup == 0:
            tc.give_up_registers(24)
            if thread == 0:
                tc.barrier_expect(layout.q_full, 0, q_bytes)
                for chunk in range(chunks):
                    corner = head, first_row, chunk * COLUMNS
                    tc.load_tile(layout.q, (chunk, 0, 0), q, corner, layout.q_full, 0)
                for step in range(steps):
                    start = (steps - 1 - step) * KEYS  # the only masked keys are the first
                    tc.barrier_wait(layout.k_empty, stage, parity ^ 1)
                    tc.barrier_expect(layout.k_full, stage, k_bytes)
                    for chunk in range(chunks):
                        corner = key_head, start, chunk * COLUMNS
                        tc.load_tile(
                            layout.k, (stage, chunk, 0, 0), k, corner, layout.k_full, stage
                        )
                    tc.barrier_wait(layout.v_empty, stage, parity ^ 1)
                    tc.barrier_expect(layout.v_full, stage, k_bytes)
                    for chunk in range(chunks):
                        corner = key_head, start, chunk * COLUMNS
                        tc.load_tile(
                            layout.v, (stage, chunk, 0, 0), v, corner, layout.v_full, stage
                        )
                    stage += 1
                    if stage == STAGES:
                        stage = 0
                        parity ^= 1
        else:
            tc.take_registers(240)
            own_row = (warpgroup - 1) * 64
            speaks = thread % 128 == 0
            row = first_row + own_row + ((thread >> 5) & 3) * 16
            power = float32(scale * LOG2_E)
            if warpgroup == 1:
                tc.part_arrive(1, TURNS)
            tc.barrier_wait(layout.q_full, 0, 0)
            tc.barrier_wait(layout.k_full, 0, 0)
            scores = tc.accumulator(16, KEYS)
            scores = tc.wgmma(
                scores, layout.q, (0, own_row, 0), layout.k, (0, 0, 0, 0), False, width
            )
            scores = tc.wgmma_wait(scores, 0)
            if speaks:
                tc.barrier_arrive(layout.k_empty, 0)
            scores = masked(scores, row, (steps - 1) * KEYS, queries, keys)
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
                    scores, layout.q, (0, own_row, 0), layout.k, (following, 0, 0, 0), False, width
                )
                tc.barrier_wait(layout.v_full, stage, parity)
                sums = tc.wgmma_fragment(sums, left, layout.v, (stage, 0, 0, 0), True)
                tc.part_arrive(3 - warpgroup, TURNS)
                scores = tc.wgmma_wait(scores, 1)
                if speaks:
                    tc.barrier_arrive(layout.k_empty, following)
                start = (steps - 1 - step) * KEYS
                if causal and start + KEYS - 1 > first_row + keys - queries:
                    scores = masked(scores, row, start, queries, keys)
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
            tc.barrier_wait(layout.v_full, stage, parity)
            sums = tc.wgmma_fragment(sums, left, layout.v, (stage, 0, 0, 0), True)
            sums = tc.wgmma_wait(sums, 0)
            upper, lower = tc.sum_over_row(total[0]), tc.sum_over_row(total[1])
            sums = tc.scale_rows(sums, (float32(1.0) / upper, float32(1.0) / lower))
            tc.store(out[head], (row, 0), sums)

    return attention_by_warpgroups
