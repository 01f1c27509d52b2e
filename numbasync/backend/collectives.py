"""The interface of a library of collectives, which a backend may have for its devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

Call = Callable[[], object]  # of a rank, prepared; `Library.make` makes it


class Rank(Protocol):
    """One device of a group. Each method but `abort` prepares a call on a stream of that device.

    Arrays are contiguous. `send` and `recv` of one call have one dtype. The other ranks of the
    group make the same calls in the same order. Of bool, "sum" and "max" are "or", "prod" and "min"
    are "and".
    """

    def all_reduce(self, stream: Any, send: Any, recv: Any, op: str) -> Call: ...
    def reduce_scatter(self, stream: Any, send: Any, recv: Any, op: str) -> Call: ...
    def all_gather(self, stream: Any, send: Any, recv: Any) -> Call: ...
    def broadcast(self, stream: Any, send: Any, recv: Any, root: int) -> Call: ...
    def send(self, stream: Any, array: Any, to: int) -> Call: ...
    def recv(self, stream: Any, array: Any, source: int) -> Call: ...
    def abort(self) -> None:
        """End the calls that are on the device, which then give wrong elements; any thread."""
        ...


class Library(Protocol):
    """A library of collectives of some devices."""

    def takes(self, dtype: np.dtype[Any], op: str | None = None) -> bool:
        """Whether such elements are moved, and by `op` reduced."""
        ...

    def make(self, calls: Sequence[Call], rank: Rank) -> None:
        """Make prepared calls, one of each rank of this process, of which `rank` is the first.

        They start together. An interrupt comes before all of them or behind all of them: a rank
        whose call is made waits on its device for the others'.
        """
        ...

    def record(
        self, name: str, ranks: Sequence[Rank], dtype: np.dtype[Any], nbytes: int, choice: Any
    ) -> Any:
        """The core's record of the calls of several ranks of this process, complete but for streams
        and arrays; None: the core cannot make them.

        Args:
            name: of a method of `Rank`.
            nbytes: of a part, or of a result where that is smaller.
            choice: the reduction, or the root; None: the method takes neither.
        """
        ...

    def ranks(self, devices: Sequence[Any]) -> Sequence[Rank]:
        """A rank for each of several devices of this process. Blocks."""
        ...

    def new_id(self) -> bytes:
        """The identity of a group of processes."""
        ...

    def rank(self, identity: bytes, number: int, size: int, device: Any) -> Rank:
        """This process's rank. Blocks until every process of the group has called."""
        ...
