"""An operation, as the stages that submit it see it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, TypeVar

from numbasync.backend.protocols import Prerequisite
from numbasync.device.stream import Stream
from numbasync.ops.context import Context
from numbasync.ops.try_enqueue import Enqueueable

T_co = TypeVar("T_co", covariant=True)


class Operation(Enqueueable[T_co], Protocol[T_co]):
    """An operation, as this stage sees it."""

    def consume(self) -> None:
        """Take the right to run it once; AlreadySubmittedError if it is taken."""
        ...

    def steps(self, ctx: Context) -> Generator[Prerequisite, None, T_co]: ...

    @property
    def unordered(self) -> bool:
        """It has no order with anything else."""
        ...

    @property
    def stream(self) -> Stream | None:
        """The stream that the operation itself asks for, if any."""
        ...

    @property
    def default_stream(self) -> Stream | None:
        """The stream where it runs if nobody asks for any; None: the policy's."""
        ...

    @property
    def label(self) -> str:
        """What messages call it."""
        ...

    def operands(self) -> frozenset[int] | None:
        """The identities of the storages that it uses; None: that is not known before."""
        ...
