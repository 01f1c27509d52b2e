"""How a kernel goes through a row more than once: which value is computed in which pass.

In one pass all is computed that the next reductions need, in the last one what is computed of
their results. What a pass has computed or read, a later one may need again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from numbasync.batch.codegen import reductions
from numbasync.batch.fusion.groups import Group
from numbasync.batch.record.element_ops import DType
from numbasync.batch.record.nodes import CONSTANT, Nodes


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


def rooms(nodes: Nodes, kept: dict[int, tuple[int, int]]) -> tuple[dict[int, int], list[DType]]:
    """A slot for each kept value, and the slots' types. A thread reads its element before it
    writes one, so what is last read in a pass makes room for what is kept from then on.
    """
    slots: dict[int, int] = {}
    kinds: list[DType] = []
    free_from: list[int] = []
    for n, (begins, ends) in sorted(kept.items(), key=lambda item: (item[1][0], item[0])):
        kind = reductions.shared_dtype(nodes[n].dtype)
        for s, last in enumerate(free_from):
            if last <= begins and kinds[s] == kind:
                slots[n], free_from[s] = s, ends
                break
        else:
            slots[n] = len(kinds)
            kinds.append(kind)
            free_from.append(ends)
    return slots, kinds
