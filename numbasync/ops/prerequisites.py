"""Running a prerequisite: on this thread, or on a worker thread while an event loop turns.

A prerequisite with a method `future(if_closed)` defines itself how a loop waits for it; other
prerequisites are run by a worker thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from numbasync.backend.protocols import Prerequisite
from numbasync.fork import in_child
from numbasync.threads import submit

_workers: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    """The worker threads that compile while event loops turn; started when first needed."""
    global _workers
    if _workers is None:
        _workers = ThreadPoolExecutor(4, thread_name_prefix="numbasync-prepare")
    return _workers


@in_child
def _forget_workers() -> None:
    global _workers
    _workers = None


def attempt(need: Prerequisite) -> BaseException | None:
    """Run `need`. The error is returned, so that it can be thrown into the operation's steps.

    Examples:
        >>> from numbasync.extending import Prerequisite, attempt
        >>> class Failing(Prerequisite):
        ...     def run(self):
        ...         raise ValueError("no")
        >>> attempt(Failing())
        ValueError('no')
    """
    try:
        need.run()
    except Exception as error:
        return error
    return None


def beside(
    need: Prerequisite, if_closed: Callable[[], object]
) -> asyncio.Future[BaseException | None]:
    """A future of the running loop, for the error of `need` or None. A worker thread runs `need`,
    unless `need` has a `future` of its own. Cancelling the future stops the waiting only.

    Args:
        if_closed: called, on any thread, if the loop is closed when `need` is done.
    """
    future: Any = getattr(need, "future", None)
    if future is not None:
        return future(if_closed)  # type: ignore[no-any-return]
    return on_worker(lambda: submit(_executor(), partial(attempt, need)), need, if_closed)


def on_worker(
    give: Callable[[], Future[BaseException | None]],
    need: Prerequisite,
    if_closed: Callable[[], object],
) -> asyncio.Future[BaseException | None]:
    """How an event loop waits for a prerequisite that has threads of its own: what the method
    `future(if_closed)` of such a prerequisite returns. Cancelling it stops the waiting only.

    Args:
        give: passes `attempt(need)` to a thread. If it cannot start one, and raises a RuntimeError,
            `need` runs on the calling thread.
        if_closed: called, on any thread, if the loop is closed when `need` is done.

    Examples:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from numbasync.extending import DeviceOp, Prerequisite, attempt, on_worker
        >>> class OnThread(Prerequisite):
        ...     def __init__(self, threads, call):
        ...         self.threads, self.call = threads, call
        ...     def run(self):
        ...         self.value = self.call()
        ...     def future(self, if_closed):
        ...         return on_worker(lambda: self.threads.submit(attempt, self), self, if_closed)
        >>> class Ask(DeviceOp):
        ...     def steps(self, ctx):
        ...         with ThreadPoolExecutor(1) as threads:
        ...             yield (asked := OnThread(threads, lambda: 6 * 7))
        ...         return asked.value
        >>> await Ask()
        42
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[BaseException | None] = loop.create_future()

    def set_result(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(error)

    def on_complete(job: Future[BaseException | None]) -> None:
        try:
            # `exception()` is set if a BaseException that is no Exception stopped the job.
            error = job.exception() or job.result()
            loop.call_soon_threadsafe(set_result, error)
        except RuntimeError:  # the loop is closed
            if_closed()

    try:
        job = give()
        job.add_done_callback(on_complete)
    except RuntimeError:  # no thread can be started
        set_result(attempt(need))
    return done
