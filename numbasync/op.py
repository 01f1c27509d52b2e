"""Operations: lazy descriptions of work, and what can be made of them.

An operation is data. Building one allocates, compiles and launches nothing; running it
enqueues its work on one stream. A combinator holds the operations it is made of and runs
them on the stream that it is given, so their order on the device is their order here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from numbasync import execute
from numbasync.context import Context, unlocked
from numbasync.errors import AlreadySubmittedError, CallerError, OperationError
from numbasync.future import DeviceFuture
from numbasync.once import Once
from numbasync.once import Steps as Steps
from numbasync.scheduling import SchedulingPolicy
from numbasync.stream import Stream

T = TypeVar("T")
U = TypeVar("U")


class DeviceOp(Generic[T]):
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

    # The stream that the operation itself asks for; None: whoever runs it chooses.
    stream: Stream | None = None

    _free = True  # neither run nor part of another operation

    def steps(self, ctx: Context) -> Steps[T]:
        """Enqueue the work. Yields what must be prepared first; returns the value."""
        raise NotImplementedError

    def _describe(self) -> str:
        return type(self).__name__.lower()

    def __str__(self) -> str:
        return self._describe()

    def __repr__(self) -> str:
        return f"<DeviceOp {self}, {'not run' if self._free else 'used'}>"

    # --- once ---

    def claim(self) -> None:
        """Take the right to run it.

        Raises:
            AlreadySubmittedError: it was run before, or is part of another operation.
        """
        if not self._free:
            raise AlreadySubmittedError(
                f"{self} was already submitted, or made part of another operation.\n"
                "To use its result twice, share it before the first use:\n\n"
                f"    op = {self}.shared()\n    a, b = await op, await op"
            )
        self._free = False

    def __del__(self) -> None:
        if self._free:
            warnings.warn(
                f"{self} was never awaited: it has not run",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    # --- running ---

    def __await__(self) -> Generator[Any, None, T]:
        return execute.on_default_stream(self).__await__()

    def sync(self) -> T:
        """Run on a stream of the default device's policy and block until it is done."""
        return execute.sync(self)

    def sync_on(self, stream: Stream) -> T:
        """Run on `stream` and block until the stream is done, also after an error."""
        return execute.sync_on(self, stream)

    def async_on(self, stream: Stream) -> T:
        """Enqueue on `stream`; the value, whose device data is valid in stream order only."""
        return execute.async_on(self, stream)

    def schedule(self, policy: SchedulingPolicy) -> DeviceFuture[T]:
        """A future on the policy's next stream; the work starts at its first await."""
        return execute.schedule(self, policy)

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
        return Map(self, change)

    def inspect(self, look: Callable[[T], object]) -> DeviceOp[T]:
        """Call `look` with the value, on the host at enqueue; the value goes on unchanged."""
        return Map(self, look, keep=True)

    def shared(self) -> Shared[T]:
        """Runs once, however often it is awaited; everyone gets the same object."""
        return Shared(self)

    def unzip(self, n: int | None = None) -> tuple[DeviceOp[Any], ...]:
        """One operation for each element of the tuple that this gives; it runs once.

        Args:
            n: how many elements; may be left out where the operation knows it (`zip`, a launch).
        """
        count = self._width() if n is None else n
        if count is None:
            raise OperationError(f"how many values {self} gives is not known yet: write unzip(n).")
        parent = self.shared()
        return tuple(Select(parent, i, count) for i in range(count))

    def _width(self) -> int | None:
        """How many elements the value has, if that is known before it is computed."""
        return None

    def first(self) -> DeviceOp[Any]:
        """The first element of the tuple that this gives."""
        return self.map(lambda values: _element(values, 0, self))

    def last(self) -> DeviceOp[Any]:
        """The last element of the tuple that this gives."""
        return self.map(lambda values: _element(values, -1, self))

    # --- of operations that give a tensor, or something that has the same method ---

    def output(self) -> DeviceOp[Any]:
        """What a launch wrote: its one output as it was passed, or the tuple of them."""
        return Map(self, lambda result: _outputs(result, self), label="output")

    def partition(self, tile: int | tuple[int, ...]) -> DeviceOp[Any]:
        """The tensor's partition into tiles of this shape."""
        return self._of_value("partition", tile)

    def unpartition(self) -> DeviceOp[Any]:
        """The tensor of a partition."""
        return self._of_value("unpartition")

    def reshape(self, *shape: int | tuple[int, ...]) -> DeviceOp[Any]:
        """The tensor with another shape of the same size; no copy."""
        return self._of_value("reshape", *shape)

    def shared_tensor(self) -> DeviceOp[Any]:
        """The tensor as a SharedTensor."""
        return self._of_value("shared")

    def dup(self) -> DeviceOp[Any]:
        """A copy of the tensor, in storage of its own."""
        return self._of_value("dup").then(lambda op: op)

    def to_host(self) -> DeviceOp[Any]:
        """The tensor's elements as a NumPy array."""
        return self._of_value("to_host").then(lambda op: op)

    def _of_value(self, method: str, *args: Any) -> DeviceOp[Any]:
        def call(value: Any) -> Any:
            found = getattr(value, method, None)
            if found is None:
                raise OperationError(
                    f"{self} gave a {type(value).__name__}, which has no {method}(); a tensor, a "
                    "partition or the result of a launch has."
                )
            return found(*args)

        return Map(self, call, label=method)


