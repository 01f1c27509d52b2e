"""What an operation is made of, as a tree: text, Graphviz's language, and what notebooks show."""

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

    def explain(self) -> str:
        """What the operation is made of, a line for each part. A part's own parts are below it,
        indented, and what follows it, as `then` and `map`, is behind it. Nothing runs.

        Examples:
            >>> op = saxpy(na.zeros(8), 2.0, na.ones(8)).output().to_host()
            >>> print(op.explain())
            saxpy(z, a, x)
              z: zeros((8,))
              x: ones((8,))
            .output()
            .to_host()
            >>> _ = await op
        """
        lines: list[str] = []

        def add(entries: list[notebook.Entry], indent: str) -> None:
            for text, below in entries:
                lines.append(indent + text)
                add(below, indent + "  ")

        add(entries_of(self), "")
        return "\n".join(lines)

    def to_dot(self) -> str:
        """`explain` in Graphviz's language: an edge leads from each part to what uses it.

        Examples:
            >>> op = na.zeros(3).dup()
            >>> print(op.to_dot())
            digraph operation_of_numbasync {
              node [fontname=monospace, shape=box];
              n0 [label="zeros((3,))"];
              n1 [label=".dup()"];
              n0 -> n1;
            }
            >>> _ = await op
        """
        nodes: list[str] = []
        edges: list[tuple[int, int]] = []

        def add(entries: list[notebook.Entry]) -> int:
            """The number of the last entry, whose value is that of all."""
            last = -1
            for text, below in entries:
                number = len(nodes)
                nodes.append(text)
                edges.extend((add(chain), number) for chain in _chains(below))
                if last >= 0:
                    edges.append((last, number))
                last = number
            return last

        add(entries_of(self))
        quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in nodes)
        lines = [f'  n{i} [label="{text}"];' for i, text in enumerate(quoted)]
        lines += [f"  n{a} -> n{b};" for a, b in edges]
        head = ["digraph operation_of_numbasync {", "  node [fontname=monospace, shape=box];"]
        return "\n".join([*head, *lines, "}"])

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


def _chains(entries: list[notebook.Entry]) -> list[list[notebook.Entry]]:
    """The entries of each operation among `entries`: links, which begin with a dot, follow one."""
    chains: list[list[notebook.Entry]] = []
    for entry in entries:
        if entry[0].startswith(".") and chains:
            chains[-1].append(entry)
        else:
            chains.append([entry])
    return chains
