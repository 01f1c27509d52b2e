"""Kernels in which one block, or one warp, has a row: reductions, and what is computed from them.

A row is gone through in *passes*: in one all that the next reductions need, in the last what is
computed of their results. What a pass has computed or read and a later one needs is kept in shared
memory, where each thread finds its own columns again; without room for that, it is computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from numbasync.batch import reducing
from numbasync.batch.emit import Emitter, KernelText, Tuning, indented
from numbasync.batch.fuse import Group
from numbasync.batch.graph import CONSTANT, Nodes
from numbasync.batch.ops import BOOL, DType
from numbasync.batch.reducing import WARP, Reduction
from numbasync.batch.space import Step
from numbasync.layout import Shape


@dataclass
class Passes:
    """In which pass each value is computed.

    Attributes:
        count: how many there are.
        ready: the pass from which on a value is there; of a reduction, the one behind its own.
        narrow: values of which a row has one.
        wanted: for each pass, the values that it must compute at every element.
        kept: first and last pass of what is kept between passes.
    """

    count: int
    ready: dict[int, int]
    narrow: set[int]
    wanted: list[list[int]]
    kept: dict[int, tuple[int, int]] = field(default_factory=dict)


def is_wide(nodes: Nodes, group: Group, root: int) -> bool:
    """Whether a root has all the elements that the kernel goes through."""
    return not nodes[root].is_reduction and nodes[root].shape == group.space.shape


def passes(nodes: Nodes, group: Group, written: Iterable[int]) -> Passes:
    """Work out the passes of a group; what is kept assumes that there is room."""
    space, wished = group.space, set(written)
    here = sorted(group.inside | set(group.reads))
    constants = {i for n in here for i in nodes[n].inputs if nodes[i].op == CONSTANT}
    ready = dict.fromkeys([*constants, *group.reads], 0)
    for n in sorted(group.inside):
        ready[n] = max((ready[i] for i in nodes[n].inputs), default=0) + nodes[n].is_reduction
    narrow = {
        n
        for n in here
        if (nodes[n].is_reduction and n in group.inside)
        or (nodes[n].shape != space.shape and space.aligned(nodes[n].shape))
    }
    wide_roots = [n for n in group.roots if n in wished and is_wide(nodes, group, n)]
    own = [n for n in group.roots if nodes[n].is_reduction]
    count = max([ready[n] + 1 for n in wide_roots] + [ready[n] for n in own])
    wanted: list[list[int]] = [[] for _ in range(count)]
    for n in own:
        wanted[ready[n] - 1].append(nodes[n].inputs[0])
    for n in wide_roots:
        wanted[ready[n]].append(n)
    found = Passes(count, ready, narrow, wanted)
    first: dict[int, int] = {}
    for at in range(count):
        seen: set[int] = set()
        waiting = list(wanted[at])
        while waiting:
            n = waiting.pop()
            if n in seen or n in narrow or nodes[n].op == CONSTANT:
                continue
            seen.add(n)
            began = first.setdefault(n, at)
            if began < at and nodes[n].shape == space.shape:
                found.kept[n] = found.kept.get(n, (began, at))[0], at
            elif n not in group.reads:
                waiting += nodes[n].inputs
    return found


def _slots(nodes: Nodes, kept: dict[int, tuple[int, int]]) -> tuple[dict[int, int], list[DType]]:
    """A slot for each kept value, and the slots' types. A thread reads its element before it
    writes one, so what is last read in a pass makes room for what is kept from then on.
    """
    slots: dict[int, int] = {}
    kinds: list[DType] = []
    free_from: list[int] = []
    for n, (begins, ends) in sorted(kept.items(), key=lambda item: (item[1][0], item[0])):
        kind = reducing.shared_dtype(nodes[n].dtype)
        for s, last in enumerate(free_from):
            if last <= begins and kinds[s] == kind:
                slots[n], free_from[s] = s, ends
                break
        else:
            slots[n] = len(kinds)
            kinds.append(kind)
            free_from.append(ends)
    return slots, kinds


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group whose rows each are held by one block or warp."""
    made = Emitter(nodes, group, written, tuning)
    return _Row(made, group, set(written), tuning).write()


