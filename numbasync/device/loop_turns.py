"""When an await whose work is done lets the loop turn all the same."""

from __future__ import annotations

from collections.abc import Generator

from numbasync.native import compiled

MOST_FINISHED = 16  # awaits of finished work per turn of the loop


class _Finished:
    count = 0  # awaits since the last turn that was due


@compiled
def turn_is_due() -> bool:
    """Whether an await whose work is done must let the loop turn: every `MOST_FINISHED`-th must."""
    _Finished.count = (_Finished.count + 1) % MOST_FINISHED
    return _Finished.count == 0


@compiled
def let_turn() -> None:
    """Let the end of this await be a turn of the loop: there is somebody whom it serves."""
    _Finished.count = MOST_FINISHED - 1


def need_not_wait() -> Generator[None, None, None]:
    """For an await whose work is done. Every `MOST_FINISHED`-th call lets the loop turn: a task
    that awaits one short operation after the other must not keep other tasks from running.
    """
    if turn_is_due():
        yield
