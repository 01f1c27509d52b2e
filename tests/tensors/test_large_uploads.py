"""Uploads of large NumPy arrays: through the ring, by several threads, while the loop turns."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.device import copy_threads, staging_ring
from numbasync.device.staging_ring import Ring
from numbasync.errors import AccessConflictError, DriverError, OutOfDeviceMemoryError
from numbasync.tensors import parallel_copy
from numbasync.testing import Gate, settle
from tests.common import add_one, fresh, used, waited
from tests.holding import HeldCopies
from tests.waiting import begin, eventually, in_time

CHUNK = Ring.CHUNK
LARGE = parallel_copy.LARGE
SIZES = [0, 1, LARGE - 1, LARGE, LARGE + 1, CHUNK - 1, CHUNK + 1, 2 * CHUNK, 9 * CHUNK + 4097]


@pytest.fixture(autouse=True)
def several_threads(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine with more processors than this one may have."""
    monkeypatch.setattr(copy_threads, "THREADS", 4)
    copy_threads.start_over()
    add_one.compile(na.meta(4)).sync()
    na.from_host(np.zeros(3 * CHUNK, np.uint8)).to_host().sync()
    # Kept for whoever asks next: to lock pages may wait for a stream that a test holds.
    blocks = [device.backend.host_buffer(CHUNK) for _ in range(Ring.MOST + 48)]
    blocks.append(device.backend.host_buffer(device.ring.nbytes + 3 * CHUNK + 512))
    del blocks
    yield
    copy_threads.settle()
    copy_threads.start_over()


