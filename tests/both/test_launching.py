"""Launching: sizes, roles, grids, refusals; what comes back is what went in."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    AliasError,
    DeviceMismatchError,
    DTypeError,
    KernelCompileError,
    LauncherError,
    LaunchError,
    MovedError,
    StateError,
)
from numbasync.testing import counters
from tests.common import add_one, copy_to, saxpy, saxpy2d, used, visit


def host(tensor: Any) -> np.ndarray:
    return tensor.to_host().sync()


@pytest.mark.parametrize("n", [1, 31, 127, 128, 129, 251, 1000], ids="n={}".format)
def test_sizes_that_do_not_divide(device: na.Device, n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, n)).astype(np.float32)
    z = na.from_host(y).sync()
    saxpy(z.partition(128), 2.5, x).sync()
    want = 2.5 * x.astype(np.float64) + y
    # The scalar is a float64, so there is one rounding: half an ulp of the result.
    assert (np.abs(host(z) - want) <= np.finfo(np.float32).eps / 2 * np.abs(want)).all()


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (16, 16), (33, 2)], ids=str)
def test_two_axes(device: na.Device, shape: tuple[int, int]) -> None:
    z = na.zeros(shape).sync()
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    saxpy2d(z.partition((4, 4)), 2.0, x).sync()
    np.testing.assert_array_equal(host(z), 2 * x)


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


def test_every_element_is_visited_once(device: na.Device) -> None:
    counts = na.zeros(1000, np.int32).sync()
    visit(counts.partition(96)).sync()
    assert (host(counts) == 1).all()


def test_nothing_outside_a_prefix_is_touched(device: na.Device) -> None:
    z = na.full(100, -7).sync()
    add_one[3, 10](z.partition_prefix(10)).sync()
    got = host(z)
    assert (got[:30] == -6).all() and (got[30:] == -7).all()


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


def test_keywords_are_arguments(device: na.Device) -> None:
    z = na.zeros(4).sync()
    result = saxpy(z.partition(4), x=np.ones(4, np.float32), a=2.0).sync()
    assert host(z).tolist() == [2] * 4
    assert result.a == 2.0


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


# --- refusals: typed, with the values, before anything is launched ---


def refusals() -> dict[str, tuple[type, str, Callable[[na.Tensor, na.Tensor], Any]]]:
    return {
        "too few": (LauncherError, r"saxpy\(z, a, x\): x is missing", lambda z, x: saxpy(z, 1.0)),
        "too many": (LauncherError, "4 arguments came", lambda z, x: saxpy(z, 1.0, x, x)),
        "unknown": (LauncherError, "y is unknown", lambda z, x: saxpy(z, 1.0, y=x)),
        "twice": (LauncherError, "z is unknown or came twice", lambda z, x: saxpy(z, 1.0, x, z=z)),
        "scalar for array": (
            LauncherError, r"x is a na\.KernelInput.*int", lambda z, x: saxpy(z, 1.0, 3)),
        "list": (
            LauncherError, r"saxpy: x cannot be list.*\n.*tuple\(.*np\.asarray",
            lambda z, x: saxpy(z, 1.0, [1, 2])),
        "none": (
            LauncherError, r"saxpy: a cannot be NoneType.*\nPass an array or a number",
            lambda z, x: saxpy(z, None, x)),
        "text": (
            LauncherError, r"saxpy: a cannot be str.*\n.*no text", lambda z, x: saxpy(z, "2", x)),
        "text of NumPy": (
            LauncherError, r"saxpy: a cannot be str_", lambda z, x: saxpy(z, np.str_("2"), x)),
        "the result of a launch": (
            LauncherError, r"saxpy: x cannot be saxpy.*\n.*result\.z.*op\.output\(\)",
            lambda z, x: saxpy(z, 1.0, saxpy.result((z, 1.0, x)))),
        "a tensor in a tuple": (
            LauncherError, r"saxpy: a is a tuple with Tensor.*numbers only",
            lambda z, x: saxpy(z, (1, (2.0, x)), x)),
        "text in a tuple": (
            LauncherError, r"saxpy: a is a tuple with str", lambda z, x: saxpy(z, (1, "2"), x)),
        "partition of an input": (
            LauncherError, r"saxpy: x is only read(.|\n)*\.unpartition\(\)",
            lambda z, x: saxpy(z, 1.0, x.partition(4))),
        "numpy as output": (
            LauncherError, r"would be lost.*\n.*from_host",
            lambda z, x: saxpy(np.zeros(8, np.float32), 1.0, x)),
        "shared as output": (
            LauncherError, "is shared", lambda z, x: saxpy(z.shared(), 1.0, x)),
        "object array": (
            DTypeError, "saxpy: x: .*cannot hold object",
            lambda z, x: saxpy(z, 1.0, np.array([object()] * 8))),
        "array of text": (
            DTypeError, "saxpy: x: .*cannot hold", lambda z, x: saxpy(z, 1.0, np.array(["a"] * 8))),
        "array of long doubles": (
            DTypeError, r"saxpy: x.*(cannot hold|no device)",
            lambda z, x: saxpy(z, 1.0, np.ones(8, np.longdouble))),
        "forall beside a partition": (
            LaunchError, r"forall\(8\) has \(1, 1, 1\) blocks, but the partition of z has \(2",
            lambda z, x: saxpy.forall(8)(z.partition(4), 1.0, x)),
        "forall with tiles": (
            LaunchError, r"tiles: forall\(8\).*z is a na\.Tile",
            lambda z, x: tiles.forall(8)(z.partition(4))),
        "threads of two axes for one": (
            LaunchError, r"same work again.*\n.*threads=256", lambda z, x: in_squares(z)),
        "a tile that is too large": (
            LaunchError, r"tile \(4096,\) of z's partition.*\n.*smaller tile.*threads=256",
            lambda z, x: saxpy(z.partition(4096), 1.0, x)),
        "alias": (AliasError, "z, which may be written, and x", lambda z, x: saxpy(z, 1.0, z)),
        "alias of views": (
            AliasError, "same storage", lambda z, x: saxpy(z[:4], 1.0, z[4:])),
        "grids differ": (
            LaunchError, r"the grid has \(3, 1, 1\)",
            lambda z, x: saxpy[3, 4](z.partition(4), 1.0, x)),
        "too many threads": (
            LaunchError, "2048 threads", lambda z, x: saxpy[1, 2048](z, 1.0, x)),
        "too long a block": (
            LaunchError, "block.*128 along z", lambda z, x: saxpy[1, (1, 1, 128)](z, 1.0, x)),
        "too much shared memory": (
            LaunchError, "dynamic shared memory", lambda z, x: saxpy[1, 8, 0, 10**6](z, 1.0, x)),
        "prefix without a grid": (
            LaunchError, "grid must be given", lambda z, x: saxpy(z.partition_prefix(4), 1.0, x)),
        "no grid at all": (LaunchError, "no output", lambda z, x: reads_only(x)),
        "zero blocks": (LaunchError, "at least 1", lambda z, x: saxpy[0, 8](z, 1.0, x)),
        "config": (LaunchError, r"\[grid, block\]", lambda z, x: saxpy[1](z, 1.0, x)),
        "stream": (LaunchError, "stream is a na.Stream", lambda z, x: saxpy[1, 8, "s"](z, 1.0, x)),
        "forall": (LaunchError, "forall", lambda z, x: saxpy.forall(-1)(z, 1.0, x)),
        "precondition": (
            LaunchError, r"z\.shape\[0\] % 64 == 0.*does not hold: z\.shape = \(8,\)",
            lambda z, x: in_64s(z)),
        "tile without tiles": (LauncherError, "needs tiles", lambda z, x: tiles(z)),
        "tensor for a number": (
            LauncherError, "annotated as a number", lambda z, x: annotated(z, x)),
    }  # fmt: skip


@na.launcher
@cuda.jit
def reads_only(x: na.KernelInput):
    cuda.syncthreads()


@na.launcher(preconditions=["z.shape[0] % 64 == 0"])
@cuda.jit
def in_64s(z: na.KernelOutput):
    z[0] = 1


@na.launcher(threads=(16, 16))
@cuda.jit
def in_squares(z: na.KernelOutput):
    z[cuda.grid(1)] = 1


@na.launcher
@cuda.jit
def tiles(z: na.Tile):
    z[0] = 1


@na.launcher
@cuda.jit
def annotated(z: na.KernelOutput, n: int):
    z[0] = n


@pytest.mark.parametrize("case", refusals())
def test_refusals(device: na.Device, case: str) -> None:
    error, message, attempt = refusals()[case]
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    saxpy(z, 1.0, x).sync()
    held = used(device)
    before = counters()
    with pytest.raises(error, match=message) as caught:
        attempt(z, x).sync()
    del caught
    did = counters() - before
    assert (did.launches, did.allocations, did.copies) == (0, 0, 0)
    assert used(device) == held
    saxpy(z, 1.0, x).sync()
    assert host(z).tolist() == [2] * 8


def test_work_under_way_is_no_argument(device: na.Device) -> None:
    future = na.spawn(na.ones(8))
    with pytest.raises(LauncherError, match=r"saxpy: x cannot be DeviceFuture.*\n.*await it"):
        saxpy(na.zeros(8).sync(), 1.0, future)
    saxpy(na.zeros(8).sync(), 1.0, future.sync()).sync()


def test_an_alias_is_allowed_to_kernels_written_for_it(device: na.Device) -> None:
    @na.launcher(may_alias=True)
    @cuda.jit
    def double(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = 2 * x[i]

    z = na.ones(8).sync()
    double(z, z).sync()
    assert host(z).tolist() == [2] * 8
    assert copy_to(z, np.ones(8, np.float32)).sync().z is z


def test_inputs_may_alias_each_other(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def add(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = x[i] + y[i]

    z, x = na.zeros(8).sync(), na.ones(8).sync()
    add(z, x, x).sync()
    assert host(z).tolist() == [2] * 8


def test_a_tensor_of_another_device_is_refused() -> None:
    one, two = na.devices("cpu")[:2]
    with na.use_device(two):
        x = na.ones(8).sync()
    with na.use_device(one):
        z = na.zeros(8).sync()
        before = counters()
        with pytest.raises(DeviceMismatchError, match=r"x is <Tensor.*cpu:1.*goes to cpu:0"):
            saxpy(z, 1.0, x).sync()
        with pytest.raises(DeviceMismatchError):
            x.to_host().sync()
        assert (counters() - before).launches == 0


def test_what_a_launcher_says_of_itself() -> None:
    assert repr(saxpy) == "<launcher saxpy(z: KernelOutput, a: undeclared, x: KernelInput)>"
    assert saxpy.__name__ == "saxpy" and saxpy.kernel.py_func is saxpy.__wrapped__
    assert repr(saxpy[1, 8]) == "<saxpy[(1, 1, 1), (8, 1, 1)]>"
    assert repr(saxpy.forall(8)) == "<saxpy[8 threads]>"
    assert visit.__doc__ and "Add one" in visit.__doc__


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


def test_the_simulator_is_refused_by_name(python: str, python_env: dict[str, str]) -> None:
    program = """
from numba import cuda
import numbasync as na
try:
    na.launcher(cuda.jit(lambda z: None))
except na.errors.LauncherError as error:
    print(error)
"""
    result = subprocess.run(
        [python, "-c", program], env={**python_env, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "NUMBA_ENABLE_CUDASIM" in result.stdout, result
