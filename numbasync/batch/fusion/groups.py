"""Fusion: nodes in, groups out. Each group becomes one kernel.

An elementwise value is computed where it is used; it is written to memory only if the program wants
it, or if several kernels would read much more to compute it again. The values that begin a group,
its *roots*, are therefore the wanted values and the reductions. A root joins an earlier group if
both iterate over the same elements, and the values that the root needs of that group are available
in time:

- an elementwise value: at the same element;
- the result of a reduction along rows: after the reduction, where one block holds the row;
- the result of another reduction: for values computed from results alone.

An operation on whole tensors is a group by itself: it and what it reads are in memory.

Nothing in this module knows a device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from numbasync.batch.fusion.indexing import Space, reduced_space
from numbasync.batch.record.nodes import CONSTANT, Nodes, live
from numbasync.errors import InternalError

MOST_ARRAYS = 24  # per kernel: each is 56 bytes of the 4 KiB of arguments
MOST_NODES = 160  # per kernel: limits registers, and compile time
ROW_MOST = 16384  # elements of a row that one block reads more than once
WHOLE_MOST = 8192  # the same where there is one row only


@dataclass
class Group:
    """The values that one kernel computes.

    Attributes:
        space: the elements that the kernel iterates over.
        roots: the values that the group begins from, in order.
        reads: the values that the kernel reads from memory, in order.
        inside: all values that the kernel computes.
        is_whole: its one root is an operation with kernels of its own.
    """

    space: Space
    roots: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    inside: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)  # all groups that must run first, transitively
    is_whole: bool = False

    @property
    def holds_row(self) -> bool:
        """Whether one block processes all elements that are reduced to one result."""
        return holds_row(self.space)


@dataclass(frozen=True)
class Apart:
    """The reason why a root did not join an earlier group."""

    root: int
    group: int
    why: str


@dataclass(frozen=True)
class Fusion:
    """The groups in an order in which they can run, and the reasons why there are not fewer.

    Attributes:
        written: values that are written to memory: wanted, or needed by another group.
    """

    groups: tuple[Group, ...]
    written: frozenset[int]
    apart: tuple[Apart, ...]


def holds_row(space: Space) -> bool:
    """Whether one block computes each result of a reduction in this space."""
    if not space.is_reduced or space.inner != 1:
        return False
    return space.extent <= (WHOLE_MOST if space.outer == 1 else ROW_MOST)


def fuse(nodes: Nodes, wanted: Iterable[int], fused: bool = True) -> Fusion:
    """Group the nodes that the values `wanted` depend on.

    Args:
        fused: False: a kernel for each operation.
    """
    outputs = [n for n in dict.fromkeys(wanted) if not nodes[n].is_source]
    alive = live(nodes, outputs)
    computed = sorted(n for n in alive if not nodes[n].is_source)
    whole = [n for n in computed if nodes[n].is_whole]
    roots = {n for n in computed if not fused or nodes[n].is_reduction} | set(outputs) | set(whole)
    roots |= {i for n in whole for i in nodes[n].inputs if not nodes[i].is_source}
    while True:
        grouping = _Grouping(nodes, roots, fused)
        new_roots = grouping.group() or grouping.kept()
        if not new_roots:
            break
        roots |= new_roots
    groups, renumbered = _ordered(grouping.groups)
    apart = tuple(
        Apart(refusal.root, renumbered[refusal.group], refusal.why) for refusal in grouping.apart
    )  # fmt: skip
    needed = {n for g in groups for n in g.reads if not nodes[n].is_source}
    return Fusion(tuple(groups), frozenset(needed | set(outputs)), apart)


def _ordered(groups: list[Group]) -> tuple[list[Group], dict[int, int]]:
    """The groups in an order in which they can run, and the new index of each."""
    order: list[int] = []
    placed: set[int] = set()
    while len(order) < len(groups):
        if not any(g.before <= placed for index, g in enumerate(groups) if index not in placed):
            raise InternalError(f"kernels of a batch wait for each other: {groups}")
        for index, group in enumerate(groups):
            if index not in placed and group.before <= placed:
                order.append(index)
                placed.add(index)
    return [groups[index] for index in order], {
        index: position for position, index in enumerate(order)
    }


def space_of(nodes: Nodes, root: int) -> Space:
    """The elements that a kernel for this value alone iterates over."""
    node = nodes[root]
    if node.is_reduction:
        return reduced_space(nodes[node.inputs[0]].shape, node.axis)
    return Space(node.shape)


class _Grouping:
    """One attempt to group, for a given set of roots."""

    def __init__(self, nodes: Nodes, roots: set[int], fused: bool) -> None:
        self.nodes = nodes
        self.roots = roots
        self.fused = fused
        self.groups: list[Group] = []
        self.apart: list[Apart] = []
        self.group_of: dict[int, int] = {}  # the group of each root

    def cone(self, root: int) -> tuple[list[int], set[int]]:
        """The values that a root reads (inputs and other roots), and the values computed for it."""
        reads: dict[int, None] = {}
        inside = {root}
        waiting = list(reversed(self.nodes[root].inputs))
        while waiting:
            n = waiting.pop()
            node = self.nodes[n]
            if node.op == CONSTANT:
                continue
            if node.is_source or n in self.roots:
                reads[n] = None
            elif n not in inside:
                inside.add(n)
                waiting += reversed(node.inputs)
        return list(reads), inside

    def group(self) -> set[int]:
        """Group the roots; returns additional roots instead where one kernel would be too large."""
        for root in sorted(self.roots):
            reads, inside = self.cone(root)
            if len(reads) >= MOST_ARRAYS or len(inside) > MOST_NODES:
                return {self._cut(inside - {root})}
            self._place(root, reads, inside)
        return set()

    def _cut(self, inside: set[int]) -> int:
        """The value at which to divide a computation that is too large for one kernel: among the
        values that one kernel can compute, the one that needs the most nodes.
        """
        # the nodes computed and read for each value, as bits
        fitting: dict[int, tuple[int, int]] = {}
        best, most = 0, 0
        for n in sorted(inside):
            computed, reads = 1 << n, 0
            for i in self.nodes[n].inputs:
                if i not in inside:
                    reads |= (self.nodes[i].op != CONSTANT) << i
                elif i in fitting:
                    computed, reads = computed | fitting[i][0], reads | fitting[i][1]
                else:
                    break
            else:
                count = computed.bit_count()
                if count <= MOST_NODES and reads.bit_count() < MOST_ARRAYS:
                    fitting[n] = computed, reads
                    if count >= most:
                        best, most = n, count
        return best

    def _place(self, root: int, reads: list[int], inside: set[int]) -> None:
        space = space_of(self.nodes, root)
        tried: list[tuple[int, str]] = []
        is_whole = self.nodes[root].is_whole
        joins = self.fused and not is_whole
        for index in self._candidates(root, reads, space) if joins else ():
            why = self._refusal(index, root, reads, inside, space)
            if not why:
                self._join(index, root, reads, inside, space)
                return
            tried.append((index, why))
        self.groups.append(Group(space, is_whole=is_whole))
        self._join(len(self.groups) - 1, root, reads, inside, space)
        self.apart += [Apart(root, index, why) for index, why in tried]

    def _candidates(self, root: int, reads: list[int], space: Space) -> list[int]:
        """Groups that share values with the root, the groups that the root needs first."""
        needed = sorted({self.group_of[n] for n in reads if n in self.group_of}, reverse=True)
        sharing = [
            index
            for index, g in enumerate(self.groups)
            if index not in needed and g.space.shape == space.shape and set(reads) & set(g.reads)
        ]
        return needed + sharing

    def _join(self, at: int, root: int, reads: list[int], inside: set[int], space: Space) -> None:
        group = self.groups[at]
        self.group_of[root] = at
        group.roots.append(root)
        group.inside |= inside
        if space.is_reduced and not group.space.is_reduced:
            group.space = space
        others = {self.group_of[n] for n in reads if n in self.group_of} - {at}
        before = others | {b for o in others for b in self.groups[o].before}
        group.before |= before
        for later in self.groups:
            if at in later.before:
                later.before |= before
        group.reads += [n for n in reads if n not in group.reads and self.group_of.get(n) != at]

    def _refusal(self, at: int, root: int, reads: list[int], inside: set[int], space: Space) -> str:
        """The reason why the root cannot join the group; "" if it can."""
        group, nodes = self.groups[at], self.nodes
        if group.is_whole:
            return f"{nodes[group.roots[0]].op} is an operation with kernels of its own"
        for n in reads:
            producer = self.group_of.get(n)
            if (
                producer is not None
                and producer != at
                and at in self.groups[producer].before | {producer}
            ):
                return f"it also needs {n}, which comes after that kernel"
        own = [n for n in reads if self.group_of.get(n) == at]  # computed by the kernel itself
        results = [n for n in own if self._is_result(group, n)]
        wide = group.space.shape == space.shape
        if wide and space.is_reduced and group.space.is_reduced:
            same = (space.axis, space.whole) == (group.space.axis, group.space.whole)
            if not same:
                return "it is reduced along another axis"
        if results and not space.is_reduced and not self._is_row_of(group, root, results):
            # Computed from results alone: one element for each.
            sizes = {nodes[n].size for n in (root, *results)}
            if sizes == {group.space.results} and len(results) == len(own):
                return self._too_large(group, reads, inside)
            if not wide:
                return "it goes through other elements"
        if not wide:
            return f"it goes through shape {space.shape}, that kernel through {group.space.shape}"
        if results:
            merged = space if space.is_reduced else group.space
            if not holds_row(merged):
                return self._why_not_held(merged)
            if not all(merged.aligned(nodes[n].shape) for n in results):
                return "it needs results of other rows"
        return self._too_large(group, reads, inside)

    def _is_row_of(self, group: Group, root: int, results: list[int]) -> bool:
        """Whether the root is computed at every element of the rows to which the results belong."""
        nodes = self.nodes
        return nodes[root].shape == group.space.shape and (
            group.holds_row and all(group.space.aligned(nodes[n].shape) for n in results)
        )

    def _is_result(self, group: Group, n: int) -> bool:
        """Whether a root of the group is available only after the group's reductions."""
        if self.nodes[n].is_reduction:
            return True
        if self.nodes[n].shape == group.space.shape and group.holds_row:
            return False
        reads, _ = self.cone(n)
        index = self.group_of[n]
        return any(self.group_of.get(m) == index and self._is_result(group, m) for m in reads)

    def _why_not_held(self, space: Space) -> str:
        if space.inner != 1:
            return "it needs the result of a reduction that is not along the last axis"
        return (
            f"it needs the result of a reduction of {space.extent:,} elements, more than one "
            "block goes through"
        )

    def _too_large(self, group: Group, reads: list[int], inside: set[int]) -> str:
        arrays = len(set(group.reads) | set(reads)) + len(group.roots) + 1
        if arrays > MOST_ARRAYS:
            return f"one kernel takes at most {MOST_ARRAYS} arrays"
        if len(group.inside | inside) > MOST_NODES:
            return f"one kernel computes at most {MOST_NODES} values"
        return ""

    def kept(self) -> set[int]:
        """A value that several kernels compute, and that one of them should write instead: c
        kernels that read k arrays each, instead of k reads, a write, and c - 1 reads.
        """
        if not self.fused:
            return set()
        uses: dict[int, int] = {}
        for group in self.groups:
            for n in group.inside:
                uses[n] = uses.get(n, 0) + 1
        for n in sorted((n for n, c in uses.items() if c > 1), reverse=True):
            if n in self.roots:
                continue
            reads, _ = self.cone(n)
            size = self.nodes[n].size
            arrays = sum(self.nodes[r].size == size for r in reads)
            if (uses[n] - 1) * (arrays - 1) > 1:
                return {n}
        return set()
