"""Arrays of another library, read by DLPack's table of C functions: by the core, and by Python."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import native
from numbasync.backend.array_attributes import LEGACY
from numbasync.backend.array_readers import reader_of
from numbasync.backend.borrowed import Borrowed
from numbasync.device import address_map
from numbasync.errors import AliasError, OperationError, StateError
from tests.native.lending_library import ORDINAL, Array, Part, State, Traced
from tests.native.null_device import launches, library, waits

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
FIELDS = 5  # of an array in a launch, before its extents; the last one is its address


@na.launcher
@cuda.jit
def add(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + y[i]


@na.launcher(may_alias=True)
@cuda.jit
def touch(z: na.KernelOutput, n):
    z[()] = n


@pytest.fixture(autouse=True)
def _as_new() -> Iterator[None]:
    State.stream, State.refuses = 0, False
    yield
    State.stream, State.refuses = 0, False


def ones(n: int = 8) -> Array:
    return Array(np.ones(n, np.float32))


def warm(stream: na.Stream) -> None:
    for _ in range(2):
        add(ones(), ones(), ones()).sync_on(stream)


def addresses(first: int) -> list[list[int]]:
    """The addresses of arrays in the launches of `add` so far, from number `first` on."""
    return [
        [np.frombuffer(launch.arguments, np.uint64)[i * 7 + 4] for i in range(3)]
        for launch in launches(first)
    ]


# --- in place, and kept ----------------------------------------------------------------------


def test_arrays_are_arguments_in_place(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    warm(stream)
    arrays = [ones() for _ in range(3)]
    first = len(launches())
    op = add(*arrays)
    assert op.has_fast_path and op.home is null
    result = op.async_on(stream)
    assert [r is a for r, a in zip(result, arrays, strict=True)] == [True] * 3
    assert addresses(first) == [[a.array.ctypes.data for a in arrays]]


def test_lent_memory_is_kept_until_its_use_passed(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    warm(stream)
    gc.collect()
    before = len(State.kept)
    release = stream.backend.hold()
    for _ in range(100):  # new arrays at addresses of which some recur
        add(ones(), ones(), ones()).async_on(stream)
    gc.collect()
    memory = [weakref.ref(array) for _, array in State.kept.values()]
    assert len(State.kept) == before + 300 and all(ref() is not None for ref in memory)
    release()
    stream.synchronize()
    gc.collect()
    assert len(State.kept) == before and all(ref() is None for ref in memory)


def test_arrays_used_repeatedly_leave_nothing(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    arrays = [ones() for _ in range(3)]
    for _ in range(3):
        add(*arrays).sync_on(stream)
    gc.collect()
    entries, kept = len(address_map._entries), len(State.kept)
    for _ in range(50):
        add(*arrays).sync_on(stream)
    assert (len(address_map._entries), len(State.kept)) == (entries, kept)


def test_one_array_has_one_record(null: na.Device, on: bool) -> None:
    stream, other = null.new_stream(), null.new_stream()
    x = ones()
    warm(stream)
    add(ones(), x, ones()).sync_on(stream)
    release = stream.backend.hold()
    op = add(x, ones(), ones())
    op.async_on(stream)
    again = add(Array(x.array), ones(), ones())  # another object of the same memory
    assert again._tensors[0].storage is na.as_tensor(x).storage is op._tensors[0].storage
    null.backend.waits.clear()  # type: ignore[attr-defined]
    again.async_on(other)
    assert null.backend.waits == [(other.backend.handle_number, stream.backend.handle_number)]  # type: ignore[attr-defined]
    release()


def test_an_output_that_is_also_read_is_refused(null: na.Device, on: bool) -> None:
    warm(null.new_stream())
    x = ones()
    for other in (x, Array(x.array), Array(x.array[2:6])):
        with pytest.raises(AliasError):
            add(x, other, ones())
    add(ones(), x, x).suppress_warning()


LAYOUTS = {
    "contiguous": lambda a: a, "transposed": lambda a: a.T, "backwards": lambda a: a[::-1, ::-1],
    "a step": lambda a: a[::2, 1:], "a row": lambda a: a[1], "one element": lambda a: a[1, 2],
    "spread": lambda a: np.broadcast_to(a[0], a.shape), "unaligned": lambda a: a[0, 1:],
    "no axes": lambda a: a[0, 0].reshape(()),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "i4", "f8", "c8"])
def test_layouts_arrive_as_those_of_as_tensor(null: na.Device, on: bool, dtype: str) -> None:
    stream = null.new_stream()
    base = np.zeros((4, 6), dtype)
    for name, layout in LAYOUTS.items():
        x = Array(np.asarray(layout(base)))
        found = []
        for given in (x, na.as_tensor(x), x):
            touch[(1,), (1,)](given, 1).sync_on(stream)  # plans it
            op = touch[(1,), (1,)](given, 1)
            assert op.has_fast_path, name
            t = op._tensors[0]
            found.append((op._parts, t.shape, t.strides, t.dtype, t.key, t.is_aligned))
            first = len(launches())
            op.async_on(stream)
            found[-1] += (launches(first)[0].arguments,)
        assert found[0] == found[1] == found[2], name


def test_a_changed_array_is_read_anew(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    x = ones()
    for array in (np.ones(8, np.float32), np.ones(16, np.float32), np.ones(8), np.ones(0)):
        x.array = array
        touch[(1,), (1,)](x, 1).sync_on(stream)
        op = touch[(1,), (1,)](x, 1)
        op.suppress_warning()
        assert op.has_fast_path is bool(array.size)
        if array.size:
            assert op._tensors[0].shape == array.shape and op._tensors[0].dtype == array.dtype


# --- what is left to the protocol ------------------------------------------------------------


@pytest.mark.parametrize("why", ["gradient", "negative", "conjugated", "refused", "host", "axes"])
def test_more_than_memory_is_left_to_protocols(null: na.Device, on: bool, why: str) -> None:
    x = Array(np.ones(8, np.complex64)) if why == "conjugated" else ones()
    kept = na.as_tensor(x)  # its memory and its kind are known
    if why == "gradient":
        x.requires_grad = True
    elif why == "negative":
        x.negative = True
    elif why == "conjugated":
        x.conjugated = True
    elif why == "refused":
        State.refuses = True
    elif why == "host":
        x.place = (1, ORDINAL)
    else:
        x = Array(np.ones((1,) * 9, np.float32))
    match = {"gradient": r"detach\(\)", "negative": r"resolve_neg\(\)"}.get(
        why, "asked by the protocol"
    )
    for use in (lambda: add(ones(), x, ones()), lambda: na.as_tensor(x)):
        with pytest.raises(OperationError, match=match):
            use()
    del kept


def test_only_classes_of_equal_meaning_have_the_table(null: na.Device) -> None:
    assert reader_of(Array) is not None and reader_of(Part) is not None
    assert reader_of(Traced) is reader_of(np.ndarray) is reader_of(na.Tensor) is None
    with pytest.raises(OperationError, match="traced"):
        add(ones(), Traced(np.ones(8, np.float32)), ones())


def test_nothing_possibly_readonly_of_others_is_written(null: na.Device) -> None:
    class Foreign(Array):
        __module__ = "of_others"

    reader = reader_of(Foreign)
    assert reader is not None and reader.may_be_readonly
    x = Foreign(np.ones(8, np.float32))
    add(ones(), x, x).suppress_warning()
    with pytest.raises(OperationError, match="asked by the protocol"):
        add(x, ones(), ones())


# --- order -----------------------------------------------------------------------------------


def test_a_launch_waits_for_the_librarys_stream(null: na.Device, on: bool) -> None:
    stream, theirs = null.new_stream(), null.new_stream()
    ours, other = stream.backend.handle_number, theirs.backend.handle_number
    warm(stream)
    driver, arrays = library(), [ones() for _ in range(3)]
    imported = [na.as_tensor(a) for a in arrays]
    add(*imported).sync_on(stream)

    def waited(*given: Any) -> set[tuple[int, int]]:
        first = len(waits())
        add(*given).async_on(stream)
        done = waits()[first:]
        assert len(done) <= (1 if on else 3)
        return set(done)

    for given in (arrays, imported):
        State.stream = 0
        assert waited(*given) == {(ours, LEGACY)}
        State.stream = ours
        release = stream.backend.hold()
        assert waited(*given) == set()  # the launch's own stream
        release()
        State.stream = other
        release = theirs.backend.hold()
        driver.cuMemcpyPeerAsync(0, 0, 0, 0, 0, other)  # their work
        for _ in range(3):
            assert waited(*given) == {(ours, other)}
        release()
    assert len(null.backend.events.numbers) == 1, "for all the waits"  # type: ignore[attr-defined]


def test_a_launch_waits_for_the_callers_current_stream(null: na.Device, on: bool) -> None:
    stream, theirs = null.new_stream(), null.new_stream()
    warm(stream)
    arrays = [ones() for _ in range(3)]
    add(*arrays).sync_on(stream)
    earlier = add(*arrays)  # which knows of another stream, and keeps the memory known
    earlier.async_on(stream)
    release = theirs.backend.hold()
    for given in ([ones() for _ in range(3)], arrays):
        first = len(waits())
        State.stream = theirs.backend.handle_number
        library().cuMemcpyPeerAsync(0, 0, 0, 0, 0, State.stream)
        op = add(*given)
        State.stream = 0
        op.async_on(stream)
        ours, number = stream.backend.handle_number, theirs.backend.handle_number
        assert set(waits()[first:]) == {(ours, number), (ours, LEGACY)}
    release()


def test_the_callers_stream_is_awaited_beside_imports(null: na.Device, on: bool) -> None:
    stream, theirs = null.new_stream(), null.new_stream()
    given = na.as_tensor(ones()), ones(), ones()
    for _ in range(2):
        add(*given).sync_on(stream)
    release = theirs.backend.hold()
    State.stream = theirs.backend.handle_number
    library().cuMemcpyPeerAsync(0, 0, 0, 0, 0, State.stream)
    first, op = len(waits()), add(*given)
    State.stream = 0
    op.async_on(stream)
    ours, number = stream.backend.handle_number, theirs.backend.handle_number
    assert set(waits()[first:]) == {(ours, number), (ours, LEGACY)}
    release()


def test_a_tensor_asks_for_the_current_stream_alone(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    tensors = [na.as_tensor(ones()) for _ in range(3)]
    add(*tensors).sync_on(stream)
    described, asked = State.described, State.asked
    op = add(*tensors)
    assert op.has_fast_path
    op.async_on(stream)
    assert (State.described, State.asked - asked) == (described, 1 if on else 3)


def test_a_captured_stream_is_not_waited_for(null: na.Device, on: bool) -> None:
    stream, theirs = null.new_stream(), null.new_stream()
    warm(stream)
    State.stream = theirs.backend.handle_number
    library().null_capture(State.stream)
    first, count = len(launches()), len(waits())
    with pytest.raises(StateError, match="captured"):
        add(ones(), ones(), ones()).async_on(stream)
    assert (len(launches()), len(waits())) == (first, count)
    library().null_capture(None)
    add(ones(), ones(), ones()).async_on(stream)
    assert len(launches()) == first + 1


def test_a_replaced_order_is_called(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = null.new_stream()
    warm(stream)
    asked: list[Any] = []
    monkeypatch.setattr(Borrowed, "order", lambda self, backend: asked.append(backend))
    add(ones(), ones(), ones()).async_on(stream)
    na.zip(add(ones(), ones(), ones()), add(ones(), ones(), ones())).async_on(stream)
    assert asked == [stream.backend] * 9


def test_a_failed_wait_launches_nothing(null: na.Device, on: bool) -> None:
    stream, theirs = null.new_stream(), null.new_stream()
    warm(stream)
    State.stream = theirs.backend.handle_number
    release = theirs.backend.hold()
    library().cuMemcpyPeerAsync(0, 0, 0, 0, 0, State.stream)
    first = len(launches())
    op = add(ones(), ones(), ones())
    library().null_fail_once(1, 1)  # the wait, behind its event
    with pytest.raises(na.errors.DriverError, match="cuStreamWaitEvent"):
        op.async_on(stream)
    library().null_fail_once(0, 0)
    assert len(launches()) == first
    assert op._tensors[0].storage.writer is None
    release()
    add(ones(), ones(), ones()).sync_on(stream)


def test_the_place_of_the_null_device() -> None:
    assert ORDINAL == 99
