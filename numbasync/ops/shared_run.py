"""One run of an operation for many consumers: one producer, one value or one error for all."""

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
from numbasync.ops.home import Home, home_of
from numbasync.ops.pickling import Recipe, packed
from numbasync.ops.reentrancy import OneShotEvent

T = TypeVar("T")
Steps = Generator[Prerequisite, None, T]


class SharedRun(Generic[T]):
    """The steps of an operation, run once; every consumer gets the value, or the error.

    The first consumer runs the steps, on its own stream. Consumers on other streams are ordered
    after that run, and fail if its work fails on the device.
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
        self._left: _StartedSteps[T] | None = None  # started steps that no consumer is running now

    @property
    def is_started(self) -> bool:
        """Whether a consumer has started the run."""
        return self._turn is not None

    @property
    def parent(self) -> Any:
        """The operation that is to run; None once a consumer has started it."""
        steps: Any = self._steps  # a bound method
        return None if steps is None else steps.__self__

    def home(self, element: int | None = None) -> Home:
        """Where the value will be, or is; or one element of it."""
        steps: Any = self._steps  # a bound method
        runner = self._runner
        if steps is not None:
            op = steps.__self__
            home: Home = op.home if element is None else op.home_of_element(element)
            return home
        if runner is not None:
            return runner.device
        value: Any = self._value
        if element is not None and isinstance(value, tuple):
            value = value[element] if -len(value) <= element < len(value) else value
        return home_of(value)

    def __reduce__(self) -> Recipe:
        """Pickle a run that has not started: its operation and label are stored."""
        steps: Any = self._steps  # a bound method
        if steps is None:
            raise AlreadySubmittedError(
                f"{self._label} was already submitted; only an operation that has not run can be "
                "pickled.\nPickle its result: await op"
            )
        return _once, (packed(steps.__self__), self._label)

    def steps(self, ctx: Context) -> Steps[T]:
        """The value, ordered on the stream of `ctx`; the first consumer runs the steps."""
        new_event = (
            self._turn or OneShotEvent()
        )  # created outside the lock, because allocating may run a finaliser that takes the lock
        with self._lock:
            steps, self._steps = self._steps, None
            if self._turn is None:
                self._turn = new_event
            event = self._turn
        if steps is not None:
            inner = ctx.part(self._label)
            inner.suspend()  # the run may pause, and then only its own steps hold `inner`
            yield from self._take(_StartedSteps(steps(inner), inner), ctx, event)
        while not (event := self._turn).is_settled or self._left is not None:
            abandoned = self._take_over(event)
            if abandoned is not None:
                yield from self._take(abandoned, ctx, self._turn)
            else:
                yield from self._wait(ctx, event)
        if self._error is not None:
            try:
                raise self._error.with_traceback(self._trace)
            finally:
                self = None  # type: ignore[assignment]  # the traceback holds this frame
        if self._producer is not None:
            ctx.depend(self._producer)
        value: T = self._value
        return value

    def _take_over(self, turn: OneShotEvent) -> _StartedSteps[T] | None:
        """Claim abandoned steps, and set a new event for the consumers that wait meanwhile."""
        new_event = OneShotEvent()
        with self._lock:
            abandoned, self._left = self._left, None
            if abandoned is not None:
                self._turn = new_event
            return abandoned

    def _wait(self, ctx: Context, event: OneShotEvent) -> Steps[None]:
        """Wait until the running consumer has finished the steps, or has abandoned them."""
        root = ctx.root
        root.waits_for = self
        try:
            self._check_cycle(ctx)
            while not event.is_settled:  # a wait may end before the event is set
                submission_queue.drain_orphaned()  # the running consumer may be queued there
                if not event.is_settled:
                    yield event
        finally:
            root.waits_for = None

    def _forget(self) -> None:
        """Replace the value by an error: the run was only recorded, and will never execute."""
        self._value = None
        self._error = StateError(
            f"{self._label} was part of a graph that was not captured, and has not run.\n"
            "Make it anew, or run it before it is captured."
        )

    def _check_cycle(self, ctx: Context) -> None:
        """Refuse to wait for a run that waits for `ctx`, on whatever threads.

        Every consumer sets `waits_for` before it checks, so the last one in a cycle detects it.
        """
        run: SharedRun[Any] | None = self
        while run is not None:
            runner = run._runner
            if runner is None:
                return
            if ctx.is_descendant_of(runner):
                also = "" if run is self else f", by way of {run._label}"
                raise ReentrancyError(
                    f"{self._label} is part of itself: it was used by its own closure{also}."
                )
            run = runner.root.waits_for

    def _take(self, started: _StartedSteps[T], ctx: Context, event: OneShotEvent) -> Steps[None]:
        # `inner` has its own submission: the other work and errors of the consumer that runs the
        # steps must not reach the other consumers.
        inner = self._runner = started.ctx
        inner.parent = ctx
        thrown: BaseException | None = None
        try:
            while True:
                if started.need is None:
                    steps = started.steps  # not in a helper: nested runs use enough frames already
                    started.need = next(steps) if thrown is None else steps.throw(thrown)
                thrown = None
                try:
                    yield started.need
                except GeneratorExit:
                    # The running consumer is withdrawn. Other consumers may need the value, now or
                    # later; until then the abandoned steps must not hold a place for capacity.
                    if isinstance(started.need, Capacity):
                        started.need.taken()
                    inner.parent, self._left = None, started
                    raise
                except BaseException as error:
                    thrown = error
                started.need = None
        except StopIteration as end:
            self._value = end.value
            self._producer = inner.close()
            inner.if_forgotten(self._forget)
        except GeneratorExit:
            raise
        except Exception as error:
            # The traceback drops this frame, which holds `self`, which holds the error.
            trace = error.__traceback__
            self._trace = None if trace is None else trace.tb_next
            self._error = error.with_traceback(self._trace)
            del trace
            self._producer = inner.close()
        except BaseException as stop:
            # This may be a finaliser: `inner` keeps the enqueued work's objects when it ends.
            self._error = StateError(f"whoever ran {self._label} was stopped: {stop!r}")
            raise
        finally:
            thrown = None  # its traceback holds this frame
            self._runner = None
            event.set_done()


class _StartedSteps(Generic[T]):
    """Started steps, which may outlive the consumer that runs them.

    Attributes:
        steps: the generator.
        ctx: the context of the run.
        need: the pending prerequisite, if any.
    """

    def __init__(self, steps: Steps[T], ctx: Context) -> None:
        self.steps = steps
        self.ctx = ctx
        self.need: Prerequisite | None = None


def _once(op: Any, label: str) -> SharedRun[Any]:
    op.consume()
    return SharedRun(op.steps, label)
