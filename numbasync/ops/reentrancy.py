"""Exclusive enqueuing, one operation at a time on a thread; and a one-shot event to wait for."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar

from numbasync.errors import ReentrancyError
from numbasync.native import core

T = TypeVar("T")
U = TypeVar("U")
LOOK_AGAIN = 0.1  # seconds; waits end early, because the task waited for may be gone


class _Thread(threading.local):
    """What a thread is enqueuing, as the core's `Regions`: the latest region, weakly, since what
    ^C has kept from being left ends with the frames that held it.
    """

    _latest: Callable[[], Any] = staticmethod(threading.Lock)  # a lock that is free

    @property
    def busy(self) -> bool:
        """Whether the thread is in a region in which it must run no other operation."""
        latest = self._latest()
        return latest is not None and latest.locked()

    def busy_region(self) -> AbstractContextManager[Any]:
        """A region in which the thread is busy. Its `with` is a lock's: between the lock and the
        block, and between the block and the lock's release, CPython looks for no signal.
        """
        if self.busy:
            return nullcontext()
        region = threading.Lock()
        self._latest = weakref.ref(region)
        return region

    @contextmanager
    def free_region(self) -> Iterator[None]:
        """A region in which the thread is not busy, though it may be around it."""
        before = self._latest
        try:
            self._latest = threading.Lock
            yield
        finally:  # if it came late, `before` is over, and says so itself
            self._latest = before


_thread: Any = _Thread() if core is None else core.Regions()


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

    def region(self) -> AbstractContextManager[Any]:
        """A `with` block that enqueues an operation.

        Raises:
            ReentrancyError: this thread is enqueuing an operation.
        """
        self.check()
        region: AbstractContextManager[Any] = _thread.busy_region()
        return region

    def run(self, closure: Callable[[T], U], value: T) -> U:
        """`closure(value)`, in which this thread may run no operation; if it is enqueuing one
        already, it goes on with that.
        """
        with _thread.busy_region():
            return closure(value)


exclusive = _Exclusive()


def unlocked() -> AbstractContextManager[Any]:
    """A block in which a closure, or an operation's steps, may run operations and wait for them,
    which is a ReentrancyError elsewhere. The caller keeps their order: what the operation around
    it has enqueued is not behind them.

    Examples:
        >>> from numbasync.extending import unlocked
        >>> def doubled(n):
        ...     with unlocked():
        ...         return na.value(2 * n).sync()
        >>> await na.value(3).map(doubled)
        6
    """
    region: AbstractContextManager[Any] = _thread.free_region()
    return region


class OneShotEvent:
    """A prerequisite that another task or thread fulfils: an event that is set once."""

    def __init__(self, thread: int | None = None) -> None:
        # A lock of C, since ^C could leave the lock of a `threading.Event` taken.
        self._door = threading.Lock()
        self._door.acquire()
        self._is_settled = False
        self._calls: dict[Callable[[], None], None] = {}
        self._lock = threading.Lock()
        self._thread = thread or threading.get_ident()

    @property
    def is_settled(self) -> bool:
        return self._is_settled

    def set_done(self) -> None:
        """Set the event, and call the registered callbacks on this thread."""
        with self._lock:
            self._is_settled = True
            if self._door.locked():
                self._door.release()
            calls, self._calls = self._calls, {}
        for call in calls:
            call()

    def when_settled(self, call: Callable[[], None]) -> None:
        """Run `call` on the thread that sets the event; immediately if the event is set."""
        with self._lock:
            if not self._is_settled:
                self._calls[call] = None
                return
        call()

    def forget(self, call: Callable[[], None]) -> None:
        """Unregister `call`, whose owner no longer waits."""
        with self._lock:
            self._calls.pop(call, None)

    def run(self) -> None:
        """Block the thread until the event is set, or for LOOK_AGAIN; the caller checks again."""
        if self._thread == threading.get_ident() and not self._is_settled:
            # The awaited task is suspended on this thread, which would wait for itself.
            raise ReentrancyError(
                "this needs the result of an operation that is being prepared by this thread's "
                "event loop: await it instead of blocking the thread."
            )
        if self._door.acquire(timeout=LOOK_AGAIN):
            self._door.release()  # for the next; if ^C comes before, that looks again

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
