"""What callers of a batcher are told where they get no answer, and the check of times."""

from __future__ import annotations

from typing import Any

from numbasync.arguments import is_number, shown
from numbasync.errors import (
    BatchAbortedError,
    BatcherClosedError,
    CallerError,
    DeadlineError,
    OverloadedError,
)
from numbasync.serve.waiting import Request

LONGEST_S = 1e9  # of times that are given


def seconds_of(value: Any, what: str) -> float:
    """A number of seconds.

    Raises:
        CallerError: it is none, or is less than 0.
    """
    number = float(value) if is_number(value) else -1.0
    if not 0 <= number < LONGEST_S:
        raise CallerError(f"{what} is {shown(value)}: write a number of seconds, of 0 or more.")
    return number


def overloaded(waiting: int, most: int, name: str) -> OverloadedError:
    error = OverloadedError(
        f"{waiting} requests wait for {name}, and max_queue is {most}.\n"
        "Answer 503, and let the client try again later; or serve with more processes or devices. "
        "A longer queue only makes everybody wait longer."
    )
    error.waiting = waiting
    return error


def late(request: Request, name: str) -> DeadlineError:
    where = "its item still waited" if request.batch is None else f"{name} was still at work"
    return DeadlineError(f"the deadline of {request.seconds:g} s has passed, and {where}.")


def closed(name: str, while_waiting: bool) -> BatcherClosedError:
    when = "was closed while the request waited" if while_waiting else "is closed"
    return BatcherClosedError(
        f"the batcher of {name} {when}.\n"
        "Answer 503, and let the client ask another process of the service."
    )


def aborted(reason: str, cause: BaseException | None = None) -> BatchAbortedError:
    error = BatchAbortedError(
        f"the batch of the request ended without results: {reason}.\n"
        "Nothing was kept of the request: ask again."
    )
    error.__cause__ = cause
    return error
