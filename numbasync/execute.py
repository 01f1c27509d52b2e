"""Submission: one operation onto one stream, and the ways to wait for it.

An operation is run as a generator of `Preparation`s, things that must be done before it can
go on and that may take long (compiling a kernel). The blocking forms do them on the spot;
the awaiting forms do them on another thread while the event loop turns. Everything between
two of them is enqueued at once, under the thread's execution lock.

What the device may touch is retained by the submission; what two streams share is ordered
here: a conflicting access first makes its stream wait for the other one.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Awaitable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, Generic, Literal, Protocol, TypeVar

from numbasync.backend import base
from numbasync.backend.base import Preparation
from numbasync.device import default_device
from numbasync.errors import (
    AccessConflictError,
    CallerError,
    DeviceMismatchError,
    OutOfDeviceMemoryError,
    ReentrancyError,
)
from numbasync.memory import MemoryPool, Storage
from numbasync.scheduling import SchedulingPolicy
from numbasync.stream import Stream, Submission

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Submittable(Protocol[T_co]):
    """An operation, as this stage sees it."""

    def claim(self) -> None:
        """Take the right to run it once; AlreadySubmittedError if it is taken."""
        ...

    def steps(self, ctx: Context) -> Generator[Preparation, None, T_co]: ...

    @property
    def stream(self) -> Stream | None:
        """The stream that the operation itself asks for, if any."""
        ...


# --- ordering ------------------------------------------------------------------------

Ordering = Literal["auto", "strict"]
_ordering_default: Ordering = "auto"
_ordering: ContextVar[Ordering | None] = ContextVar("numbasync_ordering", default=None)


def _check_ordering(mode: str) -> None:
    if mode not in ("auto", "strict"):
        raise CallerError(f"there is no ordering {mode!r}; write 'auto' or 'strict'.")


def set_ordering(mode: Ordering) -> None:
    """What a conflict between streams does, in the whole process.

    Args:
        mode: `"auto"` orders it by submission; `"strict"` raises AccessConflictError.
    """
    global _ordering_default
    _check_ordering(mode)
    _ordering_default = mode


@contextmanager
def ordering(mode: Ordering) -> Iterator[None]:
    """`set_ordering` for the operations that this block submits."""
    _check_ordering(mode)
    token = _ordering.set(mode)
    try:
        yield
    finally:
        _ordering.reset(token)


# --- the execution lock --------------------------------------------------------------


class _Thread(threading.local):
    busy = False


_thread = _Thread()


@contextmanager
def _exclusive() -> Iterator[None]:
    """Only one operation is enqueued at a time on one thread."""
    if _thread.busy:
        raise ReentrancyError(
            "an operation was run inside a closure of another one, on the same thread.\n"
            "Return it instead, and it will run next on the same stream:\n\n"
            "    op.then(lambda x: kernel(x))       # not: kernel(x).sync()\n\n"
            "or use then_unchecked if the closure must wait for a result."
        )
    _thread.busy = True
    try:
        yield
    finally:
        _thread.busy = False


@contextmanager
def unlocked() -> Iterator[None]:
    """Inside a closure: allow operations to be run, whose order is the caller's business."""
    busy, _thread.busy = _thread.busy, False
    try:
        yield
    finally:
        _thread.busy = busy


# --- one submission ------------------------------------------------------------------


