"""Device memory from a stream-ordered pool."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions

from numbasync.backend.cuda.driver import cu, enter, error_of, fail
from numbasync.backend.protocols import MemoryStats, counters
from numbasync.errors import OutOfDeviceMemoryError

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu, Handled

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
MOST_RETURNED = 32  # blocks, by one finaliser: it may run on the thread of an event loop


class CudaPool:
    """A memory pool of its own on one GPU. Memory that was freed stays with the pool.

    Small blocks are not even freed: the host has seen their last use complete, so the next one who
    wants as many bytes may have them on any stream, and no call of the driver is needed. Where too
    much is kept, blocks go whose size has been kept for longest.
    """

    def __init__(self, device: Gpu) -> None:
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

    def allocate(self, nbytes: int, stream: Handled) -> CudaMemory:
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
        counters.allocations += 1
        with self._lock:
            self._used += nbytes
            self._high = max(self._high, self._used)
        return CudaMemory(pointer, nbytes)

    def reuse(self, nbytes: int) -> CudaMemory | None:
        spare = self._spare.get(nbytes)
        if not spare:
            return None
        with self._lock:
            try:
                found = spare.pop()
            except IndexError:  # another thread, or a finaliser that has run in between
                return None
            self._spare_bytes -= nbytes
            self._used = used = self._used + nbytes
            if used > self._high:
                self._high = used
        counters.allocations += 1
        return found

    def free(self, memory: CudaMemory) -> None:
        nbytes = memory.nbytes
        with self._lock:
            self._used -= nbytes
            if nbytes <= LARGEST_SPARE and not memory.lent:
                self._spare_bytes += nbytes
                spare = self._spare.get(nbytes)
                if spare is None:
                    spare = self._spare[nbytes] = []
                spare.append(memory)
                if self._spare_bytes <= MOST_SPARE:
                    return
                surplus = self._surplus(spare)
            else:
                surplus = [memory]
        for each in surplus:
            self._return(each)

    def _surplus(self, latest: list[CudaMemory]) -> list[CudaMemory]:
        """Blocks that are too many. What came last stays: such sizes are likely to be needed again;
        unless it would take the place of very many.
        """
        found: list[CudaMemory] = []
        while self._spare_bytes > MOST_SPARE and len(found) < MOST_RETURNED:
            size, oldest = next(iter(self._spare.items()))
            if oldest:
                found.append(oldest.pop())
                self._spare_bytes -= size
            else:  # it is the latest when it is needed again
                del self._spare[size]
        if self._spare_bytes > MOST_SPARE:
            found.append(latest.pop())
            self._spare_bytes -= found[-1].nbytes
        return found

    def _return(self, memory: CudaMemory) -> None:
        # Freed on a stream that is always idle, so that it is free for every stream at once:
        # the host has seen the last use complete. Not that of another library, which may drop
        # its array before its kernel has run: most of them work on the legacy default stream.
        # Nothing may be raised in a finaliser, and at interpreter exit the driver may be gone.
        with contextlib.suppress(Exception):
            device = self._device
            stream = device.stream_behind_default if memory.lent else device.idle_stream
            cu.cuMemFreeAsync(memory.pointer, stream)

    @property
    def used(self) -> int:
        return self._used

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
            spare: list[CudaMemory] = []
            for memories in self._spare.values():  # the lists stay: `reuse` may hold one
                spare += memories
                memories.clear()
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
