"""`kernel.explain`: the launch that a call would be, without the launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    AliasError,
    DeviceMismatchError,
    KernelCompileError,
    LauncherError,
    LaunchError,
    MovedError,
)
from numbasync.testing import counters
from tests.backend_cpu.test_cuda_declared import jit
from tests.common import add_one, copy_to, fresh, host, saxpy, visit, visit_tile

N = 1000


def test_a_call_is_explained_and_not_launched(device: na.Device) -> None:
    kernel = fresh()
    z = na.zeros(N).sync()
    before, compiled = counters(), na.compile_count()
    explained = kernel.explain(z)
    after = counters() - before
    assert (after.launches, after.allocations, na.compile_count() - compiled) == (0, 0, 1)
    assert explained.name == "kernel" and explained.device == device.label
    assert explained.argument_types == {"z": "array(float32, 1d, C)"}
    assert (
        explained.grid[0] * explained.block[0] >= N > (explained.grid[0] - 1) * explained.block[0]
    )
    assert explained.elements == 1 and explained.why_not_wider
    assert explained.max_threads_per_block >= explained.block[0]
    kernel(z).sync()  # the variant is compiled, and nothing has run before
    assert na.compile_count() - compiled == 1 and host(z).tolist() == [1] * N
    with pytest.raises(dataclasses.FrozenInstanceError):
        explained.name = "other"  # type: ignore[misc]


def test_the_extents_are_those_of_the_call(device: na.Device) -> None:
    z, x = na.meta(N).sync(), na.meta(N).sync()
    given = saxpy[(3, 2), (64, 2), 0, 512].explain(z, 2.0, x)
    assert (given.grid, given.block, given.shared_bytes) == ((3, 2, 1), (64, 2, 1), 512)
    counted = saxpy.forall(500, tpb=100).explain(z, a=2.0, x=x)
    assert (counted.grid, counted.block) == ((5, 1, 1), (100, 1, 1))
    tiled = saxpy.explain(z.partition(128), 2.0, x)
    assert (tiled.grid, tiled.block) == ((8, 1, 1), (128, 1, 1))


def test_the_types_are_the_compiled_ones(device: na.Device) -> None:
    @na.launcher
    @jit("void(float64[:, ::1], float32)")
    def declared(z, a):
        z[0, 0] = a

    assert declared[1, 1].explain(na.meta((2, 3), np.float64), 7).argument_types == {
        "z": "array(float64, 2d, C)", "a": "float32",
    }  # fmt: skip
    tile = visit_tile.explain(na.meta(70, np.int32).partition(32))
    assert tile.argument_types == {"t": "array(int32, 1d, C)", "t tile[0]": "int64"}
    half = copy_to.explain(na.meta(8, np.float16), np.ones(8, np.int8)).argument_types
    assert half == {"z": "array(float16, 1d, C)", "x": "array(int8, 1d, C)"}


def test_the_bytes_follow_the_arrays_roles(device: na.Device) -> None:
    z, x = na.meta(N).sync(), na.zeros(N).sync()
    copied = copy_to.explain(z, np.ones(N, np.float64))
    assert (copied.bytes_read, copied.bytes_written) == (8 * N, 4 * N)
    in_place = saxpy.explain(z, 2.0, x)  # reads z, too
    assert (in_place.bytes_read, in_place.bytes_written) == (8 * N, 4 * N)
    atomic = visit.explain(na.meta(N, np.int32))
    assert (atomic.bytes_read, atomic.bytes_written) == (4 * N, 4 * N)
    downloaded = add_one.explain(na.inout(np.ones(N)))
    assert (downloaded.bytes_read, downloaded.bytes_written) == (8 * N, 8 * N)

    @na.launcher
    @cuda.jit
    def combine(z: na.KernelOutput, pair, x):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = pair[0][i] + pair[1][i] * x[i]

    once = combine.explain(z, (x, np.ones(N)), x)
    assert (once.bytes_read, once.bytes_written) == (4 * N + 8 * N, 4 * N)
    assert combine.explain(z, (x, x), x).bytes_read == 4 * N


def refusals() -> dict[str, tuple[type, str, Callable[[Any, Any], Any]]]:
    return {
        "argument": (LauncherError, "x is missing", lambda z, x: saxpy.explain(z, 1.0)),
        "role": (LauncherError, "would be lost", lambda z, x: add_one.explain(np.ones(4))),
        "alias": (AliasError, "same storage", lambda z, x: copy_to.explain(z, z)),
        "grid": (LaunchError, "threads a block", lambda z, x: add_one[1, 2000].explain(z)),
        "moved": (MovedError, "moved", lambda z, x: copy_to.explain(x, moved(z))),
        "types": (
            KernelCompileError, "copy_to", lambda z, x: copy_to[1, 1].explain(z, na.meta((2, 2)))),
    }  # fmt: skip


def moved(tensor: na.Tensor) -> na.Tensor:
    tensor.take()
    return tensor


@pytest.mark.parametrize("name", list(refusals()))
def test_what_a_launch_refuses_is_refused(device: na.Device, name: str) -> None:
    error, text, explain = refusals()[name]
    z, x = na.zeros(4).sync(), na.zeros(4).sync()
    with pytest.raises(error, match=text):
        explain(z, x)


def test_a_precondition_holds_for_what_is_explained(device: na.Device) -> None:
    @na.launcher(preconditions=["z.shape[0] % 4 == 0"])
    @cuda.jit
    def by_four(z: na.KernelOutput):
        z[0] = 1

    with pytest.raises(LaunchError, match="does not hold"):
        by_four[1, 1].explain(na.meta(6))
    assert by_four[1, 1].explain(na.meta(8)).bytes_written == 32


def test_a_refused_operation_can_still_be_run(device: na.Device) -> None:
    z, x = na.meta(4).sync(), na.zeros(4).sync()
    for op in (na.ones(4), add_one(x).output()):
        with pytest.raises(LauncherError, match=r"x is an operation, .*\nAwait the .*na\.meta"):
            copy_to.explain(z, op)
        assert host(op.sync()).tolist() == [1] * 4


def test_another_devices_tensor_is_refused() -> None:
    here, other = na.devices("cpu")
    with na.use_device(other):
        z = na.zeros(4).sync()
    with na.use_device(here):
        with pytest.raises(DeviceMismatchError, match=r"add_one: z is .*launch goes to cpu:0"):
            add_one[1, 4, here.new_stream()].explain(z)
        for launcher in (add_one, add_one[1, 4, other.new_stream()]):
            assert launcher.explain(z).device == "cpu:1"  # as a call would run


def test_the_cpu_device_has_no_multiprocessors_or_ptx() -> None:
    with na.use_device("cpu"):
        explained = saxpy.explain(na.meta(N), 2.0, na.meta(N))
    assert "compiled by Numba for" in explained.engine
    for value in (
        explained.registers, explained.local_bytes, explained.static_shared_bytes,
        explained.constant_bytes, explained.blocks_per_multiprocessor, explained.block_limits,
        explained.flops, explained.occupancy, explained.occupancy_bound,
        explained.memory_seconds, explained.arithmetic_seconds, explained.bound,
    ):  # fmt: skip
        assert value is None
    for code in ("ptx", "sass"):
        with pytest.raises(DeviceMismatchError, match=f"{code.upper()} is code of GPUs"):
            getattr(explained, code)


def test_the_table_shows_every_figure(device: na.Device) -> None:
    explained = saxpy.explain(na.meta(N), 2.0, na.meta(N))
    lines = str(explained).splitlines()
    assert lines[0] == f"saxpy on {explained.device}" and repr(explained) == str(explained)
    rows = {line[:32].strip(): line[32:].split("  ")[0].strip() for line in lines[1:]}
    assert rows["argument x"] == "array(float32, 1d, C)"
    assert rows["bytes read"] == "8,000 bytes" and rows["bytes written"] == "4,000 bytes"
    assert rows["grid"] == f"{explained.grid} blocks"
    registers = rows["registers a thread"]
    assert registers == ("-" if explained.registers is None else str(explained.registers))
