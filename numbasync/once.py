"""Running something once for many: a lock, one producer, one error for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from numbasync.backend.base import Preparation
from numbasync.context import Context
from numbasync.errors import ReentrancyError, StateError
from numbasync.stream import Submission

T = TypeVar("T")
Steps = Generator[Preparation, None, T]


class _Turn:
    """A preparation that waits until another run of the same thing has settled."""

    def __init__(self, label: str, settled: threading.Event, thread: int) -> None:
        self._label = label
        self._settled = settled
        self._thread = thread

    def run(self) -> None:
        if self._thread == threading.get_ident():
            # Its run is suspended on this very thread, which would wait for itself.
            raise ReentrancyError(
                f"{self._label} is being prepared by this thread's event loop: await it instead."
            )
        self._settled.wait()


class Once(Generic[T]):
    """Steps that are taken once; everyone who asks gets the value, or the error.

    Whoever asks first takes them, on its own stream. Those who ask on another stream are
    ordered after it, and fail if it fails there.
    """

    def __init__(self, steps: Callable[[Context], Steps[T]], label: str) -> None:
        self._steps: Callable[[Context], Steps[T]] | None = steps
        self._label = label
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._runner: Context | None = None
        self._thread = 0
        self._value: Any = None
        self._error: BaseException | None = None
        self._producer: Submission | None = None

    def steps(self, ctx: Context) -> Steps[T]:
        """The value, on whatever stream `ctx` is; taken now if nobody has asked before."""
        with self._lock:
            steps, self._steps = self._steps, None
            if steps is not None:
                self._runner, self._thread = ctx, threading.get_ident()
        if steps is not None:
            yield from self._take(steps, ctx)
        elif not self._settled.is_set():
            if self._runner is ctx:
                raise ReentrancyError(
                    f"{self._label} is part of itself: it was used by its own closure."
                )
            yield _Turn(self._label, self._settled, self._thread)
        if self._error is not None:
            raise self._error
        if self._producer is not None:
            ctx.depend(self._producer)
        value: T = self._value
        return value

    def _take(self, steps: Callable[[Context], Steps[T]], ctx: Context) -> Steps[None]:
        try:
            self._value = yield from steps(ctx)
            self._producer = ctx.submission
        except GeneratorExit:
            self._error = StateError(f"{self._label} was cancelled before it had been submitted.")
            raise
        except BaseException as error:
            self._error = error
        finally:
            self._runner = None
            self._settled.set()
