"""Dynamic shared memory of a launch: layouts, more than 48 KiB, and what is refused."""

from __future__ import annotations

import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32

import numbasync as na
from numbasync.errors import LaunchError
from numbasync.launch.shared_memory import dynamic_bytes, layout_of
from numbasync.testing import counters
from tests.common import host

THREADS = 64
LAYOUT = na.shared_layout(a=(np.float32, (THREADS, 33)), b=(np.int16, THREADS), c=(np.float64, 2))
OTHER = na.shared_layout(a=(np.float32, 1))
module: Any = types.ModuleType("module")
module.LAYOUT = LAYOUT


@cuda.jit(device=True)
def note_last(t, value):
    if t == cuda.blockDim.x - 1:
        LAYOUT.c[1] = value


@na.launcher
@cuda.jit
def mirrored(z: na.KernelOutput, x: na.KernelInput):
    a, b = LAYOUT.a, LAYOUT.b
    fixed = cuda.shared.array(8, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if t < 8:
        fixed[t] = 1000 * t
    a[t, 32] = x[i]
    b[t] = -t
    LAYOUT.c[0] = 0.25
    note_last(t, x[i])
    cuda.syncthreads()
    u = a.shape[0] - 1 - t
    z[i] = a[u, 32] + b[u] + LAYOUT.c[0] + LAYOUT.c[1] + fixed[t % 8]


def expected(x: np.ndarray) -> np.ndarray:
    t, blocks = np.arange(THREADS), x.reshape(-1, THREADS)
    return (blocks[:, ::-1] - t[::-1] + 0.25 + blocks[:, -1:] + 1000 * (t % 8)).ravel()


def test_arrays_of_a_layout(device: na.Device) -> None:
    x = np.arange(3 * THREADS, dtype=np.float32)
    for call in (
        mirrored[3, THREADS], mirrored.forall(x.size, THREADS),
        mirrored[3, THREADS, 0, LAYOUT.nbytes], mirrored[3, THREADS, 0, 2**17],
    ):  # fmt: skip
        z = na.zeros(x.size).sync()
        call(z, x).sync()
        np.testing.assert_array_equal(host(z), expected(x))
    assert mirrored[3, THREADS].explain(z, x).shared_bytes == LAYOUT.nbytes


def test_arrays_that_are_structures(device: na.Device) -> None:
    pair = np.dtype([("key", np.int32), ("value", np.float64)], align=True)
    layout = na.shared_layout(pairs=(pair, 32), flags=(np.bool_, 32))

    @na.launcher
    @cuda.jit
    def sort_out(z: na.KernelOutput):
        t = cuda.threadIdx.x
        layout.pairs[t].key = t
        layout.pairs[t].value = t / 2
        layout.flags[t] = t % 3 == 0
        cuda.syncthreads()
        if layout.flags[31 - t]:
            z[t] = layout.pairs[31 - t].key + layout.pairs[31 - t].value

    z = na.zeros(32).sync()
    sort_out[1, 32](z).sync()
    u = 31 - np.arange(32)
    np.testing.assert_array_equal(host(z), np.where(u % 3 == 0, 1.5 * u, 0))


LARGE = na.shared_layout(whole=(np.float32, 25_600))  # 100 KiB


@na.launcher
@cuda.jit
def roll(z: na.KernelOutput, x: na.KernelInput, by):
    whole = LARGE.whole
    for i in range(cuda.threadIdx.x, whole.shape[0], cuda.blockDim.x):
        whole[i] = x[i]
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, whole.shape[0], cuda.blockDim.x):
        z[i] += whole[(i + by) % whole.shape[0]]


def test_more_than_48_kib(device: na.Device, stream: na.Stream) -> None:
    """The first launch, the fast path of the second, a graph's replays, and a changed graph."""
    values = np.arange(25_600, dtype=np.float32)
    z, x = na.zeros(values.size).sync(), na.from_host(values).sync()
    for _ in range(2):
        roll[1, 256](z, x, 1).sync_on(stream)
    graph = roll[1, 256](z, x, 2).graph_on(stream)
    for _ in range(2):
        graph.launch().sync()
    graph.set_args(0, z, x, 3)
    graph.launch().sync()
    twice = 2 * (np.roll(values, -1) + np.roll(values, -2))
    np.testing.assert_array_equal(host(z), twice + np.roll(values, -3))


