"""The interface of a library of collectives, which a backend may have for its devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np


class Rank(Protocol):
    """One device of a group. Each call enqueues on a stream of that device.

    Arrays are contiguous. `send` and `recv` of one call have one dtype. The other ranks of the
    group make the same calls in the same order. Of bool, "sum" and "max" are "or", "prod" and "min"
    are "and".
    """

    def all_reduce(self, stream: Any, send: Any, recv: Any, op: str) -> None: ...
    def reduce_scatter(self, stream: Any, send: Any, recv: Any, op: str) -> None: ...
    def all_gather(self, stream: Any, send: Any, recv: Any) -> None: ...
    def broadcast(self, stream: Any, send: Any, recv: Any, root: int) -> None: ...
    def send(self, stream: Any, array: Any, to: int) -> None: ...
    def recv(self, stream: Any, array: Any, source: int) -> None: ...
    def abort(self) -> None:
        """End the calls that are on the device, which then give wrong elements; any thread."""
        ...


class Library(Protocol):
    """A library of collectives of some devices."""

    def takes(self, dtype: np.dtype[Any], op: str | None = None) -> bool:
        """Whether such elements are moved, and by `op` reduced."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Inside the block, calls of several ranks of this process start together, at its end."""
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
