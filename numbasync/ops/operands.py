"""Operations as operands of other operations: checks, and the stream that they share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from numbasync.arguments import with_type
from numbasync.device.stream import Stream
from numbasync.errors import CallerError, OperationError
from numbasync.ops.context import Context

if TYPE_CHECKING:
    from numbasync.ops.op import DeviceOp

__all__ = ["is_op"]

T = TypeVar("T")


_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def _must_not_be_awaited(where: str, function: object) -> OperationError:
    return OperationError(
        f"{where} calls its function while the operation is enqueued, when nothing can be awaited; "
        f"{getattr(function, '__name__', type(function).__name__)} is an `async def`.\n"
        "Write a plain function, or await the operation first:\n\n"
        "    x = await op\n    y = await f(x)"
    )


def not_a_coroutine(value: T, where: str, function: object) -> T:
    """`value`, which `function` has returned.

    Raises:
        OperationError: `value` is a coroutine; the coroutine is closed.
    """
    if isinstance(value, CoroutineType):
        value.close()
        raise _must_not_be_awaited(where, function)
    return value


def is_op(value: object) -> TypeGuard[DeviceOp[Any]]:
    """Whether `value` is an operation, not a class of operations."""
    return hasattr(value, "steps") and not isinstance(value, type)


def check_op(value: object, where: str) -> DeviceOp[Any]:
    """`value`, an argument of a function or class `where`, if it is an operation.

    Raises:
        OperationError: `value` is something else. The message says what `where` must be.

    Examples:
        >>> from numbasync.extending import check_op
        >>> check_op(3, "what my_timer takes")
        Traceback (most recent call last):
            ...
        numbasync.errors.OperationError: what my_timer takes must be an operation, not ...
    """
    if is_op(value):
        return value
    called = "If a call of it gives one, call it. " if callable(value) else ""
    raise OperationError(
        f"{where} must be an operation, not {with_type(value)}.\n"
        f"{called}To pass a value on, wrap it: na.value(x)."
    )


def check_closure(value: object, where: str, first: object = None) -> None:
    """Refuse a closure that cannot be called, and suppress the unused warning of `first`, the
    operation that the closure was to follow.

    Raises:
        OperationError: `value` is no function, or is an `async` function.
    """
    if getattr(getattr(value, "__code__", None), "co_flags", 0) & _ASYNC:
        with suppress_unused_warnings((first,)):
            raise _must_not_be_awaited(where, value)
    if not callable(value):
        with suppress_unused_warnings((first, value)):
            raise OperationError(f"{where} takes a function, not {with_type(value)}.")


@contextmanager
def suppress_unused_warnings(values: Iterable[object]) -> Iterator[None]:
    """If the block raises a CallerError, suppress the unused warnings of operations in `values`."""
    try:
        yield
    except CallerError:
        for value in values:
            if is_op(value):
                value.suppress_warning()
        raise


def common_stream(ops: Iterable[DeviceOp[Any]], named: Stream | None = None) -> Stream | None:
    """The stream that `ops`, which run together, request; None if no operation requests one.

    Raises:
        OperationError: the operations request different streams, or another stream than `named`.
    """
    for op in ops:
        requested = op.stream
        if requested is not None and named is not None and requested is not named:
            raise OperationError(
                f"{op} names {requested!r} in its brackets, but is part of an operation that goes "
                f"to {named!r}.\nThe parts of an operation run on one stream: leave one of the two "
                "out, or run them one after the other."
            )
        named = named or requested
    return named


def as_child(ctx: Context, value: object, whole: DeviceOp[Any]) -> DeviceOp[Any]:
    """`value`, which a closure of `whole` returned, as an operation that runs next in `ctx`.

    Raises:
        OperationError: `value` is no operation, or requests another stream.
    """
    # The message is built only for a refusal: describing a chain takes time linear in its links.
    op = value if is_op(value) else check_op(value, f"what the closure of {whole} returns")
    if op.stream is not None:
        with suppress_unused_warnings((op,)):
            common_stream((op,), ctx.asked)
    op.consume()
    return op


def name_of(function: Callable[..., Any]) -> str:
    """A function's name, for descriptions."""
    return str(getattr(function, "__name__", type(function).__name__))


def abridged(parts: Sequence[T], spell: Callable[[T], str], between: str) -> str:
    """The parts of a description, spelled out, with `between` between them; of more than six, the
    first three and the last three. Each submission has a description: it costs as much of many
    parts as of six.
    """
    if len(parts) <= 6:
        return between.join(map(spell, parts))
    first, last = (between.join(map(spell, some)) for some in (parts[:3], parts[-3:]))
    space = between or " "
    return f"{first}{space}...{len(parts) - 6} more...{space}{last}"


def shortened(label: str, most: int = 160) -> str:
    """`label`, cut to about `most` characters, because later labels may contain it."""
    return label if len(label) <= most else f"{label[: most // 2]} ... {label[-most // 2 :]}"
