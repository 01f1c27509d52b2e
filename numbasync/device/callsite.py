"""Where a program called into numbasync: what messages of later failures point to.

Work fails long after the line that asked for it has been left, so that line is kept: a code
object and a place in it, not a frame, which would keep the caller's variables alive.

Every submission asks, so it must cost next to nothing: a frame that is looked at has to be made
into an object first, and a code object takes longer to hash than a launch to pack.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import NamedTuple

# What lies between a program's line and us: our own modules, and what runs tasks.
_BETWEEN = frozenset({__name__.partition(".")[0], "asyncio", "contextlib", "concurrent"})

# Our own that are programs like any other.
_PROGRAMS = ("numbasync.tools.bench", "numbasync.tools.demo")

_is_between: dict[str, bool] = {}  # by module


class CallSite(NamedTuple):
    """A place in a program: a code object, and the index of an instruction."""

    code: CodeType
    instruction: int

    @property
    def line(self) -> int:
        """The line in its file."""
        line = self.code.co_firstlineno
        for start, _, number in self.code.co_lines():
            if start > self.instruction:
                break
            line = number or line
        return line

    def __str__(self) -> str:
        return f'"{self.code.co_filename}", line {self.line}, in {self.code.co_qualname}'


# Takes half as long as the class itself.
_made: Callable[[tuple[CodeType, int]], CallSite] = partial(tuple.__new__, CallSite)


def call_site(above: int) -> CallSite | None:
    """The innermost place that this thread is at outside of numbasync and asyncio, if any.

    Args:
        above: how many callers of the function that asks are passed over; looking at them costs.
    """
    try:
        frame = sys._getframe(above + 1)
    except ValueError:  # so deep we are not: a thread that was started in here
        frame = sys._getframe(1)
    while True:
        module = frame.f_globals.get("__name__", "")
        inside = _is_between.get(module)
        if inside is None:
            inside = str(module).partition(".")[0] in _BETWEEN
            inside = _is_between[module] = inside and not str(module).startswith(_PROGRAMS)
        if not inside:
            return _made((frame.f_code, frame.f_lasti))
        if frame.f_back is None:
            return None
        frame = frame.f_back
