"""The right to run an operation, which can be taken once, and the warning that nobody has."""

from __future__ import annotations

import warnings
from types import CodeType
from typing import Any

from numbasync.device.callsite import CallSite
from numbasync.errors import AlreadySubmittedError

_warned: dict[Any, int] = {}  # so that a line which is run again warns once


class RunsOnce:
    """What runs once: by whoever claims it first."""

    _unused = True  # neither run nor part of another operation
    _sent = False  # it was pickled: if it never runs here, that needs no warning
    # The line of the program that made it, as a code object and an instruction.
    _site: tuple[CodeType, int] | None = None

    def consume(self) -> None:
        """Take the right to run it.

        Raises:
            AlreadySubmittedError: it was run before, or is part of another operation.
        """
        if not self._unused:
            raise AlreadySubmittedError(
                f"{self} was already submitted, or made part of another operation.\n"
                "To use its result twice, share it before the first use:\n\n"
                f"    op = {self}.shared()\n    a, b = await op, await op"
            )
        self._unused = False

    def suppress_warning(self) -> None:
        """It will not be run: no warning."""
        self._unused = False

    def __del__(self) -> None:
        if self._unused and not self._sent:
            try:
                name = str(self)
            except Exception:
                return  # half made: its constructor raised, and that is what the caller got
            warn_of_waste(f"{name} was never awaited", self._site, self)


def warn_of_waste(what: str, site: tuple[CodeType, int] | None, source: object) -> None:
    """Warn, at the line that made `source`, that it has not run. Where it is dropped, which is
    where Python calls a finaliser, may be any line.
    """
    if site is None:
        warnings.warn(f"{what}: it has not run", RuntimeWarning, stacklevel=3, source=source)
        return
    at = CallSite(*site)
    warnings.warn_explicit(
        f"{what}: it has not run; made at {at}",
        RuntimeWarning,
        at.code.co_filename,
        at.line,
        registry=_warned,
        source=source,
    )
