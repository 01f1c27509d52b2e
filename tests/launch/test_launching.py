"""Launching: sizes, roles, grids; what comes back is what went in."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    MovedError,
)
from numbasync.testing import counters
from tests.common import add_one, host, saxpy, saxpy2d, visit


@pytest.mark.parametrize("n", [1, 31, 127, 128, 129, 251, 1000], ids="n={}".format)
def test_sizes_that_do_not_divide(device: na.Device, n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, n)).astype(np.float32)
    z = na.from_host(y).sync()
    saxpy(z.partition(128), 2.5, x).sync()
    want = 2.5 * x.astype(np.float64) + y
    # The scalar is a float64, so there is one rounding: half an ulp of the result.
    assert (np.abs(host(z) - want) <= np.finfo(np.float32).eps / 2 * np.abs(want)).all()


def test_nothing_outside_a_view_is_touched(device: na.Device) -> None:
    z = na.full((8, 9), -7).sync()
    saxpy2d(z[2:5, 1:8:2].partition((2, 2)), 1.0, np.ones((3, 4), np.float32)).sync()
    want = np.full((8, 9), -7, np.float32)
    want[2:5, 1:8:2] += 1
    np.testing.assert_array_equal(host(z), want)


def test_a_whole_tensor_gets_one_thread_an_element(device: na.Device) -> None:
    for n in (1, 255, 257, 5000):
        counts = na.zeros(n, np.int32).sync()
        visit(counts).sync()
        assert (host(counts) == 1).all()
    z = na.zeros((33, 17)).sync()
    saxpy2d(z, 3.0, np.ones((33, 17), np.float32)).sync()
    assert (host(z) == 3).all()


def test_numbas_own_form(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(100).sync()
    saxpy[4, 32](z, 1.0, np.ones(100, np.float32)).sync()
    saxpy[(4,), (32, 1, 1), 0](z, 1.0, np.ones(100, np.float32)).sync()
    future = na.spawn(saxpy[4, 32, stream, 64](z, 1.0, np.ones(100, np.float32)))
    assert future.stream is stream
    future.sync()
    saxpy.forall(100)(z, 1.0, np.ones(100, np.float32)).sync()
    saxpy.forall(100, tpb=64)(z, 1.0, np.ones(100, np.float32)).sync()
    saxpy.forall(0)(z, 1.0, np.ones(100, np.float32)).sync()
    assert (host(z) == 5).all()


def test_you_get_back_what_you_put_in(device: na.Device) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    part, shared, array = z.partition(4), x.shared(), np.ones(8, np.float32)
    for argument in (x, shared, array, x[:], na.ones(8).sync().take()):
        result = saxpy(part, 3.0, argument).sync()
        assert result == (part, 3.0, argument)
        assert result.z is part and result.x is argument
    owned = z.take().partition(4)
    assert saxpy(owned, np.float32(1), array).sync().z.unpartition() is owned.tensor
    with pytest.raises(MovedError):
        saxpy(z.partition(4), 1.0, array).sync()


def test_operations_are_arguments_anywhere(device: na.Device) -> None:
    shared = na.ones(6).shared()
    result = saxpy(
        na.zeros(6).partition(2), na.value(2.0), na.zip(shared, na.value(0)).first()
    ).sync()
    assert host(result.z).tolist() == [2] * 6
    assert result.a == 2.0 and result.x is shared.sync()


def test_roles_are_found_without_annotations(device: na.Device) -> None:
    @na.launcher
    def plain(x, out, n):
        i = cuda.grid(1)
        if i < n:
            out[i] = x[i] * 2

    out = na.zeros(10).sync()
    result = plain(np.arange(10, dtype=np.float32), out, 7).output().sync()
    assert result is out
    assert host(out).tolist() == [0, 2, 4, 6, 8, 10, 12, 0, 0, 0]


def test_axes_and_threads_of_the_launcher(device: na.Device) -> None:
    @na.launcher(axes=(1, 0), threads=(8, 2))
    @cuda.jit
    def place(z: na.KernelOutput):
        x, y = cuda.grid(2)
        if y < z.shape[0] and x < z.shape[1]:
            z[y, x] = cuda.blockDim.x * 100 + cuda.blockDim.y

    z = na.zeros((5, 20), np.int32).sync()
    place(z.partition((2, 8))).sync()
    assert (host(z) == 802).all()


def test_a_kernel_calls_another_as_a_device_function(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def outer(z: na.KernelOutput):
        add_one(z)
        add_one(z)

    z = na.zeros(10).sync()
    outer(z.partition(5)).sync()
    assert (host(z) == 2).all()


def test_tiles(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def fill_tile(t: na.Tile, base):
        i = cuda.threadIdx.x
        if i < t.shape[0]:
            t[i] = base + 10 * cuda.blockIdx.x + i + 100 * t.shape[0]

    z = na.zeros(10).sync()
    fill_tile(z.partition(4), 0.5).sync()
    want = [400.5 + i for i in range(4)] + [410.5 + i for i in range(4)] + [220.5, 221.5]
    assert host(z).tolist() == want

    @na.launcher(axes=(1, 0))
    @cuda.jit
    def corner(t: na.Tile):
        if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
            t[0, 0] = t.shape[0] * 10 + t.shape[1]

    square = na.zeros((3, 5), np.int32).sync()
    corner(square.partition((2, 4))).sync()
    assert host(square).tolist() == [[24, 0, 0, 0, 21], [0] * 5, [14, 0, 0, 0, 11]]


def test_empty_outputs_launch_nothing(device: na.Device) -> None:
    z = na.zeros(0).sync()
    before = counters()
    add_one(z).sync()
    add_one(z.partition(4)).sync()
    assert (counters() - before).launches == 0


def test_names_that_a_named_tuple_cannot_have(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(_z: na.KernelOutput, count, index, _fields, _output_positions, __class__):
        _z[0] = count + index + _fields + _output_positions + __class__

    z = na.zeros(1).sync()
    result = put[1, 1](z, index=2, count=1, _fields=8, _output_positions=16, __class__=32).sync()
    assert result.count == 1 and result.index == 2
    assert result == (z, 1, 2, 8, 16, 32)
    assert host(z).tolist() == [59]
    assert put[1, 1](z, 1, 2, 8, 16, 32).output().sync() is z


def test_dynamic_shared_memory(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def rotate(z: na.KernelOutput):
        own = cuda.shared.array(0, np.float32)
        t = cuda.threadIdx.x
        own[t] = z[t]
        cuda.syncthreads()
        z[t] = own[(t + 1) % own.shape[0]]

    z = na.arange(16).sync()
    rotate[1, 16, 0, 64](z).sync()
    assert host(z).tolist() == [*range(1, 16), 0]


SIZES = [1, 31, 127, 129, 251, 1000]


@na.launcher
@cuda.jit
def visit_2d(counts: na.KernelOutput):
    i, j = cuda.grid(2)
    if i < counts.shape[0] and j < counts.shape[1]:
        cuda.atomic.add(counts, (i, j), 1)


@na.launcher
@cuda.jit
def visit_3d(counts: na.KernelOutput):
    i, j, k = cuda.grid(3)
    if i < counts.shape[0] and j < counts.shape[1] and k < counts.shape[2]:
        cuda.atomic.add(counts, (i, j, k), 1)


VISIT = {1: visit, 2: visit_2d, 3: visit_3d}
# Tiles of 128 elements, none of which divides its axis.
CASES = [((n, 9, 5)[:rank], tile) for n in SIZES
         for rank, tile in ((1, (128,)), (2, (16, 8)), (3, (8, 8, 2)))]  # fmt: skip


@pytest.mark.parametrize(("shape", "tile"), CASES, ids=str)
def test_each_element_is_visited_once_at_any_rank(
    device: na.Device, shape: tuple[int, ...], tile: tuple[int, ...]
) -> None:
    counts = na.zeros(shape, np.int32).sync()
    VISIT[len(shape)](counts.partition(tile)).sync()
    assert (host(counts) == 1).all()


@pytest.mark.parametrize(
    ("shape", "tile", "grid"),
    [((1000,), (128,), (3,)), ((30, 21), (16, 4), (1, 4)), ((9, 7, 8), (4, 2, 3), (2, 3, 1))],
    ids=str,
)
def test_nothing_outside_a_prefix_is_touched(
    device: na.Device, shape: tuple[int, ...], tile: tuple[int, ...], grid: tuple[int, ...]
) -> None:
    poison = 0x5A5A5A5A
    around = tuple(n + 3 for n in shape)  # what lies before, behind and between the rows
    whole = na.full(around, poison, np.int32).sync()
    view = whole[tuple(slice(1, n + 1) for n in shape)]
    VISIT[len(shape)][grid, tile](view.partition_prefix(tile)).sync()
    want = np.full(around, poison, np.int32)
    want[tuple(slice(1, 1 + g * t) for g, t in zip(grid, tile, strict=True))] += 1
    np.testing.assert_array_equal(host(whole), want)


def test_results_are_in_signature_order_with_scalars(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def mixed(a, x: na.KernelInput, count: int, z: na.KernelOutput, pair):
        i = cuda.grid(1)
        if i < count:
            z[i] = a * x[i] + pair[0]

    part, x = na.zeros(8).sync().partition(4), np.ones(8, np.float32)
    put = (np.float32(2), x, 5, part, (1, 2.0))
    result = mixed(pair=put[4], z=part, count=5, x=x, a=put[0]).sync()
    assert result._fields == ("a", "x", "count", "z", "pair")
    assert all(back is given for back, given in zip(result, put, strict=True))
    assert host(part).tolist() == [3] * 5 + [0] * 3


def test_a_moved_handle_raises_afterwards(device: na.Device) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    result = saxpy(z.take().partition(4), 2.0, x.take()).sync()
    for attempt in (
        lambda: z.to_host(), lambda: saxpy(z, 1.0, result.x),
        lambda: saxpy(result.z, 1.0, x), lambda: na.fill(z, 0),
    ):  # fmt: skip
        with pytest.raises(MovedError, match=r"moved by take\(\)"):
            attempt().sync()
    assert host(result.z).tolist() == [2] * 8 and host(result.x).tolist() == [1] * 8
