"""Exclusive enqueuing, one operation at a time on a thread; and a one-shot event to wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from numbasync.errors import ReentrancyError
from numbasync.native import core

T = TypeVar("T")
U = TypeVar("U")
LOOK_AGAIN = 0.1  # seconds; waits end early, because the task waited for may be gone


class _Thread(threading.local):
    busy = False


_thread: Any = _Thread() if core is None else core.Busy()


class _Exclusive:
    """A guard: one thread enqueues one operation at a time. The state is thread-local."""

    def check(self) -> None:
        """Raise ReentrancyError if this thread is enqueuing an operation."""
        if _thread.busy:
            raise ReentrancyError(
                "an operation was run inside a closure of another one, or inside a graph's scope, "
                "on the same thread.\n"
                "Return it instead, and it will run next on the same stream:\n\n"
                "    op.then(lambda x: kernel(x))       # not: kernel(x).sync()\n\n"
                "or use then_unchecked if the closure must wait for a result. In a scope, write "
                "s.record(op)."
            )

    def __enter__(self) -> None:
        if _thread.busy:
            self.check()
        _thread.busy = True

    def __exit__(self, *exc: object) -> None:
        _thread.busy = False

    def run(self, closure: Callable[[T], U], value: T) -> U:
        """`closure(value)`, in which this thread may run no operation; if it is enqueuing one
        already, it goes on with that.
        """
        busy, _thread.busy = _thread.busy, True
        try:
            return closure(value)
        finally:
            _thread.busy = busy


exclusive = _Exclusive()


@contextmanager
def unlocked() -> Iterator[None]:
    """Allow a closure to run operations. The caller is responsible for their order."""
    busy, _thread.busy = _thread.busy, False
    try:
        yield
    finally:
        _thread.busy = busy


class OneShotEvent:
    """A prerequisite that another task or thread fulfils: an event that is set once."""

    def __init__(self, thread: int | None = None) -> None:
        self._settled = threading.Event()
        self._calls: dict[Callable[[], None], None] = {}
        self._lock = threading.Lock()
        self._thread = thread or threading.get_ident()

    @property
    def is_settled(self) -> bool:
        return self._settled.is_set()

    def set_done(self) -> None:
        """Set the event, and call the registered callbacks on this thread."""
        with self._lock:
            self._settled.set()
            calls, self._calls = self._calls, {}
        for call in calls:
            call()

    def when_settled(self, call: Callable[[], None]) -> None:
        """Run `call` on the thread that sets the event; immediately if the event is set."""
        with self._lock:
            if not self._settled.is_set():
                self._calls[call] = None
                return
        call()

    def forget(self, call: Callable[[], None]) -> None:
        """Unregister `call`, whose owner no longer waits."""
        with self._lock:
            self._calls.pop(call, None)

    def run(self) -> None:
        """Block the thread until the event is set, or for LOOK_AGAIN; the caller checks again."""
        if self._thread == threading.get_ident() and not self._settled.is_set():
            # The awaited task is suspended on this thread, which would wait for itself.
            raise ReentrancyError(
                "this needs the result of an operation that is being prepared by this thread's "
                "event loop: await it instead of blocking the thread."
            )
        self._settled.wait(LOOK_AGAIN)

    def future(self, _if_closed: object = None) -> asyncio.Future[BaseException | None]:
        """A future of the running loop that is done when the event is set, or after LOOK_AGAIN."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[BaseException | None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def call() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(wake)

        self.when_settled(call)
        future.add_done_callback(lambda _: self.forget(call))
        # The other task's loop may close, or its thread end, without setting the event: the
        # caller checks again after LOOK_AGAIN.
        loop.call_later(LOOK_AGAIN, wake)
        return future
