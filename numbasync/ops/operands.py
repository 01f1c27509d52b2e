"""Operations inside operations: what may be one, and on which stream they go together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from numbasync.device.stream import Stream
from numbasync.errors import CallerError, OperationError
from numbasync.ops.context import Context

if TYPE_CHECKING:
    from numbasync.ops.op import DeviceOp

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
        OperationError: it is a coroutine, which is closed.
    """
    if isinstance(value, CoroutineType):
        value.close()
        raise _must_not_be_awaited(where, function)
    return value


def is_op(value: object) -> TypeGuard[DeviceOp[Any]]:
    """Whether `value` is an operation, not a class of them."""
    return hasattr(value, "steps") and not isinstance(value, type)


def check_op(value: object, where: str) -> DeviceOp[Any]:
    """`value`, if it is an operation.

    Raises:
        OperationError: it is something else.
    """
    if is_op(value):
        return value
    raise OperationError(
        f"{where} must be an operation, not {type(value).__name__} ({value!r:.60}).\n"
        "To pass a value on, wrap it: na.value(x)."
    )


def check_closure(value: object, where: str, first: object = None) -> None:
    """Refuse what cannot be called, and with it the operation that it was to follow.

    Raises:
        OperationError: it is no function, or one that has to be awaited.
    """
    if getattr(getattr(value, "__code__", None), "co_flags", 0) & _ASYNC:
        with suppress_unused_warnings((first,)):
            raise _must_not_be_awaited(where, value)
    if not callable(value):
        with suppress_unused_warnings((first, value)):
            raise OperationError(
                f"{where} takes a function, not {type(value).__name__} ({value!r:.60})."
            )


@contextmanager
def suppress_unused_warnings(values: Iterable[object]) -> Iterator[None]:
    """If the block refuses `values`, do not also warn that operations among them never ran."""
    try:
        yield
    except CallerError:
        for value in values:
            if is_op(value):
                value.suppress_warning()
        raise


def common_stream(ops: Iterable[DeviceOp[Any]], named: Stream | None = None) -> Stream | None:
    """The one stream that `ops`, which run together, ask for, if any of them does.

    Raises:
        OperationError: they ask for different ones, or for another one than `named`.
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
    """`value`, which a closure of `root` returned, as an operation that runs next in `ctx`.

    Raises:
        OperationError: it is none, or asks for another stream.
    """
    # In words only if it is none: to describe a chain takes as long as it has links.
    op = value if is_op(value) else check_op(value, f"what the closure of {whole} returns")
    if op.stream is not None:
        with suppress_unused_warnings((op,)):
            common_stream((op,), ctx.asked)
    op.consume()
    return op


def name_of(function: Callable[..., Any]) -> str:
    """A closure's name, for descriptions."""
    return str(getattr(function, "__name__", type(function).__name__))


def shortened(label: str, most: int = 160) -> str:
    """A label that is kept, and may become part of the next one."""
    return label if len(label) <= most else f"{label[: most // 2]} ... {label[-most // 2 :]}"
