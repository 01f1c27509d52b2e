"""Doing a preparation: on this thread, or beside an event loop that turns meanwhile.

A preparation that has a method `future(if_closed)` knows itself how a loop waits for it; others
are run by a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numbasync.backend.protocols import Prerequisite
from numbasync.fork import in_child

_workers: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    """Threads that compile while event loops turn; made when first needed."""
    global _workers
    if _workers is None:
        _workers = ThreadPoolExecutor(4, thread_name_prefix="numbasync-prepare")
    return _workers


@in_child
def _forget_workers() -> None:
    global _workers
    _workers = None


def attempt(need: Prerequisite) -> BaseException | None:
    """Do it; the error as a value, so that it can be thrown where the need arose."""
    try:
        need.run()
    except Exception as error:
        return error
    return None


def beside(
    need: Prerequisite, if_closed: Callable[[], object]
) -> asyncio.Future[BaseException | None]:
    """A future of the running loop with what `need` failed with, or None. Done on another thread,
    or by the preparation's own `future`. Cancelling the future stops the waiting only.

    Args:
        if_closed: called, on whatever thread, if the loop is closed when `need` is done.
    """
    future: Any = getattr(need, "future", None)
    if future is not None:
        return future(if_closed)  # type: ignore[no-any-return]
    return on_worker(lambda: _executor().submit(attempt, need), need, if_closed)


def on_worker(
    submit: Callable[[], Future[BaseException | None]],
    need: Prerequisite,
    if_closed: Callable[[], object],
) -> asyncio.Future[BaseException | None]:
    """`beside`, by the thread that `submit` gives the work to; on this one if there is none."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[BaseException | None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(error)

    def prepared(job: Future[BaseException | None]) -> None:
        try:
            # An exception if the preparation was stopped, by no Exception.
            error = job.exception() or job.result()
            loop.call_soon_threadsafe(tell, error)
        except RuntimeError:  # the loop is closed
            if_closed()

    try:
        job = submit()
        job.add_done_callback(prepared)
    except RuntimeError:  # no thread can be started
        tell(attempt(need))
    return done
