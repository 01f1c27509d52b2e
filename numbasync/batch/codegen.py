"""From groups to kernels' texts: which form a group's kernel has."""

from __future__ import annotations

from collections.abc import Iterable

from numbasync.batch import column_kernel, elementwise_kernel, fold_kernel, row_kernel
from numbasync.batch.emit import KernelText
from numbasync.batch.fuse import Group
from numbasync.batch.graph import Nodes
from numbasync.batch.tuning import Tuning


def form(group: Group) -> str:
    """How a group's kernel goes through its elements: `"elementwise"`, `"row"`, `"fold"` or
    `"column"`.
    """
    if not group.space.is_reduced:
        return "elementwise"
    if group.holds_row:
        return "row"
    return "fold" if group.space.inner == 1 else "column"


_WRITERS = {
    "elementwise": elementwise_kernel.write,
    "row": row_kernel.write,
    "fold": fold_kernel.write,
    "column": column_kernel.write,
}


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group."""
    return _WRITERS[form(group)](nodes, group, written, tuning)
