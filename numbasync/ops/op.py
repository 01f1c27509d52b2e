"""Operations: lazy descriptions of work, and what can be made of them.

An operation is data. Building one allocates, compiles and launches nothing; running it
enqueues its work on one stream. A combinator holds the operations it is made of and runs
them on the stream that it is given, so their order on the device is their order here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from numbasync.device.policies import SchedulingPolicy
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import AnyStream, Stream
from numbasync.device.submission import Submission
from numbasync.errors import OperationError
from numbasync.ops import run
from numbasync.ops.capture_methods import Capturable
from numbasync.ops.consume import RunsOnce
from numbasync.ops.context import Context
from numbasync.ops.deferred_value import check_there
from numbasync.ops.future import DeviceFuture
from numbasync.ops.operands import (
    as_child,
    check_closure,
    name_of,
    not_a_coroutine,
    shortened,
    suppress_unused_warnings,
)
from numbasync.ops.pickling import Picklable
from numbasync.ops.reentrancy import unlocked
from numbasync.ops.shared_run import SharedRun
from numbasync.ops.shared_run import Steps as Steps
from numbasync.ops.value_methods import ValueMethods, itself
from numbasync.public import Public

T = TypeVar("T")
U = TypeVar("U")


class DeviceOp(RunsOnce, Picklable, ValueMethods[T], Capturable[T], Public, Generic[T]):
    """A lazy operation that gives a `T`. It runs once.

    | to run it | stream chosen by | blocks the thread |
    |---|---|---|
    | `await op` | the default device's policy | no |
    | `op.sync()` | the default device's policy | yes |
    | `op.sync_on(stream)` | the caller | yes |
    | `op.async_on(stream)` | the caller | no; device data is valid in stream order only |
    | `op.schedule(policy)` | the policy, now; starts at the first await | no |
    | `na.spawn(op)` | the policy, now; starts now | no |
    """

    unordered = False  # nothing that is submitted later has to wait for it
    has_fast_path = False  # it may be enqueued at once: see `try_enqueue`
    # The stream that it asks for, as `kernel[grid, block, stream]` does; None: none.
    stream: Stream | None = None
    default_stream: Stream | None = (
        None  # where it runs if nobody asks for a stream; None: the policy's
    )
    is_node = False  # a graph can repeat it, which shows without running it

    def steps(self, ctx: Context) -> Steps[T]:
        """Enqueue the work. Yields what must be prepared first; returns the value."""
        raise NotImplementedError

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        """`steps` at once, if nothing has to be prepared, ordered or asked for it; then `result` is
        the value. Whether it was; if not, nothing has happened.

        Args:
            pool: where memory comes from; None: the device's.
        """
        return False

    def result(self) -> T:
        """The value, after `try_enqueue`."""
        raise NotImplementedError

    def operands(self) -> frozenset[int] | None:
        """The identities of the storages that it uses, but for its own; None: they show only when
        it is run.
        """
        return None

    @property
    def label(self) -> str:
        """What messages call it."""
        return self._describe()

    def _describe(self) -> str:
        return type(self).__name__.lower()

    def __str__(self) -> str:
        return self._describe()

    def __repr__(self) -> str:
        return f"<DeviceOp {self}, {'not run' if self._unused else 'used'}>"

    # --- running ---

    def __await__(self) -> Generator[Any, None, T]:
        return run.awaiting(self)

    def sync(self) -> T:
        """Run on a stream of the default device's policy and block until it is done."""
        return run.sync(self)

    def sync_on(self, stream: AnyStream) -> T:
        """Run on `stream` and block until the stream is done, also after an error."""
        return run.sync_on(self, stream)

    def async_on(self, stream: AnyStream) -> T:
        """Enqueue on `stream`; the value, whose device data is valid in stream order only."""
        return run.async_on(self, stream)

    def schedule(self, policy: SchedulingPolicy | AnyStream) -> DeviceFuture[T]:
        """A future on the policy's next stream; the work starts at its first await."""
        return run.schedule(self, policy)

    # --- combinators ---

    def then(self, follow: Callable[[T], DeviceOp[U]]) -> DeviceOp[U]:
        """This, then the operation that `follow` makes of its value, on the same stream.

        `follow` is called on the host when this has been enqueued, not when it is done, and
        not at all after an error. It must not run operations.
        """
        return Then(self, follow)

    def then_unchecked(self, follow: Callable[[T], DeviceOp[U]]) -> DeviceOp[U]:
        """`then`, whose closure may run other operations; their order is yours to keep."""
        return Then(self, follow, unchecked=True)

    def then_with_context(self, follow: Callable[[Context, T], DeviceOp[U]]) -> DeviceOp[U]:
        """`then`, with the context: `ctx.stream`, `ctx.device`, `ctx.pool`, `ctx.alloc(n)`."""
        return Then(self, follow, wants_context=True)

    def map(self, change: Callable[[T], U]) -> DeviceOp[U]:
        """The value, changed on the host at enqueue; its device data is not there yet."""
        if not callable(change):  # as the tiles of a partition are mapped to blocks
            with suppress_unused_warnings((self,)):
                raise OperationError(
                    f"map of an operation takes a function of its value, not {change!r:.60}.\n"
                    "To map a partition to 8 blocks, write op.map(lambda p: p.map(8))."
                )
        check_closure(change, "map", self)
        return Map(self, change)

    def inspect(self, look: Callable[[T], object]) -> DeviceOp[T]:
        """Call `look` with the value, on the host at enqueue; the value goes on unchanged."""
        check_closure(look, "inspect", self)
        return Map(self, look, keep=True)

    def shared(self) -> Shared[T]:
        """Runs once, however often it is awaited; everyone gets the same object."""
        return Shared(self)

    def _unzipped(self, n: int | None) -> tuple[DeviceOp[Any], ...]:
        count = self._width() if n is None else n
        if count is None:
            raise OperationError(f"how many values {self} gives is not known yet: write unzip(n).")
        if not isinstance(count, int) or count < 0:
            raise OperationError(f"unzip({n!r}): write how many values {self} gives.")
        parent = self.shared()
        parts = tuple(Select(parent, i, count) for i in range(count))
        if not parts:
            parent.suppress_warning()
        return parts

    def _width(self) -> int | None:
        """How many elements the value has, if that is known before it is computed."""
        return None

    def _labelled(self, change: Callable[[Any], Any], label: str) -> DeviceOp[Any]:
        return Map(self, change, label=label)


