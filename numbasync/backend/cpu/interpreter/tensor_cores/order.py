"""Which threads of a cluster may rely on what has happened: vector clocks.

Each column counts events of one kind, such as the copies through one barrier or the reads of one
warp; a thread's row says how many of them are known to have happened before what it does next.
Barriers pass this knowledge on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_MORE = 64  # columns that are added at a time


@dataclass(frozen=True, slots=True)
class Event:
    """What is known to a thread whose row has at least `count` in the column."""

    column: int
    count: int


class Clocks:
    """What the threads of a cluster know, those of the block of rank 0 first.

    Attributes:
        known: a row for each thread.
        steps: for each thread, how often it has passed on what it knows.
    """

    def __init__(self, threads: int) -> None:
        self.known: np.ndarray[Any, np.dtype[np.int64]] = np.zeros((threads, _MORE), np.int64)
        self.steps: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(threads, np.int64)
        self._columns = 0

    def columns(self, count: int = 1) -> int:
        """The first of `count` new columns."""
        first = self._columns
        self._columns += count
        while self._columns > self.known.shape[1]:
            self.known = np.pad(self.known, ((0, 0), (0, _MORE)))
        return first

    def join(self) -> None:
        """All threads have met: each knows what one of them knows."""
        self.known[:] = self.known.max(axis=0)
        self.steps += 1


class Order:
    """What the threads of a block know, by their numbers in the block.

    Args:
        clocks: of the block's cluster.
        first: the block's first row of them.
        count: of the block's threads.

    Attributes:
        steps: see `Clocks`.
        columns: see `Clocks`.
    """

    def __init__(self, clocks: Clocks, first: int, count: int) -> None:
        self._clocks = clocks
        self._rows = slice(first, first + count)
        self.steps = clocks.steps[self._rows]
        self.columns = clocks.columns

    @property
    def known(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """See `Clocks`; the array is another one where columns have been added."""
        return self._clocks.known[self._rows]

    def note(self, numbers: Sequence[int], event: Event) -> None:
        """An event has happened, and these threads know it."""
        self.known[numbers, event.column] = event.count

    def is_known(self, numbers: Sequence[int], event: Event) -> bool:
        """Whether all of these threads know an event."""
        return bool((self.known[numbers, event.column] >= event.count).all())

    def join(self, numbers: Sequence[int]) -> None:
        """These threads have met: each knows what one of them knows."""
        self.known[numbers] = self.known[numbers].max(axis=0)
        self.steps[numbers] += 1

    def learn(self, number: int, row: np.ndarray[Any, Any]) -> None:
        """A thread knows what a row says, too."""
        own = self.known[number, : len(row)]
        np.maximum(own, row, out=own)

    def row(self, number: int) -> np.ndarray[Any, Any]:
        """What a thread knows now, to be passed on."""
        self.steps[number] += 1
        row: np.ndarray[Any, Any] = self.known[number].copy()
        return row


def merged(row: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What either row knows; rows that were taken later have more columns."""
    if len(row) < len(other):
        row = np.pad(row, (0, len(other) - len(row)))
    np.maximum(row[: len(other)], other, out=row[: len(other)])
    return row
