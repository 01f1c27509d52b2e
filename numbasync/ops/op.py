"""Operations: lazy descriptions of work, and the combinators that compose them.

An operation is data. Building an operation allocates, compiles and launches nothing; running
the operation enqueues its work on one stream. A combinator holds its operands and runs them on
the stream that the combinator runs on, so the device executes them in the order written here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from numbasync.arguments import check_whole, shown
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.errors import OperationError
from numbasync.native import compiled, known
from numbasync.ops.consume import RunsOnce
from numbasync.ops.context import Context
from numbasync.ops.deferred_value import check_there
from numbasync.ops.home import Home
from numbasync.ops.operands import (
    abridged,
    as_child,
    check_closure,
    name_of,
    not_a_coroutine,
    shortened,
    suppress_unused_warnings,
)
from numbasync.ops.own_operations import check_class, no_steps_of
from numbasync.ops.pickling import Picklable, Recipe, packed
from numbasync.ops.reentrancy import exclusive, unlocked
from numbasync.ops.run import Runs
from numbasync.ops.shared_run import SharedRun
from numbasync.ops.shared_run import Steps as Steps
from numbasync.ops.tree import HasTree
from numbasync.ops.unfilled import check_not_read
from numbasync.ops.value_methods import ValueMethods, itself

if TYPE_CHECKING:
    from numbasync.device.stream import AnyStream
    from numbasync.graphs.graph import CudaGraph


T = TypeVar("T")
U = TypeVar("U")
MOST_VALUES = 65_536  # that unzip makes operations of


# --- chains: a loop, not recursion, runs one, so that it can have any length ---


@compiled
def first_of(op: Any, links: list[Any]) -> Any:
    """The operation that a chain begins with. The chain's links are appended to `links`, the last
    one first.
    """
    while op.is_link:
        links.append(op)
        op = op._first
    return op


def home_of_chain(op: Any) -> Home:
    """The home of what a chain begins with, or of the element of it that the chain goes on with."""
    while op.is_link:
        if op.element is not None:
            home: Home = op._first.home_of_element(op.element)
            return home
        op = op._first
    return op.home  # type: ignore[no-any-return]


@compiled
def enqueue_chain(ctx: Context, op: Any, links: list[Any]) -> tuple[Any, Any]:
    """Enqueue an operation and what follows it by its links and by `links`, as far as fast paths
    serve.

    Returns:
        The operation that has to be run by its steps, with its links in `links`, and None; or None
        and the value of the last link.
    """
    following = op
    value = None
    while following is not None:
        op = first_of(following, links)
        if not (op.has_fast_path and ctx.try_enqueue(op)):
            return op, None
        following, value = follow_links(ctx, links, op.result())
    return None, value


@compiled
def follow_links(ctx: Context, links: list[Any], value: Any) -> tuple[Any, Any]:
    """Apply the last of `links` to a value, and so on, up to a link that gives an operation.

    Returns:
        That operation and None; or None and the value of the last link.
    """
    while links:
        link = links.pop()
        check_there(value, link)
        value = link.follow(ctx, value)
        if link.continues:
            return value, None
    return None, value


class DeviceOp(Runs, RunsOnce, Picklable, ValueMethods[T], HasTree, Generic[T]):
    """A lazy operation that gives a `T`. An operation runs once.

    | to run it | stream chosen by | blocks the thread |
    |---|---|---|
    | `await op` | the policy of the tensors' device (`home`), else of the default one | no |
    | `op.sync()` | the same | yes |
    | `op.sync_on(stream)` | the caller | yes |
    | `op.async_on(stream)` | the caller | no; device data is valid in stream order only |
    | `op.schedule(policy)` | the policy, now; starts at the first await | no |
    | `na.spawn(op)` | the policy, now; starts now | no |

    Examples:
        >>> op = saxpy(na.zeros(4), 2.0, na.arange(4)).output().to_host()  # nothing runs yet
        >>> op
        <DeviceOp saxpy(z, a, x).output().to_host(), not run>
        >>> await op
        array([0., 2., 4., 6.], dtype=float32)

        A chain of operations runs on one stream, in order:

        >>> def add_again(result):
        ...     return saxpy(result.z, 1.0, result.x)
        >>> op = saxpy(na.zeros(4), 2.0, na.arange(4)).then(add_again)
        >>> await op.output().to_host()
        array([0., 3., 6., 9.], dtype=float32)

        Without an event loop, `sync` waits:

        >>> na.ones(2).to_host().sync()
        array([1., 1.], dtype=float32)
    """

    is_link = False  # True: follows the operation `_first`; see `links`
    unordered = False  # True: later submissions need not wait for this operation
    has_fast_path = False  # True: `try_enqueue` may be tried before `steps`
    # The stream that the operation requests, as `kernel[grid, block, stream]` does; None: none.
    stream: Stream | None = None
    is_node = False  # True: a graph can replay the operation, which is known without running it

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_class(cls)

    def steps(self, ctx: Context) -> Steps[T]:
        """Enqueue the work. The generator yields each prerequisite and returns the value."""
        raise no_steps_of(self)

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        """Fast path of `steps`: enqueue all of the work if no prerequisite, no ordering between
        streams and no query is needed. The result says whether the work was enqueued; `result`
        then gives the value. If the result is False, nothing was enqueued and nothing changed.

        Args:
            pool: the pool to allocate from; None: the device's.
        """
        return False

    def result(self) -> T:
        """The value, after `try_enqueue`."""
        raise NotImplementedError

    def operands(self) -> frozenset[int] | None:
        """The identities of the storages that the operation uses, without those that it allocates;
        None: they are known only when the operation runs.
        """
        return None

    @property
    def label(self) -> str:
        """The operation's name in messages."""
        return self._describe()

    def _describe(self) -> str:
        return type(self).__name__.lower()

    def __str__(self) -> str:
        return self._describe()

    def __repr__(self) -> str:
        return f"<DeviceOp {self}, {'not run' if self._unused else 'used'}>"

    # --- graphs ---

    def graph(self) -> CudaGraph[T]:
        """Capture for replays on a stream of the default device's policy; see `graph_on`.

        Examples:
            >>> z = await na.zeros(3)
            >>> graph = na.fill(z, 7).graph()
            >>> _ = await graph.launch()
            >>> await z.to_host()
            array([7., 7., 7.], dtype=float32)
        """
        from numbasync.graphs.graph import captured

        return captured(self)

    def graph_on(self, stream: AnyStream) -> CudaGraph[T]:
        """Capture for replays on `stream`; see `CudaGraph.capture`. Blocks; computes nothing.

        Examples:
            >>> z = await na.zeros(3)
            >>> graph = na.fill(z, 7).graph_on(na.default_device().new_stream())
            >>> graph.launch().sync()
        """
        from numbasync.graphs.graph import captured

        return captured(self, stream)

    # --- combinators ---

    def then(self, follow: Callable[[T], DeviceOp[U]]) -> DeviceOp[U]:
        """Run this operation, then the operation that `follow(value)` returns, on the same stream.

        `follow` is called on the host when this operation has been enqueued, not when the device
        is done, and not at all after an error. `follow` must not run operations.

        Examples:
            >>> op = na.zeros(4).then(lambda z: saxpy(z, 3.0, na.arange(4)))
            >>> await op.output().to_host()
            array([0., 3., 6., 9.], dtype=float32)
        """
        return Then(self, follow)

    def then_unchecked(self, follow: Callable[[T], DeviceOp[U]]) -> DeviceOp[U]:
        """`then` with a closure that may run other operations; the caller keeps their order.

        Examples:
            >>> op = na.value(3).then_unchecked(lambda n: na.full(n, na.value(2.5).sync()))
            >>> await op.to_host()
            array([2.5, 2.5, 2.5], dtype=float32)
        """
        return Then(self, follow, unchecked=True)

    def then_with_context(self, follow: Callable[[Context, T], DeviceOp[U]]) -> DeviceOp[U]:
        """`then`, whose closure also gets the context: `ctx.stream`, `ctx.device`, `ctx.pool`,
        `ctx.alloc(n)`.

        Examples:
            >>> op = na.value(2).then_with_context(lambda ctx, n: na.full(n, ctx.device.ordinal))
            >>> await op.to_host()
            array([0., 0.], dtype=float32)
        """
        return Then(self, follow, wants_context=True)

    @compiled
    def map(self, change: Callable[[T], U]) -> DeviceOp[U]:
        """`change(value)`, called on the host at enqueue, before the device data is written.

        Examples:
            >>> await na.zeros((2, 3)).map(lambda t: t.shape)
            (2, 3)
        """
        if not callable(change):  # `map(8)` is how the tiles of a partition are mapped to blocks
            with suppress_unused_warnings((self,)):
                raise OperationError(
                    f"map of an operation takes a function of its value, not {shown(change)}.\n"
                    "To map a partition to 8 blocks, write op.map(lambda p: p.map(8))."
                )
        check_closure(change, "map", self)
        return Map(self, change)

    def inspect(self, look: Callable[[T], object]) -> DeviceOp[T]:
        """Call `look` with the value, on the host at enqueue; the result is the value unchanged.

        Examples:
            >>> t = await na.zeros((2, 3)).inspect(lambda t: print(t.shape, t.dtype))
            (2, 3) float32
        """
        check_closure(look, "inspect", self)
        return Map(self, look, keep=True)

    def shared(self) -> Shared[T]:
        """An operation that may be awaited many times, runs once, and gives the same object.

        Examples:
            >>> ones = na.ones(3).shared()
            >>> await ones is await ones
            True
        """
        return Shared(self)

    def _unzipped(self, n: int | None) -> tuple[DeviceOp[Any], ...]:
        count = self._width() if n is None else n
        if count is None:
            raise OperationError(f"how many values {self} gives is not known yet: write unzip(n).")
        count = check_whole(count, f"n in unzip(n) of {self}", 0, MOST_VALUES, OperationError)
        parent = self.shared()
        elements = tuple(Select(parent, i, count) for i in range(count))
        if not elements:
            parent.suppress_warning()
        return elements

    def _width(self) -> int | None:
        """The number of elements of the value, if known before the value is computed."""
        return None

    def _labelled(self, change: Callable[[Any], Any], label: str) -> DeviceOp[Any]:
        return Map(self, change, label=label)