def numbers(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


# --- contents --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_every_byte_arrives(device: na.Device, size: int) -> None:
    array = numbers(size)
    t = await na.from_host(array)
    np.testing.assert_array_equal(await t.to_host(), array)
    other = numbers(size, 1)
    await na.memcpy(t, other)
    np.testing.assert_array_equal(await t.to_host(), other)


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


@pytest.mark.parametrize("dtype", [np.bool_, np.int16, np.float32, np.complex128])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_layouts_and_types(device: na.Device, layout: str, dtype: Any) -> None:
    whole = np.random.default_rng(2).integers(0, 2**14, (1200, 2501)).astype(dtype)
    array = LAYOUTS[layout](whole)
    assert array.nbytes > LARGE
    want = np.array(array, order="C", subok=False)
    t = await na.from_host(array)
    np.testing.assert_array_equal(await t.to_host(), want)
    await na.fill(t, 0)
    np.testing.assert_array_equal(await (await t.copy_from(array)).to_host(), want)
    np.testing.assert_array_equal(na.from_host(array).to_host().sync(), want)


async def test_structures(device: na.Device) -> None:
    kind = np.dtype([("x", "f4"), ("y", "u1", (3,)), ("z", "i8")], align=True)
    array = np.zeros(200_000, kind)
    array["x"], array["z"] = np.arange(200_000), -np.arange(200_000)
    found = await na.from_host(array[::-1]).to_host()
    np.testing.assert_array_equal(found["x"], array["x"][::-1])
    np.testing.assert_array_equal(found["z"], array["z"][::-1])


async def test_rows_at_a_pitch_and_strided_tensors(device: na.Device) -> None:
    array = numbers(900 * 1500).reshape(900, 1500)
    t = await na.empty_pitched((900, 1500), np.uint8)
    await t.copy_from(array)
    np.testing.assert_array_equal(await t.to_host(), array)
    whole = await na.zeros((900, 3000), np.uint8)
    await whole[:, ::2].copy_from(array)
    found = await whole.to_host()
    np.testing.assert_array_equal(found[:, ::2], array)
    assert not found[:, 1::2].any()


def test_pieces_are_runs_of_the_elements_in_c_order() -> None:
    array = np.arange(5 * 7 * 11, dtype=np.int32).reshape(5, 7, 11).transpose(1, 2, 0)
    for most in (4, 12, 20, 100, 10_000):
        found = list(parallel_copy.pieces(array, most))
        assert all(p.nbytes <= most for _, p in found)
        offsets = np.cumsum([0, *(p.nbytes for _, p in found)])
        assert [offset for offset, _ in found] == offsets[:-1].tolist()
        assert np.concatenate([p.ravel() for _, p in found]).tolist() == array.ravel().tolist()


# --- who waits, and who does not -----------------------------------------------------------------


@pytest.mark.parametrize("into", ["new", "a tensor", "rows at a pitch"])
async def test_the_loop_turns_while_a_large_array_is_read(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, into: str
) -> None:
    array = numbers(4 * CHUNK).reshape(-1, 512 * 4)
    t = await (na.empty_pitched if into == "rows at a pitch" else na.empty)(array.shape, np.uint8)
    held = HeldCopies(monkeypatch)
    op = na.from_host(array) if into == "new" else na.memcpy(t, array)
    task = asyncio.ensure_future(waited(op))
    await held.is_reached(threads=2)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    held.open()
    np.testing.assert_array_equal(await (await task).to_host(), array)
    assert threading.get_ident() not in held.threads


async def test_gather_waits_while_the_loop_turns(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [numbers(2 * CHUNK, i) for i in range(3)]
    held = HeldCopies(monkeypatch)
    task = asyncio.ensure_future(na.gather(*(na.from_host(a) for a in arrays)))
    await held.is_reached()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    held.open()
    for t, a in zip(await task, arrays, strict=True):
        np.testing.assert_array_equal(await t.to_host(), a)


@pytest.mark.parametrize("start", ["spawn", "async_on"])
@pytest.mark.parametrize("into", ["new", "a tensor", "rows at a pitch"])
async def test_who_goes_on_at_once_may_change_the_array_at_once(
    device: na.Device, stream: na.Stream, gate: Gate, start: str, into: str
) -> None:
    # More than the ring holds, on a stream that does not move.
    array = numbers(device.ring.nbytes + 3 * CHUNK + 512).reshape(-1, 512)
    want = array.copy()
    t = await (na.empty_pitched if into == "rows at a pitch" else na.empty)(array.shape, np.uint8)
    op = na.from_host(array) if into == "new" else na.memcpy(t, array)
    gate.close()
    started = na.spawn(op, stream) if start == "spawn" else op.async_on(stream)
    array[:] = 7
    gate.open()
    t = await started if isinstance(started, na.DeviceFuture) else started
    np.testing.assert_array_equal(await t.to_host().schedule(stream), want)


async def test_who_stops_waiting_may_change_the_array_at_once(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = numbers(5 * CHUNK)
    t = await na.zeros(array.shape, np.uint8)
    gate.close()
    held = HeldCopies(monkeypatch, after=3)

    async def upload() -> None:
        try:
            await na.memcpy(t, array).schedule(stream)
        finally:
            array[:] = 7

    task = asyncio.ensure_future(upload())
    await held.is_reached()
    task.cancel()
    opening = threading.Timer(0.05, held.open)  # only then is it read no more
    opening.start()
    with pytest.raises(asyncio.CancelledError):
        await task
    opening.join()
    gate.open()
    assert next(held.count) < 3 + 1 + copy_threads.THREADS, "pieces are copied that nobody wants"
    assert not (await t.to_host()).any(), "all of it, or nothing"


async def test_an_upload_that_is_cancelled_half_way_leaves_nothing_behind(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = numbers(20 * CHUNK)
    start = used(device)
    for after in (0, 1, 10):
        with monkeypatch.context() as patch:
            held = HeldCopies(patch, after)
            task = asyncio.ensure_future(waited(na.from_host(array)))
            await held.is_reached()
            task.cancel()
            held.open()
            with pytest.raises(asyncio.CancelledError):
                await task
        z = await na.zeros(4)
        assert (await (await add_one(z)).z.to_host()).tolist() == [1] * 4
        del z
    del task
    await settle(device)
    assert used(device) == start
    found = device.ring.statistics()
    assert found.in_use == 0 and found.chunks <= found.most


async def test_gather_that_is_cancelled_reads_its_arrays_no_more(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = numbers(5 * CHUNK)
    t = await na.zeros(array.shape, np.uint8)
    held = HeldCopies(monkeypatch, after=3)
    gate.close()

    async def upload() -> None:
        try:
            await na.gather(na.ones(4).schedule(stream), na.memcpy(t, array))
        finally:
            array[:] = 7

    task = asyncio.ensure_future(upload())
    await held.is_reached()
    opening = threading.Timer(0.05, held.open)  # only then is it read no more
    opening.start()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    opening.join()
    gate.open()
    assert next(held.count) < 3 + 1 + copy_threads.THREADS, "pieces are copied that nobody wants"
    assert not (await t.to_host()).any(), "all of it, or nothing"


@pytest.mark.parametrize("turns", range(7))
async def test_an_upload_behind_a_cancelled_one_is_copied_beside_the_loop(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    array = numbers(20 * CHUNK)
    held = HeldCopies(monkeypatch)

    async def behind() -> na.Tensor:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await na.from_host(array)

    first = asyncio.ensure_future(waited(na.from_host(array)))
    await held.is_reached()
    first.cancel()
    second = asyncio.ensure_future(behind())
    held.open()
    await second
    assert threading.get_ident() not in held.threads


def test_a_loop_that_is_closed_half_way(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    array = numbers(5 * CHUNK)
    t = na.zeros(array.shape, np.uint8).sync()
    held = HeldCopies(monkeypatch, after=2)

    async def main() -> None:
        task = asyncio.ensure_future(waited(na.memcpy(t, array)))
        await held.is_reached()
        threading.Timer(0.05, held.open).start()
        del task

    in_time(lambda: asyncio.run(main()))
    assert not t.to_host().sync().any(), "its task was cancelled with the loop"


# --- order ---------------------------------------------------------------------------------------


async def test_two_uploads_at_once_are_in_the_order_of_submission(
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


async def test_two_threads_that_upload_to_one_tensor_do_not_mix(device: na.Device) -> None:
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


async def test_who_blocks_the_thread_does_not_wait_for_a_held_stream(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_ring, "PATIENCE", 1e9)
    array = numbers(device.ring.nbytes + 5 * CHUNK)
    gate.close()
    task = asyncio.ensure_future(waited(na.from_host(array).schedule(stream)))
    await eventually(lambda: device.ring.statistics().waits > 0)
    assert na.ones(4).to_host().sync().tolist() == [1] * 4  # behind it in line
    assert device.ring.statistics().refusals > 0
    gate.open()
    np.testing.assert_array_equal(await (await task).to_host(), array)


async def test_strict_ordering_refuses_it_all_the_same(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    t = await na.zeros(3 * CHUNK, np.uint8)
    gate.close()
    na.spawn(na.fill(t, 1), stream)
    with na.ordering("strict"), pytest.raises(AccessConflictError):
        await na.memcpy(t, numbers(3 * CHUNK)).schedule(device.new_stream())
    gate.open()


# --- the ring ------------------------------------------------------------------------------------


async def test_page_locked_memory_is_bounded_and_the_loop_turns_while_there_is_none(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_ring, "PATIENCE", 1e9)
    array = numbers(device.ring.nbytes + 5 * CHUNK)
    before = device.ring.statistics()
    gate.close()
    task = asyncio.ensure_future(waited(na.from_host(array).schedule(stream)))
    await eventually(lambda: device.ring.statistics().waits > before.waits)
    for _ in range(100):
        await asyncio.sleep(0)
    found = device.ring.statistics()
    assert found.in_use == found.chunks == found.most == Ring.MOST
    assert found.taken - before.taken == Ring.MOST
    assert not task.done()
    assert f"{found.most} of {found.most} chunks" in repr(device.ring)
    gate.open()
    np.testing.assert_array_equal(await (await task).to_host(), array)
    await settle(device)
    found = device.ring.statistics()
    assert found.refusals == before.refusals
    assert found.in_use == 0 and found.chunks == found.most


async def test_a_stream_that_does_not_move_holds_up_nobody_for_long(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    array = numbers(device.ring.nbytes + 5 * CHUNK)
    gate.close()
    held = asyncio.ensure_future(waited(na.from_host(array).schedule(stream)))
    await asyncio.sleep(0)
    other = await na.from_host(array).schedule(device.new_stream())
    assert not held.done()
    np.testing.assert_array_equal(await other.to_host(), array)
    gate.open()
    np.testing.assert_array_equal(await (await held).to_host(), array)


async def test_the_first_large_upload_locks_all_the_pages_that_later_ones_need(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Ring(device.backend)
    monkeypatch.setattr(device, "ring", made)
    assert made.statistics().chunks == 0
    kind, asked = type(device.backend), list[int]()
    lock = kind.host_buffer

    def counted(self: Any, nbytes: int) -> Any:
        asked.append(nbytes)
        return lock(self, nbytes)

    monkeypatch.setattr(kind, "host_buffer", counted)
    await na.from_host(numbers(LARGE + 1))
    assert asked == [made.nbytes] and made.statistics().chunks == Ring.MOST
    gate.close()
    array = numbers(made.nbytes - CHUNK)
    held = na.spawn(na.from_host(array), stream)
    assert asked == [made.nbytes]
    gate.open()
    np.testing.assert_array_equal(await (await held).to_host(), array)


def test_threads_that_need_the_ring_at_once_make_one(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kind = Ring(device.backend), type(device.backend)
    lock, at_once, calls = kind.host_buffer, threading.Barrier(4), itertools.count()
    second = threading.Event()

    def slow(self: Any, nbytes: int) -> Any:
        if next(calls):
            second.set()
        second.wait(0.05)
        return lock(self, nbytes)

    monkeypatch.setattr(kind, "host_buffer", slow)

    def take() -> Any:
        at_once.wait()
        return made.take(staging_ring.Deadline())

    taken = [result() for result in [begin(take) for _ in range(4)]]
    assert next(calls) == 1
    assert len({chunk.memory.ctypes.data for chunk in taken}) == 4


async def test_small_arrays_avoid_the_ring(device: na.Device) -> None:
    before = device.ring.statistics()
    t = await na.from_host(numbers(LARGE))
    await t.copy_from(numbers(LARGE, 1))
    assert device.ring.statistics().taken == before.taken
    await t.copy_from(na.HostBuffer.from_array(numbers(LARGE)))
    big = await na.from_host(na.HostBuffer.from_array(numbers(3 * CHUNK)))
    assert device.ring.statistics().taken == before.taken
    await big.copy_from(numbers(3 * CHUNK, 1))
    assert device.ring.statistics().taken > before.taken


async def test_what_an_upload_holds_counts(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    array = numbers(3 * CHUNK)
    t = await na.empty(array.shape, np.uint8)
    for make in (lambda: na.from_host(array), lambda: na.memcpy(t, array)):
        gate.close()
        with na.limit(bytes=2 * 6 * CHUNK):
            futures = [na.spawn(make(), stream) for _ in range(4)]
            await settle(device)
            assert device.in_flight == (2, 2 * 6 * CHUNK)
            gate.open()
            await na.gather(*futures)


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
    np.testing.assert_array_equal(await t.to_host(), array)


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
    np.testing.assert_array_equal(await t.to_host(), array)


async def test_no_memory_for_a_second_copy_on_the_device(device: na.Device) -> None:
    array = numbers(9 * CHUNK)
    before = device.pool
    device.pool = device.new_pool(max_bytes=10 * CHUNK)
    try:
        t = await na.zeros(array.shape, np.uint8)
        await na.memcpy(t, array)
        np.testing.assert_array_equal(await t.to_host(), array)
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
