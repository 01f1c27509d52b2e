"""Blocks of a GPU's pools, and page-locked ones, in the core and in Python, without a GPU."""

from __future__ import annotations

import gc
import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from numbasync import native
from numbasync.device.storage import MemoryPool

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
both_ways = pytest.mark.parametrize("on", [True, False])


def gpu_memory() -> Any:
    """The module of a GPU's pools, whose blocks the core knows, and no longer a null device's."""
    memory = pytest.importorskip("numbasync.backend.cuda.memory", exc_type=ImportError)
    native.known(memory.CudaMemory)
    return memory


@pytest.mark.parametrize("seed", range(8))
def test_blocks_are_counted_and_returned_as_by_python(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = gpu_memory()
    answers = []
    for on in (False, True):
        native.switch(on)
        rng, seen, returned = random.Random(seed), list[Any](), list[int]()
        pool = object.__new__(memory.CudaPool)
        pool._begin(None)
        pool._most_spare = 10_000
        note = partial(_note_return, returned)
        monkeypatch.setattr(memory.CudaPool, "_return", staticmethod(note))
        held: list[Any] = []
        for i in range(400):
            size = 256 * rng.choice([1, 2, 2, 3, 5, 5000])
            if held and rng.randrange(2):
                pool.free(held.pop(rng.randrange(len(held))))
            else:
                block = pool.reuse(size)
                if block is None:
                    block = pool._count(size, [(0, i)])  # as `allocate` does
                block.lent = not rng.randrange(8)
                held.append(block)
            spare = {n: [b.address for b in blocks] for n, blocks in pool._spare.items()}
            seen.append((held[-1:] and held[-1].address, pool._used, pool._high, spare))
            seen.append(pool._spare_bytes)
            assert pool._spare_bytes <= pool._most_spare
        answers.append((seen, returned))
    assert answers[0] == answers[1]


def pool_with(memory: Any, count: int) -> Any:
    """A pool with free blocks of 256 bytes."""
    blocks = object.__new__(memory.CudaPool)
    blocks._begin(None)
    blocks._spare[256] = [memory.CudaMemory(i, 256) for i in range(count)]
    blocks._spare_bytes = 256 * count
    return blocks


@both_ways
def test_a_limited_pool_counts_what_it_gets_back(on: bool) -> None:
    memory = gpu_memory()
    native.switch(on)
    blocks = pool_with(memory, 2)
    pool: Any = object.__new__(MemoryPool)
    pool.device = pool.fast_path_device = None
    pool._pool, pool._lock, pool.max_bytes = blocks, native.new_lock(), 256
    for _ in range(2):
        storage = pool.reuse(100)
        assert (pool._pool.used, blocks._used, pool.reuse(100)) == (256, 256, None)
        del storage
        assert (pool._pool.used, blocks._used) == (0, 0)


def _note_return(returned: list[int], block: Any, lent: bool) -> None:
    returned.append(block.pointer)


@both_ways
def test_a_pinned_block_returns_with_its_last_holder(on: bool) -> None:
    pinned = pytest.importorskip("numbasync.backend.cuda.pinned_memory", exc_type=ImportError)
    native.switch(on)
    pool = pinned.PinnedPool(None)
    memory = np.arange(4 * 4096, dtype=np.uint8)
    pool._slab, pool._left = memory.ctypes.data, memory.nbytes
    blocks = [pool.reuse(4096) for _ in range(4)]
    assert pool.reuse(4096) is None
    assert [block.address - memory.ctypes.data for block in blocks] == [0, 4096, 8192, 12288]
    assert {len(block) for block in blocks} == {4096}
    array: Any = np.ndarray((1024,), np.uint32, blocks[1])
    np.testing.assert_array_equal(array.view(np.uint8), memory[4096:8192])
    view, first = memoryview(array[5:])[2:], blocks[1].address
    del blocks, array
    assert sorted(pool._sizes[4096].spare) == [
        memory.ctypes.data + at for at in (0, 8192, 12288)
    ]  # fmt: skip
    del view
    assert pool._sizes[4096].spare[-1] == first
    again = pool.reuse(4096)
    assert again.address == first
    again_for_less = pool.reuse(100)
    assert again_for_less.address != first
    assert len(again_for_less) == 4096


@both_ways
def test_page_locked_blocks_in_garbage_cycles_return(on: bool) -> None:
    pinned = pytest.importorskip("numbasync.backend.cuda.pinned_memory", exc_type=ImportError)
    native.switch(on)
    pool = pinned.PinnedPool(None)
    memory = np.arange(16 * 4096, dtype=np.uint8)
    pool._slab, pool._left = memory.ctypes.data, memory.nbytes
    cycle: list[Any] = []
    for _ in range(8):
        cycle = [pool.reuse(4096)]
        cycle += [cycle, np.frombuffer(pool.reuse(4096), np.uint8)]
    del cycle
    gc.collect()
    assert len(set(pool._sizes[4096].spare)) == 16


def test_an_unmade_block_returns_no_address() -> None:
    wrong: Any = None
    spare: list[int] = []
    for arguments in ((16, wrong, 4096), ("16", spare, 4096), (16, spare, "4096")):
        with pytest.raises(TypeError):
            native.core.Block(*arguments)
    assert spare == []