class ChainOp(DeviceOp[U], Generic[T, U]):
    """A host function applied to the value of the preceding operation. A loop, not recursion, runs
    a chain of these operations, so a chain can have any length.
    """

    is_link = True
    element: int | None = None  # which element of the tuple is given, if one is
    # True: `follow` returns an operation, whose value becomes the value of this operation.
    continues = False

    def __init__(self, first: DeviceOp[T]) -> None:
        self._unused = False  # until `consume` succeeds: a refused operation needs no warning
        first.consume()
        self._unused = True
        self._first: DeviceOp[T] = first
        self._site = first._site
        if first.stream is not None:
            self.stream = first.stream

    @property
    def home(self) -> Home:
        return home_of_chain(self)

    def follow(self, ctx: Context, value: T) -> Any:
        """Apply this link to the preceding operation's value."""
        raise NotImplementedError

    def steps(self, ctx: Context) -> Steps[U]:
        links: list[ChainOp[Any, Any]] = []
        op, value = enqueue_chain(ctx, self, links)
        while op is not None:
            value = yield from op.steps(ctx)
            op, value = follow_links(ctx, links, value)
            if op is not None:
                op, value = enqueue_chain(ctx, op, links)
        result: U = value
        return result

    def _suffix(self) -> str:
        raise NotImplementedError

    def _describe(self) -> str:
        links: list[ChainOp[Any, Any]] = []
        op = first_of(self, links)
        return f"{op}{abridged(links[::-1], lambda link: link._suffix(), '')}"


