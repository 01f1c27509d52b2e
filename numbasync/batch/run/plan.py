"""The plan of a batch: its fused kernels with their sources, and its memory. Cached by structure.

Two batches that record the same operations on the same shapes and types share the whole plan,
whatever their arrays and constants are.
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
MOST_KEPT = 256  # the cache restarts when a program that keeps using new shapes exceeds it


@dataclass
class Prepared:
    """The part of a batch's plan that needs no device.

    Attributes:
        nodes: of the batch.
        wanted: results that must exist after the run, in order.
        inputs: the nodes that are uploaded, or used in place.
        fusion: the groups of nodes that are computed together.
        texts: a kernel for each group.
        arena: offsets of the buffers between kernels: of nodes, by number; of partial results of a
            kernel, by `partial_key`.
        counters: the most counters that any of its kernels needs.
        compiled: devices on which every kernel is known to be compiled.
        ready: the fast paths, by devices on which the plan has been run.
        fused, tuning: the options that the plan was made with.
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
        """Results in memory of their own, which whole operations bring along."""
        return tuple(n for n in self.wanted if not self.nodes[n].is_source)

    @cached_property
    def is_small(self) -> bool:
        """Whether every array is small enough for kernels to read and write it in host memory,
        because a copy takes longer. A kernel reads each of these arrays a few times at most.
        """
        return all(node.nbytes <= SMALL for node in self.nodes)

    @property
    def peak_bytes(self) -> int:
        """Device memory of the run: inputs, results, and the buffers between kernels."""
        return self.arena.nbytes + self._bytes((*self.inputs, *self.outputs))

    @property
    def naive_bytes(self) -> int:
        """Device memory of the run if every operation had a buffer."""
        alive = live(self.nodes, self.wanted)
        computed = (n for n in alive if not self.nodes[n].is_source)
        return self._bytes((*self.inputs, *computed))

    def _bytes(self, numbers: Iterable[int]) -> int:
        return sum(rounded(self.nodes[n].nbytes) for n in numbers)


def partial_key(group: int, number: int) -> int:
    """The arena's key of a kernel's partial results, which is negative; keys of nodes are not."""
    return -1 - (group * 64 + number)


_plans = Memo[Any, Prepared](MOST_KEPT)


def prepare(nodes: Sequence[Node], wanted: Sequence[int], fused: bool, tuning: Tuning) -> Prepared:
    """The plan; a cached plan of the same structure, if there is one."""
    key = tuple(nodes), tuple(wanted), fused, tuning
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _prepare(tuple(nodes), tuple(wanted), fused, tuning)
    return plan


def with_copies(plan: Prepared) -> tuple[Prepared, dict[int, int]]:
    """The plan extended to write every result that has elements twice; and the results, by the
    nodes of their copies. Returns the plan itself, and no copies, if the copies needed more
    kernels: each kernel takes few arrays.
    """
    results = [n for n in plan.outputs if plan.nodes[n].size]
    copies = dict(enumerate(results, len(plan.nodes)))
    nodes = list(plan.nodes)
    for n in results:
        node = plan.nodes[n]
        nodes.append(Node("copy", (n,), node.shape, node.dtype, (node.dtype,)))
    wanted = [*plan.wanted, *copies]
    extended = prepare(nodes, wanted, plan.fused, plan.tuning)
    return (plan, {}) if len(extended.texts) > len(plan.texts) else (extended, copies)


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
    lives: list[Life] = []
    last: dict[int, int] = {}
    for step, group in enumerate(fusion.groups):
        last |= dict.fromkeys(group.reads, step)
    for step, (group, text) in enumerate(zip(fusion.groups, texts, strict=True)):
        lives += [
            Life(n, nodes[n].nbytes, step, last[n])
            for n in group.roots
            if n in fusion.written and n not in wanted and not group.is_whole
        ]
        lives += [
            Life(partial_key(step, k), part.extent * part.dtype.itemsize, step, step)
            for k, part in enumerate(text.partials)
        ]
    return lives
