"""Page-locked arrays, copies without staging, and rows at a pitch."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import DTypeError, OperationError, ShapeError
from numbasync.tensors.pinned import direct
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, used

# --- buffers ---------------------------------------------------------------------------------


def test_a_pinned_array_is_an_array(device: na.Device) -> None:
    a = na.pinned((3, 4), np.int16)
    assert (a.shape, a.dtype, type(a)) == ((3, 4), np.dtype(np.int16), na.HostBuffer)
    a[...] = np.arange(12).reshape(3, 4)
    assert a.sum() == 66 and not isinstance(a.sum(), np.ndarray)
    assert type(a + 1) is np.ndarray
    assert na.pinned(5).dtype == np.float32
    assert na.pinned(0).size == 0
    b = na.HostBuffer.from_array([[1, 2], [3, 4]])
    assert b.tolist() == [[1, 2], [3, 4]]
    assert direct(b) is not None


def test_views_are_pinned_and_copies_are_not(device: na.Device) -> None:
    a = na.pinned((8, 8))
    assert direct(a[2:5]) is direct(a) is direct(a.reshape(64)[3:]) is not None
    assert direct(a.copy()) is None
    assert direct(np.zeros(4)) is None
    assert direct(np.add(a, 1)) is None
    assert direct(np.add(a, 1, out=a)) is direct(a)


def test_what_no_tensor_can_have_is_refused(device: na.Device) -> None:
    with pytest.raises(ShapeError):
        na.pinned(-1)
    with pytest.raises(DTypeError):
        na.pinned(4, "U8")


async def test_there_and_back_without_staging(device: na.Device) -> None:
    a, b = na.pinned(1000), na.pinned(1000)
    a[:], b[:] = np.arange(1000), 0
    t = await na.zeros(1000)
    await t.copy_from(a)
    assert await t.copy_to(b) is b
    assert b.tolist() == a.tolist()
    assert (await na.from_host(a).to_host()).tolist() == a.tolist()
    z = await na.zeros(1000)
    await z.copy_from(t)
    await z.copy_to(b[::-1].copy())


async def test_an_upload_from_it_reads_when_it_runs(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    a = na.pinned(4)
    a[:] = 1
    t = await na.zeros(4)
    gate.close()
    future = na.spawn(t.copy_from(a), stream)
    a[:] = 2  # its own fault: the copy has not run
    gate.open()
    await future
    assert (await t.to_host()).tolist() == [2] * 4


async def test_it_lives_until_the_copy_has_run(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    a = na.pinned(1 << 20, np.uint8)
    a[:] = 5
    t = await na.zeros(1 << 20, np.uint8)
    gate.close()
    future = na.spawn(t.copy_from(a), stream)
    del a
    gc.collect()
    others = [na.pinned(1 << 20, np.uint8) for _ in range(4)]
    for other in others:
        other[:] = 77  # would be the same memory, had it been given back
    gate.open()
    await future
    assert (await t.to_host() == 5).all()


async def test_copies_of_one_buffer_are_ordered_over_streams(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other = device.new_stream()
    a = na.pinned(64)
    one, two = await na.full(64, 1.0), await na.zeros(64)
    gate.close()
    na.spawn(one.copy_to(a), stream)  # written here
    last = na.spawn(two.copy_from(a), other)
    na.spawn(na.full(64, 9.0).then(lambda t: t.copy_to(a)), device.new_stream())
    await settle(device)
    assert not last.done()
    gate.open()
    assert (await two.to_host()).tolist() == [1] * 64
    await last
    device.synchronize()
    assert a.tolist() == [9] * 64


async def test_from_host_comes_after_a_copy_to_it(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    a = na.pinned(64)
    a[:] = 0
    one = await na.full(64, 1.0)
    gate.close()
    na.spawn(one.copy_to(a), stream)
    made = na.spawn(na.from_host(a), device.new_stream())
    gate.open()
    assert (await (await made).to_host()).tolist() == [1] * 64


async def test_it_takes_no_other_host_memory(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    a, t = na.pinned(1 << 16), await na.zeros(1 << 16)
    gate.close()
    future = na.spawn(na.zip(t.copy_from(a), t.copy_to(a)), stream)
    await settle(device)
    assert device.in_flight.bytes == 0
    gate.open()
    await future


async def test_views_that_cannot_be_copied_are_refused(device: na.Device) -> None:
    a, t = na.pinned((4, 4)), await na.zeros((4, 4))
    a[:] = 1
    for refused in (
        lambda: na.memcpy(t, a.T),
        lambda: na.memcpy(a.T, t),
        lambda: na.from_host(a[:, ::2]),
    ):
        with pytest.raises(OperationError, match="gaps or another order"):
            refused()
    with pytest.raises(OperationError, match=r"na\.pinned\(shape"):
        na.HostBuffer((4, 4))
    await na.memcpy(t, np.array(a.T))
    assert (await t.to_host()).sum() == 16


# --- copy_from, copy_to ------------------------------------------------------------------------


async def test_copies_say_what_does_not_fit(device: na.Device) -> None:
    t = await na.zeros(4)
    with pytest.raises(ShapeError):
        t.copy_from(np.zeros(5, np.float32))
    with pytest.raises(DTypeError):
        t.copy_to(np.zeros(4))
    wrong: Any = [1, 2, 3, 4]
    with pytest.raises(OperationError, match="not list"):
        t.copy_from(wrong)
    t.copy_from(t.shared()).suppress_warning()


# --- rows at a pitch -----------------------------------------------------------------------------

SHAPES = [(3, 5), (7, 100), (2, 3, 200), (1, 9), (0, 4), (4, 128)]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex128], ids=lambda d: d.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_rows_at_a_pitch_there_and_back(device: na.Device, shape: Any, dtype: Any) -> None:
    array = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    t = await na.empty_pitched(shape, dtype)
    assert t.shape == shape
    assert t.strides[-2] % 512 == 0
    await t.copy_from(array)
    np.testing.assert_array_equal(await t.to_host(), array)
    u = await na.empty_pitched(shape, dtype)
    await u.copy_from(t)  # rows to rows
    c = await na.zeros(shape, dtype)
    await c.copy_from(u)  # rows to contiguous
    np.testing.assert_array_equal(await c.to_host(), array)
    await na.fill(u, 3)
    await u.copy_from(c)
    out = na.pinned(shape, dtype)
    await u.copy_to(out)
    np.testing.assert_array_equal(out, array)


async def test_nothing_between_the_rows_is_touched(device: na.Device) -> None:
    whole = await na.full((16, 1024), 7.0)
    part = whole[2:14, 100:900]
    array = np.random.default_rng(2).random(part.shape, np.float32)
    await part.copy_from(array)
    want = np.full((16, 1024), 7, np.float32)
    want[2:14, 100:900] = array
    np.testing.assert_array_equal(await whole.to_host(), want)
    np.testing.assert_array_equal(await part.to_host(), array)


async def test_wide_rows_need_no_contiguous_copy(device: na.Device) -> None:
    whole = await na.zeros((64, 1024))
    part = whole[:, 100:900]
    out = np.zeros(part.shape, np.float32)
    before = counters()
    await part.copy_from(out)
    await part.copy_to(out)
    done = counters() - before
    assert (done.allocations, done.launches, done.compiles, done.copies) == (0, 0, 0, 2)


async def test_kernels_write_rows_at_a_pitch(device: na.Device) -> None:
    t = await na.empty_pitched((5, 33))
    await na.fill(t, 1.0)
    await na.gather(*[add_one(row) for row in t])
    assert (await t.to_host()).tolist() == [[2] * 33] * 5


def test_a_pitch_needs_rows(device: na.Device) -> None:
    with pytest.raises(ShapeError, match="two axes or more"):
        na.empty_pitched(7)


def test_the_memory_comes_back(device: na.Device) -> None:
    before = used(device)
    t = na.empty_pitched((100, 3)).sync()
    assert used(device) == before + 100 * 512
    del t
    assert used(device) == before
