"""The right to run an operation, which can be consumed once, and the warning if it never was."""

from __future__ import annotations

import warnings
from types import CodeType
from typing import Any

from numbasync.device.callsite import CallSite, call_site
from numbasync.errors import AlreadySubmittedError
from numbasync.native import compiled

_warned: dict[Any, int] = {}  # warnings' registry: a line that runs repeatedly warns once


class RunsOnce:
    """An operation that runs once: the first `consume` claims the run."""

    _unused = True  # neither run nor part of another operation
    _sent = False  # the operation was pickled, so it may stay unused here without a warning
    # The line of the program that made the operation, as a code object and an instruction.
    _site: tuple[CodeType, int] | None = None

    def consume(self) -> None:
        """Claim the right to run the operation.

        Raises:
            AlreadySubmittedError: the operation was run before, or is part of another operation.
        """
        if not self._unused:
            raise AlreadySubmittedError(
                f"{self} was already submitted, or made part of another operation.\n"
                "To use its result twice, share it before the first use:\n\n"
                f"    op = {self}.shared()\n    a, b = await op, await op"
            )
        self._unused = False

    def suppress_warning(self) -> None:
        """Suppress the unused warning of an operation that will not be run."""
        self._unused = False

    @compiled
    def __del__(self) -> None:
        # Without a call where it was used: Python prints ^C in a finaliser, and does not raise it.
        try:
            if not self._unused or self._sent:
                return
        except AttributeError:  # the constructor of a class with slots has failed
            return
        try:
            name = str(self)
        except Exception:
            return  # half constructed: the constructor's error was raised to the caller
        warn_of_waste(f"{name} was never awaited", self._site, self)


def note_site(op: RunsOnce, above: int = 1) -> None:
    """Note the line of the program that makes `op`: the warning that it was never awaited names it.

    Args:
        above: callers to pass over: 1 from a constructor that programs call, 2 from one that is
            called by a function of yours.
    """
    op._site = call_site(above + 1)


def warn_of_waste(what: str, site: tuple[CodeType, int] | None, source: object) -> None:
    """Warn that `source` has not run, at the line that made `source`. The current line is no help:
    Python may call a finaliser anywhere.
    """
    if site is None:
        warnings.warn(f"{what}: it has not run", RuntimeWarning, stacklevel=3, source=source)
        return
    creation = CallSite(*site)
    warnings.warn_explicit(
        f"{what}: it has not run; made at {creation}",
        RuntimeWarning,
        creation.code.co_filename,
        creation.line,
        registry=_warned,
        source=source,
    )
