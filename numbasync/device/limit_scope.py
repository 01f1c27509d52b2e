"""The bounds of `na.limit`, and the limits that apply to the current task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple


class Limit(NamedTuple):
    """Most operations, and most bytes of operations, in flight at a time; None: any number."""

    ops: int | None
    bytes: int | None


class InFlight(NamedTuple):
    """Operations in flight, and the bytes that they have allocated or hold for copies."""

    ops: int
    bytes: int


# The limits of the `with` blocks that a task is in, the outermost first, for all devices.
limits_here: ContextVar[tuple[Any, ...]] = ContextVar("numbasync_limits", default=())
