"""What is told of each operation as it is submitted: the logger `numbasync.submit`, NVTX ranges.

Unlike a trace, which is read later, it runs Python code for each operation, so it is a recorder in
front of the open one, and there only while somebody listens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

logger = logging.getLogger("numbasync.submit")
MOST_BEGUN = 10_000  # operations; of some the end is never told


class Announcer(Protocol):
    """Is told of operations. No method raises."""

    def begin(self, submission: Any) -> Any:
        """The host begins with it; what `end` gets."""
        ...

    def end(self, submission: Any, begun: Any, is_enqueued: bool) -> None:
        """All of it is enqueued, or none is."""


class SubmitLog:
    """Writes to the logger `numbasync.submit`, at level DEBUG."""

    def begin(self, submission: Any) -> None:
        return None

    def end(self, submission: Any, begun: Any, is_enqueued: bool) -> None:
        if is_enqueued:
            stream = submission.stream
            logger.debug(
                "%s on stream %d of %s, number %d, at %s", submission.name, stream.number,
                stream.device.label, submission.sequence, submission.site,
            )  # fmt: skip


class Announcing:
    """See `tracing.Recorder`: tells the announcers, and then `inner`, if there is one."""

    journal = waits = None  # the core tells each operation by the methods

    def __init__(self, inner: Any, announcers: list[Announcer]) -> None:
        self._inner, self._announcers = inner, announcers
        self._begun: dict[Any, list[Any]] = {}

    def begin(self, submission: Any) -> None:
        if self._inner is not None:
            self._inner.begin(submission)
        self._begin(submission)

    def prepare(self, submission: Any, parent: Any = None) -> None:
        if self._inner is not None:
            self._inner.prepare(submission, parent)
        self._begin(submission)

    def _begin(self, submission: Any) -> None:
        self._begun[submission] = [one.begin(submission) for one in self._announcers]
        if len(self._begun) > MOST_BEGUN:
            with suppress(StopIteration, RuntimeError):  # another thread has changed it
                self._begun.pop(next(iter(self._begun)), None)

    def drop(self, submission: Any) -> None:
        if self._inner is not None:
            self._inner.drop(submission)
        self._end(submission, is_enqueued=False)

    def commit(self, submission: Any) -> None:
        if self._inner is not None:
            self._inner.commit(submission)
        self._end(submission, is_enqueued=True)

    def _end(self, submission: Any, is_enqueued: bool) -> None:
        begun = self._begun.pop(submission, None)
        if begun is not None:  # else a signal, say
            for one, mark in zip(self._announcers, begun, strict=True):
                one.end(submission, mark, is_enqueued)

    def __getattr__(self, name: str) -> Any:
        """What only a trace or a flight recorder hears of."""
        return _nothing if self._inner is None else getattr(self._inner, name)


def _nothing(*_args: Any) -> int:
    return 0


class _Levels(dict[int, bool]):
    """The levels that a logger has answered for. `logging` clears them when a level changes, on
    this logger or on one above it, and that is told.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed

    def clear(self) -> None:
        super().clear()
        self._changed()


def watch_levels(changed: Callable[[bool], None]) -> None:
    """Call `changed` when the logger `numbasync.submit` is switched on or off, and now."""

    def ask() -> None:
        changed(logger.isEnabledFor(logging.DEBUG))

    logger._cache = _Levels(ask)  # type: ignore[attr-defined]
    ask()