class Context:
    """Where an operation is being run.

    Attributes:
        stream: where its work goes.
        device: the stream's device.
        pool: where its memory comes from.
        submission: what its work belongs to.
    """

    __slots__ = ("_ordered", "_queued", "device", "pool", "stream", "submission")

    def __init__(self, stream: Stream, pool: MemoryPool, name: str) -> None:
        self.stream = stream
        self.device = stream.device
        self.pool = pool
        self.submission = Submission(stream, name)
        self._queued = False
        self._ordered: set[Submission] = set()

    @property
    def queue(self) -> base.Stream:
        """The backend's stream, for enqueuing. Operands must have been leased first."""
        self._queued = True
        return self.stream.backend

    def retain(self, thing: object) -> None:
        """Keep `thing` alive until the device has passed what is enqueued here."""
        self.submission.retain(thing)

    def alloc(self, nbytes: int) -> Storage:
        """`nbytes` uninitialised bytes for work on this stream, and on others after it.

        Raises:
            OutOfDeviceMemoryError: they do not fit, even after unused memory was returned.
        """
        stream = self.queue
        try:
            storage = self.pool.allocate(nbytes, stream)
        except OutOfDeviceMemoryError:
            self.device.reclaim()
            self.pool.trim()
            storage = self.pool.allocate(nbytes, stream)
        storage.writer = self.submission
        self.retain(storage)
        return storage

    def _check_device(self, storage: Storage) -> None:
        if storage.pool.device_key != self.device.key:
            kind, ordinal = storage.pool.device_key
            raise DeviceMismatchError(
                f"{self.submission.name} runs on {self.device.label}, but uses {storage!r} of "
                f"{kind}:{ordinal}.\n"
                "Run it on a stream of the tensor's device, or inside `with na.use_device(d):`."
            )

    def read(self, storage: Storage) -> None:
        """Lease `storage` for reading: alive while in use, and after its last writer."""
        self._check_device(storage)
        me = self.submission
        if storage.writer is not me:
            self.after(storage.writer, storage)
        if storage.readers.get(self.stream) is not me:
            # Of the readers on one stream the latest says it all.
            storage.readers[self.stream] = me
            me.retain(storage)

    def write(self, storage: Storage) -> None:
        """Lease `storage` for writing: after its last writer and everyone who reads it."""
        self._check_device(storage)
        me = self.submission
        if storage.writer is not me:
            self.after(storage.writer, storage)
            me.retain(storage)
        readers, storage.readers = storage.readers, {}
        for reader in readers.values():
            self.after(reader, storage)
        storage.writer = me

    def after(self, other: Submission | None, storage: Storage | None = None) -> None:
        """Start what is enqueued from now on after `other`, on whatever stream that is."""
        me = self.submission
        if other is None or other is me or other.done or other.stream is self.stream:
            return
        if other.sequence and other.stream.advance() >= other.sequence:
            return
        if other in self._ordered:
            return
        if storage is not None and (_ordering.get() or _ordering_default) == "strict":
            raise AccessConflictError(
                f"{me.name} on {self.stream!r} and {other.name} on {other.stream!r} both use "
                f"{storage!r}, and at least one writes it.\n"
                "Await the first, chain them with then(), or run them on one stream; "
                "na.set_ordering('auto') does it for you."
            )
        self._queued = True
        self.stream.wait_for(other.stream)
        self._ordered.add(other)

    def depend(self, other: Submission) -> None:
        """`after`, and fail if `other` fails."""
        if other.done:
            if other.error is not None:
                raise other.error
            return
        if other is self.submission:
            return
        self.after(other)
        self.submission.depends_on(other)

    def close(self) -> Submission:
        """End the submission: what was enqueued gets a number, also after an error."""
        if self._queued:
            self.stream.commit(self.submission)
        else:
            self.submission.settle(None)
        return self.submission


def _context(op: Submittable[Any], stream: Stream, pool: MemoryPool | None) -> Context:
    stream.check()
    pool = pool or stream.device.pool
    if pool.device_key != stream.device.key:
        raise DeviceMismatchError(f"{pool!r} cannot serve {stream!r}, which is another device's.")
    return Context(stream, pool, str(op))


def _run(op: Submittable[T], ctx: Context) -> T:
    """Enqueue all of `op`, preparing what it needs on this thread."""
    steps = op.steps(ctx)
    try:
        need = next(steps)
        while True:
            try:
                need.run()
            except BaseException as error:
                need = steps.throw(error)
            else:
                need = next(steps)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        ctx.close()


# --- running and waiting ----------------------------------------------------------------


def stream_for(op: Submittable[Any], policy: SchedulingPolicy | None = None) -> Stream:
    """The stream that `op` asks for, else the policy's next one."""
    if op.stream is not None:
        return op.stream
    return (policy or default_device().policy).next_stream()


