"""Kernels for tensor cores that are right, for tests of what the CPU device makes of them."""

from __future__ import annotations

import numpy as np
from numba import cuda, float32

import numbasync as na
from numbasync import tensor_cores as tc

ROWS, COLUMNS, DEPTH, STAGES = 128, 64, 64, 2
PIPELINE = na.shared_layout(
    a=tc.tile(np.float16, (STAGES, ROWS, DEPTH)),
    b=tc.tile(np.float16, (STAGES, COLUMNS, DEPTH)),
    full=tc.barriers(STAGES),
    empty=tc.barriers(STAGES),
)
STAGE_BYTES = (ROWS + COLUMNS) * DEPTH * 2


@na.launcher
@cuda.jit
def pipelined_matmul(out: na.KernelOutput, ta: na.KernelInput, tb: na.KernelInput, k):
    """``a @ b.T``: a warpgroup that loads, and two that multiply 64 rows each."""
    tid = cuda.threadIdx.x
    group = tid >> 7
    if tid == 0:
        for i in range(STAGES):
            tc.barrier_init(PIPELINE.full, i, 1)
            tc.barrier_init(PIPELINE.empty, i, 2)
        tc.fence_barrier_init()
    cuda.syncthreads()
    m, n = out.shape
    tiles_m, tiles_n, steps = m // ROWS, n // COLUMNS, k // DEPTH
    stage, phase = 0, 0
    if group == 0:
        tc.give_up_registers(40)
        if tid == 0:
            for tile in range(cuda.blockIdx.x, tiles_m * tiles_n, cuda.gridDim.x):
                row, column = tile % tiles_m * ROWS, tile // tiles_m * COLUMNS
                for step in range(steps):
                    at = step * DEPTH
                    tc.barrier_wait(PIPELINE.empty, stage, phase ^ 1)
                    tc.barrier_expect(PIPELINE.full, stage, STAGE_BYTES)
                    tc.load_tile(PIPELINE.a, (stage, 0, 0), ta, (row, at), PIPELINE.full, stage)
                    tc.load_tile(PIPELINE.b, (stage, 0, 0), tb, (column, at), PIPELINE.full, stage)
                    stage += 1
                    if stage == STAGES:
                        stage = 0
                        phase ^= 1
    else:
        tc.take_registers(232)
        mine = (group - 1) * 64
        first = (tid & 127) == 0
        warp_row = mine + ((tid >> 5) & 3) * 16
        last = 0
        for tile in range(cuda.blockIdx.x, tiles_m * tiles_n, cuda.gridDim.x):
            row, column = tile % tiles_m * ROWS, tile // tiles_m * COLUMNS
            acc = tc.accumulator(16, COLUMNS)
            for step in range(steps):
                tc.barrier_wait(PIPELINE.full, stage, phase)
                acc = tc.wgmma(
                    acc, PIPELINE.a, (stage, mine, 0), PIPELINE.b, (stage, 0, 0), step, DEPTH
                )
                acc = tc.wgmma_wait(acc, 1)
                if step > 0 and first:
                    tc.barrier_arrive(PIPELINE.empty, last)
                last = stage
                stage += 1
                if stage == STAGES:
                    stage = 0
                    phase ^= 1
            acc = tc.wgmma_wait(acc, 0)
            if first:
                tc.barrier_arrive(PIPELINE.empty, last)
            tc.store(out, (row + warp_row, column), acc)


COPIED = na.shared_layout(
    a=tc.tile(np.float16, (2, 32, 64)), b=tc.tile(np.float16, (2, 32, 64)),
    plain_a=tc.tile(np.float16, (2, 32, 64), 0), plain_b=tc.tile(np.float16, (2, 32, 64), 0),
    offsets={"plain_a": 0, "plain_b": 8192}, union=True,
)  # fmt: skip