@known
class Then(ChainOp[T, U]):
    """`first`, then the operation that `then(value)` returns, on one stream.

    The shared stream makes the order safe: the closure may enqueue reads of a result that the
    device has not written yet.
    """

    # All attributes of most links: they have no dictionary.
    __slots__ = (
        "_first", "_site", "_then", "_unchecked", "_unused", "_wants_context", "is_plain",
    )  # fmt: skip
    continues = True

    def __init__(
        self,
        first: DeviceOp[T],
        then: Callable[..., DeviceOp[U]],
        unchecked: bool = False,
        wants_context: bool = False,
    ) -> None:
        check_closure(then, "then", first)
        super().__init__(first)
        self._then = then
        self._unchecked = unchecked
        self._wants_context = wants_context
        self.is_plain = not unchecked and not wants_context

    def _recipe(self) -> Recipe:
        return Then, (packed(self._first), self._then, self._unchecked, self._wants_context)

    def operands(self) -> frozenset[int] | None:
        return self._first.operands() if self._then is itself else None

    def follow(self, ctx: Context, value: T) -> DeviceOp[U]:
        args: tuple[Any, ...] = (value,)
        if self._wants_context:
            ctx.touch()
            args = (ctx, value)
        if self._unchecked:
            with unlocked():
                following = self._then(*args)
        else:
            following = self._then(*args)
        return self.child(ctx, following)

    def child(self, ctx: Context, following: Any) -> DeviceOp[U]:
        """What the closure has returned, as an operation that runs next in `ctx`."""
        return as_child(ctx, not_a_coroutine(following, "then", self._then), self)

    def _suffix(self) -> str:
        # A step of `op.to_host()` and its kin, which no program writes.
        return "" if self._then is itself else f".then({name_of(self._then)})"


