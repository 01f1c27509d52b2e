"""Launching: sizes, roles, grids, refusals; what comes back is what went in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    KernelCompileError,
    MovedError,
    StateError,
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


def test_three_axes(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def number(z: na.KernelOutput):
        i, j, k = cuda.grid(3)
        if i < z.shape[0] and j < z.shape[1] and k < z.shape[2]:
            z[i, j, k] = 100 * i + 10 * j + k

    z = na.zeros((3, 4, 5), np.int32).sync()
    number(z.partition((2, 3, 2))).sync()
    i, j, k = np.indices((3, 4, 5))
    np.testing.assert_array_equal(host(z), 100 * i + 10 * j + k)


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


@pytest.mark.parametrize(
    "value", [3, -3, 2.5, True, 2**40, np.int8(-5), np.uint16(9), np.float32(0.5), np.float16(2),
              np.bool_(True)],
    ids=lambda v: f"{type(v).__name__}",
)  # fmt: skip
def test_scalars_of_every_kind(device: na.Device, value: Any) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, a, b):
        z[0] = a
        z[1] = b

    z = na.zeros(2, np.float64).sync()
    result = put[1, 1](z, value, 7).sync()
    assert host(z).tolist() == [float(value), 7.0]
    assert result.a is value


def test_complex_scalars_and_tuples(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, c, pair):
        z[0] = c.real
        z[1] = c.imag
        z[2] = pair[0] + pair[1]

    z = na.zeros(3, np.float64).sync()
    put[1, 1](z, 1 - 2j, (3, 0.5)).sync()
    put[1, 1](z, np.complex64(1 - 2j), (3, 0.5)).sync()
    assert host(z).tolist() == [1, -2, 3.5]


def test_tuples_of_numbers_of_every_kind(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, t):
        z[0] = t[0] + t[1][0] + t[1][1]

    z = na.zeros(1, np.float64).sync()
    put[1, 1](z, (np.float32(0.5), (np.int8(2), True))).sync()
    assert host(z).tolist() == [3.5]


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


@na.launcher
@cuda.jit
def tiles(z: na.Tile):
    z[0] = 1


def test_threads_that_make_tiled_kernels_at_once_share_one(device: na.Device) -> None:
    planner = tiles.planner
    bound = tiles.bind((na.zeros(8).sync().partition(4),))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: planner.variant(bound, device.backend)[0], range(8)))
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_integers_wrap_at_the_store_only(device: na.Device, dtype: type) -> None:
    @na.launcher
    @cuda.jit
    def add(z: na.KernelOutput, wide: na.KernelOutput, x: na.KernelInput):
        z[0] = x[0] + x[1]
        wide[0] = x[0] + x[1]

    top = np.iinfo(dtype).max
    x = np.array([top, 1], dtype)
    z, wide = na.zeros(1, dtype).sync(), na.zeros(1, np.int64).sync()
    add[1, 1](z, wide, x).sync()
    assert host(z)[0] == np.iinfo(dtype).min
    assert host(wide)[0] == int(top) + 1


def test_shared_memory_and_barriers(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def reverse_tile(z: na.KernelOutput):
        own = cuda.shared.array(32, np.float32)
        i = cuda.grid(1)
        t = cuda.threadIdx.x
        own[t] = z[i]
        cuda.syncthreads()
        z[i] = own[31 - t]

    z = na.arange(64).sync()
    reverse_tile(z.partition(32)).sync()
    want = np.arange(64).reshape(2, 32)[:, ::-1].ravel()
    np.testing.assert_array_equal(host(z), want)


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


# --- compiling ---


def test_compile_needs_no_memory_and_serves_every_size(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def scale(z: na.KernelOutput, a, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = a * x[i]

    before, compiled = counters(), na.compile_count()
    scale.compile(na.meta(4).partition(2), 2.0, na.meta(4)).sync()
    assert na.compile_count() - compiled == 1
    assert (counters() - before).allocations == 0
    assert (counters() - before).launches == 0
    for n in (5, 500):
        scale(na.zeros(n).partition(32), 3.0, np.ones(n, np.float32)).sync()
    assert na.compile_count() - compiled == 1
    scale(na.zeros(5, np.float64).partition(32), 3.0, np.ones(5, np.float32)).sync()
    scale(na.zeros(5).partition(32), 3, np.ones(5, np.float32)).sync()
    assert na.compile_count() - compiled == 3


def test_meta_tensors_cannot_be_launched(device: na.Device) -> None:
    with pytest.raises(StateError, match="compile"):
        add_one(na.meta(4)).sync()


def test_a_kernel_that_does_not_compile_says_why(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def wrong(z: na.KernelOutput):
        z[0] = cuda.no_such_thing(3)

    for _ in range(2):
        with pytest.raises((KernelCompileError, NotImplementedError), match="kernel wrong"):
            wrong[1, 1](na.zeros(1)).sync()
    assert na.ones(2).to_host().sync().tolist() == [1, 1]


def test_a_number_that_is_counted_down_is_no_output(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def down(z, n):
        while n > 0:
            z[0] += n
            n -= 1

    z = na.zeros(1).sync()
    assert down[1, 1](z, 3).output().sync() is z
    assert z.to_host().sync()[0] == 6
