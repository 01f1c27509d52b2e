"""Device memory from a stream-ordered pool."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions

from numbasync.backend.array_readers import current_streams
from numbasync.backend.cuda.driver import cu, enter, error_of, fail
from numbasync.backend.cuda.waits import put_behind
from numbasync.backend.protocols import MemoryStats, counters
from numbasync.errors import OutOfDeviceMemoryError
from numbasync.native import compiled, known, new_lock

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu, Handled

_Attribute = cu.CUmemPool_attribute
OUT_OF_MEMORY = int(cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
Token: TypeAlias = np.ndarray[Any, Any]


@known
class CudaMemory:
    """One allocation of a pool.

    Attributes:
        lent: another library may have used the memory.
        token: ends when this ends, and not before.
        counted: the pool's note of it.
    """

    __slots__ = ("address", "counted", "lent", "nbytes", "pointer", "token")
    token: Token
    counted: _Counted

    def __init__(self, pointer: Any, nbytes: int) -> None:
        self.pointer = pointer
        self.lent = False
        self.address = int(pointer)
        self.nbytes = nbytes


class _Counted(weakref.ref[Token]):
    """An allocation that the pool has not freed. If it ends nevertheless, ^C has ended what took it
    from the pool, or gave it back; no bytecode has to run for the pool to learn that.

    The reference is to a token that the garbage collector does not know, an array. It calls weak
    references to what it finds in a cycle before the finalisers run, and the finaliser of a storage
    gives its memory back to the pool, which then hands it out again.

    Attributes:
        freed: the driver's answer, if it was told to free the memory.
    """

    __slots__ = ("freed", "nbytes", "pointer")
    __eq__, __hash__ = object.__eq__, object.__hash__  # an array has no hash

    def __new__(cls, memory: CudaMemory, lost: Callable[[_Counted], None]) -> Self:
        memory.token = np.empty(0, np.uint8)
        return super().__new__(cls, memory.token, lost)

    def __init__(self, memory: CudaMemory, lost: Callable[[_Counted], None]) -> None:
        self.pointer = memory.pointer
        self.nbytes = memory.nbytes
        self.freed: list[Any] = []


# Bytes of all spare blocks together: a part of the GPU's memory, and so much at least. A collective
# of four GPUs that gets its results from the driver, and returns them, waits for eight calls.
SPARE_PART = 1 / 32
LEAST_SPARE = 64 * 2**20
MOST_RETURNED = 32  # blocks freed by one finaliser, which may run on an event loop's thread


@known
class CudaPool:
    """A separate memory pool on one GPU. Freed memory stays with the pool.

    Blocks are not returned to the driver: their last use has completed, as seen by the host, so the
    next allocation of the same size may have them on any stream, without a driver call. When they
    exceed a part of the GPU's memory, the sizes kept for longest are freed; when the driver has no
    memory left, all of them.

    A block is in use if it is neither spare nor surplus, and in somebody's hands. The bytes in use
    are kept as a number that ^C may leave behind; `_recover` then counts again.
    """

    __slots__ = (
        "__weakref__", "_counted", "_device", "_freeing", "_high", "_is_exact", "_lock", "_lost",
        "_most_spare", "_pool", "_recounts", "_resource", "_spare", "_spare_bytes", "_surplus",
        "_used",
    )  # fmt: skip

    def __init__(self, device: Gpu) -> None:
        enter(device)
        self._begin(device)
        self._most_spare = max(LEAST_SPARE, int(SPARE_PART * device.total_memory))
        self._resource = DeviceMemoryResource(device.core, DeviceMemoryResourceOptions())
        self._pool = self._resource.handle
        # Without a threshold the driver returns all unused memory at every synchronisation.
        self._set(_Attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 2**64 - 1)
        device.peers.add_pool(self)

    def _begin(self, device: Gpu) -> None:
        self._device = device
        self._spare: dict[int, list[CudaMemory]] = {}  # by size
        self._surplus: deque[CudaMemory] = deque()  # to be freed
        self._spare_bytes = self._used = self._high = 0
        self._most_spare = LEAST_SPARE
        self._counted: set[_Counted] = set()
        self._lost: deque[_Counted] = deque()  # counted, and in nobody's hands
        self._is_exact = True  # False: ^C has left the numbers and the lists behind one another
        self._recounts = 0
        # Reentrant: a finaliser may free memory inside `allocate`.
        self._lock = new_lock()
        self._freeing = threading.Lock()  # held by the one thread that tells the driver to free

    def allocate(self, nbytes: int, stream: Handled) -> CudaMemory:
        block = self.reuse(nbytes)
        if block is not None:
            return block
        enter(self._device)
        self._recover()
        # `map` puts the answer into the list: no bytecode, before which ^C could come.
        call, answers = cu.cuMemAllocFromPoolAsync, list[Any]()
        try:
            answers.extend(map(call, (nbytes,), (self._pool,), (stream.handle,)))
            out_of_memory = answers[0][0] and int(answers[0][0]) == OUT_OF_MEMORY
            if out_of_memory and self._give_spare_back():
                answers.clear()  # of no memory
                answers.extend(map(call, (nbytes,), (self._pool,), (stream.handle,)))
            self._check(nbytes, answers[0][0])
            return self._count(nbytes, answers)
        except BaseException:
            for result, pointer in answers:  # which is not counted
                if not result:
                    with contextlib.suppress(Exception):  # another error is being raised
                        cu.cuMemFreeAsync(pointer, stream.handle)
            raise

    def _check(self, nbytes: int, result: Any) -> None:
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

    def _count(self, nbytes: int, answers: list[Any]) -> CudaMemory:
        """The memory of the driver's answer, which is removed from the list when it is counted."""
        memory = CudaMemory(answers[0][1], nbytes)
        memory.counted = _Counted(memory, self._lost.append)
        with self._lock:
            before = self._leave_exact()
            self._counted.add(memory.counted)
            answers.clear()
            self._used += nbytes
            self._high = max(self._high, self._used)
            self._is_exact = before == self._recounts
        counters.allocations += 1
        return memory

    @compiled
    def reuse(self, nbytes: int) -> CudaMemory | None:
        spare = self._spare.get(nbytes)
        if not spare:
            return None
        with self._lock:
            before = self._leave_exact()
            try:
                block = spare.pop()
            except IndexError:  # emptied meanwhile by another thread or by a finaliser
                self._is_exact = before == self._recounts
                return None
            self._spare_bytes -= nbytes
            self._used = used = self._used + nbytes
            if used > self._high:
                self._high = used
            self._is_exact = before == self._recounts
        counters.allocations += 1
        return block

    @compiled
    def free(self, memory: CudaMemory) -> None:
        nbytes = memory.nbytes
        with self._lock:
            before = self._leave_exact()
            self._used -= nbytes
            if nbytes <= self._most_spare and not memory.lent:
                self._spare_bytes += nbytes
                spare = self._spare.get(nbytes)
                if spare is None:
                    spare = self._spare[nbytes] = []
                spare.append(memory)
                if self._spare_bytes > self._most_spare:
                    self._take_surplus(spare)
            else:
                self._surplus.append(memory)
            if self._surplus:
                self._return_all()
            self._is_exact = before == self._recounts

    def _leave_exact(self) -> int:
        """Begin to change numbers and lists, under the lock. They are exact again after that if
        they were, and if nothing was counted or lost meanwhile: if this is `_recounts` then.
        """
        before = self._recounts if self._is_exact else -1
        self._is_exact = False
        return before

    def _take_surplus(self, latest: list[CudaMemory]) -> None:
        """Choose blocks to free. The latest block stays, since its size is likely to be needed
        again, unless it would displace more than `MOST_RETURNED` blocks.
        """
        surplus = self._surplus
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

    def _recover(self) -> None:
        """Free what ^C has left in nobody's hands, and count again."""
        if not self._lost and self._is_exact and not self._surplus:
            return
        with self._lock:
            self._is_exact = False
            self._return_all()
            left = {*self._lost, *(memory.counted for memory in list(self._surplus))}
            counted = self._counted.difference(left)
            spare = [memory.nbytes for kept in list(self._spare.values()) for memory in kept]
            self._spare_bytes = sum(spare)
            self._used = sum(memory.nbytes for memory in counted) - self._spare_bytes
            self._recounts += 1
            self._is_exact = True

    def _return_all(self) -> None:
        """Free what is surplus or lost. The caller holds the lock."""
        if self._freeing.locked():
            return  # a finaliser, which runs inside of this
        with self._freeing:
            while True:
                if not self._lost:
                    break
                self._recounts += 1  # what the numbers say of it is not known
                self._end(self._lost[0], True)  # perhaps lent
                self._lost.popleft()
            while True:
                if not self._surplus:
                    break
                self._end(self._surplus[0].counted, self._surplus[0].lent)
                self._surplus.popleft()

    def _end(self, counted: _Counted, lent: bool) -> None:
        """Free memory, once, and count it no longer."""
        if not counted.freed:
            self._return(counted, lent)
        self._counted.discard(counted)

    def _return(self, counted: _Counted, lent: bool) -> None:
        # The block is freed on a stream that is always idle, and is then free for every stream
        # immediately: its last use has completed, as seen by the host. The use of a lent block by
        # another library may not have: a library may drop its array before its kernel has run.
        # Most libraries work on the legacy default stream, so lent blocks are freed behind that,
        # and behind the streams that are current in libraries where the array is dropped.
        # A finaliser must not raise, and at interpreter exit the driver may be gone.
        with contextlib.suppress(Exception):
            device = self._device
            stream = device.stream_behind_default if lent else device.idle_stream
            if lent:
                with contextlib.suppress(Exception):  # one that is captured, for example
                    for other in current_streams(device.ordinal):
                        put_behind(device, int(stream), other)
            counted.freed.extend(map(cu.cuMemFreeAsync, (counted.pointer,), (stream,)))

    @property
    def handle(self) -> Any:
        """The driver's pool."""
        return self._pool

    @property
    def used(self) -> int:
        self._recover()
        return self._used

    def stats(self) -> MemoryStats:
        self._recover()
        reserved = self._get(_Attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        high = self._get(_Attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        with self._lock:
            # `reset_high` sets the driver's peak to zero, which may be below the current bytes.
            return MemoryStats(self._used, self._high, reserved, max(reserved, high))

    def reset_high(self) -> None:
        with self._lock:
            self._high = self.used
        self._set(_Attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)

    def trim(self) -> None:
        enter(self._device)
        self._return_spare()
        # The driver has a block only when it has seen that what frees it is done.
        (result,) = cu.cuStreamSynchronize(self._device.idle_stream)
        if result:
            fail(result, "cuStreamSynchronize")
        (result,) = cu.cuMemPoolTrimTo(self._pool, 0)
        if result:
            fail(result, "cuMemPoolTrimTo")

    def _give_spare_back(self) -> bool:
        """Let the driver use the spare blocks for other sizes; whether there were any."""
        if not self._spare_bytes:
            return False
        self._return_spare()
        # The driver uses a block again when it has seen that what frees it is done.
        return not cu.cuStreamSynchronize(self._device.idle_stream)[0]

    def _return_spare(self) -> None:
        with self._lock:
            before = self._leave_exact()
            for memories in list(self._spare.values()):  # the lists stay: `reuse` may hold one
                while True:
                    if not memories:
                        break
                    self._surplus.append(memories.pop())
            self._spare_bytes = 0
            self._return_all()
            self._is_exact = before == self._recounts

    def _get(self, attribute: Any) -> int:
        result, value = cu.cuMemPoolGetAttribute(self._pool, attribute)
        if result:
            fail(result, "cuMemPoolGetAttribute")
        return int(value)

    def _set(self, attribute: Any, value: int) -> None:
        (result,) = cu.cuMemPoolSetAttribute(self._pool, attribute, cu.cuuint64_t(value))
        if result:
            fail(result, "cuMemPoolSetAttribute")
