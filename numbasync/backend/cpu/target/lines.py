"""The lines that a thread passes, as calls of `na.line`."""

from __future__ import annotations

from typing import Any

from numba.cuda.core import ir

from numbasync.backend.cpu.target.module import I32, VOID


class NoLines:
    """Nobody asks for the lines of a function."""

    def begin(self) -> None: ...
    def reach(self, statement: Any) -> None: ...


class Lines(NoLines):
    """The lines of one function, whose lowering tells of each statement that it reaches."""

    def __init__(self, lower: Any) -> None:
        self._lower = lower
        self._session = lower.context.session
        code = lower.func_ir.func_id.func.__code__
        self._outside = self._session.line(code.co_filename, -code.co_firstlineno)
        self._before: Any = None  # where the thread keeps the number of the line before
        self._line = 0

    def begin(self) -> None:
        """Begin a block, into which several lines may lead."""
        self._line = 0

    def reach(self, statement: Any) -> None:
        """Say that a thread comes to the line of a statement, if the one before is another's."""
        if isinstance(statement, ir.Del) or _is_of_numbas_making(statement):
            return
        if statement.loc.line != self._line:
            self._line = statement.loc.line
            self._pass(self._session.line(statement.loc.filename, self._line))
        if isinstance(statement, ir.Return):
            self._pass(self._outside)

    def _pass(self, number: Any) -> None:
        builder = self._lower.builder
        if self._before is None:
            with builder.goto_entry_block():
                self._before = builder.alloca(I32, name="line")
                builder.store(self._outside, self._before)
        line = self._session.function("na.line", VOID, I32, I32)
        builder.call(line, [builder.load(self._before), number])
        builder.store(number, self._before)


def _is_of_numbas_making(statement: Any) -> bool:
    """Whether a statement takes an argument, or joins the values of a variable."""
    if not isinstance(statement, ir.Assign):
        return False
    value = statement.value
    return isinstance(value, ir.Arg) or (isinstance(value, ir.Expr) and value.op == "phi")
