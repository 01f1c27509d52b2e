"""The memory part of the backend interface: allocations and pools of a device.

How much a pool may hand out is no part of it: that is `max_bytes` of `device/storage.py`.
"""

from __future__ import annotations

from typing import Any, Protocol

from numbasync.backend.device_facts import MemoryStats


class Memory(Protocol):
    """One allocation on a device."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Pool(Protocol):
    """Stream-ordered memory of one device."""

    def allocate(self, nbytes: int, stream: Any) -> Memory:
        """Memory that work enqueued on `stream` from now on may use.

        Raises:
            OutOfDeviceMemoryError: the memory does not suffice; nothing has changed.
        """
        ...

    def reuse(self, nbytes: int) -> Memory | None:
        """Free memory that work on any stream may use immediately; None if there is none."""
        ...

    def free(self, memory: Any) -> None:
        """Take back memory whose last use has completed, as seen by the host. Never raises."""
        ...

    @property
    def used(self) -> int:
        """Bytes allocated to users now. Makes no driver call."""
        ...

    def stats(self) -> MemoryStats: ...
    def reset_high(self) -> None: ...
    def trim(self) -> None:
        """Return unused memory to the system."""
        ...