def _element(values: Any, index: int, op: DeviceOp[Any]) -> Any:
    if not isinstance(values, tuple) or not values:
        raise OperationError(f"{op} gave a {type(values).__name__}, not a tuple of values.")
    return values[index]


def _outputs(result: Any, op: DeviceOp[Any]) -> Any:
    positions = getattr(type(result), "_output_positions", None)
    if positions is None:
        raise OperationError(
            f"{op} gave a {type(result).__name__}; only the result of a launch has outputs."
        )
    found = tuple(result[i] for i in positions)
    return found[0] if len(found) == 1 else found


def check_op(value: object, where: str) -> DeviceOp[Any]:
    """`value`, if it is an operation.

    Raises:
        OperationError: it is something else.
    """
    if isinstance(value, DeviceOp):
        return value
    raise OperationError(
        f"{where} must be an operation, not {type(value).__name__} ({value!r:.60}).\n"
        "To pass a value on, wrap it: na.value(x)."
    )


@contextmanager
def refusing(values: Iterable[object]) -> Iterator[None]:
    """If the block refuses `values`, do not also warn that operations among them never ran."""
    try:
        yield
    except CallerError:
        for value in values:
            if isinstance(value, DeviceOp):
                value._free = False
        raise


class Then(DeviceOp[U], Generic[T, U]):
    """`first`, then the op that `follow` makes of its value, on one stream.

    The shared stream is what makes the order safe: `follow` may enqueue reads of a result
    that the device has not written yet.
    """

    def __init__(
        self,
        first: DeviceOp[T],
        follow: Callable[..., DeviceOp[U]],
        *,
        unchecked: bool = False,
        wants_context: bool = False,
    ) -> None:
        self._free = False  # until it has claimed its part: a refused one needs no warning
        first.claim()
        self._free = True
        self._first = first
        self._follow = follow
        self._unchecked = unchecked
        self._wants_context = wants_context

    def steps(self, ctx: Context) -> Steps[U]:
        value = yield from self._first.steps(ctx)
        args = (ctx, value) if self._wants_context else (value,)
        if self._unchecked:
            with unlocked():
                made = self._follow(*args)
        else:
            made = self._follow(*args)
        op = check_op(made, f"what the closure of {self} returns")
        op.claim()
        result: U = yield from op.steps(ctx)
        return result

    def _describe(self) -> str:
        return f"{self._first}.then({name_of(self._follow)})"


class Map(DeviceOp[U], Generic[T, U]):
    """The value of `first`, looked at or changed on the host."""

    def __init__(
        self,
        first: DeviceOp[T],
        change: Callable[[T], Any],
        *,
        keep: bool = False,
        label: str | None = None,
    ) -> None:
        self._free = False
        first.claim()
        self._free = True
        self._first = first
        self._change = change
        self._keep = keep
        self._label = label

    def steps(self, ctx: Context) -> Steps[U]:
        value: Any = yield from self._first.steps(ctx)
        changed = self._change(value)
        result: U = value if self._keep else changed
        return result

    def _describe(self) -> str:
        if self._label is not None:
            return f"{self._first}.{self._label}()"
        kind = "inspect" if self._keep else "map"
        return f"{self._first}.{kind}({name_of(self._change)})"


class Shared(DeviceOp[T]):
    """An operation that runs once and gives everyone the same object.

    The first who runs it runs it for all; a holder on another stream is ordered after it.
    If it fails, every holder gets that error.
    """

    def __init__(self, parent: DeviceOp[T]) -> None:
        self._free = False
        parent.claim()
        self._free = True
        self._label = f"{parent}.shared()"
        self._count = parent._width()
        self._once = Once(parent.steps, self._label)

    def claim(self) -> None:
        """Anyone may run it, any number of times."""
        self._free = False

    def steps(self, ctx: Context) -> Steps[T]:
        return (yield from self._once.steps(ctx))

    def _width(self) -> int | None:
        return self._count

    def _describe(self) -> str:
        return self._label


class Select(DeviceOp[Any]):
    """One element of what a shared operation gives."""

    def __init__(self, parent: Shared[Any], index: int, count: int) -> None:
        parent.claim()
        self._parent = parent
        self._index = index
        self._count = count

    def steps(self, ctx: Context) -> Steps[Any]:
        values = yield from self._parent.steps(ctx)
        if not isinstance(values, tuple) or len(values) != self._count:
            size = f"{len(values)} values" if isinstance(values, tuple) else "no tuple"
            raise OperationError(f"{self._parent} gave {size}, but unzip expected {self._count}.")
        return values[self._index]

    def _describe(self) -> str:
        return f"{self._parent}[{self._index}]"


def name_of(function: Callable[..., Any]) -> str:
    """A closure's name, for descriptions."""
    return str(getattr(function, "__name__", type(function).__name__))
