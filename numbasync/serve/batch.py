"""One batch: the task in which `f` works on it, and what comes of that."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from numbasync.arguments import with_type
from numbasync.errors import CallerError
from numbasync.serve import refusals
from numbasync.serve.waiting import Request


class Batch:
    """Requests that `f` works on together.

    Attributes:
        owner: the batcher.
        requests: in the order of the items that `f` gets.
        left: the number of those whose callers still wait.
        began: when it was started, in seconds.
        task: in which `f` works.
    """

    __slots__ = ("began", "is_running", "left", "owner", "requests", "task")
    task: asyncio.Task[list[Any]]

    def __init__(self, owner: object, requests: list[Request], began: float) -> None:
        self.owner = owner
        self.requests = requests
        self.left = len(requests)
        self.began = began
        self.is_running = True

    async def work(
        self,
        f: Callable[[Any], Any],
        collate: Callable[[list[Any]], Any] | None,
        name: str,
        tell_size: Callable[[int], None],
    ) -> list[Any]:
        """The results, one for each request whose caller still waits as `f` begins."""
        inside.set((*inside.get(), self))
        self.requests = [r for r in self.requests if not (r.is_settled or r.answer.done())]
        items: Any = [request.item for request in self.requests]
        most = len(items)
        if not most:
            return []
        tell_size(most)
        if collate is not None:
            items = collate(items)
        results = f(items)
        if inspect.isawaitable(results):
            results = await results
        return _as_list(results, most, name)

    def cancel(self) -> None:
        """Cancel the task: nobody wants its results."""
        self.task.cancel()

    def outcome(self, task: asyncio.Task[list[Any]], name: str) -> list[Any] | Exception:
        """The results, or the error that all callers get. Of the results, those that are an
        `Exception` are their callers' errors.
        """
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        return task.result() if error is None else _raisable(error, name)

    def end(self) -> list[Request]:
        """Its requests, of which it holds none any more: tasks that `f` has made hold the batch."""
        self.is_running = False
        requests, self.requests = self.requests, []
        return requests


# The batches that the running code is part of.
inside: ContextVar[tuple[Batch, ...]] = ContextVar("numbasync_batches", default=())


def _raisable(error: BaseException, name: str) -> Exception:
    """`error`, or what tells of it to those whom it would end: callers are not cancelled, and not
    interrupted.
    """
    if isinstance(error, StopIteration):  # which no future takes
        stopped = RuntimeError(f"{name} raised StopIteration")
        stopped.__cause__ = error
        return stopped
    if isinstance(error, Exception):
        return error
    is_cancelled = isinstance(error, asyncio.CancelledError)
    what = "was cancelled" if is_cancelled else f"raised {type(error).__name__}"
    return refusals.aborted(f"{name} {what}", error)


def _as_list(results: Any, most: int, name: str) -> list[Any]:
    """What `f` gave, one for each item.

    Raises:
        CallerError: they are not as many, or not in an order.
    """
    is_ordered = hasattr(results, "__getitem__") and not isinstance(results, str | bytes | Mapping)
    try:
        count = len(results) if is_ordered else -1
    except TypeError:  # an array of no axes
        count = -1
    if count != most:
        found = f"{count} results" if count >= 0 else with_type(results)
        raise CallerError(
            f"{name} gave {found} for {most} items: let it return a list with one result for each "
            "item, in their order."
        )
    each = (results[i] for i in range(most))
    return [_raisable(one, name) if isinstance(one, BaseException) else one for one in each]
