"""The notifications that one event loop has asked streams for, and the waker that they ring."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from numbasync.device.loop_wakeup import Waker
from numbasync.device.watched import Watched


class LoopNotifications:
    """The notifications of one loop. All methods must be called on that loop's thread.

    What was asked of a stream is kept without waiters too, because the notification will still
    arrive.
    """

    __slots__ = ("_asked", "_watched", "waker")

    def __init__(self) -> None:
        self.waker: Waker | None = None
        # For each stream: the sequence number of the latest request, and whether it is prompt.
        self._asked: weakref.WeakKeyDictionary[Watched, tuple[int, bool]] = (
            weakref.WeakKeyDictionary()
        )
        # The number that a thread was to watch for, and whether one does.
        self._watched: weakref.WeakKeyDictionary[Watched, tuple[int, bool]] = (
            weakref.WeakKeyDictionary()
        )

    def begin(self, loop: asyncio.AbstractEventLoop, on_ring: Callable[[], None]) -> bool:
        """Have the loop call `on_ring` for each notification. False: it watches no descriptors."""
        if self.waker is None:
            waker = Waker.take()
            try:
                loop.add_reader(waker.fileno, on_ring)
            except NotImplementedError:  # Windows' proactor loop
                Waker.hand_on(waker)
                return False
            self.waker = waker
        return True

    def ask(self, stream: Watched, number: int) -> bool:
        """Request a notification of a stream for a number, once; whether it is prompt."""
        waker = self.waker
        if waker is None:
            return False
        if self._asked.get(stream, (-1, False))[0] < number:
            try:
                is_prompt = stream.wake(number, waker)
            except Exception:  # the next poll, or driver query, raises the actual error
                is_prompt = False
            self._asked[stream] = (number, is_prompt)
        return self._asked[stream][1]

    def watch(self, stream: Watched, number: int, looks: float | None) -> bool:
        """Whether a thread watches a stream for a number, which is asked for once.

        Args:
            looks: for how many seconds it looks at the counter; None: ask for nothing.
        """
        asked, is_watched = self._watched.get(stream, (-1, False))
        if asked == number or looks is None:
            return asked == number and is_watched
        waker = self.waker
        try:
            is_watched = waker is not None and stream.watch(number, waker, looks)
        except Exception:  # as in `ask`
            is_watched = False
        self._watched[stream] = number, is_watched
        return is_watched

    def forget(self, stream: Watched) -> None:
        """Ask a stream again: what was requested is for another number."""
        self._asked.pop(stream, None)
        self._watched.pop(stream, None)

    def close(self) -> None:
        """Hand the waker on to the next loop."""
        self._asked.clear()
        self._watched.clear()
        waker, self.waker = self.waker, None
        if waker is not None:
            Waker.hand_on(waker)
