"""What `na.limit` bounds, and the limits that the current task is in."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple


class Limit(NamedTuple):
    """Most operations, and most bytes of theirs, in flight at once; None for any number."""

    ops: int | None
    bytes: int | None


class InFlight(NamedTuple):
    """Operations in flight, and the bytes that they have allocated or hold for copies."""

    ops: int
    bytes: int


# The limits of the blocks that a task is in, the outermost first, on whatever devices.
limits_here: ContextVar[tuple[Any, ...]] = ContextVar("numbasync_limits", default=())
