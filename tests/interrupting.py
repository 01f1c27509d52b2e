"""^C at a chosen point of a call: KeyboardInterrupt before the n-th bytecode of numbasync's frames.

This is stricter than signals, which CPython looks for at the start of a function, behind calls and
at jumps back. Left out are only the bytecodes with which a `with` statement calls `__exit__`: up
to that call CPython never looks for signals, and a lock of C is free again behind it; and the two
bytecodes of a call behind the names of its keywords, which CPython 3.11 would keep for another
call; and those with which an exception enters and leaves a handler, behind which the thread would
handle that exception for good, with all that its frames refer to. A release in Python is a frame
of its own, and interrupted at each of its bytecodes.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

import numbasync

PACKAGE = str(Path(numbasync.__file__).parent)


@cache
def _leaving(code: CodeType) -> frozenset[int]:
    """The offsets of the bytecodes with which `with` statements call `__exit__`, of those between
    the names of keywords and their call, and of those that enter and leave handlers.
    """
    found = set[int]()
    steps = list(dis.get_instructions(code))
    for i in range(len(steps) - 4):
        three = steps[i : i + 3]
        if not all(s.opname == "LOAD_CONST" and s.argval is None for s in three):
            continue
        call = steps[i + 3 : i + 5]
        if call[0].opname == "CALL" or (call[0].opname == "PRECALL" and call[1].opname == "CALL"):
            found.update(s.offset for s in (*three, *call))
            found.update(s.offset for s in steps[i - 1 : i] if s.opname in ("SWAP", "NOP"))
    for i, step in enumerate(steps):
        if step.opname == "KW_NAMES":  # the interpreter keeps the names for its next call
            found.update(s.offset for s in steps[i + 1 : i + 3])
        if step.opname in ("PUSH_EXC_INFO", "POP_EXCEPT"):
            found.add(step.offset)
        if [s.opname for s in steps[i : i + 2]] == ["COPY", "POP_EXCEPT"]:
            found.update(s.offset for s in steps[i : i + 3])
        if step.opname == "WITH_EXCEPT_START":  # behind an error of the block
            found.update(s.offset for s in steps[max(0, i - 1) : i + 1])
    return frozenset(found)


@cache
def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith((PACKAGE, "<numbasync"))


class Interrupt:
    """Raises KeyboardInterrupt before the bytecode `at` (counted from 0) of a call.

    Attributes:
        count: the bytecodes that were counted.
        where: the line at which it was raised; None: the call ended before.
        was_in_finaliser: it was raised in a `__del__`, or in what that calls.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.where: str | None = None
        self.was_in_finaliser = False

    def run(self, call: Callable[[], Any]) -> Any:
        """`call()`, interrupted."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if self.where is not None or not _is_ours(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event != "opcode" or self.where is not None:
            return self._step
        if frame.f_lasti in _leaving(frame.f_code):
            return self._step
        if self.count == self.at:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} at {frame.f_lasti}"
            self.was_in_finaliser = any(f.f_code.co_name == "__del__" for f, _ in walk_stack(frame))
            raise KeyboardInterrupt
        self.count += 1
        return self._step
