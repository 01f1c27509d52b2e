"""The right to run an operation, which can be taken once, and the warning that nobody has."""

from __future__ import annotations

import warnings

from numbasync.errors import AlreadySubmittedError


class RunsOnce:
    """What runs once: by whoever claims it first."""

    _free = True  # neither run nor part of another operation

    def claim(self) -> None:
        """Take the right to run it.

        Raises:
            AlreadySubmittedError: it was run before, or is part of another operation.
        """
        if not self._free:
            raise AlreadySubmittedError(
                f"{self} was already submitted, or made part of another operation.\n"
                "To use its result twice, share it before the first use:\n\n"
                f"    op = {self}.shared()\n    a, b = await op, await op"
            )
        self._free = False

    def silence(self) -> None:
        """It will not be run: no warning."""
        self._free = False

    def __del__(self) -> None:
        if self._free:
            try:
                name = str(self)
            except Exception:
                return  # half made: its constructor raised, and that is what the caller got
            warnings.warn(
                f"{name} was never awaited: it has not run",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )
