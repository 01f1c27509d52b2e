"""The call site: the line where a program called into numbasync, for messages of later failures.

Work fails long after its submitting line has returned, so the line is stored: as a code object and
an instruction index, not as a frame, which would keep the caller's variables alive.

Every submission stores its call site, so finding it must cost next to nothing: each inspected frame
has to be made into an object first, and hashing a code object takes longer than packing a launch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import NamedTuple

from numbasync.native import compiled, core

# Packages between a program's line and this module: numbasync itself, and packages that run tasks.
_BETWEEN = frozenset({__name__.partition(".")[0], "asyncio", "contextlib", "concurrent"})

# Modules of numbasync that count as programs.
_PROGRAMS = ("numbasync.tools.demo",)

_is_between: dict[str, bool] = {}  # module name -> whether its frames are skipped


class CallSite(NamedTuple):
    """A place in a program: a code object, and the index of an instruction."""

    code: CodeType
    instruction: int

    @property
    def line(self) -> int:
        """The line number in the file."""
        line = self.code.co_firstlineno
        for start, _, number in self.code.co_lines():
            if start > self.instruction:
                break
            line = number or line
        return line

    def __str__(self) -> str:
        return f'"{self.code.co_filename}", line {self.line}, in {self.code.co_qualname}'


# Creates a CallSite in half the time of calling the class.
_new_call_site: Callable[[tuple[CodeType, int]], CallSite] = partial(tuple.__new__, CallSite)


@compiled
def call_site(above: int) -> CallSite | None:
    """The innermost frame's position of this thread outside of numbasync and asyncio, if any.

    Args:
        above: the number of frames above the caller to skip without the cost of inspecting them.
    """
    try:
        frame = sys._getframe(above + 1)
    except ValueError:  # the stack is shorter: a thread that numbasync started
        frame = sys._getframe(1)
    while True:
        module = frame.f_globals.get("__name__", "")
        inside = _is_between.get(module)
        if inside is None:
            inside = str(module).partition(".")[0] in _BETWEEN
            inside = _is_between[module] = inside and not str(module).startswith(_PROGRAMS)
        if not inside:
            return _new_call_site((frame.f_code, frame.f_lasti))
        if frame.f_back is None:
            return None
        frame = frame.f_back


if core is not None:
    core.know_frames(_is_between, CallSite)
