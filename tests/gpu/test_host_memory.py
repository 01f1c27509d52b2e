"""Page-locked memory goes back to the system without anyone waiting for it."""

from __future__ import annotations

import gc
import itertools
import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.testing import Gate
from tests.waiting import begin

pytestmark = pytest.mark.cuda


def test_surplus_is_unlocked_by_a_thread(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numbasync.backend.cuda import pinned_memory

    freed: list[tuple[int, Any, Any]] = []
    done = threading.Event()
    free = pinned_memory.cu.cuMemFreeHost
    relaxed = pinned_memory.cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED

    def watched(address: int) -> Any:
        result = free(address)
        before = pinned_memory.cu.cuThreadExchangeStreamCaptureMode(relaxed)[1]
        freed.append((threading.get_ident(), result, before))
        done.set()
        return result

    monkeypatch.setattr(pinned_memory.cu, "cuMemFreeHost", watched)
    monkeypatch.setattr(pinned_memory.PinnedPool, "KEPT_BYTES", 0)
    host = na.ones(3_000_000).to_host().sync()
    assert host.sum() == 3_000_000
    del host
    gc.collect()
    assert done.wait(20)
    assert freed[0][0] != threading.get_ident()
    assert int(freed[0][1][0]) == 0
    assert freed[0][2] == relaxed  # so that it ends no capture of another thread
    assert na.ones(10).to_host().sync().sum() == 10


async def test_small_copies_behind_held_streams_lock_no_pages(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numbasync.backend.cuda import pinned_memory

    array = np.arange(1024, dtype=np.float32)
    await na.from_host(array).to_host()  # makes what the others use
    locked: list[int] = []
    lock = pinned_memory.cu.cuMemHostAlloc

    def watched(nbytes: int, flags: int) -> Any:
        locked.append(nbytes)
        return lock(nbytes, flags)

    monkeypatch.setattr(pinned_memory.cu, "cuMemHostAlloc", watched)
    gate.close()
    futures = [na.spawn(na.from_host(array + i).to_host(), stream) for i in range(100)]
    assert not locked
    gate.open()
    for i, found in enumerate(await na.gather(*futures)):
        np.testing.assert_array_equal(found, array + i)


def test_blocks_of_all_sizes_are_apart_and_return(device: na.Device) -> None:
    from numbasync.backend.cuda.pinned_memory import PinnedPool

    pool = PinnedPool(device.backend)  # type: ignore[arg-type]  # of this kind
    sizes = [1, 4096, 4097, 70_000, 2**19 - 1, 2**19, 2**19 + 1, 3 * 2**20, 17 * 2**20]
    blocks = [pool.take(size) for size in sizes * 4]
    places = sorted((block.address, len(block)) for block in blocks)
    assert all(at + size <= after for (at, size), (after, _) in itertools.pairwise(places))
    assert all(len(block) >= size for block, size in zip(blocks, sizes * 4, strict=True))
    arrays = [np.ndarray((len(block),), np.uint8, block)[::2] for block in blocks]
    assert pool.reuse(17 * 2**20) is None
    del blocks
    assert pool.reuse(17 * 2**20) is None, "arrays on a block keep it"
    arrays.clear()
    again = [pool.reuse(size) for size in sizes * 4]
    assert sorted((block.address, len(block)) for block in again) == places


def test_threads_that_need_a_slab_lose_none(device: na.Device) -> None:
    from numbasync.backend.cuda.pinned_memory import PinnedPool

    pool = PinnedPool(device.backend)  # type: ignore[arg-type]  # of this kind
    begin_all = threading.Barrier(4)

    def take() -> Any:
        begin_all.wait()
        return [pool.take(100_000) for _ in range(40)]

    blocks = [block for result in [begin(take) for _ in range(4)] for block in result()]
    assert len({block.address for block in blocks}) == 160
