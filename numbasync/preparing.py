"""Doing a preparation: on this thread, or beside an event loop that turns meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from numbasync.backend.base import Preparation
from numbasync.exclusive import LOOK_AGAIN, Turn
from numbasync.helpers import background
from numbasync.limits import Room
from numbasync.staging import Reading

_workers: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    """Threads that compile while event loops turn; made when first needed."""
    global _workers
    if _workers is None:
        _workers = ThreadPoolExecutor(4, thread_name_prefix="numbasync-prepare")
    return _workers


def _forget_workers() -> None:
    global _workers
    _workers = None


if hasattr(os, "register_at_fork"):  # a forked child has none of the threads
    os.register_at_fork(after_in_child=_forget_workers)


def attempt(need: Preparation) -> BaseException | None:
    """Do it; the error as a value, so that it can be thrown where the need arose."""
    try:
        need.run()
    except Exception as error:
        return error
    return None


async def _told(need: Room) -> BaseException | None:
    """Wait for it; the error as a value."""
    try:
        await need.wait()
    except Exception as error:
        return error
    return None


def settled(turn: Turn) -> asyncio.Future[BaseException | None]:
    """A future of the running loop that is done when `turn` is settled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[BaseException | None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    def call() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(wake)

    turn.when_settled(call)
    future.add_done_callback(lambda _: turn.forget(call))
    # Its line's loop may be closed, or its thread end, without a word: look again.
    loop.call_later(LOOK_AGAIN, wake)
    return future


def beside(
    need: Preparation, if_closed: Callable[[], object]
) -> asyncio.Future[BaseException | None]:
    """A future of the running loop with what `need` failed with, or None. Done on another thread,
    or, where another task or thread is at it, by waiting for that. Cancelling the future stops
    the waiting only.

    Args:
        if_closed: called, on whatever thread, if the loop is closed when `need` is done.
    """
    if isinstance(need, Turn):
        return settled(need)
    if isinstance(need, Room):
        return asyncio.ensure_future(_told(need))
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
        job = (
            background(partial(attempt, need.aside)) if isinstance(need, Reading)
            else _executor().submit(attempt, need)
        )  # fmt: skip
        job.add_done_callback(prepared)
    except RuntimeError:  # no thread can be started
        tell(attempt(need))
    return done
