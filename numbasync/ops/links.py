"""Chains of operations: each link is applied to the value of the operation before it.

A loop, not recursion, runs a chain, so that a chain can have any length.
"""

from __future__ import annotations

from typing import Any

from numbasync.native import compiled
from numbasync.ops.context import Context
from numbasync.ops.deferred_value import check_there
from numbasync.ops.home import Home


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
