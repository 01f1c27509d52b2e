"""The bounds of `na.limit`, and the limits that apply to the current task."""

from __future__ import annotations

import dis
from contextvars import ContextVar
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple


class Limit(NamedTuple):
    """Most operations, and most bytes of operations, in flight at a time; None: any number."""

    ops: int | None
    bytes: int | None


class InFlight(NamedTuple):
    """Operations in flight, and the bytes that they have allocated or hold for copies.

    Examples:
        >>> na.default_device().synchronize()
        >>> na.default_device().in_flight
        InFlight(ops=0, bytes=0)
    """

    ops: int
    bytes: int


# The limits of the `with` blocks that a task is in, the outermost first, for all devices.
limits_here: ContextVar[tuple[Any, ...]] = ContextVar("numbasync_limits", default=())


def begins_block(frame: FrameType) -> bool:
    """Whether the call that `frame` is making is what a `with` statement enters: then it need not
    have an effect before that, which ^C could keep from being undone.
    """
    return _begins_block(frame.f_code, frame.f_lasti)


@lru_cache(256)
def _begins_block(code: CodeType, at: int) -> bool:
    behind = [step.opname for step in dis.get_instructions(code) if step.offset > at][:2]
    return behind[:1] == ["BEFORE_WITH"] or behind == ["COPY", "LOAD_SPECIAL"]
