"""The copy threads, which take calls from one queue in order.

An executor would not do: its `submit` holds a lock that is not reentrant, and a finaliser that runs
while the lock is held may submit an operation that copies. Calls must be short.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from numbasync.fork import in_child
from numbasync.threads import Answer, complete

__all__ = ["settle"]

T = TypeVar("T")


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


HALF = max(1, _processors() // 2)  # at most so many threads, since other ones need processors too
# Of one copy. More than four spend the time that they save on waiting for the interpreter lock:
# 64 MiB take a quarter longer with eight.
THREADS = min(4, HALF)

_calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
_started = 0
_devices = 0  # that have a ring
_starting = threading.RLock()
_settling = threading.Lock()


def _work(calls: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # otherwise its objects would live until the next call arrives


def most() -> int:
    """The number of threads at most: as many for each device. A thread that stages for a device
    waits for its ring, and must not keep another device waiting.
    """
    return max(THREADS, min(THREADS * _devices, HALF))


def add_device() -> None:
    """Let there be threads for one more device, whose ring threads wait for."""
    global _devices
    with _starting:
        _devices += 1


def submit(call: Callable[[], object]) -> None:
    """Run `call`, which must not raise, on a copy thread.

    Raises:
        RuntimeError: there is no copy thread, and no thread can be started.
    """
    global _started
    if _started < (limit := most()):
        with _starting:
            while True:
                if _started >= limit:
                    break
                _started += 1  # counted first: a finaliser that runs here must not start one too
                try:
                    threading.Thread(
                        target=_work, args=(_calls,), name="numbasync-copy", daemon=True
                    ).start()
                except BaseException as error:
                    _started -= 1
                    if not _started or not isinstance(error, RuntimeError):
                        raise
                    break  # the interpreter is shutting down, or no threads are left
    _calls.put(call)


def submit_with_result(call: Callable[[], T]) -> Future[T]:
    """`submit`, with a future of the result. Cancelling it before a thread starts skips `call`."""
    future: Future[T] = Answer()

    submit(partial(complete, future, call))
    return future


def settle(seconds: float = 10.0) -> None:
    """Wait until the threads have run all calls submitted so far, for at most `seconds`."""
    with _settling:  # two concurrent waits would wait for each other's threads
        barrier = threading.Barrier(_started + 1)
        for _ in range(_started):
            _calls.put(lambda: _meet(barrier, seconds))
        if _started:
            _meet(barrier, seconds)


def _meet(barrier: threading.Barrier, seconds: float) -> None:
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait(seconds)


@in_child
def start_over() -> None:
    """Forget the threads: in a forked child, which has none; or to use another number of them."""
    global _calls, _started, _devices, _starting, _settling
    for _ in range(_started):
        _calls.put(None)
    _calls, _started, _devices, _starting = queue.SimpleQueue(), 0, 0, threading.RLock()
    _settling = threading.Lock()
