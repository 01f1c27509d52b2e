"""Threads that cannot be started: the error that says so, and calls that leave nothing behind.

The system limits the threads of a user, and a container those inside it. A limit that is met for a
moment may cost the operation that needs the thread, and no later one.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from numbasync.errors import DeviceError

T = TypeVar("T")
_RLock: Any = type(threading.RLock())


class _Lock(_RLock):  # type: ignore[misc]  # a class of C
    """The condition of a future, with the `__enter__` of a lock of C. That of the condition that a
    future makes is Python: ^C may come there when the lock is taken already, and the thread that
    has the result would wait for it for ever, as would all that it is to do later.
    """

    def __init__(self) -> None:
        self._waiting = threading.Condition(self)

    def wait(self, timeout: float | None = None) -> bool:
        return self._waiting.wait(timeout)

    def notify_all(self) -> None:
        self._waiting.notify_all()


class Answer(Future[T]):
    """A future of a thread of this package."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Lock()


def refused(work: str, why: BaseException) -> DeviceError:
    """The error of work that needs a thread, which the system does not start."""
    return DeviceError(
        f"no thread can be started for {work} ({why}): it is refused, and the next call tries "
        "again.\n"
        "End threads that are not needed, or raise the limit: `ulimit -u` shows the user's, and a "
        "container has one of its own (pids)."
    )


def start(thread: threading.Thread, work: str) -> None:
    """Start a thread.

    Raises:
        DeviceError: the system starts no more of them.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise refused(work, error) from error


def submit(executor: Executor, call: Callable[[], T]) -> Future[T]:
    """`executor.submit`. Where no thread can be started for it, `call` is not run later either; an
    executor would keep it for the thread of a later one.

    Raises:
        RuntimeError: no thread can be started, or the executor is shut down.
    """
    future: Future[T] = Answer()
    try:
        executor.submit(complete, future, call)
    except RuntimeError:
        if future.cancel():
            raise
    return future


def call(function: Callable[[], T], name: str) -> Future[T]:
    """Run `function` on a thread of its own, with the variables of the calling context.

    Raises:
        DeviceError: no thread can be started.
    """
    future: Future[T] = Answer()
    context: Any = contextvars.copy_context()
    thread = threading.Thread(
        target=context.run, args=(complete, future, function), name=name, daemon=True
    )
    start(thread, name)
    return future


def complete(future: Future[T], call: Callable[[], T]) -> None:
    """Call, and give the future the result or the error, unless it was cancelled before."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