@na.launcher
@cuda.jit
def copied_matmul(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    """``a @ b.T`` of 32 x 32 by two warps of 16 rows, with two stages of `copy_async`."""
    tid = cuda.threadIdx.x
    warp_row = (tid >> 5) * 16
    steps = (a.shape[1] + 63) // 64
    acc = tc.accumulator(16, 32)
    for step in range(steps + 1):
        if step < steps:
            stage = step & 1
            for i in range(tid, 32 * 8, 64):
                row, column = i >> 3, (i & 7) * 8
                at = step * 64 + column
                inside = at < a.shape[1]
                tc.copy_async(COPIED.a, (stage, row, column), a, (row, at), 8, inside)
                tc.copy_async(COPIED.b, (stage, row, column), b, (row, at), 8, inside)
        tc.commit_copies()
        if step > 0:
            tc.wait_copies(1)
            cuda.syncthreads()
            stage = (step - 1) & 1
            for k in range(0, 64, 16):
                left = tc.load_a(COPIED.a, (stage, warp_row, k), 16)
                right = tc.load_b(COPIED.b, (stage, 0, k), 32)
                acc = tc.mma(acc, left, right)
            cuda.syncthreads()
    tc.store(out, (warp_row, 0), acc)


WHOLE = na.shared_layout(
    a=tc.tile(np.float16, (64, 64)), b=tc.tile(np.float16, (32, 64)),
    plain_a=tc.tile(np.float16, (64, 64), 0),
    offsets={"plain_a": 0}, union=True,
)  # fmt: skip


@na.launcher
@cuda.jit
def copied_tiles_matmul(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    """``a @ b.T`` of 64 x 32 by a warpgroup, from tiles that its threads copy."""
    tid = cuda.threadIdx.x
    acc = tc.accumulator(16, 32)
    for step in range(a.shape[1] // 64):
        for i in range(tid, 64 * 8, 128):
            row, column = i >> 3, (i & 7) * 8
            tc.copy_async(WHOLE.a, (row, column), a, (row, step * 64 + column), 8)
            if row < 32:
                tc.copy_async(WHOLE.b, (row, column), b, (row, step * 64 + column), 8)
        tc.commit_copies()
        tc.wait_copies(0)
        tc.fence_async()
        cuda.syncthreads()
        acc = tc.wgmma(acc, WHOLE.a, (0, 0), WHOLE.b, (0, 0), step, 64)
        acc = tc.wgmma_wait(acc, 0)
        cuda.syncthreads()
    tc.store(out, ((tid >> 5) * 16, 0), acc)


PASSED = na.shared_layout(
    tile=tc.tile(np.float16, (2, 16, 64)), plain=tc.tile(np.float16, (2, 16, 64), 0),
    offsets={"plain": 0}, union=True,
)  # fmt: skip


@na.launcher
@cuda.jit
def passed_on(target: na.KernelOutput, source: na.KernelInput):
    """Copy 16 rows at a time, by all threads into a tile, and by one thread out of it."""
    tid = cuda.threadIdx.x
    for step in range(source.shape[0] // 16):
        stage = step & 1
        for i in range(tid, 16 * 8, 32):
            row, column = i >> 3, (i & 7) * 8
            tc.copy_async(PASSED.tile, (stage, row, column), source, (step * 16 + row, column), 8)
        tc.commit_copies()
        tc.wait_copies(0)
        tc.fence_async()
        cuda.syncthreads()
        if tid == 0:
            tc.store_tile(target, (step * 16, 0), PASSED.tile, (stage, 0, 0))
            tc.commit_stores()
            tc.wait_stores(1)
        cuda.syncthreads()


LOOKED_UP = na.shared_layout(
    q=tc.tile(np.float16, (64, 64)), k=tc.tile(np.float16, (32, 64)),
    v=tc.tile(np.float16, (32, 64)), full=tc.barriers(2),
)  # fmt: skip


@na.launcher
@cuda.jit
def attention(out: na.KernelOutput, tq: na.KernelInput, tk: na.KernelInput, tv: na.KernelInput):
    """One block of queries, and one of keys and of values."""
    tid = cuda.threadIdx.x
    if tid == 0:
        for i in range(2):
            tc.barrier_init(LOOKED_UP.full, i, 1)
        tc.fence_barrier_init()
    cuda.syncthreads()
    if tid == 0:
        tc.barrier_expect(LOOKED_UP.full, 0, 96 * 64 * 2)
        tc.load_tile(LOOKED_UP.q, (0, 0), tq, (0, 0), LOOKED_UP.full, 0)
        tc.load_tile(LOOKED_UP.k, (0, 0), tk, (0, 0), LOOKED_UP.full, 0)
        tc.barrier_expect(LOOKED_UP.full, 1, 32 * 64 * 2)
        tc.load_tile(LOOKED_UP.v, (0, 0), tv, (0, 0), LOOKED_UP.full, 1)
    tc.barrier_wait(LOOKED_UP.full, 0, 0)
    acc = tc.accumulator(16, 32)
    acc = tc.wgmma(acc, LOOKED_UP.q, (0, 0), LOOKED_UP.k, (0, 0), False, 64)
    acc = tc.wgmma_wait(acc, 0)
    most = tc.row_max(acc, (float32(-1e30), float32(-1e30)))
    acc = tc.exp2_rows(acc, float32(0.125), most)
    total = tc.row_sum(acc)
    left = tc.to_fragment(acc, np.float16)
    result = tc.accumulator(16, 64)
    tc.barrier_wait(LOOKED_UP.full, 1, 0)
    result = tc.wgmma_fragment(result, left, LOOKED_UP.v, (0, 0), True)
    result = tc.wgmma_wait(result, 0)
    result = tc.scale_rows(result, (float32(1) / total[0], float32(1) / total[1]))
    tc.store(out, ((tid >> 5) * 16, 0), result)


SIDE, BLOCKS = 64, 2
PART = SIDE // BLOCKS  # rows of b that a block loads for all
SHARED = na.shared_layout(
    a=tc.tile(np.float16, (STAGES, SIDE, SIDE)),
    b=tc.tile(np.float16, (STAGES, SIDE, SIDE)),
    full=tc.barriers(STAGES),
    empty=tc.barriers(STAGES),
)


@na.launcher(cluster=BLOCKS)
@cuda.jit
def shared_matmul(out: na.KernelOutput, ta: na.KernelInput, tb: na.KernelInput, k):
    """``a @ b.T``: blocks of a cluster have neighbouring rows and the same columns; each loads a
    part of b's tile for both. Four warps multiply 16 rows each, a fifth one loads.
    """
    thread, rank = cuda.threadIdx.x, tc.cluster_rank()
    if thread == 0:
        for i in range(STAGES):
            tc.barrier_init(SHARED.full, i, 1)
            tc.barrier_init(SHARED.empty, i, 4 * BLOCKS)
        tc.fence_barrier_init()
    tc.cluster_sync()  # the first
    row, column = cuda.blockIdx.x * SIDE, cuda.blockIdx.y * SIDE
    steps = k // SIDE
    if thread == 128:
        for step in range(steps):
            stage, at, own = step % STAGES, step * SIDE, rank * PART
            tc.barrier_wait(SHARED.empty, stage, step // STAGES % 2 ^ 1)
            tc.barrier_expect(SHARED.full, stage, 4 * SIDE * SIDE)
            tc.load_tile(SHARED.a, (stage, 0, 0), ta, (row, at), SHARED.full, stage)
            corner = column + own, at
            tc.load_tile(SHARED.b, (stage, own, 0), tb, corner, SHARED.full, stage, 3)
    elif thread < 128:
        warp_row = thread // 32 * 16
        sums = tc.accumulator(16, SIDE)
        for step in range(steps):
            stage = step % STAGES
            tc.barrier_wait(SHARED.full, stage, step // STAGES % 2)
            for at in range(0, SIDE, 16):
                left = tc.load_a(SHARED.a, (stage, warp_row, at), 16)
                sums = tc.mma(sums, left, tc.load_b(SHARED.b, (stage, 0, at), SIDE))
            cuda.syncwarp()
            if thread % 32 == 0:
                for block in range(BLOCKS):
                    tc.barrier_arrive(SHARED.empty, stage, block)
        tc.store(out, (row + warp_row, column), sums)
    tc.cluster_sync()  # the last
