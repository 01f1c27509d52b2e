"""What the CPU device says of wrong uses of the operations for tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.errors import (
    BarrierDivergenceError,
    DataRaceError,
    KernelError,
    MisalignedAccessError,
    OutOfBoundsError,
    UninitialisedReadError,
)

pytestmark = pytest.mark.usefixtures("cpu")
LAYOUT = na.shared_layout(
    a=tc.tile(np.float16, (2, 64, 64)), b=tc.tile(np.float16, (16, 64), 0), full=tc.barriers(2)
)
UNEVEN = na.shared_layout(a=tc.tile(np.float16, (16, 40), 0))


def run(kernel: Any, threads: int = 128, *args: Any) -> None:
    out = na.zeros((64, 64)).sync()
    na.launcher(cuda.jit(kernel))[1, threads](out, *args).sync()


def loads(out: na.KernelOutput, source: na.KernelInput, nbytes, announced, row):
    """One thread loads a box, all wait."""
    if cuda.threadIdx.x == 0:
        tc.barrier_init(LAYOUT.full, 0, 1)
        tc.fence_barrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        tc.barrier_expect(LAYOUT.full, 0, announced)
        tc.load_tile(LAYOUT.a, (0, row, 0), source, (0, 0), LAYOUT.full, 0)
    tc.barrier_wait(LAYOUT.full, 0, 0)


def box() -> na.TensorMap:
    return na.tensor_map(na.zeros((64, 64), np.float16).sync(), (64, 64))


@pytest.mark.parametrize("announced", [4096, 16384])
def test_other_bytes_than_announced(announced: int) -> None:
    told = rf"barrier full\[0\], parity 0: 1 of 1 arrivals, 8,192 of {announced:,} bytes"
    with pytest.raises(BarrierDivergenceError, match=told):
        run(loads, 64, box(), 8192, announced, 0)


def test_a_box_beyond_the_tile() -> None:
    run(loads, 64, box(), 8192, 8192, 64 - 64)
    with pytest.raises(OutOfBoundsError, match=r"the index .0, 64, 0. is outside of tile a"):
        run(loads, 64, box(), 8192, 8192, 64)

    def last(out: na.KernelOutput, source: na.KernelInput):
        tc.barrier_init(LAYOUT.full, 0, 1)
        tc.fence_barrier_init()
        tc.load_tile(LAYOUT.a, (1, 8, 0), source, (0, 0), LAYOUT.full, 0)

    with pytest.raises(OutOfBoundsError, match=r"load_tile.*box.*beyond tile a"):
        run(last, 1, box())


def test_a_copy_that_nobody_waits_for() -> None:
    def leaves(out: na.KernelOutput, source: na.KernelInput):
        if cuda.threadIdx.x == 0:
            tc.barrier_init(LAYOUT.full, 0, 1)
            tc.fence_barrier_init()
            tc.barrier_expect(LAYOUT.full, 0, 8192)
            tc.load_tile(LAYOUT.a, (0, 0, 0), source, (0, 0), LAYOUT.full, 0)

    with pytest.raises(DataRaceError, match=r"the block ends.*phase 0 of barrier full\[0\]"):
        run(leaves, 32, box())


def only_one_lane_waits(out: na.KernelOutput, source: na.KernelInput):
    if cuda.threadIdx.x == 0:
        tc.barrier_init(LAYOUT.full, 0, 1)
        tc.fence_barrier_init()
        tc.barrier_expect(LAYOUT.full, 0, 8192)
        tc.load_tile(LAYOUT.a, (0, 0, 0), source, (0, 0), LAYOUT.full, 0)
        tc.barrier_wait(LAYOUT.full, 0, 0)
    tc.mma(
        tc.accumulator(16, 16),
        tc.load_a(LAYOUT.a, (0, 0, 0), 16),
        tc.load_b(LAYOUT.a, (0, 0, 0), 16),
    )


def test_one_lanes_wait_is_none_of_the_others() -> None:
    with pytest.raises(DataRaceError, match=r"load_a.*load_tile.*barrier_wait of barrier full"):
        run(only_one_lane_waits, 32, box())


# --- who calls ---


def by_half_a_warp(out: na.KernelOutput):
    if cuda.laneid < 16:
        tc.store(out, (0, 0), tc.accumulator(16, 16))


def by_half_a_warpgroup(out: na.KernelOutput):
    if cuda.threadIdx.x < 64:
        tc.take_registers(64)


def at_two_places(out: na.KernelOutput):
    if cuda.threadIdx.x < 32:
        tc.part_sync(1, 64)
    else:
        cuda.syncthreads()


def with_different_corners(out: na.KernelOutput):
    tc.store(out, (cuda.laneid, 0), tc.accumulator(16, 16))


def of_a_whole_warpgroup(out: na.KernelOutput):
    tc.take_registers(64)


def of_two_sizes(out: na.KernelOutput):
    if cuda.threadIdx.x < 32:
        tc.part_sync(1, 64)
    else:
        tc.part_sync(1, 128)


@pytest.mark.parametrize(
    ("kernel", "threads", "cls", "told"),
    [
        (by_half_a_warp, 32, BarrierDivergenceError,
         r"threads 0 to 15: .*tensor_cores.store, line \d+: 16 of 32 .*threads 16 to 31: returned"),
        (by_half_a_warpgroup, 128, BarrierDivergenceError, "threads 0 to 63: .*64 of 128 threads"),
        (at_two_places, 64, BarrierDivergenceError,
         r"threads 0 to 31: .*part_sync.*32 of 64 threads.*threads 32 to 63: .*syncthreads"),
        (with_different_corners, 32, KernelError, "different matrices or corners"),
        (of_a_whole_warpgroup, 64, KernelError, "has 64 threads, not 128. Launch whole warpgroups"),
        (of_two_sizes, 128, BarrierDivergenceError, "barrier 1 of 128 threads.*wait for 64"),
    ],
)  # fmt: skip
def test_threads_that_do_not_come(kernel: Any, threads: int, cls: Any, told: str) -> None:
    with pytest.raises(cls, match=f"(?s){told}"):
        run(kernel, threads)


# --- barriers and tiles ---


def without_init(out: na.KernelOutput):
    tc.barrier_wait(LAYOUT.full, 1, 0)


def with_too_many_barriers(out: na.KernelOutput):
    tc.barrier_arrive(LAYOUT.full, 2)


def with_another_parity(out: na.KernelOutput):
    tc.barrier_init(LAYOUT.full, 0, 1)
    tc.barrier_wait(LAYOUT.full, 0, 2)


def twice(out: na.KernelOutput):
    tc.barrier_init(LAYOUT.full, 0, 1)
    tc.barrier_init(LAYOUT.full, 0, 1)


def of_nothing(out: na.KernelOutput):
    tc.load_a(LAYOUT.a, (0, 0, 0), 16)


def beyond_the_row(out: na.KernelOutput):
    tc.load_a(UNEVEN.a, (0, 32), 16)


def beyond_the_rows(out: na.KernelOutput):
    tc.load_b(LAYOUT.a, (0, 56, 0), 16)


def in_the_middle(out: na.KernelOutput):
    tc.load_a(LAYOUT.a, (0, 4, 0), 16)


def in_half_a_step(out: na.KernelOutput):
    tc.load_b(LAYOUT.a, (0, 0, 8), 16)


def not_aligned(out: na.KernelOutput):
    tc.load_a(LAYOUT.a, (0, 0, 4), 16)


@pytest.mark.parametrize(
    ("kernel", "cls", "told"),
    [
        (without_init, UninitialisedReadError, r"full\[1\] is not initialised"),
        (with_too_many_barriers, OutOfBoundsError, "2 barriers, none of index 2"),
        (with_another_parity, KernelError, "parity 2; write 0 or 1"),
        (twice, KernelError, "initialised once"),
        (of_nothing, UninitialisedReadError, r"load_a, line \d+ reads 512 bytes of tile a"),
        (beyond_the_row, OutOfBoundsError, "has not 16 rows of 16 elements"),
        (beyond_the_rows, OutOfBoundsError, "has not 16 rows of 16 elements"),
        (not_aligned, MisalignedAccessError, "a multiple of 8 elements"),
        (in_the_middle, MisalignedAccessError, "row 4, byte 0; write a row of a multiple of 8"),
        (in_half_a_step, MisalignedAccessError, "row 0, byte 16; .* and a column of 16"),
    ],
)
def test_barriers_and_tiles(kernel: Any, cls: Any, told: str) -> None:
    with pytest.raises(cls, match=told):
        run(kernel, 1 if cls is KernelError else 32)


def source_index(out: na.KernelOutput, x: na.KernelInput, row, column, inside):
    tc.copy_async(LAYOUT.b, (0, 0), x, (row, column), 8, inside)


def test_copies_of_one_thread() -> None:
    x = np.zeros((2, 12), np.float16)
    run(source_index, 1, x, 5, 0, False)
    with pytest.raises(OutOfBoundsError, match=r"8 elements from \(2, 0\) on.*shape \(2, 12\)"):
        run(source_index, 1, x, 2, 0, True)
    with pytest.raises(OutOfBoundsError, match=r"8 elements from \(1, 8\)"):
        run(source_index, 1, x, 1, 8, True)
    with pytest.raises(MisalignedAccessError, match="multiple of 16 bytes"):
        run(source_index, 1, x, 1, 0, True)


def rows_of(out: na.KernelOutput, x: na.KernelInput, row, column, thread):
    tc.copy_rows(LAYOUT.a, (0, 0, 0), x, (row, column), thread, 128)


def test_copies_of_a_box() -> None:
    whole = na.zeros((8, 32), np.float16).sync()
    run(rows_of, 1, whole, 9, 64, 127)
    with pytest.raises(MisalignedAccessError, match=r"rows of 24 bytes, 64 apart"):
        run(rows_of, 1, whole[:, :12], 0, 0, 0)
    with pytest.raises(MisalignedAccessError, match="copy_rows, line .* column 4 of"):
        run(rows_of, 1, whole, 0, 4, 0)
    with pytest.raises(OutOfBoundsError, match="thread 128 of 128"):
        run(rows_of, 1, whole, 0, 0, 128)
    with pytest.raises(OutOfBoundsError, match="corner .-1, 0. has negative"):
        run(rows_of, 1, whole, -1, 0, 0)


# --- accumulators of wgmma ---


def accumulators_of(use: Any) -> Any:
    def kernel(out: na.KernelOutput, source: na.KernelInput):
        if cuda.threadIdx.x == 0:
            tc.barrier_init(LAYOUT.full, 0, 1)
            tc.fence_barrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            tc.barrier_expect(LAYOUT.full, 0, 8192)
            tc.load_tile(LAYOUT.a, (0, 0, 0), source, (0, 0), LAYOUT.full, 0)
        tc.barrier_wait(LAYOUT.full, 0, 0)
        zero = (0, 0, 0)
        first = tc.accumulator(16, 16)
        acc = tc.wgmma(first, LAYOUT.a, zero, LAYOUT.a, zero, 0, 64)
        use(acc, out)

    return kernel


def uses_at_once(acc, out):
    tc.scale_rows(acc, (float32(1), float32(1)))


def uses_what_was_not_given(acc, out):
    tc.wgmma_wait(acc, 0)
    tc.row_sum(acc)


def passes_on_twice(acc, out):
    zero = (0, 0, 0)
    tc.wgmma(acc, LAYOUT.a, zero, LAYOUT.a, zero, 1, 64)
    tc.wgmma(acc, LAYOUT.a, zero, LAYOUT.a, zero, 1, 64)


def starts_in_the_middle(acc, out):
    zero = (0, 4, 0)
    tc.wgmma(acc, LAYOUT.a, zero, LAYOUT.a, zero, 1, 64)


@pytest.mark.parametrize(
    ("use", "cls", "told"),
    [
        (uses_at_once, DataRaceError, r"scale_rows, line \d+ uses .* wgmma, line \d+ may not"),
        (uses_what_was_not_given, DataRaceError, "row_sum.*take them from wgmma_wait"),
        (passes_on_twice, DataRaceError, "have been passed on to another wgmma"),
        (starts_in_the_middle, MisalignedAccessError, "in row 4; .*a multiple of 8 rows"),
    ],
)
def test_accumulators_that_are_not_computed_yet(use: Any, cls: Any, told: str) -> None:
    with pytest.raises(cls, match=told):
        run(accumulators_of(cuda.jit(device=True)(use)), 128, box())


def writes_over_what_is_read(out: na.KernelOutput, x: na.KernelInput, barrier):
    """One warp loads a fragment, the other writes new elements in its place."""
    tid = cuda.threadIdx.x
    for i in range(tid, 128, 64):
        tc.copy_async(LAYOUT.b, (i >> 3, (i & 7) * 8), x, (i >> 3, 0), 8)
    tc.commit_copies()
    tc.wait_copies(0)
    cuda.syncthreads()
    if tid < 32:
        tc.load_a(LAYOUT.b, (0, 0), 16)
    if barrier:
        cuda.syncthreads()
    if tid == 32:
        tc.copy_async(LAYOUT.b, (0, 0), x, (0, 0), 8)


def test_a_copy_over_what_another_warp_reads() -> None:
    x = np.zeros((16, 8), np.float16)
    run(writes_over_what_is_read, 64, x, True)
    with pytest.raises(DataRaceError, match=r"copy_async.*tile b that load_a, .*of warp 0 may"):
        run(writes_over_what_is_read, 64, x, False)


# --- clusters ---


def reaches_out(out: na.KernelOutput, source: na.KernelInput, mask, rank):
    """A load and an arrival, of the blocks that the arguments name."""
    if cuda.threadIdx.x == 0:
        tc.barrier_init(LAYOUT.full, 0, 2)
        tc.fence_barrier_init()
    tc.cluster_sync()
    if tc.cluster_rank() == 0 and cuda.threadIdx.x == 0:
        tc.barrier_arrive(LAYOUT.full, 0, rank)
        tc.load_tile(LAYOUT.a, (0, 0, 0), source, (0, 0), LAYOUT.full, 0, mask)


@pytest.mark.parametrize(
    ("mask", "rank", "told"),
    [(0, 1, "load_tile, line .*mask 0x0 in a cluster of 2 blocks"),
     (4, 1, "load_tile, line .*mask 0x4 in a cluster of 2 blocks.*lowest for rank 0"),
     (3, 2, "barrier_arrive, line .*rank 2, in a cluster of 2 blocks"),
     (3, -1, "barrier_arrive, line .*rank -1, in a cluster of 2 blocks")],
)  # fmt: skip
def test_blocks_outside_of_the_cluster(mask: int, rank: int, told: str) -> None:
    kernel = na.launcher(cluster=2)(cuda.jit(reaches_out))
    with pytest.raises(OutOfBoundsError, match=told):
        kernel[2, 32](na.zeros(1).sync(), box(), mask, rank).sync()


def test_a_load_that_no_other_block_waits_for() -> None:
    kernel = na.launcher(cluster=2)(cuda.jit(reaches_out))
    with pytest.raises(DataRaceError, match=r"block \(\d, 0, 0\).*ends while copies go on"):
        kernel[2, 32](na.zeros(1).sync(), box(), 3, 1).sync()


def syncs_in_part(out: na.KernelOutput):
    if cuda.blockIdx.x == 0 or cuda.threadIdx.x < 32:
        tc.cluster_sync()


def test_threads_missing_at_a_cluster_sync() -> None:
    kernel = na.launcher(cluster=2)(cuda.jit(syncs_in_part))
    with pytest.raises(BarrierDivergenceError) as stuck:
        kernel[2, 64](na.zeros(1).sync()).sync()
    lines = str(stuck.value).splitlines()
    waiting = "waiting at tensor_cores.cluster_sync"
    assert lines[0].endswith("no thread of the cluster can go on:")
    assert [line.split(", line")[0] for line in lines[1:6]] == [
        " block 0:", f"  threads 0 to 63: {waiting}",
        " block 1:", f"  threads 0 to 31: {waiting}", "  threads 32 to 63: returned",
    ]  # fmt: skip
    assert "96 of 128 threads of the cluster have come" in lines[2]
