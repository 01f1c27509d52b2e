"""What a device says of itself: its limits, its memory, and how it tells that it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Dim3: TypeAlias = tuple[int, int, int]

SMALL_BLOCK = 2**19  # bytes; of page-locked memory that stays until the process ends


@dataclass(frozen=True, slots=True)
class Limits:
    """What one launch may ask of a device, and what suits it.

    Attributes:
        loads_in_flight: how many of a thread's loads the device can wait for at the same time, to
            advantage; 1: threads run one after the other, and a load takes no time worth hiding.
    """

    max_threads_per_block: int
    max_block: Dim3
    max_grid: Dim3
    max_shared_bytes: int
    warp_size: int
    multiprocessors: int
    loads_in_flight: int = 1


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes of one pool: handed out now and at most, held from the system now and at most."""

    used_current: int
    used_high: int
    reserved_current: int
    reserved_high: int


@dataclass(frozen=True, slots=True)
class CompletionPath:
    """How a device tells that a stream has passed a point, and why this way was chosen."""

    name: str
    reason: str
