"""When an await whose work is done lets the loop turn all the same."""

from __future__ import annotations

import itertools
from collections.abc import Generator

from numbasync.native import compiled

MOST_FINISHED = 16  # awaits of finished work per turn of the loop

_finished_awaits = itertools.count(1)


@compiled
def turn_is_due() -> bool:
    """Whether an await whose work is done must let the loop turn: every `MOST_FINISHED`-th must."""
    return next(_finished_awaits) % MOST_FINISHED == 0


def need_not_wait() -> Generator[None, None, None]:
    """For an await whose work is done. Every `MOST_FINISHED`-th call lets the loop turn: a task
    that awaits one short operation after the other must not keep other tasks from running.
    """
    if turn_is_due():
        yield
