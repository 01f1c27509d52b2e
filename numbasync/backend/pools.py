"""The seam's memory: what a device allocates, and where from."""

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
            OutOfDeviceMemoryError: it does not fit; nothing has changed.
        """
        ...

    def reuse(self, nbytes: int) -> Memory | None:
        """Memory that work on any stream may use at once; None if there is none at hand."""
        ...

    def free(self, memory: Any) -> None:
        """Take back memory whose last use the host has seen complete. Never raises."""
        ...

    @property
    def used(self) -> int:
        """Bytes that are handed out. Calls no driver."""
        ...

    def stats(self) -> MemoryStats: ...
    def reset_high(self) -> None: ...
    def trim(self) -> None:
        """Give unused memory back to the system."""
        ...