class ChainOp(DeviceOp[U], Generic[T, U]):
    """Something done with the value of the operation before it. Links form chains, which
    are run by a loop, so that they can be of any length.
    """

    # `follow` gives an operation, whose value is this one's.
    continues = False

    _SHOWN = 6  # links at most, in descriptions

    def __init__(self, first: DeviceOp[T]) -> None:
        self._unused = False  # until it has claimed its part: a refused one needs no warning
        first.consume()
        self._unused = True
        self._first: DeviceOp[T] = first
        self._site = first._site
        if first.stream is not None:
            self.stream = first.stream
        self.default_stream = first.default_stream

    def follow(self, ctx: Context, value: T) -> Any:
        """What comes of the value before it."""
        raise NotImplementedError

    def steps(self, ctx: Context) -> Steps[U]:
        links: list[ChainOp[Any, Any]] = []
        op: DeviceOp[Any] = self
        while True:
            while isinstance(op, ChainOp):
                links.append(op)
                op = op._first
            if op.has_fast_path and ctx.try_enqueue(op):
                value = op.result()
            else:
                value = yield from op.steps(ctx)
            while links:
                link = links.pop()
                check_there(value, link)
                value = link.follow(ctx, value)
                if link.continues:
                    op = value
                    break
            else:
                result: U = value
                return result

    def _suffix(self) -> str:
        raise NotImplementedError

    def _describe(self) -> str:
        suffixes: list[str] = []
        op: DeviceOp[Any] = self
        while isinstance(op, ChainOp):
            suffixes.append(op._suffix())
            op = op._first
        suffixes.reverse()
        if len(suffixes) > self._SHOWN:
            left_out = len(suffixes) - self._SHOWN
            half = self._SHOWN // 2
            suffixes[half:-half] = [f" ...{left_out} more... "]
        return f"{op}{''.join(suffixes)}"


