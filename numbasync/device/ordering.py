"""The ordering mode: whether a conflict between two streams is ordered or refused."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Literal

from numbasync.arguments import is_one_of, shown
from numbasync.device.scoped import scoped
from numbasync.errors import CallerError

Ordering = Literal["auto", "strict"]
_ordering_default: Ordering = "auto"
_ordering: ContextVar[Ordering | None] = ContextVar("numbasync_ordering", default=None)


def _check_ordering(mode: str) -> None:
    if not is_one_of(mode, ("auto", "strict")):
        raise CallerError(f"there is no ordering {shown(mode)}; write 'auto' or 'strict'.")


def set_ordering(mode: Ordering) -> None:
    """Set the mode for conflicts between streams, in the whole process.

    Args:
        mode: `"auto"` orders a conflict by submission; `"strict"` raises AccessConflictError.

    Examples:
        >>> na.set_ordering("strict")
        >>> na.set_ordering("auto")  # the default
    """
    global _ordering_default
    _check_ordering(mode)
    _ordering_default = mode


def ordering(mode: Ordering) -> AbstractContextManager[object]:
    """`set_ordering` for the operations that the `with` block submits.

    Examples:
        >>> device = na.default_device()
        >>> t = await na.zeros(3)
        >>> with na.ordering("strict"):  # one stream: the order is written
        ...     stream = device.new_stream()
        ...     _ = na.fill(t, 1).async_on(stream)
        ...     _ = na.fill(t, 2).async_on(stream)
        >>> await t.to_host()
        array([2., 2., 2.], dtype=float32)
    """
    _check_ordering(mode)
    return scoped(_ordering, mode)


def is_strict() -> bool:
    """Whether conflicts are refused in the current context."""
    return (_ordering.get() or _ordering_default) == "strict"
