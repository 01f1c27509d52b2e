"""Uploads of large NumPy arrays: every layout arrives, in its order, or fails as a whole."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import AccessConflictError, DriverError, OutOfDeviceMemoryError
from numbasync.tensors import parallel_copy
from numbasync.testing import Gate, settle
from tests.common import add_one, fresh, used, waited
from tests.holding import HeldCopies
from tests.tensors.large_arrays import CHUNK, LARGE, assert_equal, numbers

pytestmark = pytest.mark.usefixtures("several_threads")
SIZES = [0, 1, LARGE - 1, LARGE, LARGE + 1, CHUNK - 1, CHUNK + 1, 2 * CHUNK, 9 * CHUNK + 4097]


# --- contents --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_every_byte_arrives(device: na.Device, size: int) -> None:
    array = numbers(size)
    t = await na.from_host(array)
    assert_equal(await t.to_host(), array)
    other = numbers(size, 1)
    await na.memcpy(t, other)
    assert_equal(await t.to_host(), other)


class _Subclass(np.ndarray[Any, Any]): ...


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda a: a.T,
    "every second row": lambda a: a[::2],
    "columns": lambda a: a[:, 3:1200],
    "backwards": lambda a: a[::-1, ::-1],
    "one row for all": lambda a: np.broadcast_to(a[0], a.shape),
    "three axes": lambda a: a.reshape(40, 30, -1).transpose(2, 0, 1),
    "F order": np.asfortranarray,
    "rows longer than a chunk": lambda a: a.reshape(2, -1)[:, 1:],
    "a subclass": lambda a: a.view(_Subclass),
}


@pytest.mark.parametrize("dtype", [np.bool_, np.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_layouts_and_types(device: na.Device, layout: str, dtype: Any) -> None:
    whole = np.random.default_rng(2).integers(0, 2**14, (1200, 2501)).astype(dtype)
    array = LAYOUTS[layout](whole)
    assert array.nbytes > LARGE
    want = np.array(array, order="C", subok=False)
    t = await na.from_host(array)
    assert_equal(await t.to_host(), want)
    await na.fill(t, 0)
    assert_equal(await (await t.copy_from(array)).to_host(), want)
    assert_equal(na.from_host(array).to_host().sync(), want)


async def test_structures(device: na.Device) -> None:
    kind = np.dtype([("x", "f4"), ("y", "u1", (3,)), ("z", "i8")], align=True)
    array = np.zeros(200_000, kind)
    array["x"], array["z"] = np.arange(200_000), -np.arange(200_000)
    found = await na.from_host(array[::-1]).to_host()
    assert_equal(found["x"], array["x"][::-1])
    assert_equal(found["z"], array["z"][::-1])


async def test_rows_at_a_pitch_and_strided_tensors(device: na.Device) -> None:
    array = numbers(900 * 1500).reshape(900, 1500)
    t = await na.empty_pitched((900, 1500), np.uint8)
    await t.copy_from(array)
    assert_equal(await t.to_host(), array)
    whole = await na.zeros((900, 3000), np.uint8)
    await whole[:, ::2].copy_from(array)
    found = await whole.to_host()
    assert_equal(found[:, ::2], array)
    assert not found[:, 1::2].any()


def test_pieces_are_runs_in_c_order() -> None:
    array = np.arange(5 * 7 * 11, dtype=np.int32).reshape(5, 7, 11).transpose(1, 2, 0)
    for most in (4, 12, 20, 100, 10_000):
        found = list(parallel_copy.pieces(array, most))
        assert all(p.nbytes <= most for _, p in found)
        offsets = np.cumsum([0, *(p.nbytes for _, p in found)])
        assert [offset for offset, _ in found] == offsets[:-1].tolist()
        assert np.concatenate([p.ravel() for _, p in found]).tolist() == array.ravel().tolist()


# --- order ---------------------------------------------------------------------------------------


async def test_two_uploads_are_in_the_order_of_submission(
    device: na.Device, stream: na.Stream
) -> None:
    first, last = (np.full(6 * CHUNK, value, np.uint8) for value in (1, 2))
    t = await na.zeros(6 * CHUNK, np.uint8)
    other = device.new_stream()
    for _ in range(5):
        one, two = na.memcpy(t, first), na.memcpy(t, last)
        await na.gather(one.schedule(stream), two.schedule(other))
        assert (await t.to_host() == 2).all()
        tasks = [
            asyncio.ensure_future(waited(na.memcpy(t, a).schedule(s)))
            for a, s in ((last, other), (first, stream))
        ]
        await asyncio.gather(*tasks)
        assert (await t.to_host() == 1).all()


async def test_threads_uploading_to_one_tensor_do_not_mix(device: na.Device) -> None:
    arrays = [np.full(9 * CHUNK, value, np.uint8) for value in (1, 2)]
    t = await na.zeros(9 * CHUNK, np.uint8)

    def upload(array: Any) -> None:
        with na.use_device(device):
            for _ in range(5):
                na.memcpy(t, array).sync()

    threads = [threading.Thread(target=upload, args=(a,)) for a in arrays]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = await t.to_host()
        assert found.min() == found.max()
    for thread in threads:
        thread.join()


async def test_what_comes_behind_an_upload_is_behind_it(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.zeros(3 * CHUNK, np.float32)
    t = await na.full(array.shape, 5.0)
    held = HeldCopies(monkeypatch)
    task = asyncio.ensure_future(waited(na.memcpy(t, array)))
    await held.is_reached()
    after = na.spawn(add_one(t), stream)
    held.open()
    await task
    await after
    assert (await t.to_host() == 1).all()


async def test_strict_ordering_refuses_it_all_the_same(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    t = await na.zeros(3 * CHUNK, np.uint8)
    gate.close()
    na.spawn(na.fill(t, 1), stream)
    with na.ordering("strict"), pytest.raises(AccessConflictError):
        await na.memcpy(t, numbers(3 * CHUNK)).schedule(device.new_stream())
    gate.open()


# --- what goes wrong -----------------------------------------------------------------------------


def _failing_copies(stream: na.Stream, patch: pytest.MonkeyPatch, after: int) -> None:
    kind = type(stream.backend.open())
    upload, count = kind.upload, itertools.count()

    def fail(self: Any, dst: Any, src: Any) -> None:
        if next(count) == after:
            raise DriverError("cuMemcpyHtoDAsync", 999, "CUDA_ERROR_UNKNOWN", "an injected fault")
        upload(self, dst, src)

    patch.setattr(kind, "upload", fail)


@pytest.mark.parametrize("awaits", [True, False])
async def test_a_copy_that_fails_is_its_operations_error(
    device: na.Device, stream: na.Stream, awaits: bool
) -> None:
    array, t = numbers(9 * CHUNK), await na.full(9 * CHUNK, 3, np.uint8)
    start = used(device)
    for after in (0, 4):
        with pytest.MonkeyPatch.context() as patch:
            _failing_copies(stream, patch, after)
            with pytest.raises(DriverError, match="an injected fault"):
                await (na.memcpy(t, array) if awaits else na.spawn(na.memcpy(t, array)))
        assert (await t.to_host() == 3).all()  # not a part of it
    await settle(device)
    gc.collect()
    assert used(device) == start
    found = device.ring.statistics()
    assert found.in_use == 0 and found.chunks == found.most
    await na.memcpy(t, array)
    assert_equal(await t.to_host(), array)


@pytest.mark.parametrize("into", ["new", "a tensor", "rows at a pitch"])
async def test_reading_that_fails_is_its_operations_error(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, into: str
) -> None:
    array = numbers(9 * CHUNK).reshape(-1, 2048)
    t = await (na.empty_pitched if into == "rows at a pitch" else na.empty)(array.shape, np.uint8)
    await na.fill(t, 3)
    place, count = parallel_copy.place, itertools.count()

    def fails(room: Any, piece: Any) -> None:
        if next(count) == 3:
            raise MemoryError("no more")
        place(room, piece)

    monkeypatch.setattr(parallel_copy, "place", fails)
    with pytest.raises(MemoryError, match="no more"):
        await (na.from_host(array) if into == "new" else na.memcpy(t, array))
    assert (await t.to_host() == 3).all()
    await settle(device)
    assert device.ring.statistics().in_use == 0
    await na.memcpy(t, array)
    assert_equal(await t.to_host(), array)


async def test_there_is_no_memory_for_a_second_copy(device: na.Device) -> None:
    array = numbers(9 * CHUNK)
    before = device.pool
    device.pool = device.new_pool(max_bytes=10 * CHUNK)
    try:
        t = await na.zeros(array.shape, np.uint8)
        await na.memcpy(t, array)
        assert_equal(await t.to_host(), array)
        with pytest.raises(OutOfDeviceMemoryError):
            await na.from_host(array)
        del t
    finally:
        device.pool = before


async def test_behind_a_kernel_that_is_compiled_first(device: na.Device) -> None:
    array = np.zeros(3 * CHUNK, np.float32)
    t = await na.full(array.shape, 5.0)
    kernel = na.spawn(fresh()(t))
    upload = na.spawn(na.memcpy(t, array))
    await upload
    await kernel
    assert not (await t.to_host()).any()
