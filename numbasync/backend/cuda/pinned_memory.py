"""Page-locked host memory that is used again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend.cuda.driver import cu, enter, error_of
from numbasync.backend.cuda.memory import CudaMemory
from numbasync.backend.device_facts import SMALL_BLOCK
from numbasync.errors import OutOfDeviceMemoryError

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu


def _memory() -> int:
    """Bytes of memory that this process may have: the machine's, or its control group's; 0 where
    the system does not say, as Windows.
    """
    if not hasattr(os, "sysconf"):
        return 0
    own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # there is none, or it has no limit
        own = min(own, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return own


class HostMemory(CudaMemory):
    """A block, or bytes of a `host_buffer`, that kernels read and write where they are: with one
    address space for all, the address is the host's.
    """

    __slots__ = ("_keep",)

    def __init__(self, block: Any) -> None:
        place = np.frombuffer(block, np.uint8)
        super().__init__(place.ctypes.data, place.nbytes)
        self._keep = block


class _Size:
    """Blocks of one size: the addresses of those that nobody has, and what makes one of an
    address an object with a buffer, which gives the address back when it dies.
    """

    __slots__ = ("at", "nbytes", "spare")

    def __init__(self, pool: PinnedPool, nbytes: int) -> None:
        self.nbytes = nbytes
        self.spare: list[int] = []

        # Bound here: at the end of the interpreter modules lose their names.
        def give(block: Any, address: Callable[[Any], int] = ctypes.addressof) -> None:
            pool.give(address(block), self)

        # Arrays on a block hold it, and so do views of them: NumPy follows an array's base to
        # the first one that is no array.
        kind: Any = type(f"Pinned{nbytes}", (ctypes.c_char * nbytes,), {"__del__": give})
        self.at: Callable[[int], Any] = kind.from_address


class PinnedPool:
    """Page-locked host memory in powers of two.

    Locking pages takes long, and may wait for all that the device is at, even for a gate that
    whoever asks is to open. So small blocks are cut from slabs, each twice as large as the one
    before; they stay, as many as were in use at once. Of larger blocks up to `KEPT_BYTES` are
    kept when nobody has them: a sixteenth of the memory, since to lock the pages of an array takes
    ten times as long as to copy into it.

    Unlocking them waits for the device, so a thread does that: a block may go back in a
    finaliser, on the thread of an event loop.
    """

    KEPT_BYTES = max(256 * 2**20, _memory() // 16)
    SMALLEST = 4096
    SMALL = SMALL_BLOCK
    FIRST_SLAB, LARGEST_SLAB = 4 * 2**20, 32 * 2**20
    LARGE = 16 * 2**20  # from here on in steps of `STEP`
    STEP = 2 * 2**20

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._sizes: dict[int, _Size] = {}
        self._kept = 0
        self._slab, self._left = (
            0,
            0,
        )  # the address of what is left of the latest slab, and its size
        self._next_slab = self.FIRST_SLAB
        # Reentrant: a finaliser may give a block back inside `take`.
        self._lock = threading.RLock()
        self._surplus: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._unlocking: threading.Thread | None = None

    def take(self, nbytes: int) -> Any:
        """A block of at least so many bytes; it goes back when nothing holds it any more.

        Raises:
            OutOfDeviceMemoryError: the pages cannot be locked.
        """
        size = self._size(nbytes)
        address = self._spare(size)
        while not address and size.nbytes <= self.SMALL:
            room = self._next_slab
            slab = self._lock_pages(room)  # not inside the lock: it takes long
            with self._lock:
                self._share_out()
                self._slab, self._left = slab, room
                self._next_slab = min(2 * room, self.LARGEST_SLAB)
            address = self._spare(size)
        if not address:
            address = self._lock_pages(size.nbytes)
        return size.at(address)

    def reuse(self, nbytes: int) -> Any:
        """`take`, of pages that are locked and that nobody has; None if there are none."""
        size = self._size(nbytes)
        address = self._spare(size)
        return size.at(address) if address else None

    def _spare(self, size: _Size) -> int:
        nbytes = size.nbytes
        with self._lock:
            try:
                address = size.spare.pop()
            except IndexError:
                if nbytes > self.SMALL or nbytes > self._left:
                    return 0
                address = self._slab
                self._slab, self._left = address + nbytes, self._left - nbytes
                return address
            if nbytes > self.SMALL:
                self._kept -= nbytes
        return address

    def _share_out(self) -> None:
        """What is left of the slab, or all of another thread's, as blocks that nobody has."""
        while self._left:
            nbytes = min(self.SMALL, 1 << (self._left.bit_length() - 1))
            self._size(nbytes).spare.append(self._slab)
            self._slab, self._left = self._slab + nbytes, self._left - nbytes

    def _lock_pages(self, nbytes: int) -> int:
        enter(self._device)
        result, made = cu.cuMemHostAlloc(nbytes, cu.CU_MEMHOSTALLOC_PORTABLE)
        if result:
            raise OutOfDeviceMemoryError(
                f"{nbytes:,} bytes of page-locked host memory cannot be had: "
                f"{error_of(result, 'cuMemHostAlloc')}"
            )
        self._start_unlocking()  # not by a finaliser: at exit no thread can be started
        return int(made)

    def _size(self, nbytes: int) -> _Size:
        room = self.SMALLEST if nbytes <= self.SMALLEST else 1 << (nbytes - 1).bit_length()
        if room > self.LARGE:
            room = -(-nbytes // self.STEP) * self.STEP
        found = self._sizes.get(room)
        if found is None:
            # Of two threads that come here at once, one finds what the other has made.
            found = self._sizes.setdefault(room, _Size(self, room))
        return found

    def give(self, address: int, size: _Size) -> None:
        """A block has died."""
        if size.nbytes <= self.SMALL:
            size.spare.append(address)
            return
        with self._lock:
            kept = self._kept + size.nbytes
            if kept <= self.KEPT_BYTES:
                self._kept = kept
                size.spare.append(address)
                return
        self._surplus.put(address)  # may be called while the same thread is inside of it

    def _start_unlocking(self) -> None:
        with self._lock:
            if self._unlocking is None:
                self._unlocking = threading.Thread(
                    target=_unlock, args=(self._surplus, self._device), daemon=True,
                    name="numbasync-unlock",
                )  # fmt: skip
                self._unlocking.start()


def _unlock(surplus: queue.SimpleQueue[int], device: Gpu) -> None:
    while True:
        address = surplus.get()
        with contextlib.suppress(Exception):  # of a broken device nothing is left to save
            enter(device)
            cu.cuMemFreeHost(address)