class _Row:
    def __init__(self, made: Emitter, group: Group, written: set[int], tuning: Tuning) -> None:
        self.made = made
        self.nodes = made.nodes
        self.group = group
        self.plan = passes(made.nodes, group, written)
        space = group.space
        self.rows, self.cols = space.outer, space.extent
        self.by_warp = self.cols <= tuning.warp_most
        self.threads = tuning.threads
        self.per_block = tuning.threads // WARP if self.by_warp else 1
        own = [n for n in group.roots if made.nodes[n].is_reduction]
        self.reductions = reducing.reductions(made.nodes, own)
        self.width = max(WARP, reducing.power_of_two(self.cols))
        self.slots, kinds = _slots(made.nodes, self.plan.kept)
        self.kinds: list[DType] = kinds
        room = sum(k.itemsize for k in kinds) * self.width * self.per_block
        if not self.by_warp:
            room += reducing.nbytes(self.reductions) * (self.threads // WARP)
        if room > tuning.shared_bytes:
            self.plan.kept, self.slots, self.kinds = {}, {}, []

    def write(self) -> KernelText:
        made = self.made
        cols = made.parameter("cols", "number", self.cols)
        threads = self.threads
        stride = WARP if self.by_warp else threads
        head = []
        for s, dtype in enumerate(self.kinds):
            head.append(
                f"kept{s} = cuda.shared.array({self.width * self.per_block}, np.{dtype.name})"
            )
        rooms: dict[int, tuple[str, ...]] = {}
        for n, r in self.reductions.items():
            if not self.by_warp and threads > WARP:
                lines, rooms[n] = reducing.rooms(r, threads // WARP)
                head += lines
            else:
                rooms[n] = ()
        if self.by_warp:
            head += [
                f"lane = cuda.threadIdx.x % {WARP}",
                f"warp = cuda.threadIdx.x // {WARP}",
                f"row = cuda.blockIdx.x * {self.per_block} + warp",
            ]
            if self.slots:
                head.append(f"own = warp * {self.width}")
        else:
            head += ["lane = cuda.threadIdx.x", "row = cuda.blockIdx.x"]
        body = self._body(cols, stride, rooms)
        if self.by_warp:
            rows = made.parameter("rows", "number", self.rows)
            body = [f"if row < {rows}:", *indented(body)]
        return made.finish([*head, *body], -(-self.rows // self.per_block), threads)

    def _body(self, cols: str, stride: int, rooms: dict[int, tuple[str, ...]]) -> list[str]:
        made, plan, nodes = self.made, self.plan, self.nodes
        lines = [f"begin = row * {cols}"]
        space = self.group.space
        shape = (*space.shape[:-1], 1) if space.axis is not None else ()
        names = made.constants()  # of what a row has one of
        for n in made.reads:
            if nodes[n].size == 1:
                names[n] = made.name()
                lines.append(f"{names[n]} = {made.load(n, '0')}")
        common = dict(names)
        self._results(0, shape, names, lines)
        indices: dict[tuple[Step, ...], list[str]] = {}
        for at in range(plan.count):
            own = [r for n, r in self.reductions.items() if plan.ready[n] == at + 1]
            for r in own:
                lines += reducing.begin(r)
            lines.append(f"for j in range(lane, {cols}, {stride}):")
            lines += indented(self._pass(at, own, dict(names), indices))
            if own:
                lines += (
                    reducing.across_warp(made, own) if self.by_warp
                    else reducing.across_block(made, {r.node: r for r in own}, rooms, self.threads)
                )  # fmt: skip
            for r in own:
                names[r.node] = common[r.node] = made.name()
                lines.append(f"{names[r.node]} = {reducing.result(made, r, cols)}")
            self._results(at + 1, shape, names, lines)
        ends: list[str] = []
        for n in made.outputs:
            if not is_wide(nodes, self.group, n):
                scope = dict(common)
                made.at_results([n], nodes[n].shape, "row", scope, ends)
                ends.append(made.store(n, "row", scope[n]))
        return [*lines, "if lane == 0:", *indented(ends)] if ends else lines

    def _results(self, at: int, shape: Shape, names: dict[int, str], lines: list[str]) -> None:
        """What is computed once a row for all of its elements, as soon as it can be."""
        plan = self.plan
        for n in sorted(plan.narrow):
            if plan.ready[n] == at and n not in names and n not in self.reductions:
                self.made.at_results([n], shape, "row", names, lines)

    def _pass(
        self, at: int, own: list[Reduction], names: dict[int, str],
        indices: dict[tuple[Step, ...], list[str]],
    ) -> list[str]:  # fmt: skip
        """What is done at column `j`.

        Args:
            indices: the numbers of indices, which passes share.
        """
        made, plan, nodes, space = self.made, self.plan, self.nodes, self.group.space
        lines = ["i = begin + j"]
        place = "own + j" if self.by_warp else "j"
        for n, slot in self.slots.items():
            begins, _ = plan.kept[n]
            if begins < at and self._is_used(n, at):
                names[n] = made.name()
                text = f"kept{slot}[{place}]"
                lines.append(f"{names[n]} = {f'({text} != 0)' if nodes[n].dtype == BOOL else text}")
        needed = made.order(plan.wanted[at], names)
        placed: dict[tuple[Step, ...], str] = {}
        for n in needed:
            if n not in made.reads:
                continue
            found = made.steps(n, space.shape)
            if found is None:
                index = "i"
            elif found not in placed:
                if found not in indices:
                    indices[found] = made.numbers(found)
                placed[found] = index = f"p{len(placed)}"
                lines.append(f"{index} = {made.index(found, indices[found], 'i')}")
            else:
                index = placed[found]
            names[n] = made.name()
            lines.append(f"{names[n]} = {made.load(n, index)}")
        made.compute(plan.wanted[at], names, lines)
        for n, slot in self.slots.items():
            if plan.kept[n][0] == at:
                value = names[n]
                kept = f"np.int8({value})" if nodes[n].dtype == BOOL else value
                lines.append(f"kept{slot}[{place}] = {kept}")
        lines += [
            made.store(n, "i", names[n])
            for n in made.outputs
            if is_wide(nodes, self.group, n) and plan.ready[n] == at
        ]
        for r in own:
            lines += reducing.take(made, r, names[nodes[r.node].inputs[0]], "j")
        return lines

    def _is_used(self, n: int, at: int) -> bool:
        """Whether pass `at` needs a value of an earlier one."""
        seen: set[int] = set()
        waiting = list(self.plan.wanted[at])
        while waiting:
            m = waiting.pop()
            if m == n:
                return True
            if (
                m in seen
                or m in self.plan.narrow
                or (m in self.slots and self.plan.kept[m][0] < at)
            ):
                continue
            seen.add(m)
            if m not in self.made.reads:
                waiting += self.nodes[m].inputs
        return False
