"""Memory of the CPU device: host memory, aligned, counted, and of a size, as a GPU's is.

A program's own limit, `max_bytes`, is a pool's of `device/storage.py`, on every device.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.backend.array_protocols import Exported, bytes_of
from numbasync.backend.protocols import MemoryStats, counters
from numbasync.errors import OutOfDeviceMemoryError

POISON = 0xA7  # a large negative integer, a tiny negative float
ALIGNMENT = 256  # bytes, as guaranteed for CUDA allocations; kernels may rely on it


class CpuHost:
    """Host bytes as memory of the device. Views of `bytes`, such as those of a queue, keep the
    memory alive.
    """

    __slots__ = ("bytes", "nbytes")

    def __init__(self, block: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.bytes = block
        self.nbytes = block.nbytes

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)


class CpuMemory(CpuHost):
    """One allocation of the device."""

    __slots__ = ("__weakref__",)

    def __init__(self, nbytes: int) -> None:
        buffer: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(nbytes + ALIGNMENT, np.uint8)
        skip = -buffer.ctypes.data % ALIGNMENT
        super().__init__(buffer[skip : skip + nbytes])


class CpuForeign:
    """An array in host memory created by NumPy or another library, together with its memory."""

    __slots__ = ("bytes", "export", "nbytes")
    is_nonblocking = True

    def __init__(self, export: Exported) -> None:
        self.export = export
        self.bytes = bytes_of(export)
        self.nbytes = export.nbytes

    @property
    def address(self) -> int:
        return self.export.low

    @property
    def memory(self) -> CpuForeign:
        return self

    def order(self, stream: object) -> None:
        """No effect: the work of a host library is done when its call returns."""


class _Counted(weakref.ref[CpuMemory]):
    """An allocation that is counted, until its memory ends: no code has to run for that, which ^C
    could keep from running.
    """

    __slots__ = ("nbytes",)

    def __init__(self, memory: CpuMemory, _ended: Callable[[_Counted], None]) -> None:
        self.nbytes = memory.nbytes


class CpuPool:
    """Counts allocated bytes and refuses allocations beyond `max_bytes`."""

    def __init__(self, device: str, max_bytes: int, poisons: Callable[[], bool]) -> None:
        self._device = device
        self._max = max_bytes
        self._poisons = poisons
        self._counted: set[_Counted] = set()
        self._ended: deque[_Counted] = deque()  # counted, and ended since
        self._used = 0  # the sum over `_counted`, if `_is_exact`
        self._is_exact = True  # False: ^C has left `_counted` and its sum behind one another
        self._high = 0
        # Reentrant, because a collection that starts inside `allocate` may run finalisers
        # which call `free` on the same thread.
        self._lock = threading.RLock()

    def allocate(self, nbytes: int, stream: object) -> CpuMemory:
        with self._lock:
            if self.used + nbytes > self._max:
                raise OutOfDeviceMemoryError(
                    f"{nbytes:,} bytes do not fit on {self._device}: "
                    f"{self._used:,} of {self._max:,} are in use."
                )
            try:
                memory = CpuMemory(nbytes)
            except MemoryError as error:
                raise OutOfDeviceMemoryError(
                    f"the system has no {nbytes:,} bytes left for {self._device}, "
                    f"which holds {self._used:,}."
                ) from error
            self._is_exact = False
            self._counted.add(_Counted(memory, self._ended.append))
            self._used += nbytes
            self._is_exact = True
            self._high = max(self._high, self._used)
        counters.allocations += 1
        if self._poisons():
            memory.bytes.fill(POISON)
        return memory

    def reuse(self, nbytes: int) -> CpuMemory | None:
        try:
            return self.allocate(nbytes, None)
        except OutOfDeviceMemoryError:
            return None  # `allocate`, which the caller tries next, reports the sizes

    def free(self, memory: CpuMemory) -> None:
        if self._poisons():  # its end, which is its storage's, uncounts it
            memory.bytes.fill(POISON)

    @property
    def used(self) -> int:
        with self._lock:
            if self._ended or not self._is_exact:
                is_exact, self._is_exact = self._is_exact, False
                while True:
                    if not self._ended:
                        break
                    self._counted.discard(self._ended[0])
                    self._used -= self._ended[0].nbytes
                    self._ended.popleft()
                if not is_exact:
                    self._used = sum(memory.nbytes for memory in list(self._counted))
                self._is_exact = True
            return self._used

    def stats(self) -> MemoryStats:
        with self._lock:
            used = self.used
            return MemoryStats(used, self._high, used, self._high)

    def reset_high(self) -> None:
        with self._lock:
            self._high = self.used

    def trim(self) -> None:
        """No effect: freed memory returns to the allocator immediately."""
