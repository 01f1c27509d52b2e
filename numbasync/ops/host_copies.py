"""Copies between a caller's array and memory of numbasync's own, as operations see them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol


class HostReading(Protocol):
    """The copy of a caller's array to memory that the caller cannot change."""

    is_shared: bool  # other operations use the same copy

    def run(self) -> None: ...

    def stop(self) -> None: ...


class HostCopyBack(Protocol):
    """The last part of a download: from pinned memory, after the device, to the caller's array."""

    @property
    def is_pending(self) -> bool: ...

    def detach(self) -> None: ...

    def run(self) -> None: ...

    def wait(self) -> Generator[Any, None, None]: ...
