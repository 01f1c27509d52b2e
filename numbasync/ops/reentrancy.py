"""Who may enqueue: one operation at a time on a thread; and waiting until another is through."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from numbasync.errors import ReentrancyError

LOOK_AGAIN = 0.1  # seconds; who waits for another may be waiting for one that has gone


class _Thread(threading.local):
    busy = False


_thread = _Thread()


class _Exclusive:
    """Only one operation is enqueued at a time on one thread. Keeps no state of its own."""

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


exclusive = _Exclusive()


@contextmanager
def unlocked() -> Iterator[None]:
    """Inside a closure: allow operations to be run, whose order is the caller's business."""
    busy, _thread.busy = _thread.busy, False
    try:
        yield
    finally:
        _thread.busy = busy


class OneShotEvent:
    """A preparation that another task or thread is busy with: wait until it is settled."""

    def __init__(self, thread: int | None = None) -> None:
        self._settled = threading.Event()
        self._calls: dict[Callable[[], None], None] = {}
        self._lock = threading.Lock()
        self._thread = thread or threading.get_ident()

    @property
    def is_settled(self) -> bool:
        return self._settled.is_set()

    def settle(self) -> None:
        """It is over; whoever waits goes on."""
        with self._lock:
            self._settled.set()
            calls, self._calls = self._calls, {}
        for call in calls:
            call()

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call on whatever thread settles it; now, if that has happened."""
        with self._lock:
            if not self._settled.is_set():
                self._calls[call] = None
                return
        call()

    def forget(self, call: Callable[[], None]) -> None:
        """Whoever waited for it with `call` waits no more, or looks again."""
        with self._lock:
            self._calls.pop(call, None)

    def run(self) -> None:
        """Block the thread until it is settled, or for a moment: then look again."""
        if self._thread == threading.get_ident() and not self._settled.is_set():
            # What it waits for is suspended on this very thread, which would wait for itself.
            raise ReentrancyError(
                "this needs the result of an operation that is being prepared by this thread's "
                "event loop: await it instead of blocking the thread."
            )
        self._settled.wait(LOOK_AGAIN)

    def future(self, _if_closed: object = None) -> asyncio.Future[BaseException | None]:
        """A future of the running loop that is done when this is settled."""
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
        # The loop of the other task may be closed, or its thread end, without a word: look again.
        loop.call_later(LOOK_AGAIN, wake)
        return future
