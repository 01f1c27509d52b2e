"""Device memory from a stream-ordered pool."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions

from numbasync.backend.cuda.driver import cu, enter, error_of, fail
from numbasync.backend.protocols import MemoryStats, counters
from numbasync.errors import OutOfDeviceMemoryError
from numbasync.native import compiled, known, new_lock

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu, Handled

_Attribute = cu.CUmemPool_attribute


@known
class CudaMemory:
    """One allocation of a pool. `lent`: another library may have used the memory."""

    __slots__ = ("address", "lent", "nbytes", "pointer")

    def __init__(self, pointer: Any, nbytes: int) -> None:
        self.pointer = pointer
        self.lent = False
        self.address = int(pointer)
        self.nbytes = nbytes


LARGEST_SPARE = 2**20  # bytes; for larger blocks, a driver call is cheap in comparison
MOST_SPARE = 64 * 2**20  # bytes of all spare blocks together
MOST_RETURNED = 32  # blocks freed by one finaliser, which may run on an event loop's thread


@known
class CudaPool:
    """A separate memory pool on one GPU. Freed memory stays with the pool.

    Small blocks are not returned to the driver: their last use has completed, as seen by the
    host, so the next allocation of the same size may have them on any stream, without a driver
    call. When the spare blocks exceed `MOST_SPARE` bytes, the sizes kept for longest are freed.
    """

    __slots__ = (
        "__weakref__", "_device", "_high", "_lock", "_most_spare", "_pool", "_resource", "_spare",
        "_spare_bytes", "_used",
    )  # fmt: skip

    def __init__(self, device: Gpu) -> None:
        enter(device)
        self._device = device
        self._spare: dict[int, list[CudaMemory]] = {}  # by size
        self._spare_bytes = self._used = self._high = 0
        self._most_spare = MOST_SPARE
        # Reentrant: a finaliser may free memory inside `allocate`.
        self._lock = new_lock()
        self._resource = DeviceMemoryResource(device.core, DeviceMemoryResourceOptions())
        self._pool = self._resource.handle
        # Without a threshold the driver returns all unused memory at every synchronisation.
        self._set(_Attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 2**64 - 1)
        device.peers.add_pool(self)

    def allocate(self, nbytes: int, stream: Handled) -> CudaMemory:
        block = self.reuse(nbytes)
        if block is not None:
            return block
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

    @compiled
    def reuse(self, nbytes: int) -> CudaMemory | None:
        spare = self._spare.get(nbytes)
        if not spare:
            return None
        with self._lock:
            try:
                block = spare.pop()
            except IndexError:  # emptied meanwhile by another thread or by a finaliser
                return None
            self._spare_bytes -= nbytes
            self._used = used = self._used + nbytes
            if used > self._high:
                self._high = used
        counters.allocations += 1
        return block

    @compiled
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
                if self._spare_bytes <= self._most_spare:
                    return
                surplus = self._surplus(spare)
            else:
                surplus = [memory]
        for block in surplus:
            self._return(block)

    def _surplus(self, latest: list[CudaMemory]) -> list[CudaMemory]:
        """The blocks to free. The latest block stays, since its size is likely to be needed
        again, unless it would displace more than `MOST_RETURNED` blocks.
        """
        surplus: list[CudaMemory] = []
        while self._spare_bytes > self._most_spare and len(surplus) < MOST_RETURNED:
            size, oldest = next(iter(self._spare.items()))
            if oldest:
                surplus.append(oldest.pop())
                self._spare_bytes -= size
            else:  # an empty size is re-inserted as the latest when it is used again
                del self._spare[size]
        if self._spare_bytes > self._most_spare:
            surplus.append(latest.pop())
            self._spare_bytes -= surplus[-1].nbytes
        return surplus

    def _return(self, memory: CudaMemory) -> None:
        # The block is freed on a stream that is always idle, and is then free for every stream
        # immediately: its last use has completed, as seen by the host. The use of a lent block by
        # another library may not have: a library may drop its array before its kernel has run.
        # Most libraries work on the legacy default stream, so lent blocks are freed behind that.
        # A finaliser must not raise, and at interpreter exit the driver may be gone.
        with contextlib.suppress(Exception):
            device = self._device
            stream = device.stream_behind_default if memory.lent else device.idle_stream
            cu.cuMemFreeAsync(memory.pointer, stream)

    @property
    def handle(self) -> Any:
        """The driver's pool."""
        return self._pool

    @property
    def used(self) -> int:
        return self._used

    def stats(self) -> MemoryStats:
        reserved = self._get(_Attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        high = self._get(_Attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        with self._lock:
            # `reset_high` sets the driver's peak to zero, which may be below the current bytes.
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
