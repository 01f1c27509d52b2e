"""Recycled page-locked host memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend.cuda.driver import cu, enter, error_of
from numbasync.backend.cuda.memory import CudaMemory
from numbasync.backend.device_facts import SMALL_BLOCK
from numbasync.errors import DeviceLostError, OutOfDeviceMemoryError
from numbasync.native import compiled, core, known

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu

RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


def _memory() -> int:
    """Bytes of memory available to this process: the machine's, or its control group's limit; 0
    where the system does not report them, as on Windows.
    """
    if not hasattr(os, "sysconf"):
        return 0
    nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no control group, or no limit
        nbytes = min(nbytes, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return nbytes


class HostMemory(CudaMemory):
    """A block, or bytes of a `host_buffer`, that kernels read and write in place: the address
    space is unified, so the device address is the host's.
    """

    __slots__ = ("_keep",)

    def __init__(self, block: Any) -> None:
        buffer = np.frombuffer(block, np.uint8)
        super().__init__(buffer.ctypes.data, buffer.nbytes)
        self._keep = block


@known
class _Size:
    """Blocks of one size: the addresses of the spare blocks, and the function that turns an
    address into an object with a buffer and the attribute `address`. The end of that object
    returns the address.
    """

    __slots__ = ("at", "is_small", "nbytes", "spare")

    def __init__(self, pool: PinnedPool, nbytes: int) -> None:
        self.nbytes = nbytes
        self.is_small = nbytes <= pool.SMALL
        self.spare: list[int] = []

        # `addressof` is bound here, since at interpreter exit modules lose their names.
        def give(block: Any, address: Callable[[Any], int] = ctypes.addressof) -> None:
            pool.give(address(block), self)

        def keep(
            block: Any,
            address: Callable[[Any], int] = ctypes.addressof,
            append: Callable[[int], None] = self.spare.append,
        ) -> None:
            append(address(block))  # small blocks are never unlocked

        # Arrays on a block hold the block, and so do views of them: NumPy follows an array's base
        # to the first object that is not an array.
        if self.is_small and core is not None:
            self.at: Callable[[int], Any] = partial(core.Block, nbytes, self.spare)
            return
        attributes = {
            "__del__": keep if self.is_small else give, "address": property(ctypes.addressof)
        }  # fmt: skip
        cls: Any = type(f"Pinned{nbytes}", (ctypes.c_char * nbytes,), attributes)
        self.at = cls.from_address

    def spare_block(self) -> Any:
        """The latest spare block. By `map`, so that ^C finds no address in nobody's hands.

        Raises:
            IndexError: there is none.
        """
        return next(map(self.at, iter(self.spare.pop, None)))


@known
class PinnedPool:
    """Page-locked host memory in powers of two.

    Locking pages takes long, and may wait for all work of the device, even for a gate that the
    calling thread has yet to open. Therefore small blocks are cut from slabs, each twice as large
    as the previous one; these blocks are never unlocked, so the pool keeps as many as were in use
    at the same time. Larger spare blocks are kept up to `KEPT_BYTES`: a sixteenth of the memory,
    since locking the pages of an array takes ten times as long as copying into it.

    Unlocking pages waits for the device, so a separate thread unlocks them: a block may be
    returned by a finaliser, on the thread of an event loop.
    """

    KEPT_BYTES = max(256 * 2**20, _memory() // 16)
    SMALLEST = 4096
    SMALL = SMALL_BLOCK
    FIRST_SLAB, LARGEST_SLAB = 4 * 2**20, 32 * 2**20
    LARGE = 16 * 2**20  # larger sizes are multiples of `STEP`
    STEP = 2 * 2**20

    __slots__ = (
        "__weakref__", "_device", "_left", "_lock", "_next_slab", "_sizes", "_slab",
        "_surplus", "_unlocking",
    )  # fmt: skip

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._sizes: dict[int, _Size] = {}
        self._slab, self._left = (
            0,
            0,
        )  # the address and the bytes of the unused rest of the latest slab
        self._next_slab = self.FIRST_SLAB
        # Reentrant: a finaliser may return a block inside `take`.
        self._lock = threading.RLock()
        self._surplus: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._unlocking: threading.Thread | None = None

    def take(self, nbytes: int) -> Any:
        """A block of at least `nbytes` bytes. The block returns to the pool with its last holder.

        Raises:
            OutOfDeviceMemoryError: the pages cannot be locked.
        """
        size = self._size(nbytes)
        while True:
            block = self._spare(size)
            if block is not None:
                return block
            self._lock_pages(size)

    @compiled
    def reuse(self, nbytes: int) -> Any:
        """`take` of a spare block, whose pages are locked already; None if there is none."""
        size = self._sizes.get(nbytes) or self._size(nbytes)
        if size.is_small:
            with contextlib.suppress(IndexError):
                return size.spare_block()  # removing from a list needs no lock
        return self._spare(size)

    def _spare(self, size: _Size) -> Any:
        nbytes = size.nbytes
        with self._lock:
            with contextlib.suppress(IndexError):
                return size.spare_block()
            if not size.is_small or nbytes > self._left:
                return None
            address = self._slab
            self._slab, self._left = address + nbytes, self._left - nbytes
            return size.at(address)

    @property
    def _kept(self) -> int:
        """Bytes of the larger spare blocks."""
        sizes = list(self._sizes.values())
        return sum(len(size.spare) * size.nbytes for size in sizes if not size.is_small)

    def _share_out(self) -> None:
        """Divide the rest of the slab, perhaps the new one of another thread, into spare blocks."""
        while self._left:
            nbytes = min(self.SMALL, 1 << (self._left.bit_length() - 1))
            self._size(nbytes).spare.append(self._slab)
            self._slab, self._left = self._slab + nbytes, self._left - nbytes

    def _lock_pages(self, size: _Size) -> None:
        """Make a spare block, or a slab to cut it from. Not under the lock, since it takes long."""
        nbytes = self._next_slab if size.is_small else size.nbytes
        self._start_unlocking()  # here, since at exit a finaliser cannot start a thread
        enter(self._device)
        # `map` puts the answer into the list: no bytecode, before which ^C could come.
        answers: list[Any] = []
        try:
            answers.extend(map(cu.cuMemHostAlloc, (nbytes,), (cu.CU_MEMHOSTALLOC_PORTABLE,)))
            self._check(nbytes, answers[0][0])
            with self._lock:
                if size.is_small:
                    self._share_out()
                    slab = int(answers.pop()[1])
                    self._slab, self._left = slab, nbytes
                    self._next_slab = min(2 * nbytes, self.LARGEST_SLAB)
                else:
                    size.spare.append(int(answers.pop()[1]))
        except BaseException:
            for result, address in answers:
                if not result:
                    self._surplus.put(int(address))
            raise

    def _check(self, nbytes: int, result: Any) -> None:
        if result:
            error = error_of(result, "cuMemHostAlloc")
            if isinstance(error, DeviceLostError):
                raise error
            raise OutOfDeviceMemoryError(
                f"{nbytes:,} bytes of page-locked host memory cannot be had: {error}\n"
                "Drop arrays of na.pinned that are no longer needed, copy less at a time, or raise "
                "the limit: `ulimit -l`, or the container's memory."
            )

    def _size(self, nbytes: int) -> _Size:
        rounded = self.SMALLEST if nbytes <= self.SMALLEST else 1 << (nbytes - 1).bit_length()
        if rounded > self.LARGE:
            rounded = -(-nbytes // self.STEP) * self.STEP
        size = self._sizes.get(rounded)
        if size is None:
            # If two threads arrive together, `setdefault` gives both the same object.
            size = self._sizes.setdefault(rounded, _Size(self, rounded))
        return size

    def give(self, address: int, size: _Size) -> None:
        """Take back a larger block, whose object was finalised."""
        with self._lock:
            if self._kept + size.nbytes <= self.KEPT_BYTES:
                size.spare.append(address)
                return
        self._surplus.put(address)  # reentrant, as a finaliser may interrupt `put`

    def _start_unlocking(self) -> None:
        """Start the thread that unlocks pages. Where it cannot be started, the blocks wait for the
        next time.
        """
        with self._lock:
            if self._unlocking is None:
                thread = threading.Thread(
                    target=_unlock, args=(self._surplus, self._device), daemon=True,
                    name="numbasync-unlock",
                )  # fmt: skip
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._unlocking = thread


def _unlock(surplus: queue.SimpleQueue[int], device: Gpu) -> None:
    # What this thread frees is part of no graph. Otherwise it would end the capture of another
    # thread, as PyTorch's, which by default forbids such calls to all threads of the process.
    with contextlib.suppress(Exception):
        cu.cuThreadExchangeStreamCaptureMode(RELAXED)
    while True:
        address = surplus.get()
        with contextlib.suppress(Exception):  # a broken device has no memory left to release
            enter(device)
            cu.cuMemFreeHost(address)
