"""A batch, planned: what is fused, where buffers lie, the kernels' texts. Kept by structure.

Two batches that record the same operations on the same shapes and types share all of this, whatever
their arrays and constants are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numbasync.batch.codegen import choose
from numbasync.batch.codegen.writer import KernelText
from numbasync.batch.fusion.arena import Arena, Life, place, rounded
from numbasync.batch.fusion.groups import Fusion, fuse
from numbasync.batch.fusion.tuning import Tuning
from numbasync.batch.record.nodes import INPUT, Node, live
from numbasync.memo import Memo

SMALL = 2**15  # bytes; the driver needs 2 us for a copy, in which the link moves 100 KiB
MOST_KEPT = 256  # a program with ever new shapes starts over


@dataclass
class Prepared:
    """What can be known of a batch without a device.

    Attributes:
        nodes: of the batch.
        wanted: results that are to be there in the end, in order.
        inputs: what has to be uploaded, or is used where it lies.
        fusion: what is computed together.
        texts: a kernel for each group.
        arena: where buffers between kernels lie: of nodes, by number; of partial results of a
            kernel, by `partial_key`.
        counters: how many counters its kernels need at most.
        compiled: devices on which every kernel is known to be compiled.
        ready: what enqueues it at once, by devices on which it has been run.
        fused, tuning: how it was to be planned.
    """

    nodes: tuple[Node, ...]
    wanted: tuple[int, ...]
    inputs: tuple[int, ...]
    fusion: Fusion
    texts: tuple[KernelText, ...]
    arena: Arena
    counters: int
    fused: bool
    tuning: Tuning
    compiled: set[Any] = field(default_factory=set)
    ready: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """Results in memory of their own."""
        return tuple(n for n in self.wanted if not self.nodes[n].is_source)

    @cached_property
    def is_small(self) -> bool:
        """Whether every array is so small that kernels may read and write it where the host has it:
        a copy takes longer. Each is read a few times at most.
        """
        return all(node.nbytes <= SMALL for node in self.nodes)

    @property
    def peak_bytes(self) -> int:
        """Device memory of the run: inputs, results, and what lies between kernels."""
        return self.arena.nbytes + self._bytes((*self.inputs, *self.outputs))

    @property
    def naive_bytes(self) -> int:
        """The same with a buffer for every operation."""
        alive = live(self.nodes, self.wanted)
        computed = (n for n in alive if not self.nodes[n].is_source)
        return self._bytes((*self.inputs, *computed))

    def _bytes(self, numbers: Iterable[int]) -> int:
        return sum(rounded(self.nodes[n].nbytes) for n in numbers)


def partial_key(group: int, number: int) -> int:
    """The arena's key of a kernel's partial results; those of nodes are not negative."""
    return -1 - (group * 64 + number)


_kept = Memo[Any, Prepared](MOST_KEPT)


def prepare(nodes: Sequence[Node], wanted: Sequence[int], fused: bool, tuning: Tuning) -> Prepared:
    """The plan; the one that was made before for the same structure, if there is one."""
    key = tuple(nodes), tuple(wanted), fused, tuning
    found = _kept.get(key)
    if found is None:
        found = _kept[key] = _prepare(tuple(nodes), tuple(wanted), fused, tuning)
    return found


def with_copies(plan: Prepared) -> tuple[Prepared, dict[int, int]]:
    """The same, which writes every result that has elements twice; the results, by the nodes of
    their copies. The plan itself, and none, if that took more kernels: each has few arrays.
    """
    results = [n for n in plan.outputs if plan.nodes[n].size]
    copies = dict(enumerate(results, len(plan.nodes)))
    nodes = list(plan.nodes)
    for n in results:
        node = plan.nodes[n]
        nodes.append(Node("copy", (n,), node.shape, node.dtype, (node.dtype,)))
    wanted = [*plan.wanted, *copies]
    found = prepare(nodes, wanted, plan.fused, plan.tuning)
    return (plan, {}) if len(found.texts) > len(plan.texts) else (found, copies)


def _prepare(
    nodes: tuple[Node, ...], wanted: tuple[int, ...], fused: bool, tuning: Tuning
) -> Prepared:
    fusion = fuse(nodes, wanted, fused)
    texts = tuple(choose.write(nodes, g, fusion.written, tuning) for g in fusion.groups)
    alive = live(nodes, wanted)
    inputs = tuple(sorted(n for n in alive if nodes[n].op == INPUT))
    lives = _lives(nodes, wanted, fusion, texts)
    counters = max((t.counters for t in texts), default=0)
    return Prepared(nodes, wanted, inputs, fusion, texts, place(lives), counters, fused, tuning)


def _lives(
    nodes: tuple[Node, ...], wanted: tuple[int, ...], fusion: Fusion, texts: tuple[KernelText, ...]
) -> list[Life]:
    found: list[Life] = []
    last: dict[int, int] = {}
    for at, group in enumerate(fusion.groups):
        last |= dict.fromkeys(group.reads, at)
    for at, (group, text) in enumerate(zip(fusion.groups, texts, strict=True)):
        found += [
            Life(n, nodes[n].nbytes, at, last[n])
            for n in group.roots
            if n in fusion.written and n not in wanted
        ]
        found += [
            Life(partial_key(at, k), part.extent * part.dtype.itemsize, at, at)
            for k, part in enumerate(text.partials)
        ]
    return found
