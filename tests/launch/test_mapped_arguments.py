"""Mapped partitions as arguments: what they are, what is refused, what is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    BarrierDivergenceError,
    KernelError,
    LaunchError,
    MovedError,
    OperationError,
    ShapeError,
    StateError,
)
from numbasync.launch.plan import DEFAULT
from numbasync.testing import counters
from tests.common import host, visit, visit_striding, visit_tile

# --- what a mapped partition is ---


def test_you_get_the_mapped_partition_back(device: na.Device) -> None:
    z = na.zeros(100, np.int32).sync()
    for kernel in (visit_tile, visit_striding):
        part = z.partition(10).map(4)
        op = kernel(part)
        assert op.sync()[0] is part
    assert part.unpartition() is z and part.blocks == 4
    assert host(part).tolist() == [2] * 100


def test_a_mapped_partition_says_what_it_is(device: na.Device) -> None:
    part = na.zeros((100, 30)).sync().partition((10, 7))
    mapped = part.map(6)
    assert (part.blocks, mapped.blocks) == (None, 6)
    assert (mapped.tile, mapped.grid, mapped.exact) == (part.tile, part.grid, True)
    assert repr(mapped) == repr(part)[:-1] + ", mapped to 6 blocks>"
    assert len({part.fingerprint, mapped.fingerprint, part.map(5).fingerprint}) == 3
    assert mapped.fingerprint == part.map(6).fingerprint


def test_one_block_a_multiprocessor_or_fewer_tiles(device: na.Device) -> None:
    many = device.limits.multiprocessors
    z = na.zeros(40 * many, np.int32).sync()
    assert z.partition(10).map().blocks == many
    assert z[:10].partition(10).map().blocks == 1
    visit_tile(z.partition(10).map()).sync()
    assert (host(z) == 1).all()


def test_of_an_empty_tensor_nothing_is_launched(device: na.Device) -> None:
    part = na.zeros(0, np.int32).sync().partition(2).map()
    before = counters()
    visit_tile(part).sync()
    visit_striding(part).sync()
    assert part.blocks == 0
    assert (counters() - before).launches == 0


def test_lazily(device: na.Device) -> None:
    op = na.zeros(100, np.int32).partition(16).map(lambda p: p.map(3))
    result = visit_tile(op).sync()
    assert result.t.blocks == 3
    assert host(result.t).tolist() == [1] * 100


def test_an_operation_is_mapped_by_a_function(device: na.Device) -> None:
    op = na.zeros(100).partition(16)
    with pytest.raises(OperationError, match=r"not 3\.\n.*lambda p: p\.map"):
        op.map(3)  # type: ignore[arg-type]


def test_of_an_owned_and_of_an_unshared_tensor(device: na.Device) -> None:
    z = na.zeros(100, np.int32).sync()
    part = z.partition(10).map(3)
    owned = z.take()
    with pytest.raises(MovedError):
        visit_tile(part).sync()
    visit_tile(owned.partition(10).map(3)).sync()
    shared = owned.shared()
    del owned, part
    result = visit_tile(shared.partition(10).map(3)).sync()
    assert host(result.t.unpartition()).tolist() == [2] * 100


MAPS: dict[str, tuple[str, Callable[[na.Tensor], Any]]] = {
    "none": (r"at least 1.*not 0", lambda z: z.partition(4).map(0)),
    "fewer": (r"at least 1.*not -3", lambda z: z.partition(4).map(-3)),
    "a part": (r"whole number.*not 1\.5", lambda z: z.partition(4).map(1.5)),  # type: ignore[arg-type]
    "text": (r"whole number.*not '2'", lambda z: z.partition(4).map("2")),  # type: ignore[arg-type]
    "a function": (r"whole number.*\n.*op\.partition", lambda z: z.partition(4).map(lambda p: p)),  # type: ignore[arg-type]
    "more than tiles": (
        r"26 blocks.*25 tiles.*\n.*map\(\)", lambda z: z.partition(4).map(26)),
    "more than no tiles": (
        r"1 blocks.*0 tiles", lambda z: z[:0].partition(4).map(1)),
    "a prefix": (r"partition_prefix", lambda z: z.partition_prefix(4).map(2)),
    "twice": (r"mapped to 2 blocks already", lambda z: z.partition(4).map(2).map(2)),
    "no device": (
        r"meta.*\n.*map\(blocks\)", lambda z: na.meta(100).sync().partition(4).map()),
}  # fmt: skip


@pytest.mark.parametrize("case", MAPS)
def test_what_cannot_be_mapped(device: na.Device, case: str) -> None:
    message, attempt = MAPS[case]
    z = na.zeros(100).sync()
    with pytest.raises(ShapeError, match=message):
        attempt(z)


# --- what is refused ---


@na.launcher
@cuda.jit
def two_tiles(a: na.Tile, b: na.Tile):
    a[0] = b[0] = 1


@na.launcher
@cuda.jit
def two_outputs(a: na.KernelOutput, b: na.KernelOutput):
    a[0] = b[0] = 1


@na.launcher
@cuda.jit
def tile_and_output(a: na.Tile, b: na.KernelOutput):
    a[0] = b[0] = 1


LAUNCHES: dict[str, tuple[str, Callable[[na.Tensor, na.Tensor], Any]]] = {
    "one of two tiles": (
        r"two_tiles: .*a are mapped to 2 blocks.*b are not;.*\n.*b\.partition\(tile\)\.map\(2\)",
        lambda a, b: two_tiles(a.partition(4).map(2), b.partition(4))),
    "the other of two tiles": (
        r"two_tiles: .*b are mapped to 2 blocks.*a are not;.*\n.*a\.partition\(tile\)\.map\(2\)",
        lambda a, b: two_tiles(a.partition(4), b.partition(4).map(2))),
    "a tile and a prefix": (
        r"b are not;", lambda a, b: two_tiles(a.partition(4).map(2), b.partition_prefix(4))),
    "tiles over unequal blocks": (
        r"a are mapped to 2 blocks.*b to 3",
        lambda a, b: two_tiles(a.partition(4).map(2), b.partition(4).map(3))),
    "tiles of unequal grids": (
        r"grid of \(4,\) tiles.*b.*\(8,\)",
        lambda a, b: two_tiles(a.partition(4).map(2), b.partition(2).map(2))),
    "tiles along another axis": (
        r"grid of \(4, 1\) tiles.*b.*\(1, 4\)",
        lambda a, b: two_tiles(
            a.reshape(16, 1).partition((4, 1)).map(2), b.reshape(1, 16).partition((1, 4)).map(2))),
    "forall with tiles": (
        r"forall\(16\).*a is a na\.Tile",
        lambda a, b: two_tiles.forall(16)(a.partition(4).map(2), b.partition(4).map(2))),
    "outputs of unequal blocks": (
        r"partition of a has \(2, 1, 1\) blocks, but the partition of b.*mapped to 3 blocks",
        lambda a, b: two_outputs(a.partition(4).map(2), b.partition(4).map(3))),
    "one of two outputs": (
        r"partition of a has \(2, 1, 1\) blocks, but the partition of b has \(4, 1, 1\)",
        lambda a, b: two_outputs(a.partition(4).map(2), b.partition(4))),
    "a tile and an output": (
        r"partition of a has \(2, 1, 1\) blocks, but the partition of b has \(4, 1, 1\)",
        lambda a, b: tile_and_output(a.partition(4).map(2), b.partition(4))),
    "a prefix with fewer tiles": (
        r"larger than b has tiles",
        lambda a, b: two_outputs(a.partition(4).map(3), b.partition_prefix(8))),
    "an explicit grid of an output": (
        r"the grid has \(4, 1, 1\) blocks.*\(2, 1, 1\).*mapped to 2 blocks",
        lambda a, b: two_outputs[4, 4](a.partition(4).map(2), b)),
    "an explicit grid of a tile": (
        r"the grid has \(1, 2, 1\) blocks.*mapped to 2 blocks",
        lambda a, b: tile_and_output[(1, 2), 4](a.partition(4).map(2), b)),
    "forall of an output": (
        r"forall\(16\) has \(1, 1, 1\) blocks, but the partition of counts.*\n.*forall out",
        lambda a, b: visit_striding.forall(16)(a.partition(4).map(2))),
    "too many threads": (
        r"2048 threads", lambda a, b: visit_striding(a.partition(2048).map(1))),
}  # fmt: skip


@pytest.mark.parametrize("case", LAUNCHES)
def test_a_mapped_launch_that_is_refused_enqueues_nothing(device: na.Device, case: str) -> None:
    message, attempt = LAUNCHES[case]
    a, b = na.zeros(16).sync(), na.zeros(16).sync()
    before = counters()
    with pytest.raises(LaunchError, match=message):
        attempt(a, b).sync()
    did = counters() - before
    assert (did.launches, did.allocations, did.copies) == (0, 0, 0)
    assert host(a).tolist() == host(b).tolist() == [0] * 16


def test_tiles_that_differ_are_refused_when_compiled_too(device: na.Device) -> None:
    mapped = na.meta(16).partition(4).map(lambda p: p.map(2))
    op = two_tiles.compile(na.meta(16).partition(4), mapped)
    with pytest.raises(LaunchError, match="a are not"):
        op.sync()


def test_a_mapped_meta_tensor_cannot_be_launched(device: na.Device) -> None:
    with pytest.raises(StateError, match="compile"):
        visit_tile(na.meta(16, np.int32).partition(4).map(lambda p: p.map(2))).sync()


# --- compiling ---


def test_one_variant_serves_every_size_and_tile(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def fresh(t: na.Tile):
        i = cuda.threadIdx.x
        if i < t.shape[0]:
            t[i] += 1

    compiled, before = na.compile_count(), counters()
    fresh.compile(na.meta(8).partition(4).map(lambda p: p.map(2))).sync()
    assert na.compile_count() - compiled == 1
    assert (counters() - before).launches == 0
    z = na.zeros(100).sync()
    for part in (z.partition(4).map(2), z.partition(4).map(2), z.partition(10).map(7),
                 z[:33].partition(32).map()):  # fmt: skip
        fresh(part).sync()
    assert na.compile_count() - compiled == 1
    fresh(z.partition(4)).sync()  # which does not walk
    fresh(z.partition(4)).sync()
    assert na.compile_count() - compiled == 2
    assert host(z).tolist() == [6] * 33 + [5] * 67


def test_a_kernel_that_walks_itself_is_compiled_once(device: na.Device) -> None:
    counts = na.zeros(100, np.int32).sync()
    visit(counts).sync()
    visit_striding(counts.partition(10)).sync()
    compiled = na.compile_count()
    visit_striding(counts.partition(10).map(2)).sync()
    visit_striding(counts.partition(10).map(3)).sync()
    assert na.compile_count() == compiled
    assert (host(counts) == 4).all()


def test_plans_are_found_again(device: na.Device) -> None:
    z = na.zeros(100).sync()
    planner = visit_striding.planner
    found = []
    for blocks in (2, 3, 2):
        part = z.partition(10).map(blocks)
        visit_striding(part).sync()
        bound = visit_striding.bind((part,))
        found.append(planner.find(bound, DEFAULT, device.backend))
    assert found[0] is found[2] is not found[1]


# --- what the CPU device finds ---


def test_a_thread_leaving_before_a_barrier_is_named(cpu: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def leaves(t: na.Tile):
        if cuda.threadIdx.x >= t.shape[0]:
            return
        cuda.syncthreads()

    with pytest.raises(
        BarrierDivergenceError,
        match=r"(?s)kernel leaves, .* 2 of 4 threads wait at cuda\.syncthreads, line \d+, "
        r"but thread \(2, 0, 0\) has returned.*Guard the work",
    ):
        leaves(na.zeros(6).sync().partition(4).map(1)).sync()


def test_an_outside_index_is_found_in_its_line(cpu: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def outside(t: na.Tile):
        t[cuda.threadIdx.x] = 1

    z = na.zeros(6).sync()
    for part in (z.partition(4), z.partition(4).map(1)):
        with pytest.raises(KernelError, match=r"kernel outside, .*test_mapped_arguments\.py:\d+\)"):
            outside(part).sync()
