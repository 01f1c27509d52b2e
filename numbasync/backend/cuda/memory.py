"""Device memory from a stream-ordered pool, and pinned host memory that is used again."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions

from numbasync.backend.base import MemoryStats, counters
from numbasync.backend.cuda.driver import cu, enter, error_of, fail
from numbasync.errors import OutOfDeviceMemoryError

if TYPE_CHECKING:
    from numbasync.backend.cuda.device import CudaDevice
    from numbasync.backend.cuda.stream import CudaStream

_Attribute = cu.CUmemPool_attribute


class CudaMemory:
    """One allocation of a pool. `lent`: another library may have used it."""

    __slots__ = ("address", "lent", "nbytes", "pointer")

    def __init__(self, pointer: Any, nbytes: int) -> None:
        self.pointer = pointer
        self.lent = False
        self.address = int(pointer)
        self.nbytes = nbytes


LARGEST_SPARE = 2**20  # bytes; for more, a call of the driver is cheap
MOST_SPARE = 64 * 2**20  # bytes of all that is kept so


class CudaPool:
    """A memory pool of its own on one GPU. Memory that was freed stays with the pool.

    Small blocks are not even freed: the host has seen their last use complete, so the next one who
    wants as many bytes may have them on any stream, and no call of the driver is needed.
    """

    def __init__(self, device: CudaDevice) -> None:
        enter(device)
        self._device = device
        self._spare: dict[int, list[CudaMemory]] = {}  # by size
        self._spare_bytes = self._used = self._high = 0
        # Reentrant: a finaliser may free memory inside `allocate`.
        self._lock = threading.RLock()
        self._resource = DeviceMemoryResource(device.core, DeviceMemoryResourceOptions())
        self._pool = self._resource.handle
        # Without a threshold the driver returns all unused memory at every synchronisation.
        self._set(_Attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 2**64 - 1)

    def allocate(self, nbytes: int, stream: CudaStream) -> CudaMemory:
        found = self.reuse(nbytes)
        if found is not None:
            return found
        enter(self._device)
        result, pointer = cu.cuMemAllocFromPoolAsync(nbytes, self._pool, stream.handle)
        if result:
            error = error_of(result, "cuMemAllocFromPoolAsync")
            if isinstance(error, OutOfDeviceMemoryError):
                stats = self.stats()
                raise OutOfDeviceMemoryError(
                    f"{nbytes:,} bytes do not fit on cuda:{self._device.ordinal}, which has "
                    f"{self._device.total_memory:,}: the pool holds {stats.reserved_current:,}, of "
                    f"which {stats.used_current:,} are in use.\n"
                    "Drop tensors that are no longer needed, or work in smaller pieces."
                )
            raise error
        self._count(nbytes)
        return CudaMemory(pointer, nbytes)

    def reuse(self, nbytes: int) -> CudaMemory | None:
        spare = self._spare.get(nbytes)
        if not spare:
            return None
        with self._lock:
            if not spare:
                return None
            found = spare.pop()
            self._spare_bytes -= nbytes
            self._count(nbytes)
        return found

    def _count(self, nbytes: int) -> None:
        counters.allocations += 1
        with self._lock:
            self._used += nbytes
            if self._used > self._high:
                self._high = self._used

    def free(self, memory: CudaMemory) -> None:
        nbytes = memory.nbytes
        with self._lock:
            self._used -= nbytes
            keeps = nbytes <= LARGEST_SPARE and self._spare_bytes + nbytes <= MOST_SPARE
            if keeps and not memory.lent:
                self._spare_bytes += nbytes
                self._spare.setdefault(nbytes, []).append(memory)
                return
        self._return(memory)

    def _return(self, memory: CudaMemory) -> None:
        # Freed on a stream that is always idle, so that it is free for every stream at once:
        # the host has seen the last use complete. Not that of another library, which may drop
        # its array before its kernel has run: most of them work on the legacy default stream.
        # Nothing may be raised in a finaliser, and at interpreter exit the driver may be gone.
        with contextlib.suppress(Exception):
            device = self._device
            stream = device.stream_behind_default if memory.lent else device.idle_stream
            cu.cuMemFreeAsync(memory.pointer, stream)

    def stats(self) -> MemoryStats:
        reserved = self._get(_Attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        high = self._get(_Attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        with self._lock:
            # What is reserved is reset to zero, which need not be what is current.
            return MemoryStats(self._used, self._high, reserved, max(reserved, high))

    def reset_high(self) -> None:
        with self._lock:
            self._high = self._used
        self._set(_Attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)

    def trim(self) -> None:
        with self._lock:
            spare = [memory for memories in self._spare.values() for memory in memories]
            self._spare.clear()
            self._spare_bytes = 0
        for memory in spare:
            self._return(memory)
        (result,) = cu.cuMemPoolTrimTo(self._pool, 0)
        if result:
            fail(result, "cuMemPoolTrimTo")

    def _get(self, attribute: Any) -> int:
        result, value = cu.cuMemPoolGetAttribute(self._pool, attribute)
        if result:
            fail(result, "cuMemPoolGetAttribute")
        return int(value)

    def _set(self, attribute: Any, value: int) -> None:
        (result,) = cu.cuMemPoolSetAttribute(self._pool, attribute, cu.cuuint64_t(value))
        if result:
            fail(result, "cuMemPoolSetAttribute")


class _Pinned:
    """One block of page-locked memory; it goes back when the last array on it dies."""

    def __init__(self, pool: PinnedPool, address: int, nbytes: int) -> None:
        self._pool = pool
        self._address = address
        self._nbytes = nbytes
        self.__array_interface__ = {
            "version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False),
        }  # fmt: skip

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)  # absent if the constructor failed
        if pool is not None:
            pool.give(self._address, self._nbytes)


class PinnedPool:
    """Page-locked host memory in powers of two. Locking pages takes long, so up to
    `KEPT_BYTES` of unused blocks are kept.

    Unlocking them waits for the device, so a thread does that: a block may go back in a
    finaliser, on the thread of an event loop.
    """

    KEPT_BYTES = 256 * 2**20
    SMALLEST = 4096
    LARGE = 16 * 2**20  # from here on in steps of `STEP`
    STEP = 2 * 2**20

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._spare: dict[int, list[int]] = {}
        self._kept = 0
        # Reentrant: a finaliser may give a block back inside `take`.
        self._lock = threading.RLock()
        self._surplus: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._unlocking: threading.Thread | None = None

    def take(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        size = max(self.SMALLEST, 1 << max(nbytes - 1, 1).bit_length())
        if size > self.LARGE:
            size = -(-nbytes // self.STEP) * self.STEP
        with self._lock:
            spare = self._spare.get(size)
            address = spare.pop() if spare else 0
            if address:
                self._kept -= size
        if not address:
            enter(self._device)
            result, made = cu.cuMemHostAlloc(size, cu.CU_MEMHOSTALLOC_PORTABLE)
            if result:
                raise OutOfDeviceMemoryError(
                    f"{size:,} bytes of page-locked host memory cannot be had: "
                    f"{error_of(result, 'cuMemHostAlloc')}"
                )
            address = int(made)
            self._start_unlocking()  # not by a finaliser: at exit no thread can be started
        block: np.ndarray[Any, np.dtype[np.uint8]] = np.asarray(_Pinned(self, address, size))
        return block

    def give(self, address: int, nbytes: int) -> None:
        with self._lock:
            if self._kept + nbytes <= self.KEPT_BYTES:
                self._spare.setdefault(nbytes, []).append(address)
                self._kept += nbytes
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


def _unlock(surplus: queue.SimpleQueue[int], device: CudaDevice) -> None:
    while True:
        address = surplus.get()
        with contextlib.suppress(Exception):  # of a broken device nothing is left to save
            enter(device)
            cu.cuMemFreeHost(address)
