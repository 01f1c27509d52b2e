"""From groups to kernel sources: the choice of a form for each group's kernel."""

from __future__ import annotations

from collections.abc import Iterable

from numbasync.batch.codegen import columns, elementwise, folds, rows
from numbasync.batch.codegen.writer import KernelText
from numbasync.batch.fusion.groups import Group
from numbasync.batch.fusion.tuning import Tuning
from numbasync.batch.record.nodes import Nodes


def form(group: Group) -> str:
    """How a group's kernel iterates over its elements: `"elementwise"`, `"row"`, `"fold"` or
    `"column"`; `"operation"` of one that has kernels of its own.
    """
    if group.is_whole:
        return "operation"
    if not group.space.is_reduced:
        return "elementwise"
    if group.holds_row:
        return "row"
    return "fold" if group.space.inner == 1 else "column"


_WRITERS = {
    "elementwise": elementwise.write,
    "row": rows.write,
    "fold": folds.write,
    "column": columns.write,
}


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group; of a whole operation only its name."""
    if group.is_whole:
        name = nodes[group.roots[0]].op
        return KernelText(name, f"# {name}: an operation with kernels of its own\n", (), (), 0, 0)
    return _WRITERS[form(group)](nodes, group, written, tuning)
