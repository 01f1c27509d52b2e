"""Small arrays from and to the host, and new tensors: what is enqueued at once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    AccessConflictError,
    DTypeError,
    ShapeError,
)
from numbasync.tensors import parallel_copy
from numbasync.tensors.array_spec import ArraySpec, contiguous
from numbasync.tensors.create_ops import element
from numbasync.testing import Gate, settle
from tests.common import add_one, used
from tests.waiting import in_time

ARRAYS: dict[str, Any] = {
    "one element": np.float32(3),
    "no axes": np.array(7, np.int64),
    "nothing": np.zeros((0, 3), np.int16),
    "transposed": np.arange(12, dtype=np.int32).reshape(3, 4).T,
    "backwards": np.arange(10.0)[::-2],
    "broadcast": np.broadcast_to(np.arange(3, dtype=np.uint8), (4, 3)),
    "F order": np.asfortranarray(np.arange(6, dtype=np.complex64).reshape(2, 3)),
    "booleans": np.array([True, False, True]),
    "structures": np.array([(1, 2.5), (3, 4.5)], [("a", "i1"), ("b", "f8")]),
    "read-only": np.frombuffer(b"abcdef", np.uint8),
    "as large as one thread copies": np.arange(parallel_copy.LARGE // 4, dtype=np.int32),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_small_arrays_arrive_and_come_back(device: na.Device, stream: na.Stream, what: str) -> None:
    array = ARRAYS[what]
    for _ in range(3):  # the first may have to make what the others use
        t = na.from_host(array).sync_on(stream)
        found = t.to_host().sync_on(stream)
        np.testing.assert_array_equal(found, array)
        assert type(found) is np.ndarray and found.flags.writeable and found.flags.c_contiguous
        assert (t.shape, t.dtype) == (array.shape, array.dtype)


async def test_the_array_may_change_and_the_result_belongs(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    array = np.arange(1000, dtype=np.int32)
    want = array.copy()
    await (await na.from_host(array)).to_host()
    used_before = [na.empty(1000, np.int32).sync_on(stream) for _ in range(8)]
    del used_before
    gate.close()
    tensors = [na.from_host(array).async_on(stream)]
    future = na.spawn(na.from_host(array), stream)
    array[:] = -1
    tensors += [na.from_host(want + i).async_on(stream) for i in range(1, 4)]
    results = [t.to_host().async_on(stream) for t in tensors]
    dropped = tensors[0].to_host().async_on(stream)
    del dropped
    gc.collect()
    others = [na.full(1000, 9, np.int32).to_host().sync_on(device.new_stream()) for _ in range(4)]
    gate.open()
    results.append(await (await future).to_host())
    stream.synchronize()
    assert all((o == 9).all() for o in others)
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, want + i % 4)
        result[:] = i  # memory of its own
    assert [int(r[0]) for r in results] == list(range(len(results)))


async def test_a_part_of_a_result_keeps_its_memory(device: na.Device, stream: na.Stream) -> None:
    t = await na.from_host(np.arange(1000, dtype=np.int32))
    part = (await t.to_host())[10:].reshape(11, -1)[1:, ::2].T
    want = part.copy()
    gc.collect()
    others = [await na.full(1000, 9, np.int32).to_host() for _ in range(4)]
    np.testing.assert_array_equal(part, want)
    del others


def test_nobody_is_blocked_by_a_held_stream(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    array = np.arange(1000, dtype=np.float32)
    na.from_host(array).to_host().sync_on(stream)
    gate.close()

    async def main() -> list[Any]:
        begun = [na.spawn(na.from_host(array + i).to_host(), stream) for i in range(200)]
        for _ in range(10):
            await asyncio.sleep(0)
        await na.ones(10).to_host().schedule(device.new_stream())
        assert stream.pending >= 200
        gate.open()
        return await na.gather(*begun)

    for i, found in enumerate(in_time(lambda: asyncio.run(main()))):
        np.testing.assert_array_equal(found, array + i)


# --- order -----------------------------------------------------------------------------------


async def test_a_download_waits_for_a_writer_elsewhere(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other = device.new_stream()
    t = await na.zeros(100)
    await t.to_host().schedule(other)
    gate.close()
    na.fill(t, 5).async_on(stream)
    with na.ordering("strict"), pytest.raises(AccessConflictError):
        t.to_host().async_on(other)
    found = t.to_host().async_on(other)
    gate.open()
    other.synchronize()
    assert (found == 5).all()


async def test_a_writer_waits_for_a_download_elsewhere(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other = device.new_stream()
    t = await na.full(100, 3)
    await t.to_host().schedule(stream)
    gate.close()
    found = t.to_host().async_on(stream)
    na.fill(t, 5).async_on(other)
    device.backend.quiesce()
    gate.open()
    device.synchronize()
    assert (found == 3).all()


async def test_readers_that_are_done_are_forgotten(device: na.Device) -> None:
    t = await na.zeros(10)
    for _ in range(20):
        t.to_host().sync_on(device.new_stream())
    assert len(t.storage.readers) <= 8


async def test_an_uploaded_tensor_is_usable_on_every_stream(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other = device.new_stream()
    await add_one(await na.from_host(np.ones(100, np.float32)))
    gate.close()
    t = na.from_host(np.full(100, 4, np.float32)).async_on(stream)
    z = na.full(100, 6).async_on(stream)
    add_one(t).async_on(other)
    add_one(z).async_on(other)
    gate.open()
    assert (await t.to_host() == 5).all() and (await z.to_host() == 7).all()


# --- limits, and memory ----------------------------------------------------------------------


@pytest.mark.parametrize("what", ["full", "from_host", "to_host"])
async def test_a_limit_holds_for_parts_of_an_operation(
    device: na.Device, stream: na.Stream, gate: Gate, what: str
) -> None:
    t, array = await na.zeros(2**14), np.zeros(2**14, np.float32)
    await t.to_host()
    makes: dict[str, Callable[[], na.DeviceOp[Any]]] = {
        "full": lambda: na.ones(2**14),
        "from_host": lambda: na.from_host(array),
        "to_host": t.to_host,
    }
    await makes[what]()
    gate.close()
    with na.limit(bytes=2**16 + 2**10):
        first = na.spawn(t.to_host(), stream)
        second = na.spawn(makes[what]().map(lambda value: value), stream)
        await settle(device)
        assert device.in_flight.bytes == 2**16, "the second has room when the first is done"
        gate.open()
        await na.gather(first, second)


def test_a_pool_does_not_count_refused_requests(device: na.Device, stream: na.Stream) -> None:
    before, device.pool = device.pool, device.new_pool(max_bytes=2**16)
    try:
        held = [na.zeros(2**12).sync_on(stream) for _ in range(4)]
        for op in (na.zeros(1), na.empty(1), na.from_host(np.zeros(1)), na.full(1, 2)):
            with pytest.raises(na.errors.OutOfDeviceMemoryError, match="65,536 of 65,536"):
                op.sync_on(stream)
        held.pop()
        assert na.ones(2**12).to_host().sync_on(stream).sum() == 2**12
        assert used(device) == 3 * 2**14
        held.clear()
        assert used(device) == 0
        assert "0 of 65,536 B in use" in repr(device.pool)
    finally:
        device.pool = before


# --- what is known again ---------------------------------------------------------------------


def test_known_shapes_and_dtypes_are_still_checked() -> None:
    assert contiguous(1, np.float32) is contiguous((1,), np.float32)
    for wrong in (1.0, (1.0,), -1, (2, -1), "1", None, (1, "2")):
        with pytest.raises(ShapeError):
            contiguous(wrong, np.float32)
    for same in (True, (True,), [1], np.int8(1), (np.int64(1),)):
        assert contiguous(same, np.float32).shape == (1,)
    assert contiguous(3, bool).dtype == np.bool_ and contiguous(3, int).dtype == np.dtype(int)

    class Changing:
        dtype: Any = np.dtype("f4")

    assert contiguous(3, Changing).dtype == np.float32
    Changing.dtype = np.dtype([("a", "f4")])
    with pytest.raises(DTypeError):
        contiguous(3, Changing)
    assert contiguous(3, Changing, records=True).dtype.names == ("a",)
    labelled = np.dtype("f4", metadata={"unit": "m"})
    assert contiguous(3, labelled).dtype.metadata == {"unit": "m"}
    assert ArraySpec((2, 3), np.dtype("i2")).fingerprint == contiguous((2, 3), "i2").fingerprint


def test_known_elements_have_the_same_bits() -> None:
    f4, i4 = np.dtype("f4"), np.dtype("i4")
    for _ in range(2):
        assert not np.signbit(element(0.0, f4)) and np.signbit(element(-0.0, f4))
        assert np.isnan(element(float("nan"), f4)) and element(1, f4) == element(True, f4) == 1
        assert type(element(1, i4)) is np.int32 and type(element(1.9, i4)) is np.int32
        assert element(1.9, i4) == 1 and element(2**24 + 1, f4) == 2**24
        for wrong in (2**31, float("nan"), "one", 1j):
            with pytest.raises(DTypeError):
                element(wrong, i4)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "c8", "c16", "?"])
def test_one_value_everywhere(device: na.Device, stream: na.Stream, dtype: str) -> None:
    for value in (0, 1, 0.0, -0.0, 1.5):
        for shape in ((), 1, 7, (3, 5), (0, 2)):
            found = na.full(shape, value, dtype).to_host().sync_on(stream)
            want = np.full(shape, value).astype(dtype)
            assert found.tobytes() == want.tobytes() and found.shape == want.shape
