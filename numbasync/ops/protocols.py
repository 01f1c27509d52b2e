"""The protocol of an operation, for the stages that submit operations."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, TypeVar

from numbasync.backend.protocols import Prerequisite
from numbasync.device.stream import Stream
from numbasync.ops.context import Context
from numbasync.ops.home import Home
from numbasync.ops.try_enqueue import Enqueueable

T_co = TypeVar("T_co", covariant=True)


class Operation(Enqueueable[T_co], Protocol[T_co]):
    """An operation that can be submitted."""

    def consume(self) -> None:
        """Claim the right to run the operation once; AlreadySubmittedError if already claimed."""
        ...

    def steps(self, ctx: Context) -> Generator[Prerequisite, None, T_co]: ...

    @property
    def unordered(self) -> bool:
        """Whether the operation has no order with any other operation."""
        ...

    @property
    def stream(self) -> Stream | None:
        """The stream that the operation itself requests, if any."""
        ...

    @property
    def home(self) -> Home:
        """Where it runs if neither operation nor caller requests a stream."""
        ...

    @property
    def label(self) -> str:
        """The operation's name in messages."""
        ...

    def operands(self) -> frozenset[int] | None:
        """The identities of the storages that the operation uses; None: not known in advance."""
        ...
