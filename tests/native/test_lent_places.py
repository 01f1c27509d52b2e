"""What is remembered of other libraries' arrays, and when it is not used again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.backend.array_attributes import LEGACY
from numbasync.backend.array_readers import reader_of
from numbasync.device import address_map
from numbasync.errors import AliasError, OperationError
from numbasync.tensors.quick_import import imported
from tests.native.lending_library import (
    Array,
    BuiltInArray,
    GradientArray,
    NegativeArray,
    OtherArray,
    State,
)
from tests.native.null_device import library, null_device, waits
from tests.native.test_lent_arrays import add, ones, touch, warm

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


@pytest.fixture(autouse=True)
def _as_new() -> Iterator[None]:
    State.stream = OtherArray.stream = 0
    yield
    State.stream = OtherArray.stream = 0


def test_arrays_ask_once_a_call_and_a_launch(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    arrays = [ones() for _ in range(3)]
    for _ in range(3):
        add(*arrays).sync_on(stream)
    asked = State.asked
    op = add(*arrays)
    assert State.asked - asked == (1 if on else 3)
    op.async_on(stream)
    assert State.asked - asked == (2 if on else 6)


def test_libraries_with_own_streams_are_asked_each(null: na.Device, on: bool) -> None:
    stream, theirs, others = (null.new_stream() for _ in range(3))
    warm(stream)
    arrays = [ones(), OtherArray(np.ones(8, np.float32)), ones()]
    releases = []
    State.stream, OtherArray.stream = (s.backend.handle_number for s in (theirs, others))
    for s in (theirs, others):
        releases.append(s.backend.hold())
        library().cuMemcpyPeerAsync(0, 0, 0, 0, 0, s.backend.handle_number)
    try:
        for given in (arrays, [na.as_tensor(a) for a in arrays], arrays):
            first = len(waits())
            add(*given).async_on(stream)
            assert set(waits()[first:]) == {
                (stream.backend.handle_number, State.stream),
                (stream.backend.handle_number, OtherArray.stream),
            }
    finally:
        OtherArray.stream = 0
        for release in releases:
            release()


def test_streams_of_the_call_are_each_librarys(null: na.Device, on: bool) -> None:
    stream, theirs, others = (null.new_stream() for _ in range(3))
    ours, first, second = (s.backend.handle_number for s in (stream, theirs, others))
    warm(stream)
    arrays = [ones(), OtherArray(np.ones(8, np.float32)), ones()]
    kept = [na.as_tensor(a) for a in arrays]
    add(*arrays).sync_on(stream)
    add(*arrays).sync_on(stream)  # now the sources of the default streams are known
    releases = [s.backend.hold() for s in (theirs, others)]
    for number in (first, second):
        library().cuMemcpyPeerAsync(0, 0, 0, 0, 0, number)
    try:
        State.stream, OtherArray.stream = first, second
        op = add(*arrays)
        State.stream = OtherArray.stream = 0
        count = len(waits())
        op.async_on(stream)
        assert set(waits()[count:]) == {(ours, first), (ours, second), (ours, LEGACY)}
        count = len(waits())
        add(*arrays).async_on(stream)
        assert set(waits()[count:]) == {(ours, LEGACY)}
    finally:
        for release in releases:
            release()
    del kept


def test_other_elements_at_an_address_are_another_array(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    base = np.ones((8, 8), np.float32)
    for _ in range(3):
        for array in (base, base.view(np.int32), base.T):
            touch[(1,), (1,)](Array(array), 1).sync_on(stream)
            op = touch[(1,), (1,)](Array(array), 1)
            t = op._tensors[0]
            assert op.has_fast_path and (t.dtype, t.strides) == (array.dtype, array.strides)
            op.sync_on(stream)


def test_a_dead_entry_is_not_used_again(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    arrays = [ones() for _ in range(3)]
    for _ in range(3):
        add(*arrays).sync_on(stream)
    gc.collect()
    address_map._regroup(0, 2**64, None)  # which removes them
    op = add(*arrays)
    entries = {id(entry.ref()) for entry in address_map._entries.values()}
    assert {id(t.storage) for t in op._tensors} <= entries
    with pytest.raises(AliasError):
        add(arrays[0], Array(arrays[0].array[2:6]), ones())
    op.sync_on(stream)


def test_a_returning_device_has_its_own_tensors(on: bool) -> None:
    arrays = [ones() for _ in range(3)]
    tensors: list[Any] = []  # of the device before, too: its entries are alive
    for _ in range(2):
        with null_device() as device:
            stream = device.new_stream()
            for _ in range(3):
                add(*arrays).sync_on(stream)
            reader: Any = reader_of(Array)
            tensors = [*tensors[-3:], *(imported(a, reader) for a in arrays)]
            assert {t.device for t in tensors[-3:]} == {device}
            assert {t.storage.pool.device for t in tensors[-3:]} == {device.backend}


def test_a_method_that_was_replaced_is_called(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(null.new_stream())
    monkeypatch.setattr(Array, "is_neg", lambda self: True)
    with pytest.raises(OperationError, match=r"resolve_neg\(\)"):
        add(ones(), ones(), ones())


def test_functions_of_a_class_are_called_as_methods(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    x = BuiltInArray(np.ones(8, np.float32))
    for _ in range(3):
        add(ones(), x, x).sync_on(stream)
    with pytest.raises(OperationError, match=r"resolve_neg\(\)"):
        add(ones(), NegativeArray(np.ones(8, np.float32)), x)
    y = GradientArray(np.ones(8, np.float32))
    add(ones(), y, x).sync_on(stream)
    y.close()
    with pytest.raises(OperationError, match=r"detach\(\)"):
        add(ones(), y, x)


def test_replaced_functions_of_a_class_are_not_called(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = null.new_stream()
    x = BuiltInArray(np.ones(8, np.float32))
    for _ in range(3):
        add(ones(), x, x).sync_on(stream)
    monkeypatch.setattr(BuiltInArray, "is_neg", lambda self: True)
    with pytest.raises(OperationError, match=r"resolve_neg\(\)"):
        add(ones(), x, x)
