"""Which calls the core begins itself, with which plan; others Python refuses, or orders."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import native
from numbasync.errors import (
    AliasError,
    DeviceLostError,
    DriverError,
    LauncherError,
    MovedError,
    ReentrancyError,
)
from tests.common import add_one, saxpy
from tests.native.null_device import LOST, launches, library

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


@na.launcher
@cuda.jit
def literal(z: na.KernelOutput, n: na.Literal):
    i = cuda.grid(1)
    if i < n:
        z[i] = n


@na.launcher
@cuda.jit
def nothing():
    cuda.syncthreads()


@na.launcher
@cuda.jit
def nothing_else():
    cuda.syncthreads()


# --- plans ---


def test_a_plan_is_of_shape_value_and_grid(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    tensors = [na.zeros(n).sync_on(stream) for n in (8, 1000)]

    def blocks(op: na.DeviceOp[Any]) -> tuple[int, int]:
        first = len(launches())
        op.async_on(stream)
        (launch,) = launches(first)
        return launch.function, launch.extents[0]

    for _ in range(2):  # planned, then known
        assert [blocks(add_one(z))[1] for z in tensors] == [1, 8]
        assert [blocks(add_one[(n,), (32,)](tensors[0]))[1] for n in (1, 2)] == [1, 2]
        kernels = [blocks(literal(tensors[0], n))[0] for n in (2, 3, 2)]
        assert kernels[0] == kernels[2] != kernels[1]


def test_a_zips_plans_are_its_launches_plans(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    z, x = (na.zeros(n).sync_on(stream) for n in (8, 1000))

    def made() -> list[list[tuple[int, int]]]:
        """The kernel and the grid of each launch of three zips."""
        zips: list[na.DeviceOp[Any]] = [
            na.zip(add_one(z), add_one(x), add_one(z)),
            na.zip(*(add_one[(n,), (32,)](z) for n in (1, 2, 1))),
            na.zip(nothing[(1,), (1,)](), nothing_else[(1,), (1,)](), nothing[(1,), (1,)]()),
        ]
        first = len(launches())
        for op in zips:
            op.async_on(stream)
        got = [(launch.function, launch.extents[0]) for launch in launches(first)]
        return [got[i : i + 3] for i in (0, 3, 6)]

    made()
    for shapes, grids, kernels in (made(), made()):
        assert [blocks for _, blocks in shapes] == [1, 8, 1]
        assert [blocks for _, blocks in grids] == [1, 2, 1]
        assert kernels[0] == kernels[2] != kernels[1]


def test_fingerprints_are_those_of_python(null: na.Device) -> None:
    """By which a plan is found."""
    stream = null.new_stream()
    z, x = (na.zeros(n).sync_on(stream) for n in (8, 1000))
    calls: list[Callable[[], Any]] = [
        lambda: add_one(z), lambda: add_one(x), lambda: add_one(z[2:4]), lambda: nothing(),
        lambda: saxpy(z, 1.0, x.shared()), lambda: saxpy(z, 1, x), lambda: saxpy(x, 2, z),
        lambda: saxpy(z, np.float32(1), x), lambda: add_one(z.partition(4)),
        lambda: add_one(z.partition(2)), lambda: saxpy(z, 1, x.partition(4)),
        lambda: literal(z, 2), lambda: literal(z, 3), lambda: literal(x, 3),
    ]  # fmt: skip
    found = []
    for on in (False, False, True, True):
        native.switch(on)
        ops = [call() for call in calls]
        for op in ops:
            op.suppress_warning()
        found.append([(op._parts, len(op._tensors), op.has_fast_path) for op in ops])
    assert found[1:] == found[:1] * 3


def test_a_launch_without_blocks_is_none(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    z = na.zeros(0).sync_on(stream)
    for _ in range(3):
        add_one(z).async_on(stream)
        na.zip(add_one(z), add_one(z)).async_on(stream)
    assert not launches()


# --- arguments ---


def test_memory_that_overlaps_is_refused(device: na.Device, on: bool) -> None:
    """Two arrays of another library: each has a storage of its own."""
    if device.kind != "cpu":
        pytest.skip("the arrays are of NumPy")
    memory = np.zeros(12, np.float32)
    z, x, y = (na.from_dlpack(memory[i : i + 4]) for i in (0, 2, 8))
    for _ in range(2):
        saxpy(z, 1.0, y).sync()
        with pytest.raises(AliasError):
            saxpy(z, 1.0, x).sync()


def test_storages_that_overlap_are_refused_at_the_call(null: na.Device, on: bool) -> None:
    z, x, y = (na.zeros(8).sync() for _ in range(3))
    z.storage.add_overlap(x.storage)
    for _ in range(2):
        saxpy(z, 1.0, y).sync()
        with pytest.raises(AliasError):
            saxpy(z, 1.0, x)


def test_a_moved_tensor_is_refused(null: na.Device, on: bool) -> None:
    """When a call that was made before runs."""
    stream, z, x = null.new_stream(), na.zeros(8).sync(), na.zeros(8).sync()
    for _ in range(2):
        saxpy(z, 1.0, x).sync_on(stream)
    op, many = saxpy(z, 1.0, x), na.zip(saxpy(z, 1.0, x), saxpy(z, 1.0, x))
    z.take()
    for run in (op, many):
        with pytest.raises(MovedError):
            run.async_on(stream)


def test_an_unknown_argument_is_refused(null: na.Device, on: bool) -> None:
    z = na.zeros(8).sync()
    for kernel in (add_one, add_one[(1,), (8,)]):
        kernel(z).sync()
        with pytest.raises(na.errors.NumbasyncError, match="stride"):
            kernel(z, stride=1)


def test_an_operation_that_does_not_run_warns(null: na.Device, on: bool) -> None:
    z = na.zeros(8).sync()
    for make in (lambda: add_one(z), lambda: na.zeros(8), z.to_host):
        with pytest.warns(RuntimeWarning, match="it has not run"):
            make()


def test_another_librarys_array_is_ordered_after_its_work(null: na.Device, on: bool) -> None:
    ordered = []

    class Source:
        export = SimpleNamespace(readonly=False)
        is_nonblocking = False

        def order(self, stream: Any) -> None:
            ordered.append(stream)

    stream = null.new_stream()
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    z.source = Source()  # type: ignore[assignment]  # as `na.from_dlpack` has one
    for is_nonblocking in (False, True):  # by the steps, and by the fast call
        Source.is_nonblocking = is_nonblocking
        ordered.clear()
        add_one(z).async_on(stream)
        assert ordered == [stream.backend]
    z.source = None


def test_readonly_arrays_are_no_outputs_of_fast_calls(null: na.Device, on: bool) -> None:
    source = SimpleNamespace(
        export=SimpleNamespace(readonly=True), is_nonblocking=True, order=lambda stream: None
    )
    z = na.zeros(8).sync()
    for _ in range(2):
        add_one(z).sync()
    z.source = source  # type: ignore[assignment]  # as `na.from_dlpack` has one
    with pytest.raises(LauncherError, match="reading only"):
        add_one(z).sync()
    z.source = None


def test_every_tensor_of_launches_together_is_kept(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    tensors = [na.zeros(8).sync_on(stream) for _ in range(70)]
    add_one(tensors[0]).sync_on(stream)
    release = stream.backend.hold()
    mixed = [add_one(z) if i % 20 else saxpy(z, 1.0, tensors[-1]) for i, z in enumerate(tensors)]
    na.zip(*mixed[:35], na.fill(tensors[0], 1), *mixed[35:]).async_on(stream)
    storages = {z.storage for z in tensors}
    assert storages <= set(tensors[-1].storage.writer.keep_alive)
    release()


# --- calls that Python refuses or orders ---


@pytest.mark.parametrize("way", ["async_on", "sync_on"])
def test_no_operation_runs_inside_of_another(null: na.Device, on: bool, way: str) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    inner: list[na.DeviceOp[Any]] = []

    def run(_: Any) -> Any:
        inner.append(add_one(z))
        getattr(inner[-1], way)(stream)

    for outer in (lambda: add_one(z).map(run), lambda: add_one(z).then(run)):
        with pytest.raises(ReentrancyError):
            outer().async_on(stream)
    for op in inner:
        op.suppress_warning()
    add_one(z).sync_on(stream)


def test_a_call_for_one_stream_runs_there(null: na.Device, on: bool) -> None:
    first, second, z = null.new_stream(), null.new_stream(), na.zeros(8).sync()
    own = add_one[(1,), (8,), first]
    calls: list[Callable[[], na.DeviceOp[Any]]] = [lambda: own(z), lambda: own(z).map(lambda r: 1)]
    own(z).sync()
    for call in calls:
        for way in ("async_on", "sync_on"):
            op = call()
            with pytest.raises(na.errors.NumbasyncError, match="names .* in its brackets, but is"):
                getattr(op, way)(second)
            op.suppress_warning()
            getattr(call(), way)(first)


def test_a_call_for_a_stream_is_awaited_there(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()

    async def main() -> None:
        for _ in range(6):
            await add_one[(1,), (8,), stream](z)
            assert z.storage.writer.stream is stream
            await na.gather(add_one[(1,), (8,), stream](z), add_one[(1,), (8,), stream](z))
            assert z.storage.writer.stream is stream

    na.run(main())


def test_empty_work_has_no_number(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    na.zip(na.empty(8), na.zeros(8)).sync_on(stream)
    number = stream._sequence
    for _ in range(2):
        na.empty(8).async_on(stream)
        na.zeros(0).async_on(stream)
        na.zip(na.empty(8), na.empty(8)).async_on(stream)
        na.empty(8).then(lambda t: na.value(t)).async_on(stream)
    assert stream._sequence == number


@pytest.mark.parametrize("kind", ["stream", "device"])
def test_nothing_is_enqueued_behind_a_fault(null: na.Device, on: bool, kind: str) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    if kind == "stream":
        stream.break_with(DriverError("cuStreamQuery", 1, "CUresult 1", ""))
    else:
        library().null_fail(LOST, 0)
        with pytest.raises(DeviceLostError):
            add_one(z).async_on(null.new_stream())
        library().null_fail(0, 0)
    first = len(launches())
    for way in ("async_on", "sync_on"):
        with pytest.raises((DriverError, DeviceLostError)):
            getattr(add_one(z), way)(stream)
    assert len(launches()) == first