def async_on(op: Submittable[T], stream: Stream) -> T:
    """Enqueue `op`; its value, whose device data is valid in the order of `stream`."""
    op.claim()
    with _exclusive():
        return _run(op, _context(op, stream, None))


def sync_on(op: Submittable[T], stream: Stream) -> T:
    """Enqueue `op` and block until `stream` is done, also if enqueuing failed.

    An error of enqueuing comes first; one of synchronising is then its note.
    """
    op.claim()
    return _sync(op, stream)


def _sync(op: Submittable[T], stream: Stream) -> T:
    with _exclusive():
        ctx = _context(op, stream, None)
        try:
            value = _run(op, ctx)
        except BaseException as error:
            try:
                stream.synchronize()
            except Exception as second:
                error.add_note(f"Synchronising the stream failed as well: {second}")
            raise
        stream.synchronize()
    if ctx.submission.error is not None:
        raise ctx.submission.error
    return value


def sync(op: Submittable[T]) -> T:
    """`sync_on` a stream of the default device's policy."""
    op.claim()
    return _sync(op, stream_for(op))


def schedule(op: Submittable[T], policy: SchedulingPolicy) -> DeviceFuture[T]:
    """Choose stream and pool now; the work starts at the first await."""
    op.claim()
    return DeviceFuture(op, stream_for(op, policy))


def spawn(op: Submittable[T], policy: SchedulingPolicy | None = None) -> DeviceFuture[T]:
    """Start `op` now; await the future, or not, for its value.

    An error of the operation arrives at the await; one of the policy, here.
    """
    op.claim()
    future = DeviceFuture(op, stream_for(op, policy))
    future.start()
    return future


def on_default_stream(op: Submittable[T]) -> DeviceFuture[T]:
    """What `await op` awaits."""
    op.claim()
    return DeviceFuture(op, stream_for(op))


async def gather(*ops: Any) -> list[Any]:
    """Start every operation, then await them all.

    Args:
        ops: operations, futures of `spawn` or `schedule`, or other awaitables.

    Returns:
        The values, in order.

    Raises:
        The first error in the order of the arguments, after all have settled.
    """
    started: list[Awaitable[Any]] = []
    for op in ops:
        if hasattr(op, "steps"):
            started.append(spawn(op))
            continue
        if isinstance(op, DeviceFuture):
            op.start()
        started.append(op)
    values: list[Any] = []
    errors: list[Exception] = []
    for future in started:
        try:
            values.append(await future)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return values


class _State(Enum):
    IDLE = "idle"
    PREPARING = "preparing"
    SUBMITTED = "submitted"
    FAILED = "failed"


_workers: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    """Threads that compile while event loops turn; made when first needed."""
    global _workers
    if _workers is None:
        _workers = ThreadPoolExecutor(4, thread_name_prefix="numbasync-prepare")
    return _workers


