"""Where a program called into numbasync: what messages of later failures point to.

Work fails long after the line that asked for it has been left, so that line is kept: a code
object and a number, not a frame, which would keep the caller's variables alive.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import NamedTuple

# What lies between a program's line and us: our own modules, and what runs tasks.
_BETWEEN = frozenset({__name__.partition(".")[0], "asyncio", "contextlib", "concurrent"})

_between: set[CodeType] = set()


class CallSite(NamedTuple):
    """A line of a program."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f'"{self.code.co_filename}", line {self.line}, in {self.code.co_qualname}'


def call_site() -> CallSite | None:
    """The innermost line that this thread is at outside of numbasync and asyncio, if any."""
    frame = sys._getframe(1)
    while True:
        code = frame.f_code
        if code not in _between:
            module = str(frame.f_globals.get("__name__", ""))
            if module.partition(".")[0] not in _BETWEEN:
                return CallSite(code, frame.f_lineno)
            _between.add(code)
        if frame.f_back is None:
            return None
        frame = frame.f_back
