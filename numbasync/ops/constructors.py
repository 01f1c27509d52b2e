"""Elementary operations: values, deferred construction, and several operations as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from numbasync.device.callsite import call_site
from numbasync.native import compiled
from numbasync.ops.context import Context
from numbasync.ops.elsewhere import join, where_it_belongs
from numbasync.ops.home import Home, first_home, home_of
from numbasync.ops.op import DeviceOp, Shared, Steps
from numbasync.ops.operands import (
    abridged,
    as_child,
    check_closure,
    check_op,
    common_stream,
    is_op,
    name_of,
    not_a_coroutine,
    suppress_unused_warnings,
)

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")


class Leaf(DeviceOp[T]):
    """An operation without prerequisites and without operand operations."""

    def enqueue(self, ctx: Context) -> T:
        """Enqueue the work and return the value."""
        raise NotImplementedError

    def steps(self, ctx: Context) -> Steps[T]:
        return self.enqueue(ctx)
        yield  # never reached: it makes this function a generator


class Value(Leaf[T]):
    """An operation that gives an existing value. No device work."""

    is_node = True

    def __init__(self, value: T) -> None:
        self._site = call_site(2)
        self._value = value

    @property
    def home(self) -> Home:
        return home_of(self._value)

    def home_of_element(self, index: int) -> Home:
        value = self._value
        is_selected = isinstance(value, tuple) and -len(value) <= index < len(value)
        return home_of(value[index] if is_selected else value)  # type: ignore[index]

    def enqueue(self, ctx: Context) -> T:
        return self._value

    def _width(self) -> int | None:
        return len(self._value) if isinstance(self._value, tuple) else None

    def _describe(self) -> str:
        return f"value({type(self._value).__name__})"


@compiled
def enqueue_leading(ctx: Context, ops: tuple[DeviceOp[Any], ...], values: list[Any]) -> None:
    """Enqueue the operations whose values are not in `values`, in order, up to the first that has
    to be run by its steps, and append the values.
    """
    for op in ops[len(values) :]:
        if not (op.has_fast_path and ctx.try_enqueue(op)):
            return
        values.append(op.result())


class Zip(DeviceOp[tuple[Any, ...]]):
    """All operations in order, on one stream; those with a stream of another device there. After a
    failure the later operations do not run.
    """

    def __init__(self, ops: tuple[DeviceOp[Any], ...]) -> None:
        self._unused = False
        self._site = call_site(2)
        stream = common_stream(ops)
        for op in ops:
            op.consume()
        self._unused = True
        self._ops = ops
        if stream is not None:
            self.stream = stream

    def _inner(self) -> Iterable[tuple[str, Any]]:
        return ((str(i), op) for i, op in enumerate(self._ops))

    @property
    def home(self) -> Home:
        return first_home(self._ops)

    def home_of_element(self, index: int) -> Home:
        return home_of(self._ops[index]) if -len(self._ops) <= index < len(self._ops) else self.home

    def steps(self, ctx: Context) -> Steps[tuple[Any, ...]]:
        values: list[Any] = []
        parts: list[Context] = []
        while len(values) < len(self._ops):
            enqueue_leading(ctx, self._ops, values)
            if len(values) < len(self._ops):
                op = self._ops[len(values)]
                # A value that is there needs no stream of its device.
                steps = op.steps(ctx) if type(op) is Value else where_it_belongs(ctx, op, parts)
                values.append((yield from steps))
        for part in parts:
            join(ctx, part)
        return tuple(values)

    def operands(self) -> frozenset[int] | None:
        operands = [op.operands() for op in self._ops]
        known = [identities for identities in operands if identities is not None]
        return frozenset().union(*known) if len(known) == len(operands) else None

    def _width(self) -> int | None:
        return len(self._ops)

    def _describe(self) -> str:
        return f"zip({abridged(self._ops, str, ', ')})"


class Defer(DeviceOp[T]):
    """An operation whose operand is built by a closure when the operation runs."""

    def __init__(self, build: Callable[..., Any], *, wants_context: bool = False) -> None:
        check_closure(build, "with_context" if wants_context else "defer")
        self._site = call_site(2)
        self._build = build
        self._wants_context = wants_context

    def steps(self, ctx: Context) -> Steps[T]:
        if self._wants_context:
            ctx.touch()
            built = not_a_coroutine(self._build(ctx), "with_context", self._build)
            if not isinstance(built, DeviceOp):
                value: T = built
                return value
        else:
            built = not_a_coroutine(self._build(), "defer", self._build)
        op = as_child(ctx, built, self)
        parts: list[Context] = []
        # A closure that wants the context was told of its stream.
        steps = op.steps(ctx) if self._wants_context else where_it_belongs(ctx, op, parts)
        result: T = yield from steps
        for part in parts:
            join(ctx, part)
        return result

    def _describe(self) -> str:
        constructor = "with_context" if self._wants_context else "defer"
        return f"{constructor}({name_of(self._build)})"


def value(x: T) -> DeviceOp[T]:
    """An operation that gives `x` and does nothing.

    Examples:
        >>> await na.value(3).map(lambda n: n + 1)
        4
    """
    return Value(x)


def shared(x: T) -> Shared[T]:
    """`value(x)` that may be run any number of times.

    Examples:
        >>> three = na.shared(3)
        >>> await three, await three
        (3, 3)
    """
    return Value(x).shared()


def defer(build: Callable[[], DeviceOp[T]]) -> DeviceOp[T]:
    """An operation that calls `build()` when it runs, and then runs the returned operation.

    Examples:
        >>> op = na.defer(lambda: na.zeros(3))  # the function is not called yet
        >>> (await op).shape
        (3,)
    """
    return Defer(build)


def with_context(build: Callable[[Context], DeviceOp[T] | T]) -> DeviceOp[T]:
    """An operation that calls `build(ctx)` when it runs, and then runs the returned operation, or
    gives the returned value.

    `ctx` has `stream`, `device`, `pool`, `alloc(nbytes)` and `retain(object)`.

    Examples:
        >>> op = na.with_context(lambda ctx: ctx.device.label)
        >>> await op
        'cpu:0'
        >>> t = await na.with_context(lambda ctx: na.full(2, ctx.device.ordinal))
        >>> await t.to_host()
        array([0., 0.], dtype=float32)
    """
    return Defer(build, wants_context=True)


@overload
def zip(a: DeviceOp[A], /) -> DeviceOp[tuple[A]]: ...
@overload
def zip(a: DeviceOp[A], b: DeviceOp[B], /) -> DeviceOp[tuple[A, B]]: ...
@overload
def zip(a: DeviceOp[A], b: DeviceOp[B], c: DeviceOp[C], /) -> DeviceOp[tuple[A, B, C]]: ...
@overload
def zip(
    a: DeviceOp[A], b: DeviceOp[B], c: DeviceOp[C], d: DeviceOp[D], /
) -> DeviceOp[tuple[A, B, C, D]]: ...
@overload
def zip(
    a: DeviceOp[A], b: DeviceOp[B], c: DeviceOp[C], d: DeviceOp[D], e: DeviceOp[E], /
) -> DeviceOp[tuple[A, B, C, D, E]]: ...
@overload
def zip(
    a: DeviceOp[A],
    b: DeviceOp[B],
    c: DeviceOp[C],
    d: DeviceOp[D],
    e: DeviceOp[E],
    f: DeviceOp[F],
    /,
) -> DeviceOp[tuple[A, B, C, D, E, F]]: ...
@overload
def zip(*ops: DeviceOp[T]) -> DeviceOp[tuple[T, ...]]: ...
@overload
def zip(*ops: DeviceOp[Any]) -> DeviceOp[tuple[Any, ...]]: ...
def zip(*ops: DeviceOp[Any]) -> DeviceOp[Any]:
    """Run all operations in order on one stream; the value is the tuple of their values.

    An operation whose tensors lie on another device than the first one's runs on a stream of its
    own device, at the same time; the zip is done when all are. To overlap
    operations on several streams of one device, use `gather`.

    Examples:
        >>> x, y = await na.zip(na.zeros(2), na.ones(3))
        >>> x.shape, y.shape
        ((2,), (3,))
    """
    with suppress_unused_warnings(ops):
        for i, op in enumerate(ops):
            if not is_op(op):
                check_op(op, f"argument {i} of zip")
        return Zip(ops)
