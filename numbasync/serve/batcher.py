"""Requests of many callers, answered together: `MicroBatcher`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextvars import Context, copy_context
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from numbasync.arguments import LARGEST, as_whole, check_whole, shown, with_type
from numbasync.errors import CallerError, DeadlineError, ReentrancyError, StateError
from numbasync.serve import refusals
from numbasync.serve.batch import Batch, inside
from numbasync.serve.refusals import seconds_of
from numbasync.serve.statistics import TIMES, BatcherStatistics, Spread, size_bounds
from numbasync.serve.waiting import NEVER, Request, Waiting

Item = TypeVar("Item")
Answer = TypeVar("Answer")

EARLY_S = 0.0005  # what is due so soon is due: uvloop's timers count whole milliseconds
FAIR = 8  # every so many a batch is of those who came first, whatever their priority


class MicroBatcher(Generic[Item, Answer]):
    """Let `f` answer the requests of many callers together: `await batcher(item)`.

    A kernel on 32 pictures takes little longer than on one. A batch starts when `max_batch` items
    wait, when the first of them has waited for `max_wait`, or when the queue is full; and not
    before fewer than `max_running` others are at work. While `f` works, the next batch gathers.

    Each call of the batcher ends in exactly one way: with its answer, with an error of `f`, or
    refused with one of the errors below. A caller that is cancelled takes its item along while it
    waits. From the start of its batch on, `f` goes on for the others, and is cancelled with the
    last of them.

    Use it as a context manager, on one event loop. At its end those that wait are answered; where
    the block ends with an error, they are refused. `f` runs in tasks of its own, with the context
    variables of the block's beginning: `na.use_device`, `na.limit`.

    Args:
        f: takes a list of at most `max_batch` items, or what `collate` makes of it, and gives as
            many results in the same order: a list, a tuple, an array or a tensor, by its first
            axis. An `async def`, a function that returns an operation, or a plain function, which
            holds up the loop while it runs. A result that is an `Exception` is raised to its
            caller alone; what `f` raises, to each of the batch.
        max_batch: most items of a batch.
        max_wait: seconds that an item waits for others. 0: for those of the same turn of the loop.
        max_queue: most items that wait. When so many wait, further ones are refused, or take the
            place of the last one of the lowest priority, if that is lower.
        key: gives the bucket of an item, as `lambda picture: picture.shape`. Only items with equal
            keys share a batch.
        collate: makes of a list of items what `f` takes, as `np.stack`.
        max_running: most batches that `f` works on at once.

    Raises:
        CallerError: an argument is of another kind, or out of its range.

    Examples:
        >>> async def add(rows):
        ...     z = await saxpy(na.zeros(rows.size), 2.0, rows.reshape(-1)).output().to_host()
        ...     return z.reshape(rows.shape)
        >>> async with na.serve.MicroBatcher(add, collate=np.stack) as batcher:
        ...     calls = [batcher(np.full(2, i, np.float32)) for i in range(100)]
        ...     answers = await asyncio.gather(*calls)
        >>> answers[99].tolist(), batcher.statistics().batches
        ([198.0, 198.0], 4)
    """

    def __init__(
        self,
        f: Callable[[Any], Awaitable[Iterable[Answer]] | Iterable[Answer]],
        max_batch: int = 32,
        max_wait: float = 0.002,
        max_queue: int = 1024,
        *,
        key: Callable[[Item], Hashable] | None = None,
        collate: Callable[[list[Item]], Any] | None = None,
        max_running: int = 1,
    ) -> None:
        for name, function in (("f", f), ("key", key), ("collate", collate)):
            if not callable(function) and (name == "f" or function is not None):
                raise CallerError(
                    f"{name} of MicroBatcher is {with_type(function)}: write a function."
                )
        self._f = f
        self._name: str = getattr(f, "__name__", type(f).__name__)
        self._max_batch = check_whole(max_batch, "max_batch of MicroBatcher", 1)
        self._max_wait = seconds_of(max_wait, "max_wait of MicroBatcher")
        self._max_queue = check_whole(max_queue, "max_queue of MicroBatcher", 1)
        self._max_running = check_whole(max_running, "max_running of MicroBatcher", 1)
        self._key = key
        self._collate = collate
        self._state = "not open"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: Context | None = None
        self._waiting = Waiting(self._max_batch)
        self._running: set[Batch] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._arrivals = self._started = 0
        self._ends = Counter[str]()
        self._sizes = Spread(size_bounds(self._max_batch))
        self._waits, self._answers, self._works = Spread(TIMES), Spread(TIMES), Spread(TIMES)

    # --- one request ---

    async def __call__(
        self, item: Item, *, deadline: float | None = None, priority: int = 0
    ) -> Answer:
        """The answer to `item`.

        Args:
            item: what `f` gets in its list.
            deadline: seconds from now, after which the caller has no use for an answer. An item
                waits for others for half of that at most. None: any time will do.
            priority: higher ones are answered first, and equals in the order of arrival. Every
                eighth batch is of those who came first, whatever their priority.

        Raises:
            OverloadedError: `max_queue` items wait, none of them of a lower priority; or one of a
                higher priority has taken this one's place.
            DeadlineError: the deadline has passed.
            BatcherClosedError: the batcher is closed, or was closed while the item waited.
            BatchAbortedError: `f` was cancelled by others than the callers, or interrupted.
            StateError: the batcher has not been opened, or belongs to another event loop.
            ReentrancyError: `f` itself calls the batcher, and would wait for itself.
            CallerError: an argument is of another kind; or `f` gave another number of results.
        """
        self._check_caller()
        level = as_whole(priority)
        if level is None or not -LARGEST <= level <= LARGEST:
            raise CallerError(
                f"priority of a request is {shown(priority)}: write a whole number; higher ones go "
                "first."
            )
        seconds = None if deadline is None else seconds_of(deadline, "deadline of a request")
        bucket = None if self._key is None else self._key(item)
        try:
            hash(bucket)
        except TypeError:
            raise CallerError(
                f"key of MicroBatcher gave {with_type(bucket)}, which cannot be compared: let it "
                "give numbers, texts or tuples of them."
            ) from None
        request = self._admit(item, bucket, level, seconds)
        answer: asyncio.Future[Answer] = request.answer
        try:
            return await answer
        finally:
            if not request.is_settled:
                self._leave(request, "cancelled")
            elif not answer.cancelled():
                answer.exception()  # retrieved, if the caller was cancelled at the same moment

    def _check_caller(self) -> None:
        """Refuse calls that could never be answered."""
        loop = asyncio.get_running_loop()
        if self._state == "not open":
            raise StateError(
                f"{self!r} is not open: write async with MicroBatcher(...) as batcher."
            )
        if loop is not self._loop:
            raise StateError(
                f"{self!r} belongs to another event loop: make one batcher for each loop."
            )
        if any(batch.owner is self and batch.is_running for batch in inside.get()):
            raise ReentrancyError(
                f"{self._name} has called the batcher that it answers for, and would wait for "
                "itself. Call the function that computes it, or a second batcher."
            )

    def _admit(self, item: Item, bucket: Hashable, priority: int, seconds: float | None) -> Request:
        if self._state != "open":
            self._ends["closed"] += 1
            raise refusals.closed(self._name, while_waiting=False)
        if seconds is not None and seconds <= 0:
            self._ends["expired"] += 1
            raise DeadlineError(f"the deadline of {seconds:g} s has passed before the call.")
        if len(self._waiting) >= self._max_queue:
            self._make_place(priority)
        assert self._loop is not None  # the batcher is open
        now = monotonic()
        wait = self._max_wait if seconds is None else min(self._max_wait, seconds / 2)
        self._arrivals += 1
        request = Request(item, bucket, priority, self._arrivals, now, now + wait)
        request.answer = self._loop.create_future()
        if seconds is not None:
            request.seconds, request.deadline = seconds, now + seconds
            request.timer = self._loop.call_later(seconds, self._leave, request, "expired")
        is_full = self._waiting.add(request) or len(self._waiting) >= self._max_queue
        if is_full and len(self._running) < self._max_running:
            self._start_batches()
        elif request.due < self._timer_at:
            self._set_timer(now)
        return request

    def _make_place(self, priority: int) -> None:
        """Refuse the last request of a lower priority; raises where there is none."""
        error = refusals.overloaded(len(self._waiting), self._max_queue, self._name)
        last = self._waiting.last_below(priority)
        if last is None:
            self._ends["overloaded"] += 1
            raise error
        self._waiting.remove(last)
        self._settle(last, "overloaded", error)

    def _leave(self, request: Request, why: str) -> None:
        """Let a request go whose caller was cancelled, or whose deadline has passed."""
        if request.is_settled:
            return
        batch: Batch | None = request.batch
        if batch is None:
            self._waiting.remove(request)
        self._settle(request, why, refusals.late(request, self._name) if why == "expired" else None)
        if batch is not None:
            batch.left -= 1
            if not batch.left:
                batch.cancel()  # nobody wants its results

    def _settle(self, request: Request, why: str, error: BaseException | None = None) -> None:
        """Count how a request has ended, and tell its caller, if that still waits."""
        request.is_settled = True
        if request.timer is not None:
            request.timer.cancel()
        self._ends["cancelled" if request.answer.cancelled() else why] += 1
        if error is not None and not request.answer.done():
            request.answer.set_exception(error)

    # --- batches ---

    def _start_batches(self) -> None:
        """Start what may start now, and set the timer for what may start later."""
        now = monotonic()
        while len(self._running) < self._max_running:
            is_all_due = self._state != "open" or len(self._waiting) >= self._max_queue
            is_fair = self._started % FAIR == FAIR - 1
            taken = self._waiting.take(now + EARLY_S, is_all_due, is_fair)
            if not taken:
                break
            in_time = []
            for request in taken:
                if request.deadline > now:
                    in_time.append(request)
                else:  # the loop was held up, and its timer is late
                    self._settle(request, "expired", refusals.late(request, self._name))
            if in_time:
                self._start(in_time, now)
        self._set_timer(now)

    def _start(self, requests: list[Request], now: float) -> None:
        assert self._context is not None  # the batcher is open
        self._started += 1
        batch = Batch(self, requests, now)
        self._running.add(batch)
        for request in requests:
            request.batch = batch
            self._waits.add(now - request.arrival)
        work = batch.work(self._f, self._collate, self._name, self._sizes.add)
        # Not by the loop's task factory, which may start it at once, inside of a caller's call.
        name = f"{self._name}, batch {self._started}"  # as its lane in a timeline is called
        task = asyncio.Task(work, loop=self._loop, context=self._context.copy(), name=name)
        task.add_done_callback(partial(self._end, batch))
        batch.task = task

    def _end(self, batch: Batch, task: asyncio.Task[list[Any]]) -> None:
        """Tell the callers of a batch what has come of it, and start the next one."""
        now = monotonic()
        self._running.discard(batch)
        outcome = batch.outcome(task, self._name)
        if not isinstance(outcome, Exception):
            self._works.add(now - batch.began)
        for i, request in enumerate(batch.end()):
            if request.is_settled:
                continue
            result = outcome if isinstance(outcome, Exception) else outcome[i]
            if isinstance(result, Exception):
                self._settle(request, "failed", result)
                continue
            self._settle(request, "answered")
            if not request.answer.done():
                self._answers.add(now - request.arrival)
                request.answer.set_result(result)
        self._start_batches()

    def _set_timer(self, now: float) -> None:
        """Look again when the next request is due. Where no batch may start, the end of one does
        that.
        """
        due = self._waiting.due() if len(self._running) < self._max_running else NEVER
        if due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, due
        if due != NEVER:
            assert self._loop is not None  # the batcher is open
            self._timer = self._loop.call_later(max(due - now, 0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, NEVER
        self._start_batches()

    # --- its life ---

    async def __aenter__(self) -> Self:
        if self._state != "not open":
            raise StateError(f"{self!r} was opened before: make a new MicroBatcher.")
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._state = "open"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(drain=error is None)

    async def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Refuse new requests, and return when no batch is at work. Again, it has no effect.

        Args:
            drain: answer those that wait, at once; else they are refused.
            timeout: seconds after which those that wait are refused, and `f` is cancelled. None:
                wait for `f`, however long it takes.

        Raises:
            CallerError: `timeout` is no number of seconds.
            StateError: the batcher belongs to another event loop.
            ReentrancyError: called by `f` itself.

        Examples:
            >>> async def double(items):
            ...     return [2 * item for item in items]
            >>> async with na.serve.MicroBatcher(double, max_wait=60) as batcher:
            ...     last = asyncio.ensure_future(batcher(3))
            ...     await asyncio.sleep(0)
            ...     await batcher.close(timeout=10)
            ...     await last
            6
        """
        seconds = None if timeout is None else seconds_of(timeout, "timeout of close")
        if self._state == "not open":
            self._state = "closed"
        if self._state == "closed":
            return
        self._check_caller()
        self._state = "closing"
        try:
            if not drain:
                self._refuse_waiting()
            self._start_batches()
            async with asyncio.timeout(seconds):
                await self._idle()
        except TimeoutError:
            self._abort(f"the batcher was closed, and {shown(timeout)} s had passed")
            await self._idle()
        except BaseException:
            self._abort("closing the batcher was cancelled")
            raise
        finally:
            self._state = "closed"

    async def _idle(self) -> None:
        while self._running:
            await asyncio.wait([batch.task for batch in self._running])

    def _refuse_waiting(self) -> None:
        for request in list(self._waiting):
            self._waiting.remove(request)
            self._settle(request, "closed", refusals.closed(self._name, while_waiting=True))

    def _abort(self, reason: str) -> None:
        """Refuse all, also those whose batch is at work: `f` may take long to notice."""
        self._refuse_waiting()
        for batch in self._running:
            for request in batch.requests:
                if not request.is_settled:
                    self._settle(request, "closed", refusals.aborted(reason))
            batch.cancel()

    # --- what it says of itself ---

    @property
    def is_open(self) -> bool:
        """Whether requests are taken.

        Examples:
            >>> na.serve.MicroBatcher(lambda items: items).is_open
            False
        """
        return self._state == "open"

    @property
    def is_full(self) -> bool:
        """Whether the next request of the lowest priority would be refused.

        Examples:
            >>> na.serve.MicroBatcher(lambda items: items).is_full
            False
        """
        return len(self._waiting) >= self._max_queue

    def statistics(self) -> BatcherStatistics:
        """What has become of all requests so far, and how long they took.

        Examples:
            >>> na.serve.MicroBatcher(lambda items: items).statistics().requests
            0
        """
        ends, sizes = self._ends, self._sizes.histogram()
        return BatcherStatistics(
            waiting=len(self._waiting),
            running=sum(not r.is_settled for batch in self._running for r in batch.requests),
            answered=ends["answered"], failed=ends["failed"], expired=ends["expired"],
            cancelled=ends["cancelled"], overloaded=ends["overloaded"], closed=ends["closed"],
            batches=sizes.count, batch_sizes=sizes,
            wait_seconds=self._waits.histogram(), answer_seconds=self._answers.histogram(),
            batch_seconds=self._works.histogram(),
        )  # fmt: skip

    def __repr__(self) -> str:
        work = f"{len(self._waiting)} waiting, {len(self._running)} of {self._max_running} running"
        return f"<MicroBatcher of {self._name}, {self._state}: {work}>"
