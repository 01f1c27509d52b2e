"""Blocks of a GPU's pool that ^C takes out of everybody's hands, without a GPU."""

from __future__ import annotations

import gc
import queue
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from numbasync import native
from numbasync.device.storage import MemoryPool
from numbasync.errors import OutOfDeviceMemoryError
from tests.device.test_pinned_memory import Driver as PinnedDriver
from tests.interrupting import Interrupt, Place, Places

WAYS = [False, True] if native.core is not None else [False]
STREAM: Any = SimpleNamespace(handle=1)
SIZES = (100, 100, 700, 100, 2**21, 3000)


class Driver:
    """A driver of addresses; what it does not know it asks the real one.

    Attributes:
        held: the addresses that are allocated.
        most: as many allocations as there is memory for.
    """

    def __init__(self, real: Any) -> None:
        self._real = real
        self.held = set[int]()
        self.last, self.most = 0, 1000

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def cuMemAllocFromPoolAsync(self, nbytes: int, pool: object, stream: object) -> Any:
        if len(self.held) >= self.most:
            return self._real.CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        self.last += 256
        self.held.add(self.last)
        return 0, self.last

    def cuMemFreeAsync(self, pointer: int, stream: object) -> Any:
        self.held.remove(pointer)  # once
        return (0,)

    def cuMemPoolTrimTo(self, pool: object, nbytes: int) -> Any:
        return (0,)

    def cuMemPoolGetAttribute(self, pool: object, attribute: object) -> Any:
        return 0, 0

    def cuStreamSynchronize(self, stream: object) -> Any:
        return (0,)


@pytest.fixture(params=WAYS, ids=lambda on: "core" if on else "python")
def pools(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pool, the backend's pool of that, and its driver."""
    memory = pytest.importorskip("numbasync.backend.cuda.memory", exc_type=ImportError)
    native.known(memory.CudaMemory)
    native.switch(request.param)
    gc.collect()  # of real memory nothing may be freed meanwhile
    driver, pool = Driver(memory.cu), object.__new__(MemoryPool)
    blocks = object.__new__(memory.CudaPool)
    monkeypatch.setattr(memory, "cu", driver)
    monkeypatch.setattr(memory, "enter", lambda device: None)
    monkeypatch.setattr(memory, "error_of", lambda result, call: OutOfDeviceMemoryError(call))
    device = SimpleNamespace(idle_stream=2, stream_behind_default=3, ordinal=0, total_memory=1000)
    blocks._begin(device)
    blocks._pool, blocks._most_spare = None, 1024
    untyped: Any = pool
    untyped.device = untyped.fast_path_device = untyped.max_bytes = None
    untyped._pool, untyped._lock, untyped.release = blocks, native.new_lock(), blocks.free
    yield pool, blocks, driver
    native.switch(True)


def test_blocks_are_counted_wherever_an_interrupt_comes(pools: Any) -> None:
    pool, blocks, driver = pools

    def call() -> None:
        storages = [pool.reuse(size) or pool.allocate(size, STREAM) for size in SIZES]
        storages[1].memory.lent = True
        storages.clear()
        blocks.trim()
        pool.allocate(100, STREAM)

    def follow(trace: Any) -> None:
        pool.allocate(100, STREAM)  # a spare block
        trace.run(call)

    follow(places := Places())
    wrong, came = list[str](), 0
    for place, hits in places.hits.items():
        for hit in {1, hits}:
            interrupt = Interrupt(place, hit)
            with suppress(KeyboardInterrupt):
                follow(interrupt)
            came += interrupt.came
            used = blocks.used
            spare = {m.address: m.nbytes for kept in blocks._spare.values() for m in kept}
            if used or blocks._spare_bytes != sum(spare.values()):
                wrong.append(f"{used} of {blocks._spare_bytes} bytes, ^C in {place}")
            if driver.held != spare.keys():
                wrong.append(f"{driver.held} are allocated, ^C in {place}")
    assert not wrong
    assert came > len(places.hits) / 2


def test_spare_blocks_are_memory_for_other_sizes(pools: Any) -> None:
    pool, blocks, driver = pools
    blocks._most_spare = 2**22
    kept = pool.allocate(100, STREAM)
    large = pool.allocate(2**21, STREAM)
    address = large.memory.address
    del large
    assert pool.reuse(2**21).memory.address == address, "however large it is"
    driver.most = 2
    other = pool.allocate(5000, STREAM)
    assert driver.held == {kept.memory.address, other.memory.address}
    assert (blocks._spare_bytes, blocks.used) == (0, 256 + 5120)
    with pytest.raises(OutOfDeviceMemoryError, match="do not fit"):
        pool.allocate(5000, STREAM)
    assert (len(driver.held), blocks.used) == (2, 256 + 5120)
    del other
    driver.most = 1
    with pytest.raises(OutOfDeviceMemoryError, match="do not fit"):
        pool.allocate(6000, STREAM)
    assert driver.held == {kept.memory.address}


def test_a_block_in_a_cycle_returns_once(pools: Any) -> None:
    """The collector clears weak references before the finaliser gives the block back."""
    pool, blocks, driver = pools
    cycle: list[Any] = [pool.allocate(100, STREAM)]
    cycle.append(cycle)
    address = cycle[0].memory.address
    del cycle
    gc.collect()
    assert (blocks.used, blocks._lost, driver.held) == (0, blocks._lost.__class__(), {address})
    again = pool.allocate(100, STREAM)
    assert (again.memory.address, blocks.used) == (address, 256)


@pytest.mark.parametrize("on", WAYS, ids=lambda on: "core" if on else "python")
def test_pinned_memory_has_owners_wherever_interrupts_come(
    monkeypatch: pytest.MonkeyPatch, on: bool
) -> None:
    """What is locked is spare or uncut, when nobody has a block; but for the few bytecodes that
    hand over a new address, and for what Python does not raise.
    """
    native.switch(on)
    driver = PinnedDriver(monkeypatch)
    pool = driver.pool
    pool._unlocking = threading.current_thread()  # nothing is unlocked

    def call() -> None:
        for size in (100, 100, 5000, 2**20, 2**25):
            pool.reuse(size)
            pool.take(size)

    def lost_in(trace: Any) -> int:
        """Bytes that are lost by a call of a new pool."""
        driver.left, driver._memory, pool._surplus = 1000, [], queue.SimpleQueue()
        pool._sizes, pool._left, pool._next_slab = {}, 0, pool.FIRST_SLAB
        with suppress(KeyboardInterrupt):
            trace.run(call)
        spare: int = sum(size.nbytes * len(size.spare) for size in pool._sizes.values())
        unused: int = sum(memory.nbytes for memory in driver._memory) - pool._left - spare
        returned = [pool._surplus.get() for _ in range(pool._surplus.qsize())]
        blocks = (memory for memory in driver._memory if memory.ctypes.data in returned)
        return unused - sum(int(memory.nbytes) for memory in blocks)

    try:
        places = Places()
        assert lost_in(places) == 0
        found = list[Place]()
        for place, hits in places.hits.items():
            for hit in {1, hits}:
                if lost_in(interrupt := Interrupt(place, hit)) and not interrupt.was_swallowed:
                    found.append(place)
        assert {place.code.co_name for place in found} <= {"_lock_pages", "_spare"}
        assert len(found) < len(places.hits) / 10
    finally:
        native.switch(True)
