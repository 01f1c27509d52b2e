"""The shape of a graph: its nodes and edges."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from numbasync import notebook
from numbasync.backend.protocols import Command
from numbasync.errors import MissingExtraError

_SHAPES = {"kernel": "box", "memcpy": "ellipse", "memset": "ellipse"}


@dataclass(frozen=True, slots=True)
class Node:
    """One command of a graph.

    Attributes:
        position: the node's index in `graph.nodes`.
        kind: `"kernel"`, `"memcpy"` or `"memset"`.
        name: the kernel's name, or `"upload"`, `"download"`, `"copy"`, `"fill"`
            or `"generate"`.
        after: the positions of the nodes that this one starts after.

    Examples:
        >>> z, x = await na.gather(na.zeros(3), na.ones(3))
        >>> graph = saxpy(z, 2.0, x).then(lambda r: na.fill(r.x, 0)).graph()
        >>> [(node.kind, node.name, node.after) for node in graph.nodes]
        [('kernel', 'saxpy', ()), ('memset', 'fill', (0,))]
    """

    position: int
    kind: str
    name: str
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """The shape of a graph.

    Attributes:
        nodes: in the order in which they were recorded.
        counts: the number of nodes of each kind.
        on_device: the same of the device's own graph, which may have other nodes: a `debug=True`
            kernel has further nodes, and a copy between layouts is a kernel.

    Examples:
        >>> z = await na.zeros(3)
        >>> graph = na.fill(z, 1).graph()
        >>> graph.topology().counts
        {'memset': 1}
    """

    nodes: tuple[Node, ...]
    counts: Mapping[str, int]
    on_device: Mapping[str, int]

    @property
    def roots(self) -> tuple[Node, ...]:
        """The nodes without predecessors."""
        return tuple(node for node in self.nodes if not node.after)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of positions: the second starts after the first."""
        return tuple((i, node.position) for node in self.nodes for i in node.after)

    @property
    def depth(self) -> int:
        """The number of nodes on the longest path."""
        depths: list[int] = []
        for node in self.nodes:
            depths.append(1 + max((depths[i] for i in node.after), default=0))
        return max(depths, default=0)

    def to_dot(self) -> str:
        """The graph in Graphviz's language."""
        lines = ["digraph graph_of_numbasync {", "  node [fontname=monospace];"]
        for node in self.nodes:
            label = node.name.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  n{node.position} [label="{label}", shape={_SHAPES[node.kind]}];')
        lines += [f"  n{a} -> n{b};" for a, b in self.edges]
        return "\n".join([*lines, "}", ""])

    def _repr_svg_(self) -> str:
        return notebook.picture([node.name for node in self.nodes], self.edges)

    def to_png(self, path: str | Path) -> None:
        """Draw the graph to a PNG file, with Graphviz's `dot`.

        Raises:
            MissingExtraError: `dot` is not on the PATH.
        """
        dot = shutil.which("dot")
        if dot is None:
            raise MissingExtraError(
                "Graphviz's dot is not on the PATH: install graphviz with the system's package "
                "manager (apt install graphviz), or use to_dot(), which is text."
            )
        subprocess.run(  # noqa: S603 - the text is ours
            [dot, "-Tpng", "-o", str(path)], input=self.to_dot(), text=True, check=True
        )


@dataclass(frozen=True)
class GraphStatistics:
    """Counts of a graph, at one moment.

    Attributes:
        nodes: number of commands.
        launches: number of launches.
        updates: number of calls of `update`, `set_args` and `recapture`.
        buffers: number of allocations that the graph uses and keeps alive.
        nbytes: bytes that were allocated for the graph when it was captured.

    Examples:
        >>> z = await na.zeros(3)
        >>> graph = na.fill(z, 1).graph()
        >>> _ = await graph.launch()
        >>> graph.statistics()
        GraphStatistics(nodes=1, launches=1, updates=0, buffers=1, nbytes=0)
    """

    nodes: int
    launches: int
    updates: int
    buffers: int
    nbytes: int


def node_of(position: int, command: Command) -> Node:
    """The public description of a command."""
    return Node(position, command.kind, command.name, command.after)


def topology_of(commands: Sequence[Command], on_device: Mapping[str, int]) -> Topology:
    """The topology of a graph of these commands."""
    nodes = tuple(node_of(i, command) for i, command in enumerate(commands))
    counts = Counter(node.kind for node in nodes)
    return Topology(nodes, dict(sorted(counts.items())), dict(sorted(on_device.items())))


def described(counts: Mapping[str, int]) -> str:
    """Counts of nodes as text for messages, such as "2 kernel, 1 memcpy"."""
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "empty"
