"""What an operation is made of, as a tree for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbasync import notebook
from numbasync.public import Public

MOST_LEVELS = 12  # that are shown, of operations inside of one another
MOST_PARTS = 50  # that are shown, of one operation
MOST_LINKS = 50  # that are shown, of one chain


class HasTree(Public):
    """An operation whose parts a notebook shows."""

    __slots__ = ()

    def _inner(self) -> Iterable[tuple[str, Any]]:
        """The operations that this one runs for their values, with names; "": they have none."""
        once = getattr(self, "_once", None)  # of `shared()`, which has no parent once it runs
        parent = getattr(self, "_parent", None) if once is None else once.parent
        return () if parent is None else (("", parent),)

    def _repr_html_(self: Any) -> str:
        return notebook.tree(f"DeviceOp, {'not run' if self._unused else 'used'}", entries_of(self))


def entries_of(op: Any, name: str = "", level: int = 0) -> list[notebook.Entry]:
    """The entries of an operation: what gives its value, and then each combinator behind it."""
    links = []
    while op.is_link:
        links.append(op._suffix())
        op = op._first
    text = f"{name}: {op}" if name else str(op)
    if level >= MOST_LEVELS:
        return [(f"{text} ...", [])]
    parts = list(op._inner())
    below = [e for n, inner in parts[:MOST_PARTS] for e in entries_of(inner, n, level + 1)]
    if len(parts) > MOST_PARTS:
        below.append((f"... {len(parts) - MOST_PARTS} more", []))
    links = [link for link in links[::-1] if link]
    if len(links) > MOST_LINKS:
        links[MOST_LINKS:] = [f"... {len(links) - MOST_LINKS} more"]
    return [(text, below), *((link, []) for link in links)]
