"""Page-locked memory: how much is kept, and what happens where there is none to be had."""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import OutOfDeviceMemoryError


def test_a_system_without_known_memory_size(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = pytest.importorskip("numbasync.backend.cuda.pinned_memory", exc_type=ImportError)
    assert pinned._memory() > 0
    assert pinned.PinnedPool.KEPT_BYTES >= 256 * 2**20
    monkeypatch.delattr(os, "sysconf")
    assert pinned._memory() == 0


@pytest.fixture
def gpu() -> Any:
    """A CUDA device that was never opened: enough for addresses."""
    module = pytest.importorskip("numbasync.backend.cuda.device", exc_type=ImportError)
    return object.__new__(module.CudaDevice)


@pytest.mark.parametrize("kind", ["block", "buffer"])
def test_kernels_reach_a_block_of_the_host(gpu: Any, kind: str) -> None:
    block: Any = (ctypes.c_char * 4096)()
    start = ctypes.addressof(block)
    given = block if kind == "block" else np.frombuffer(block, np.uint8)[:4096]
    memory = gpu.host_memory(given)
    assert (memory.address, memory.nbytes) == (start, 4096)
    array = gpu.array(memory, 256, (8,), (4,), np.dtype(np.float32))
    assert array.address == start + 256
    assert not gpu.reaches(array), "the driver's copies would wait"
    assert array.is_contiguous()


class Block(ctypes.c_char * 64):  # type: ignore[misc]  # a class that is made here
    address = property(ctypes.addressof)


def test_arrays_on_blocks_are_made_once_each(gpu: Any) -> None:
    arrays = gpu.host_arrays((2, 3), np.dtype(np.float32))
    blocks: list[Any] = [Block() for _ in range(2)]
    for block in blocks:
        handle, view = arrays(block)
        assert handle.address == view.ctypes.data == block.address
        assert (handle.shape, view.shape, handle.nbytes) == ((6,), (2, 3), 24)
        view[...] = 3
        assert np.frombuffer(block, np.float32)[:6].tolist() == [3] * 6
        assert arrays(block)[0] is handle


class Driver:
    """Page-locked memory, of which the driver has so many allocations, and threads that start or
    do not.
    """

    CU_MEMHOSTALLOC_PORTABLE = 1

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pinned = pytest.importorskip("numbasync.backend.cuda.pinned_memory", exc_type=ImportError)
        self.left, self.asked, self.freed = 1000, list[int](), queue.SimpleQueue[int]()
        self._memory: list[Any] = []
        monkeypatch.setattr(pinned, "cu", self)
        monkeypatch.setattr(pinned, "enter", lambda device: None)
        monkeypatch.setattr(pinned, "error_of", lambda result, call: ValueError(f"{call} {result}"))
        self.pool = pinned.PinnedPool(None)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[int, int]:
        self.asked.append(nbytes)
        if not self.left:
            return 2, 0
        self.left -= 1
        self._memory.append(np.empty(nbytes, np.uint8))
        return 0, self._memory[-1].ctypes.data

    def cuMemFreeHost(self, address: int) -> None:
        self.freed.put(address)


@pytest.mark.parametrize("nbytes", [100, 5000, 2**20, 2**25])
def test_pages_that_cannot_be_locked_cost_nothing(
    monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    driver = Driver(monkeypatch)
    pool, driver.left = driver.pool, 0
    for _ in range(2):
        with pytest.raises(OutOfDeviceMemoryError, match=r"bytes of page-locked[\s\S]*ulimit -l"):
            pool.take(nbytes)
        assert pool.reuse(nbytes) is None
        assert (pool._left, pool._kept, pool._next_slab) == (0, 0, pool.FIRST_SLAB)
    driver.left = 1
    block = pool.take(nbytes)
    assert len(block) >= nbytes
    assert driver.asked[0] == driver.asked[-1]


def test_the_thread_that_unlocks_pages_starts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    pool = driver.pool
    monkeypatch.setattr(type(pool), "KEPT_BYTES", 0)

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(threading.Thread, "start", no_thread)
        block = pool.take(2**25)
        address = block.address
        assert pool._unlocking is None
        del block  # nobody unlocks it yet
    other = pool.take(2**25)
    assert pool._unlocking is not None
    assert driver.freed.get(timeout=300) == address
    assert other.address != address


def test_page_locked_memory_that_cannot_be_had(device: na.Device) -> None:
    with pytest.raises(OutOfDeviceMemoryError, match=r"\d bytes of (page-locked )?host memory"):
        na.pinned(2**58, np.float32, device)
    assert na.pinned(4, np.float32, device).shape == (4,)


def test_a_copy_whose_pages_cannot_be_locked(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operation fails, and nothing of it is left."""
    stream, array = device.new_stream(), np.arange(8, dtype=np.float32)
    z = na.from_host(array).sync_on(stream)

    def none_left(nbytes: int) -> Any:
        raise OutOfDeviceMemoryError(f"{nbytes:,} bytes of page-locked memory cannot be had.")

    device.synchronize()
    used = device.memory_stats().used_current
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(device.backend, "host_buffer", none_left)
        meanwhile.setattr(device.backend, "host_block", lambda nbytes: None)
        for build in (lambda: na.from_host(array), z.to_host, lambda: na.memcpy(z, array)):
            with pytest.raises(OutOfDeviceMemoryError, match="page-locked"):
                build().sync_on(stream)
    gc.collect()
    device.synchronize()
    assert device.memory_stats().used_current == used
    assert not device.busy
    assert na.from_host(array).sync_on(stream).to_host().sync_on(stream).tolist() == array.tolist()
