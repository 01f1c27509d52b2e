"""Arrays of libraries without a table, read by attributes: by the core, and by Python."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.backend.array_attributes import LEGACY
from numbasync.backend.array_readers import reader_of
from numbasync.errors import OperationError
from tests.native.attribute_libraries import (
    ArrayImpl,
    Buffer,
    CompiledArray,
    Cupy,
    CupyStream,
    DeviceBuffer,
    NumbaStream,
    OtherMemory,
    ndarray,
    of_numba,
)
from tests.native.lending_library import ORDINAL
from tests.native.null_device import launches, library, waits
from tests.native.test_callers_launch import add as add_there
from tests.native.test_lent_arrays import add, addresses, touch

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
MAKERS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "buffers": Buffer, "JAX": ArrayImpl, "Numba": of_numba, "RMM": DeviceBuffer,
}  # fmt: skip
makers = pytest.mark.parametrize("maker", MAKERS.values(), ids=list(MAKERS))


@pytest.fixture(autouse=True)
def _addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The null device's memory is everywhere."""
    monkeypatch.setattr("numbasync.backend.cuda.pointers.ordinal_at", lambda address: ORDINAL)
    reader = reader_of(DeviceBuffer)
    if reader is not None:  # of an earlier test
        monkeypatch.setattr(reader.library, "_ordinal_at", lambda address: ORDINAL)


def ones() -> np.ndarray[Any, Any]:
    return np.ones(8, np.float32)


@makers
def test_arrays_are_arguments_in_place(null: na.Device, on: bool, maker: Any) -> None:
    stream, given = null.new_stream(), [ones() for _ in range(3)]
    arrays = [maker(a) for a in given]
    once = [na.as_tensor(x) for x in arrays]
    for _ in range(2):
        for args in (arrays, once):
            add(*args).sync_on(stream)
    for args in (arrays, once):
        first, op = len(launches()), add(*args)
        assert op.has_fast_path and op.home is null
        op.async_on(stream)
        assert addresses(first) == [[a.ctypes.data for a in given]]


@makers
def test_memory_of_attributes_is_kept_until_passed(null: na.Device, on: bool, maker: Any) -> None:
    stream = null.new_stream()
    for _ in range(2):
        add(*(maker(ones()) for _ in range(3))).sync_on(stream)
    release = stream.backend.hold()
    memory: list[weakref.ref[Any]] = []

    def launch() -> None:
        given = [ones() for _ in range(3)]
        memory.extend(map(weakref.ref, given))
        add(*map(maker, given)).async_on(stream)

    for _ in range(20):
        launch()
    gc.collect()
    assert all(ref() is not None for ref in memory)
    release()
    stream.synchronize()
    gc.collect()
    assert all(ref() is None for ref in memory)


@pytest.mark.parametrize("maker", [ArrayImpl, of_numba])
def test_layouts_arrive_as_those_of_as_tensor(null: na.Device, on: bool, maker: Any) -> None:
    stream = null.new_stream()
    base = np.zeros((4, 6), np.int16)
    layouts = [base, base[1], base[:1, 0].reshape(())]
    if maker is of_numba:
        layouts += [base.T, base[::2, 1:]]
    for array in layouts:
        x, found = maker(array), []
        for given in (x, na.as_tensor(x), x):
            touch[(1,), (1,)](given, 1).sync_on(stream)
            op = touch[(1,), (1,)](given, 1)
            assert op.has_fast_path
            t = op._tensors[0]
            found.append((op._parts, t.shape, t.strides, t.dtype, t.key))
            op.sync_on(stream)
        assert found[0] == found[1] == found[2]


def test_an_array_that_changes_is_read_anew(null: na.Device, on: bool) -> None:
    stream, x = null.new_stream(), Buffer(ones())
    for array in (ones(), np.ones(16, np.float32), ones()):
        x.array = array
        for _ in range(2):
            op = touch[(1,), (1,)](x, 1)
            assert op._tensors[0].shape == (array.nbytes,)
            op.sync_on(stream)