def test_more_than_the_device_has_is_refused(device: na.Device) -> None:
    z, x = na.zeros(THREADS).sync(), na.zeros(THREADS).sync()
    most = device.limits.max_dynamic_shared_bytes
    assert most > device.limits.max_shared_bytes
    before = counters()
    with pytest.raises(
        LaunchError, match=rf"32 bytes of static and {most:,} bytes of dyn.* {most:,} t"
    ):
        mirrored[1, THREADS, 0, most](z, x).sync()
    with pytest.raises(LaunchError, match="-1 bytes of dynamic"):
        roll[1, THREADS, 0, -1](z, x, 1).sync()
    assert (counters() - before).launches == 0
    mirrored[1, THREADS, 0, most - 32](z, x).sync()


def test_fewer_bytes_than_the_layout_needs_are_refused(device: na.Device) -> None:
    z, x = na.zeros(THREADS).sync(), na.zeros(THREADS).sync()
    with pytest.raises(
        LaunchError, match=rf"mirrored: 64 bytes .* needs {LAYOUT.nbytes:,}.\n.*nbytes"
    ):
        mirrored[1, THREADS, 0, 64](z, x).sync()


@pytest.mark.parametrize("nbytes", [0, LARGE.nbytes, 200_000])
def test_the_device_is_asked_for_above_48_kib(nbytes: int) -> None:
    """On the CPU device nothing is missed if it is not."""
    asked: list[str] = []
    executable: Any = SimpleNamespace(
        static_shared_bytes=0, allow_large_shared=lambda: asked.append("large")
    )
    limits = na.devices("cpu")[0].limits
    assert dynamic_bytes("k", nbytes, LARGE, executable, limits) == (nbytes or LARGE.nbytes)
    assert asked == ["large"]
    assert dynamic_bytes("k", 48 * 1024, None, executable, limits) == 48 * 1024
    assert dynamic_bytes("k", 0, None, executable, limits) == 0
    assert asked == ["large"]
    executable.static_shared_bytes = 4
    dynamic_bytes("k", 48 * 1024, None, executable, limits)
    assert asked == ["large", "large"]


def by_module(z):
    z[0] = module.LAYOUT.a[0, 0]


def by_device_function(z):
    note_last(0, z[0])


def by_inner_function(z):
    def put(i):
        z[i] = LAYOUT.a[0, 0]

    put(0)


def without(z):
    z[0] = cuda.shared.array(0, float32)[0]


def two_layouts(z):
    note_last(0, OTHER.a[0])


@cuda.jit(device=True)
def own_array():
    return cuda.shared.array(shape=0, dtype=float32)[0]


def beside_a_dynamic_array(z):
    z[0] = LAYOUT.a[0, 0] + own_array()


def test_the_layout_of_a_kernel_is_found() -> None:
    enclosing = na.shared_layout(a=(np.int8, 3))

    def by_closure(z):
        z[0] = enclosing.a[0]

    for kernel in (by_module, by_device_function, by_inner_function):
        assert layout_of(kernel) == LAYOUT
    assert layout_of(by_closure) == enclosing
    assert layout_of(without) is None


def test_memory_beginning_at_a_layout_is_refused(device: na.Device) -> None:
    z = na.zeros(1).sync()
    for kernel, text in (
        (two_layouts, "two_layouts uses 2 shared layouts"),
        (beside_a_dynamic_array, r"shared\.array\(0, \.\.\.\) in line \d+ of own_array begins"),
    ):
        with pytest.raises(LaunchError, match=text):
            na.launcher(kernel)[1, 1](z).sync()


tile = na.shared_layout(a=(np.float32, 1))
ARRAYS = na.shared_layout(tile=(np.float32, 64))


def test_a_layout_named_after_foreign_arrays_is_unused() -> None:
    def takes_a_tile(z):
        ARRAYS.tile[0] = z[0]

    assert layout_of(takes_a_tile) is ARRAYS


class Sizes:
    ARRAYS = ARRAYS


class MoreSizes(Sizes): ...


PAIR = (1, (ARRAYS,))


def test_layouts_in_classes_and_tuples_are_found() -> None:
    def of_a_class(z):
        z[0] = MoreSizes.ARRAYS.tile[0]

    def of_a_pair(z):
        PAIR[1][0].tile[0] = z[0]

    assert layout_of(of_a_class) is layout_of(of_a_pair) is ARRAYS
