"""What a launch promises, one claim a test; mapped partitions have a module of their own."""

from __future__ import annotations

import threading
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
    LaunchError,
    MovedError,
    NumbasyncError,
    ShapeError,
)
from numbasync.launch import variants as kernels
from numbasync.testing import counters
from tests.common import copy_to, fresh, host, saxpy, visit

SIZES = [1, 31, 127, 129, 251, 1000]


# --- which elements are visited ---


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
def test_each_element_is_visited_once_at_every_size_and_rank(
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
def test_nothing_outside_a_prefix_is_touched_at_any_rank(
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


# --- what comes back ---


def test_what_comes_back_is_in_signature_order_scalars_too(device: na.Device) -> None:
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


def test_a_tensor_is_input_and_output_only_as_the_output_itself(device: na.Device) -> None:
    z = na.arange(8).sync()
    saxpy(z, 1.0, np.ones(8, np.float32)).sync()  # reads and writes its output
    says = "z, which may be written, and x are in the same storage"
    for x in (z, z[:], z[::2], z.reshape(2, 4)[0], na.shared(z), z.partition(4).unpartition()):
        for out in (z, z.partition(4)):
            with pytest.raises(AliasError, match=says):
                copy_to(out, x).sync()
    assert host(z).tolist() == list(range(1, 9))


# --- refusals ---


@na.launcher(axes=(1, 0))
@cuda.jit
def turned(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = 1


@na.launcher
@cuda.jit
def of_four_axes(z: na.KernelOutput):
    z[0, 0, 0, 0] = 1


@na.launcher(preconditions=["z.shape[0] % 64 == 0"])
@cuda.jit
def in_64s(z: na.KernelOutput):
    z[0] = 1


@na.launcher
@cuda.jit
def two(z: na.KernelOutput, y: na.KernelOutput):
    z[0] = y[0] = 1


def elsewhere(device: na.Device) -> na.Tensor:
    other = next(d for d in na.devices() if d is not device)
    with na.use_device(other):
        return na.ones(8).sync()


Call = tuple[na.Launcher | Any, tuple[Any, ...]]
REFUSED: dict[str, tuple[type[NumbasyncError], Callable[[na.Tensor, na.Tensor], Call]]] = {
    "rank of axes": (LaunchError, lambda z, x: (turned, (z.partition(4),))),
    "rank of a whole tensor": (
        LaunchError, lambda z, x: (of_four_axes, (z.reshape(2, 2, 2, 1),))),
    "dtype of objects": (
        DTypeError, lambda z, x: (saxpy, (z, 1.0, np.array([None] * 8)))),
    "dtype of text": (
        DTypeError, lambda z, x: (saxpy, (z, 1.0, np.array(["a"] * 8)))),
    "grid": (LaunchError, lambda z, x: (saxpy[3, 4], (z.partition(4), 1.0, x))),
    "grid beyond a prefix": (
        LaunchError, lambda z, x: (saxpy[3, 4], (z.partition_prefix(4), 1.0, x))),
    "no grid": (LaunchError, lambda z, x: (saxpy, (z.partition_prefix(4), 1.0, x))),
    "forall": (LaunchError, lambda z, x: (saxpy.forall(8), (z.partition(4), 1.0, x))),
    "partition agreement": (LaunchError, lambda z, x: (two, (z.partition(4), x.partition(2)))),
    "precondition": (LaunchError, lambda z, x: (in_64s, (z,))),
    "foreign device": (DeviceMismatchError, lambda z, x: (saxpy, (z, 1.0, None))),
    "too many threads": (LaunchError, lambda z, x: (saxpy[1, (64, 32)], (z, 1.0, x))),
    "too large a tile": (LaunchError, lambda z, x: (saxpy, (z.partition(4096), 1.0, x))),
    "too much shared memory": (LaunchError, lambda z, x: (saxpy[1, 8, 0, 10**6], (z, 1.0, x))),
    "alias": (AliasError, lambda z, x: (saxpy, (z, 1.0, z))),
    "moved": (MovedError, lambda z, x: (saxpy, (z, 1.0, moved()))),
}  # fmt: skip


def moved() -> na.Tensor:
    x = na.ones(8).sync()
    x.take()
    return x


@pytest.mark.parametrize("lazily", [False, True], ids=["at once", "lazily"])
@pytest.mark.parametrize("case", REFUSED)
def test_every_refusal_leaves_the_launch_counter_where_it_was(
    device: na.Device, case: str, lazily: bool
) -> None:
    error, call = REFUSED[case]
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    saxpy(z, 1.0, x).sync()
    kernel, values = call(z, x)
    values = tuple(elsewhere(device) if v is None else v for v in values)
    before = counters()
    with pytest.raises(error) as caught:
        kernel(*(na.value(v) if lazily else v for v in values)).sync()
    did = counters() - before
    assert (did.launches, did.copies) == (0, 0)
    assert "kernel " in str(caught.value) or case == "moved"
    saxpy(z, 1.0, x).sync()
    assert host(z).tolist() == [2] * 8


def test_tiles_of_another_rank_are_refused_when_they_are_cut(device: na.Device) -> None:
    z = na.zeros((4, 4)).sync()
    before = counters()
    for attempt in (
        lambda: z.partition(4), lambda: z.partition((2, 2, 2)), lambda: z.partition_prefix(4),
        lambda: z.reshape(2, 2, 2, 2).partition((1, 1, 1, 1)),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match="axes"):
            attempt()
    assert counters() == before


# --- compiling ---


def compile_of(device: na.Device) -> Any:
    return type(device.backend).compile


def test_eight_threads_that_need_one_variant_compile_it_once(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, compile_, ask = fresh(), compile_of(device), kernels.Kernel.compilation
    asked, compiled = threading.Semaphore(0), []

    def asking(self: kernels.Kernel, *args: Any) -> kernels.Compilation:
        found = ask(self, *args)
        asked.release()
        return found

    def slow(self: Any, dispatcher: Any, keys: Any) -> Any:
        compiled.append(keys)
        for _ in range(8):  # nobody finds it compiled: all eight have asked before it is
            assert asked.acquire(timeout=20)
        return compile_(self, dispatcher, keys)

    monkeypatch.setattr(kernels.Kernel, "compilation", asking)
    monkeypatch.setattr(type(device.backend), "compile", slow)
    tensors = [na.zeros(100 + i).sync() for i in range(8)]

    def launch(tensor: na.Tensor) -> None:
        with na.use_device(device):
            kernel(tensor.partition(32)).sync()

    before = na.compile_count()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(launch, tensors))
    assert len(compiled) == 1 and na.compile_count() - before == 1
    assert all((host(t) == 1).all() for t in tensors)


def test_a_failed_compile_does_not_poison_the_key(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, z = fresh(), na.zeros(8).sync()

    def fail(*args: Any) -> Any:
        raise KernelCompileError("planted")

    before, compiled = counters(), na.compile_count()
    with monkeypatch.context() as patch:
        patch.setattr(type(device.backend), "compile", fail)
        for _ in range(2):
            with pytest.raises(KernelCompileError, match="planted"):
                kernel(z.partition(4)).sync()
    assert (counters() - before).launches == 0 and na.compile_count() == compiled
    kernel(z.partition(4)).sync()
    kernel(z.partition(4)).sync()
    assert na.compile_count() - compiled == 1
    assert host(z).tolist() == [2] * 8