def test_arrays_that_name_their_stream_are_waited_for(null: na.Device, on: bool) -> None:
    stream, theirs, others = (null.new_stream() for _ in range(3))
    ours, first, second = (s.backend.handle_number for s in (stream, theirs, others))
    named = [NumbaStream(first), NumbaStream(second), NumbaStream(second), NumbaStream(ours)]
    arrays = [of_numba(ones(), s) for s in named]
    once = [na.as_tensor(x) for x in arrays]

    def waited(*given: Any) -> list[tuple[int, int]]:
        count = len(waits())
        add(*given).async_on(stream)
        return waits()[count:]

    for given in (arrays, once):
        for _ in range(3):
            waited(*given[:3])
        releases = [s.backend.hold() for s in (theirs, others)]
        for number in (first, second):
            library().cuMemcpyPeerAsync(0, 0, 0, 0, 0, number)
        for _ in range(2):
            done = waited(*given[:3])
            assert set(done) == {(ours, first), (ours, second)}
            assert len(done) == (2 if on else 3)  # the core waits for a stream once a call
        assert waited(given[3], given[0], given[0]) == [(ours, first)] * (1 if on else 2)
        for release in releases:
            release()


def test_an_array_with_newer_work_is_awaited(null: na.Device, on: bool) -> None:
    stream, theirs = null.new_stream(), null.new_stream()
    ours, number = stream.backend.handle_number, theirs.backend.handle_number
    x, z = of_numba(ones()), of_numba(ones())
    for _ in range(3):
        add(z, x, x).sync_on(stream)
    op = add(z, x, x)  # which keeps the memory, and knows of the default stream
    x.stream = NumbaStream(number)
    release = theirs.backend.hold()
    library().cuMemcpyPeerAsync(0, 0, 0, 0, 0, number)
    count = len(waits())
    add(z, x, x).async_on(stream)
    assert set(waits()[count:]) == {(ours, number), (ours, LEGACY)}
    release()
    op.async_on(stream)


@pytest.mark.parametrize("maker", [Buffer, ArrayImpl, DeviceBuffer], ids=["buffers", "JAX", "RMM"])
def test_arrays_without_a_stream_are_not_waited_for(null: na.Device, on: bool, maker: Any) -> None:
    stream, arrays = null.new_stream(), [maker(ones()) for _ in range(3)]
    once = [na.as_tensor(x) for x in arrays]
    asked: list[Any] = []
    for given in (arrays, once):
        for _ in range(3):
            add(*given).sync_on(stream)
        library().cuMemcpyPeerAsync(0, 0, 0, 0, 0, 1)  # the default stream has work
        count = len(waits())
        add(*given).async_on(stream)
        asked += waits()[count:]
    assert asked == []


@pytest.mark.parametrize("why", ["computed", "deleted", "order", "no order", "host"])
def test_jaxs_protocol_decides_on_more_than_memory(null: na.Device, on: bool, why: str) -> None:
    x = ArrayImpl(np.ones((2, 4), np.float32), (1, 0) if why == "host" else (2, 99))
    z = na.from_host(np.ones((2, 4), np.float32)).sync()
    if why != "host":
        add(z, x, x).suppress_warning()
    x.ready = why != "computed"
    x.deleted = why == "deleted"
    x.order = {"order": (1, 0), "no order": None}.get(why, x.order)
    with pytest.raises(OperationError):
        add(z, x, x)


def test_the_protocol_decides_on_unknown_addresses(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(DeviceBuffer)
    assert reader is not None
    monkeypatch.setattr(reader.library, "_ordinal_at", lambda address: None)
    for array in (ones(), np.ones(0, np.float32)):
        with pytest.raises(OperationError, match="asked by the protocol"):
            touch[(1,), (1,)](DeviceBuffer(array), 1)


@pytest.mark.parametrize("change", ["host", "closed"])
def test_the_protocol_decides_on_buffers_outside_the_gpu(
    null: na.Device, on: bool, change: str
) -> None:
    x = Buffer(ones())
    if change == "host":
        x.is_host_accessible = True
    else:
        x.array = np.ones(0, np.float32)
    with pytest.raises(OperationError, match="asked by the protocol"):
        touch[(1,), (1,)](x, 1)


@makers
def test_launches_without_a_current_stream_run_here(null: na.Device, on: bool, maker: Any) -> None:
    arrays = [maker(ones()) for _ in range(2)]
    for _ in range(3):
        count = len(launches())
        add_there(*arrays, 1.0).sync()
        (launch,) = launches(count)
        assert launch.stream > 1


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Cupy)  # type: ignore[arg-type]


