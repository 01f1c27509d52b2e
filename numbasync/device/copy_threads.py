"""Threads that copy: they take calls from one queue, in turn.

Not an executor's, whose `submit` holds a lock that is not reentrant: a finaliser, which may run
inside of it, may submit an operation that copies. Nothing that takes long is given to them.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from numbasync.fork import in_child

T = TypeVar("T")


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


# Eight saturate the memory of a server; half of the processors, since others want some, too.
THREADS = max(1, min(8, _processors() // 2))

_calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
_started = 0
_starting = threading.RLock()
_settling = threading.Lock()


def _work(calls: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # what it holds must not wait for the next one


def submit(call: Callable[[], object]) -> None:
    """Have some thread call it. It must not raise.

    Raises:
        RuntimeError: there is no thread, and none can be started.
    """
    global _started
    if _started < THREADS:
        with _starting:
            while _started < THREADS:
                _started += 1  # first: a finaliser that runs in here finds them begun
                try:
                    threading.Thread(
                        target=_work, args=(_calls,), name="numbasync-copy", daemon=True
                    ).start()
                except RuntimeError:  # at the end of the interpreter, or of the system's threads
                    _started -= 1
                    if not _started:
                        raise
                    break
    _calls.put(call)


def submit_with_result(call: Callable[[], T]) -> Future[T]:
    """`submit`, and the result. Cancelled before a thread comes to it, it is not called."""
    future: Future[T] = Future()

    def work() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    submit(work)
    return future


def settle(seconds: float = 10.0) -> None:
    """Wait until the threads are through with what they have been given, for so long at most."""
    with _settling:  # two of them would wait for each other's threads
        there = threading.Barrier(_started + 1)
        for _ in range(_started):
            _calls.put(lambda: _meet(there, seconds))
        if _started:
            _meet(there, seconds)


def _meet(there: threading.Barrier, seconds: float) -> None:
    with contextlib.suppress(threading.BrokenBarrierError):
        there.wait(seconds)


@in_child
def start_over() -> None:
    """In a forked child, which has none of the threads; or with another number of them."""
    global _calls, _started, _starting, _settling
    for _ in range(_started):
        _calls.put(None)
    _calls, _started, _starting = queue.SimpleQueue(), 0, threading.RLock()
    _settling = threading.Lock()