@known
class Map(ChainOp[T, U]):
    """The value of `first`, inspected or changed by a function on the host."""

    __slots__ = (
        "_change", "_first", "_keep", "_label", "_links", "_result", "_site", "_unused", "element",
        "has_fast_path",
    )  # fmt: skip
    _FAST = 4  # most links that the fast path calls, each inside the next

    def __init__(
        self, first: DeviceOp[T], change: Callable[[T], Any], *, keep: bool = False,
        label: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(first)
        self.element = None if label is None else {"first": 0, "last": -1}.get(label)
        self._change, self._keep, self._label = change, keep, label
        # A chain of any length is run by the loop of `steps`.
        self._links: int = first._links + 1 if isinstance(first, Map) else 1
        self.has_fast_path = first.has_fast_path and self._links <= self._FAST

    def operands(self) -> frozenset[int] | None:
        # A labelled Map calls a method of the value, which uses no other storage.
        return None if self._label is None else self._first.operands()

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        if not self._first.try_enqueue(submission, pool):
            return False
        self._take(self._first.result(), submission)
        return True

    def _take(self, value: T, submission: Submission) -> None:
        check_there(value, self)
        changed = exclusive.run(self._change, value)
        self._result: U = self._checked(value, changed, submission)

    def result(self) -> U:
        return self._result

    def follow(self, ctx: Context, value: T) -> Any:
        return self._checked(value, self._change(value), ctx.submission)

    def _checked(self, value: T, changed: Any, submission: Submission) -> Any:
        """What this gives of the value, and of what the function has made of it."""
        where = "inspect" if self._keep else "map"
        changed = not_a_coroutine(changed, where, self._change)
        return value if self._keep else check_not_read(value, changed, submission, self)

    def _suffix(self) -> str:
        if self._label is not None:
            return f".{self._label}()"
        return f".{'inspect' if self._keep else 'map'}({name_of(self._change)})"


class Shared(DeviceOp[T]):
    """An operation that runs once and gives every consumer the same object.

    The first consumer runs the parent operation; consumers on other streams are ordered after
    that run. If the run fails, every consumer gets its error.
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
        self._once = SharedRun(parent.steps, self._label)

    @property
    def home(self) -> Home:
        return self._once.home()

    def home_of_element(self, index: int) -> Home:
        return self._once.home(index)

    @property
    def stream(self) -> Stream | None:  # type: ignore[override]
        # Once the run has begun, consumers on other streams are ordered after it, so any stream
        # will do.
        return None if self._once.is_started else self._stream

    def consume(self) -> None:
        """Mark the operation used. A shared operation may be consumed any number of times."""
        self._unused = False

    def steps(self, ctx: Context) -> Steps[T]:
        return (yield from self._once.steps(ctx))

    def _width(self) -> int | None:
        return self._count

    def _describe(self) -> str:
        return self._label


class Select(DeviceOp[Any]):
    """One element of the tuple that a shared operation gives."""

    def __init__(self, parent: Shared[Any], index: int, count: int) -> None:
        self._parent = parent
        self._index = index
        self._count = count

    def consume(self) -> None:
        super().consume()
        self._parent.consume()

    @property
    def home(self) -> Home:
        return self._parent.home_of_element(self._index)

    @property
    def stream(self) -> Stream | None:  # type: ignore[override]
        return self._parent.stream

    def suppress_warning(self) -> None:
        self._parent.suppress_warning()

    def __del__(self) -> None:
        """No warning for an unused element. If no element is used, the shared operation warns."""

    def steps(self, ctx: Context) -> Steps[Any]:
        values = yield from self._parent.steps(ctx)
        if not isinstance(values, tuple) or len(values) != self._count:
            size = f"{len(values)} values" if isinstance(values, tuple) else "no tuple"
            raise OperationError(f"{self._parent} gave {size}, but unzip expected {self._count}.")
        return values[self._index]

    def _describe(self) -> str:
        return f"{self._parent}[{self._index}]"
