"""How much page-locked memory is kept, where there is no GPU to have it."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest


def test_a_system_that_does_not_say_how_much_memory_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_block_of_the_host_is_memory_that_kernels_reach(gpu: Any, kind: str) -> None:
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


def test_arrays_on_blocks_are_made_once_for_each_place(gpu: Any) -> None:
    arrays = gpu.host_arrays((2, 3), np.dtype(np.float32))
    blocks: list[Any] = [Block() for _ in range(2)]
    for block in blocks:
        handle, view = arrays(block)
        assert handle.address == view.ctypes.data == block.address
        assert (handle.shape, view.shape, handle.nbytes) == ((6,), (2, 3), 24)
        view[...] = 3
        assert np.frombuffer(block, np.float32)[:6].tolist() == [3] * 6
        assert arrays(block)[0] is handle
