"""Running something once for many: a lock, one producer, one error for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Generic, TypeVar

from numbasync.backend.protocols import Prerequisite
from numbasync.device.submission import Submission
from numbasync.errors import AlreadySubmittedError, ReentrancyError, StateError
from numbasync.ops import submission_queue
from numbasync.ops.backpressure import Capacity
from numbasync.ops.context import Context
from numbasync.ops.pickling import Recipe, packed
from numbasync.ops.reentrancy import OneShotEvent

T = TypeVar("T")
Steps = Generator[Prerequisite, None, T]


class SharedRun(Generic[T]):
    """Steps that are taken once; everyone who asks gets the value, or the error.

    Whoever asks first takes them, on its own stream. Those who ask on another stream are
    ordered after it, and fail if it fails there.
    """

    def __init__(self, steps: Callable[[Context], Steps[T]], label: str) -> None:
        self._steps: Callable[[Context], Steps[T]] | None = steps
        self._label = label
        self._lock = threading.Lock()
        self._turn: OneShotEvent | None = None
        self._runner: Context | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None
        self._producer: Submission | None = None
        self._left: _Begun[T] | None = None  # begun, and taken by nobody

    @property
    def begun(self) -> bool:
        """Whether anyone has asked."""
        return self._turn is not None

    def __reduce__(self) -> Recipe:
        """Of the steps of an operation that nobody has asked for."""
        steps: Any = self._steps  # a bound method
        if steps is None:
            raise AlreadySubmittedError(
                f"{self._label} was already submitted; only an operation that has not run can be "
                "pickled.\nPickle its result: await op"
            )
        return _once, (packed(steps.__self__), self._label)

    def steps(self, ctx: Context) -> Steps[T]:
        """The value, on whatever stream `ctx` is; taken now if nobody has asked before."""
        made = (
            self._turn or OneShotEvent()
        )  # not inside the lock: a finaliser that runs may come here
        with self._lock:
            steps, self._steps = self._steps, None
            if self._turn is None:
                self._turn = made
            turn = self._turn
        if steps is not None:
            inner = ctx.part(self._label)
            inner.suspend()  # it may be, and then only its own steps hold it
            yield from self._take(_Begun(steps(inner), inner), ctx, turn)
        while not (turn := self._turn).is_settled or self._left is not None:
            left = self._take_over(turn)
            if left is not None:
                yield from self._take(left, ctx, self._turn)
            else:
                yield from self._wait(ctx, turn)
        if self._error is not None:
            try:
                raise self._error.with_traceback(self._trace)
            finally:
                self = None  # type: ignore[assignment]  # the traceback holds this frame
        if self._producer is not None:
            ctx.depend(self._producer)
        value: T = self._value
        return value

    def _take_over(self, turn: OneShotEvent) -> _Begun[T] | None:
        """The steps that nobody takes any more, and a new turn for those who wait meanwhile."""
        made = OneShotEvent()
        with self._lock:
            left, self._left = self._left, None
            if left is not None:
                self._turn = made
            return left

    def _wait(self, ctx: Context, turn: OneShotEvent) -> Steps[None]:
        """Wait until whoever takes the steps is through, or leaves them to others."""
        whole = ctx.root
        whole.waits_for = self
        try:
            self._check_cycle(ctx)
            while not turn.is_settled:  # who waits may look up before it is
                submission_queue.drain_orphaned()  # whoever takes them may stand there
                if not turn.is_settled:
                    yield turn
        finally:
            whole.waits_for = None

    def _forget(self) -> None:
        """It was recorded, and will never run: nobody writes what its value holds."""
        self._value = None
        self._error = StateError(
            f"{self._label} was part of a graph that was not captured, and has not run.\n"
            "Make it anew, or run it before it is captured."
        )

    def _check_cycle(self, ctx: Context) -> None:
        """Refuse to wait for something that waits for `ctx`, on whatever threads they are.

        Each notes what it waits for before it looks, so of those in a cycle the last one sees it.
        """
        once: SharedRun[Any] | None = self
        while once is not None:
            runner = once._runner
            if runner is None:
                return
            if ctx.is_descendant_of(runner):
                also = "" if once is self else f", by way of {once._label}"
                raise ReentrancyError(
                    f"{self._label} is part of itself: it was used by its own closure{also}."
                )
            once = runner.root.waits_for

    def _take(self, begun: _Begun[T], ctx: Context, turn: OneShotEvent) -> Steps[None]:
        # A submission of its own: what its runner does besides, and how that ends, is none of
        # the others' business.
        inner = self._runner = begun.ctx
        inner.parent = ctx
        failed: BaseException | None = None
        try:
            while True:
                if begun.need is None:
                    steps = begun.steps  # here: nested ones are frames enough
                    begun.need = next(steps) if failed is None else steps.throw(failed)
                failed = None
                try:
                    yield begun.need
                except GeneratorExit:
                    # Whoever runs it is withdrawn. Others may need the value, now or later;
                    # until then nobody waits behind it for room.
                    if isinstance(begun.need, Capacity):
                        begun.need.taken()
                    inner.parent, self._left = None, begun
                    raise
                except BaseException as error:
                    failed = error
                begun.need = None
        except StopIteration as end:
            self._value = end.value
            self._producer = inner.close()
            inner.if_forgotten(self._forget)
        except GeneratorExit:
            raise
        except Exception as error:
            # Without this frame, which would hold us, who hold the error.
            trace = error.__traceback__
            self._trace = None if trace is None else trace.tb_next
            self._error = error.with_traceback(self._trace)
            del trace
            self._producer = inner.close()
        except BaseException as stop:
            # What it has enqueued is kept by the end of `inner`: this may be a finaliser.
            self._error = StateError(f"whoever ran {self._label} was stopped: {stop!r}")
            raise
        finally:
            failed = None  # its traceback holds this frame
            self._runner = None
            turn.settle()


class _Begun(Generic[T]):
    """Steps that need not end with the operation that takes them.

    Attributes:
        steps: what they are.
        ctx: where they are run.
        need: what they wait for.
    """

    def __init__(self, steps: Steps[T], ctx: Context) -> None:
        self.steps = steps
        self.ctx = ctx
        self.need: Prerequisite | None = None


def _once(op: Any, label: str) -> SharedRun[Any]:
    op.consume()
    return SharedRun(op.steps, label)
