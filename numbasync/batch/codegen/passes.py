"""The passes of a kernel over a row: which value is computed in which pass.

A pass computes the operands of the next reductions, and the last pass computes the values that
depend on their results. A later pass may need again values that an earlier pass has computed or
read.
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
    """The pass in which each value is computed.

    Attributes:
        count: the number of passes.
        ready: the first pass in which a value is available; for a reduction, the pass after its
            own.
        narrow: values of which a row has one.
        wanted: for each pass, the values that it must compute at every element.
        kept: first and last pass of each value that is kept between passes.
    """

    count: int
    ready: dict[int, int]
    narrow: set[int]
    wanted: list[list[int]]
    kept: dict[int, tuple[int, int]] = field(default_factory=dict)


def is_wide(nodes: Nodes, group: Group, root: int) -> bool:
    """Whether a root has all the elements that the kernel iterates over."""
    return not nodes[root].is_reduction and nodes[root].shape == group.space.shape


def passes(nodes: Nodes, group: Group, written: Iterable[int]) -> Passes:
    """The passes of a group; `kept` assumes that there is room for all values."""
    space, outputs = group.space, set(written)
    available = sorted(group.inside | set(group.reads))
    constants = {i for n in available for i in nodes[n].inputs if nodes[i].op == CONSTANT}
    ready = dict.fromkeys([*constants, *group.reads], 0)
    for n in sorted(group.inside):
        ready[n] = max((ready[i] for i in nodes[n].inputs), default=0) + nodes[n].is_reduction
    narrow = {
        n
        for n in available
        if (nodes[n].is_reduction and n in group.inside)
        or (nodes[n].shape != space.shape and space.aligned(nodes[n].shape))
    }
    wide_roots = [n for n in group.roots if n in outputs and is_wide(nodes, group, n)]
    reduction_roots = [n for n in group.roots if nodes[n].is_reduction]
    count = max([ready[n] + 1 for n in wide_roots] + [ready[n] for n in reduction_roots])
    wanted: list[list[int]] = [[] for _ in range(count)]
    for n in reduction_roots:
        wanted[ready[n] - 1].append(nodes[n].inputs[0])
    for n in wide_roots:
        wanted[ready[n]].append(n)
    result = Passes(count, ready, narrow, wanted)
    first: dict[int, int] = {}
    for index in range(count):
        seen: set[int] = set()
        waiting = list(wanted[index])
        while waiting:
            n = waiting.pop()
            if n in seen or n in narrow or nodes[n].op == CONSTANT:
                continue
            seen.add(n)
            first_pass = first.setdefault(n, index)
            if first_pass < index and nodes[n].shape == space.shape:
                result.kept[n] = result.kept.get(n, (first_pass, index))[0], index
            elif n not in group.reads:
                waiting += nodes[n].inputs
    return result


def rooms(nodes: Nodes, kept: dict[int, tuple[int, int]]) -> tuple[dict[int, int], list[DType]]:
    """A slot for each kept value, and the slots' types. A thread reads its element before it writes
    one, so a slot that a pass reads for the last time can hold a value that is kept from that pass
    on.
    """
    slots: dict[int, int] = {}
    dtypes: list[DType] = []
    free_from: list[int] = []
    for n, (begins, ends) in sorted(kept.items(), key=lambda item: (item[1][0], item[0])):
        dtype = reductions.shared_dtype(nodes[n].dtype)
        for s, last in enumerate(free_from):
            if last <= begins and dtypes[s] == dtype:
                slots[n], free_from[s] = s, ends
                break
        else:
            slots[n] = len(dtypes)
            dtypes.append(dtype)
            free_from.append(ends)
    return slots, dtypes
