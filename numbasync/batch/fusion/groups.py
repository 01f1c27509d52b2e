"""What is computed together: nodes in, groups out. Each group becomes one kernel.

An elementwise value is computed where it is used; it is written to memory only if somebody wants
it, or if several kernels would read much more to compute it again. So the values that begin a
group, its *roots*, are those that are wanted and the reductions. A root joins an earlier group if
both go through the same elements, and what it needs of that group is there in time:

- an elementwise value: at the same element;
- the result of a reduction along rows: behind it, where one block holds the row;
- the result of another reduction: for what is computed of results alone.

Nothing here knows a device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from numbasync.batch.fusion.indexing import Space, reduced_space
from numbasync.batch.record.nodes import CONSTANT, Nodes, live
from numbasync.errors import InternalError

MOST_ARRAYS = 24  # of one kernel: each is 56 bytes of the 4 KiB of arguments
MOST_NODES = 160  # of one kernel: registers, and time to compile
ROW_MOST = 16384  # elements of a row that one block goes through more than once
WHOLE_MOST = 8192  # the same where there is one row only


@dataclass
class Group:
    """What one kernel computes.

    Attributes:
        space: what it goes through.
        roots: the values that it begins from, in order.
        reads: the values that it reads from memory, in order.
        inside: all that it computes.
    """

    space: Space
    roots: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    inside: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)  # groups that must run first, all of them

    @property
    def holds_row(self) -> bool:
        """Whether one block goes through all that becomes one element."""
        return holds_row(self.space)


@dataclass(frozen=True)
class Apart:
    """Why a root did not join an earlier group."""

    root: int
    group: int
    why: str


@dataclass(frozen=True)
class Fusion:
    """The groups in an order in which they can run, and why they are not fewer.

    Attributes:
        written: values that are written to memory: wanted, or needed by another group.
    """

    groups: tuple[Group, ...]
    written: frozenset[int]
    apart: tuple[Apart, ...]


def holds_row(space: Space) -> bool:
    """Whether a reduction in this space is done by one block for each of its results."""
    if not space.is_reduced or space.inner != 1:
        return False
    return space.extent <= (WHOLE_MOST if space.outer == 1 else ROW_MOST)


def fuse(nodes: Nodes, wanted: Iterable[int], fused: bool = True) -> Fusion:
    """Group what `wanted` need.

    Args:
        fused: False: a kernel for each operation.
    """
    wishes = [n for n in dict.fromkeys(wanted) if not nodes[n].is_source]
    alive = live(nodes, wishes)
    computed = sorted(n for n in alive if not nodes[n].is_source)
    roots = {n for n in computed if not fused or nodes[n].is_reduction} | set(wishes)
    while True:
        grouping = _Grouping(nodes, roots, fused)
        more = grouping.group() or grouping.kept()
        if not more:
            break
        roots |= more
    groups, renumbered = _ordered(grouping.groups)
    apart = tuple(
        Apart(a.root, renumbered[a.group], a.why) for a in grouping.apart
    )  # fmt: skip
    needed = {n for g in groups for n in g.reads if not nodes[n].is_source}
    return Fusion(tuple(groups), frozenset(needed | set(wishes)), apart)


def _ordered(groups: list[Group]) -> tuple[list[Group], dict[int, int]]:
    """The groups in an order in which they can run, and where each has come to."""
    order: list[int] = []
    placed: set[int] = set()
    while len(order) < len(groups):
        if not any(g.before <= placed for at, g in enumerate(groups) if at not in placed):
            raise InternalError(f"kernels of a batch wait for each other: {groups}")
        for at, group in enumerate(groups):
            if at not in placed and group.before <= placed:
                order.append(at)
                placed.add(at)
    return [groups[at] for at in order], {at: now for now, at in enumerate(order)}


def space_of(nodes: Nodes, root: int) -> Space:
    """What a kernel for this value alone goes through."""
    node = nodes[root]
    if node.is_reduction:
        return reduced_space(nodes[node.inputs[0]].shape, node.axis)
    return Space(node.shape)


class _Grouping:
    """One attempt, with given roots."""

    def __init__(self, nodes: Nodes, roots: set[int], fused: bool) -> None:
        self.nodes = nodes
        self.roots = roots
        self.fused = fused
        self.groups: list[Group] = []
        self.apart: list[Apart] = []
        self.home: dict[int, int] = {}  # group of each root

    def cone(self, root: int) -> tuple[list[int], set[int]]:
        """What a root reads (inputs and other roots), and what is computed for it."""
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
        """Group the roots; or give more of them, where one kernel would be too large."""
        for root in sorted(self.roots):
            reads, inside = self.cone(root)
            if len(reads) >= MOST_ARRAYS or len(inside) > MOST_NODES:
                return {self._cut(inside - {root})}
            self._place(root, reads, inside)
        return set()

    def _cut(self, inside: set[int]) -> int:
        """Where to divide what is too large for one kernel: the value for which most is computed,
        of those that one kernel can compute.
        """
        fitting: dict[int, tuple[int, int]] = {}  # what is computed and read for each, as bits
        best, most = 0, 0
        for n in sorted(inside):
            own, reads = 1 << n, 0
            for i in self.nodes[n].inputs:
                if i not in inside:
                    reads |= (self.nodes[i].op != CONSTANT) << i
                elif i in fitting:
                    own, reads = own | fitting[i][0], reads | fitting[i][1]
                else:
                    break
            else:
                count = own.bit_count()
                if count <= MOST_NODES and reads.bit_count() < MOST_ARRAYS:
                    fitting[n] = own, reads
                    if count >= most:
                        best, most = n, count
        return best

    def _place(self, root: int, reads: list[int], inside: set[int]) -> None:
        space = space_of(self.nodes, root)
        tried: list[tuple[int, str]] = []
        for at in self._candidates(root, reads, space) if self.fused else ():
            why = self._refusal(at, root, reads, inside, space)
            if not why:
                self._join(at, root, reads, inside, space)
                return
            tried.append((at, why))
        self.groups.append(Group(space))
        self._join(len(self.groups) - 1, root, reads, inside, space)
        self.apart += [Apart(root, at, why) for at, why in tried]

    def _candidates(self, root: int, reads: list[int], space: Space) -> list[int]:
        """Groups that it has something in common with, those that it needs first."""
        needed = sorted({self.home[n] for n in reads if n in self.home}, reverse=True)
        also = [
            at
            for at, g in enumerate(self.groups)
            if at not in needed and g.space.shape == space.shape and set(reads) & set(g.reads)
        ]
        return needed + also

    def _join(self, at: int, root: int, reads: list[int], inside: set[int], space: Space) -> None:
        group = self.groups[at]
        self.home[root] = at
        group.roots.append(root)
        group.inside |= inside
        if space.is_reduced and not group.space.is_reduced:
            group.space = space
        others = {self.home[n] for n in reads if n in self.home} - {at}
        before = others | {b for o in others for b in self.groups[o].before}
        group.before |= before
        for other in self.groups:
            if at in other.before:
                other.before |= before
        group.reads += [n for n in reads if n not in group.reads and self.home.get(n) != at]

    def _refusal(self, at: int, root: int, reads: list[int], inside: set[int], space: Space) -> str:
        """Why the root cannot join; "" if it can."""
        group, nodes = self.groups[at], self.nodes
        for n in reads:
            other = self.home.get(n)
            if other is not None and other != at and at in self.groups[other].before | {other}:
                return f"it also needs {n}, which comes after that kernel"
        own = [n for n in reads if self.home.get(n) == at]  # made by the kernel itself
        results = [n for n in own if self._is_result(group, n)]
        wide = group.space.shape == space.shape
        if wide and space.is_reduced and group.space.is_reduced:
            same = (space.axis, space.whole) == (group.space.axis, group.space.whole)
            if not same:
                return "it is reduced along another axis"
        if results and not space.is_reduced and not self._is_row_of(group, root, results):
            # Of results alone: one element for each.
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
        """Whether the root is computed at every element of the rows that the results are of."""
        nodes = self.nodes
        return nodes[root].shape == group.space.shape and (
            group.holds_row and all(group.space.aligned(nodes[n].shape) for n in results)
        )

    def _is_result(self, group: Group, n: int) -> bool:
        """Whether a root of the group is there only when its reductions are."""
        if self.nodes[n].is_reduction:
            return True
        if self.nodes[n].shape == group.space.shape and group.holds_row:
            return False
        reads, _ = self.cone(n)
        at = self.home[n]
        return any(self.home.get(m) == at and self._is_result(group, m) for m in reads)

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
        """A value that several kernels compute, and that had better be written by one of them:
        c kernels that read k arrays each, instead of k, a write, and c - 1 reads.
        """
        if not self.fused:
            return set()
        homes: dict[int, int] = {}
        for group in self.groups:
            for n in group.inside:
                homes[n] = homes.get(n, 0) + 1
        for n in sorted((n for n, c in homes.items() if c > 1), reverse=True):
            if n in self.roots:
                continue
            reads, _ = self.cone(n)
            size = self.nodes[n].size
            arrays = sum(self.nodes[r].size == size for r in reads)
            if (homes[n] - 1) * (arrays - 1) > 1:
                return {n}
        return set()