class Then(ChainOp[T, U]):
    """`first`, then the op that `then` makes of its value, on one stream.

    The shared stream is what makes the order safe: the closure may enqueue reads of a
    result that the device has not written yet.
    """

    continues = True

    def __init__(
        self,
        first: DeviceOp[T],
        then: Callable[..., DeviceOp[U]],
        *,
        unchecked: bool = False,
        wants_context: bool = False,
    ) -> None:
        check_closure(then, "then", first)
        super().__init__(first)
        self._then = then
        self._unchecked = unchecked
        self._wants_context = wants_context

    def operands(self) -> frozenset[int] | None:
        return self._first.operands() if self._then is itself else None

    def follow(self, ctx: Context, value: T) -> DeviceOp[U]:
        args: tuple[Any, ...] = (value,)
        if self._wants_context:
            ctx.touch()
            args = (ctx, value)
        if self._unchecked:
            with unlocked():
                made = self._then(*args)
        else:
            made = self._then(*args)
        return as_child(ctx, not_a_coroutine(made, "then", self._then), self)

    def _suffix(self) -> str:
        return f".then({name_of(self._then)})"


class Map(ChainOp[T, U]):
    """The value of `first`, looked at or changed on the host."""

    def __init__(
        self,
        first: DeviceOp[T],
        change: Callable[[T], Any],
        *,
        keep: bool = False,
        label: str | None = None,
    ) -> None:
        super().__init__(first)
        self._change = change
        self._keep = keep
        self._label = label

    def operands(self) -> frozenset[int] | None:
        # A label is of a method of the value, which uses nothing else.
        return None if self._label is None else self._first.operands()

    def follow(self, ctx: Context, value: T) -> Any:
        where = "inspect" if self._keep else "map"
        changed = not_a_coroutine(self._change(value), where, self._change)
        return value if self._keep else changed

    def _suffix(self) -> str:
        if self._label is not None:
            return f".{self._label}()"
        return f".{'inspect' if self._keep else 'map'}({name_of(self._change)})"


class Shared(DeviceOp[T]):
    """An operation that runs once and gives everyone the same object.

    The first who runs it runs it for all; a holder on another stream is ordered after it.
    If it fails, every holder gets that error.
    """

    is_shared = True

    def __init__(self, parent: DeviceOp[T]) -> None:
        self._unused = False
        parent.consume()
        self._unused = True
        self._site = parent._site
        self._label = shortened(f"{parent}.shared()")
        self._count = parent._width()
        self._stream = parent.stream
        self.default_stream = parent.default_stream
        self._once = SharedRun(parent.steps, self._label)

    @property
    def stream(self) -> Stream | None:  # type: ignore[override]
        # Once it has begun, holders on other streams are ordered after it.
        return None if self._once.begun else self._stream

    def consume(self) -> None:
        """Anyone may run it, any number of times."""
        self._unused = False

    def steps(self, ctx: Context) -> Steps[T]:
        return (yield from self._once.steps(ctx))

    def _width(self) -> int | None:
        return self._count

    def _describe(self) -> str:
        return self._label


class Select(DeviceOp[Any]):
    """One element of what a shared operation gives."""

    def __init__(self, parent: Shared[Any], index: int, count: int) -> None:
        self._parent = parent
        self.default_stream = parent.default_stream
        self._index = index
        self._count = count

    def consume(self) -> None:
        super().consume()
        self._parent.consume()

    @property
    def stream(self) -> Stream | None:  # type: ignore[override]
        return self._parent.stream

    def suppress_warning(self) -> None:
        self._parent.suppress_warning()

    def __del__(self) -> None:
        """An element that nobody wants needs no warning. If nobody wants any, the shared
        operation says so.
        """

    def steps(self, ctx: Context) -> Steps[Any]:
        values = yield from self._parent.steps(ctx)
        if not isinstance(values, tuple) or len(values) != self._count:
            size = f"{len(values)} values" if isinstance(values, tuple) else "no tuple"
            raise OperationError(f"{self._parent} gave {size}, but unzip expected {self._count}.")
        return values[self._index]

    def _describe(self) -> str:
        return f"{self._parent}[{self._index}]"
