"""^C at chosen places of a call: KeyboardInterrupt before a bytecode of numbasync's frames.

A place is a bytecode of a function, together with the two calls that led there. A first run of the
call notes its places, and how often each was come to; each further run is interrupted at one of
them, and only frames of that one function are followed, so that it takes about as long as the call.

This is stricter than signals, which CPython looks for at the start of a function, behind calls and
at jumps back. Left out are only the bytecodes with which a `with` statement calls `__exit__`: up
to that call CPython never looks for signals, and a lock of C is free again behind it; and the two
bytecodes of a call behind the names of its keywords, which CPython 3.11 would keep for another
call; those with which an exception enters and leaves a handler, behind which the thread would
handle that exception for good, with all that its frames refer to; and NOP, which the compiler may
leave out of the table of a handler that it is in. A release in Python is a frame of its own, and
interrupted at each of its bytecodes.
"""

from __future__ import annotations

import dis
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from threading import Condition
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numbasync

PACKAGE = str(Path(numbasync.__file__).parent)
# What takes and gives back a lock in Python: followed where numbasync's own frames call it.
OF_CONDITIONS = {Condition.__enter__.__code__, Condition.__exit__.__code__}


class Place(NamedTuple):
    """A bytecode of a call.

    Attributes:
        code: of the function.
        offset: of the bytecode in it.
        callers: the two calls that led there, the latest first: their code, and the offset in it.
    """

    code: CodeType
    offset: int
    callers: tuple[tuple[CodeType, int], ...]

    def __str__(self) -> str:
        lines = [line for start, _, line in self.code.co_lines() if start <= self.offset]
        callers = " < ".join(code.co_qualname for code, _ in self.callers)
        return f"{self.code.co_qualname}:{lines[-1]} at {self.offset} < {callers}"


@cache
def _leaving(code: CodeType) -> frozenset[int]:
    """The offsets of the bytecodes with which `with` statements call `__exit__`, of those between
    the names of keywords and their call, of those that enter and leave handlers, and of NOP.
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
            found.update(s.offset for s in steps[i - 1 : i] if s.opname == "SWAP")
    for i, step in enumerate(steps):
        if step.opname == "KW_NAMES":  # the interpreter keeps the names for its next call
            found.update(s.offset for s in steps[i + 1 : i + 3])
        if step.opname in ("NOP", "PUSH_EXC_INFO", "POP_EXCEPT"):
            found.add(step.offset)
        if [s.opname for s in steps[i : i + 2]] == ["COPY", "POP_EXCEPT"]:
            found.update(s.offset for s in steps[i : i + 3])
        if step.opname == "WITH_EXCEPT_START":  # behind an error of the block
            found.update(s.offset for s in steps[max(0, i - 1) : i + 1])
    return frozenset(found)


@cache
def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith((PACKAGE, "<numbasync"))


def _callers(frame: FrameType) -> Iterator[tuple[CodeType, int]]:
    for _ in range(2):
        if frame.f_back is None:
            return
        frame = frame.f_back
        yield frame.f_code, frame.f_lasti


class Trace:
    """Follows a call of this thread by its bytecodes: those of some functions only."""

    def run(self, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        # Python 3.12 traces the bytecodes of later frames only if it knew one such frame before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(before)

    def follows(self, code: CodeType) -> bool:
        raise NotImplementedError

    def pass_by(self, frame: FrameType) -> None:
        """Called before each bytecode of the functions that are followed."""

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self.follows(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.pass_by(frame)
        return self._step


class Places(Trace):
    """Notes the places of a call.

    Attributes:
        hits: how often each was come to.
    """

    def __init__(self) -> None:
        self.hits = Counter[Place]()

    def follows(self, code: CodeType) -> bool:
        return is_ours(code) or code in OF_CONDITIONS

    def pass_by(self, frame: FrameType) -> None:
        code, caller = frame.f_code, frame.f_back
        if code in OF_CONDITIONS and (caller is None or not is_ours(caller.f_code)):
            return
        if frame.f_lasti not in _leaving(code):
            self.hits[Place(frame.f_code, frame.f_lasti, tuple(_callers(frame)))] += 1


class Interrupt(Trace):
    """Raises KeyboardInterrupt when a call comes to `place` for the `hit`-th time, from 1.

    Attributes:
        came: whether it came there.
        was_swallowed: Python has printed it, since it came in a finaliser.
    """

    def __init__(self, place: Place, hit: int) -> None:
        self.place = place
        self.hits_left = hit
        self.came = self.was_swallowed = False

    def follows(self, code: CodeType) -> bool:
        return code == self.place.code and not self.came

    def pass_by(self, frame: FrameType) -> None:
        place = self.place
        if self.came or frame.f_lasti != place.offset or tuple(_callers(frame)) != place.callers:
            return
        self.hits_left -= 1
        if not self.hits_left:
            self.came = True
            raise KeyboardInterrupt

    def run(self, call: Callable[[], Any]) -> Any:
        hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
        try:
            return super().run(call)
        finally:
            sys.unraisablehook = hook

    def _swallowed(self, unraisable: Any) -> None:
        # A name, where compiled code has ignored it that need not have.
        is_of_a_finaliser = not isinstance(unraisable.object, str)
        self.was_swallowed |= is_of_a_finaliser and unraisable.exc_type is KeyboardInterrupt