class DeviceFuture(Generic[T]):
    """An operation with its stream. Awaiting it gives its value, as often as you like.

    Cancelling an await stops the waiting, not the work: what was submitted runs to its end
    and its memory stays until then. An operation that is still being prepared is dropped
    when its only awaiter is cancelled.
    """

    def __init__(self, op: Submittable[T], stream: Stream) -> None:
        self.stream = stream
        self._op: Submittable[T] | None = op
        self._name = str(op)
        self._pool = stream.device.pool
        self._state = _State.IDLE
        self._submission: Submission | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self._seen = False  # the error has reached somebody
        self._preparing: asyncio.Task[None] | None = None
        self._awaiters = 0

    # --- starting ---

    def start(self) -> None:
        """Submit the work now, unless that has been done. Errors arrive at the await."""
        if self._state is not _State.IDLE or self._op is None:
            return
        op, self._op = self._op, None
        try:
            ctx = _context(op, self.stream, self._pool)
        except Exception as error:
            self._fail(error)
            return
        steps = op.steps(ctx)
        try:
            need = self._step(steps, ctx, None)
        except ReentrancyError as error:
            self._fail(error)
            self._seen = True  # the caller gets it now
            raise
        if need is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            while need is not None:
                need = self._step(steps, ctx, _try(need))
            return
        self._state = _State.PREPARING
        self._preparing = loop.create_task(self._prepare(steps, ctx, need))

    def _step(
        self, steps: Generator[Preparation, None, T], ctx: Context, error: BaseException | None
    ) -> Preparation | None:
        """Enqueue up to the next preparation; None at the end."""
        with _exclusive():
            try:
                return next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                self._value = end.value
                self._submission = ctx.close()
                self._state = _State.SUBMITTED
            except BaseException as failed:
                ctx.close()
                self._fail(failed)
                if not isinstance(failed, Exception):
                    raise
        return None

    async def _prepare(
        self, steps: Generator[Preparation, None, T], ctx: Context, need: Preparation | None
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while need is not None:
                error = await loop.run_in_executor(_executor(), _try, need)
                need = self._step(steps, ctx, error)
        except asyncio.CancelledError:
            steps.close()
            ctx.close()
            self._fail(asyncio.CancelledError(f"{self._name} was cancelled before it was enqueued"))
            self._seen = True
            raise

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._state = _State.FAILED

    # --- waiting ---

    def __await__(self) -> Generator[Any, None, T]:
        if self._state is _State.IDLE:
            self.start()
            # This await began the work, so it may also take it back.
            yield from self._join(may_cancel=True)
        else:
            yield from self._join(may_cancel=False)
        submission = self._submission
        if submission is not None and not submission.done:
            yield from submission.stream.wait(submission.sequence)
        return self._result()

    def _join(self, may_cancel: bool) -> Generator[Any, None, None]:
        task = self._preparing
        if task is None or task.done():
            return
        if task.get_loop() is not asyncio.get_running_loop():
            # Prepared by another loop: look now and then; it is only until it is submitted.
            while not task.done():
                yield from asyncio.sleep(0.001).__await__()
            return
        self._awaiters += 1
        try:
            yield from asyncio.shield(task).__await__()
        except asyncio.CancelledError:
            if may_cancel and self._awaiters == 1 and not task.done():
                task.cancel()
            raise
        finally:
            self._awaiters -= 1

    def _result(self) -> T:
        error = self._error
        if error is None and self._submission is not None:
            error = self._submission.error
        if error is not None:
            self._seen = True
            raise error
        return self._value  # type: ignore[return-value]  # set, since there is no error

    def sync(self) -> T:
        """Start it if need be, block the thread until it is done, and give its value."""
        self.start()
        if self._state is _State.PREPARING:
            raise ReentrancyError(
                f"{self._name} is being compiled for a running event loop: await it instead."
            )
        submission = self._submission
        if submission is not None and not submission.done:
            submission.stream.synchronize()
        return self._result()

    def done(self) -> bool:
        """Whether the value, or the error, is there. Never blocks."""
        if self._state is _State.SUBMITTED and self._submission is not None:
            self._submission.stream.advance()
            return self._submission.done
        return self._state is _State.FAILED

    def __repr__(self) -> str:
        state = self._state.value
        if self._state is _State.SUBMITTED:
            state = "done" if self._submission is None or self._submission.done else "in flight"
        return f"<DeviceFuture {self._name}, {state}, on {self.stream!r}>"

    def __del__(self) -> None:
        if getattr(self, "_state", None) is _State.IDLE:
            warnings.warn(
                f"{self._name} was scheduled but never awaited: it has not run",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )
        submission = getattr(self, "_submission", None)
        error = getattr(self, "_error", None) or (submission.error if submission else None)
        if error is not None and not self._seen:
            warnings.warn(
                f"{self._name} failed and was never awaited: {type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )


def _try(need: Preparation) -> BaseException | None:
    """Do it; the error as a value, so that it can be thrown where the need arose."""
    try:
        need.run()
    except Exception as error:
        return error
    return None