def test_attributes_are_read_by_functions_of_classes(
    null: na.Device, on: bool, cupy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, given = null.new_stream(), [ones() for _ in range(3)]
    arrays = [ndarray(a) for a in given]
    others = [ndarray(a, OtherMemory) for a in given]
    mixed = [arrays[0], others[1], arrays[2]]
    touch[(1,), (1,)](ndarray(ones()), 1).sync_on(stream)
    add(*arrays).sync_on(stream)
    for args in (arrays, mixed, others, arrays):
        first, op = len(launches()), add(*args)
        assert op.has_fast_path
        op.sync_on(stream)
        assert addresses(first) == [[a.ctypes.data for a in given]]
    for shape in ((4,), (8,)):
        with monkeypatch.context() as changed:
            if shape == (4,):
                changed.setattr(ndarray, "shape", (4,))
            op = touch[(1,), (1,)](ndarray(ones()), 1)
            assert op._tensors[0].shape == shape
            op.sync_on(stream)


def test_current_stream_of_attributes_is_waited_for(
    null: na.Device, on: bool, cupy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, theirs = null.new_stream(), null.new_stream()
    number = theirs.backend.handle_number
    arrays = [ndarray(ones()) for _ in range(3)]
    add(*arrays).sync_on(stream)
    monkeypatch.setattr(Cupy, "stream", CupyStream())
    monkeypatch.setattr(Cupy.stream, "ptr", number)
    release = theirs.backend.hold()
    library().cuMemcpyPeerAsync(0, 0, 0, 0, 0, number)
    count = len(waits())
    add(*arrays).async_on(stream)
    assert set(waits()[count:]) == {(stream.backend.handle_number, number)}
    release()


@pytest.fixture
def compiled_cupy(cupy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cupy, "ndarray", CompiledArray)


def test_known_arrays_of_one_axis_need_no_tuples(
    null: na.Device, on: bool, compiled_cupy: None
) -> None:
    stream, array = null.new_stream(), CompiledArray(ones())
    for _ in range(3):
        touch[(1,), (1,)](array, 1).sync_on(stream)
    array.asked.clear()
    op = touch[(1,), (1,)](array, 1)
    assert {"shape", "strides"}.isdisjoint(array.asked) == on
    assert op._tensors[0].shape == (8,)
    op.sync_on(stream)


def test_arrays_at_one_address_keep_their_layouts(
    null: na.Device, on: bool, compiled_cupy: None
) -> None:
    stream, whole = null.new_stream(), np.ones((4, 8), np.float32)
    flat = whole.reshape(-1)
    views = [whole, flat, whole.reshape(8, 4), flat.view(np.int32), whole.T]
    views += [whole[:, 0], flat[:4], flat[::2], flat[:16]]  # two and two of one size
    for view in views:
        for _ in range(3):  # until its place is known
            op = touch[(1,), (1,)](CompiledArray(view), 1)
            tensor = op._tensors[0]
            assert (tensor.shape, tensor.dtype) == (view.shape, view.dtype)
            assert tensor.strides == view.strides
            op.sync_on(stream)


def test_an_array_that_is_reshaped_is_reread(
    null: na.Device, on: bool, compiled_cupy: None
) -> None:
    stream, array = null.new_stream(), CompiledArray(ones())
    for shape in ((8,), (2, 4), (8,), (4, 2), (8,)):
        array.array = array.array.reshape(shape)
        op = touch[(1,), (1,)](array, 1)
        assert op._tensors[0].shape == shape
        op.sync_on(stream)
