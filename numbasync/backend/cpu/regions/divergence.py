"""Which values may differ between the threads that meet at a barrier.

What is called uniform here is kept in one place for all threads, so this must never be wrong. A
value is divergent if it

- comes from a thread's number, from memory, from a call that is not known to follow from its
  arguments, or from a divergent value;
- is a phi at which ways meet that threads may take differently: ways from a branch on a divergent
  value to the place where all of them have come together again (the branch's post-dominator);
- is made in a loop without a barrier that threads leave in different rounds, and is used behind it:
  after such a branch, a way comes to the branch again before all have come together. What is made
  on those ways and still needed where they are left is divergent.

Ways end at barriers, since all that meet there go on together from there. At a barrier of a warp
only one warp's threads meet, and warps may come through it differently often, so all of this is
done for each level: with ways that end at all barriers, and with ways that end only at those of the
block. Ways that lead to no barrier do not count: who takes them meets nobody any more.

Threads that meet at a barrier of a warp may have left others behind, who wait at another one. What
is made anew meanwhile, in the next round of a loop, is the same for all that meet, but has two
values at that time: it is divergent, too, if both groups still need it (`_Rounds`). Behind a turned
loop meet all who have left it, in whatever round: what the loop makes and they need is divergent if
they leave it in different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from numbasync.backend.cpu.regions.cut import THREAD_NAMES, CutKernel, Level
from numbasync.backend.cpu.regions.flow import (
    END,
    Liveness,
    in_cycles,
    natural_loops,
    post_dominators,
    predecessors,
    reached_from,
)
from numbasync.backend.cpu.regions.instructions import BINARY, CASTS, Instruction

_FOLLOWS = BINARY | CASTS | frozenset((
    "fneg", "icmp", "fcmp", "select", "phi", "getelementptr", "extractvalue", "insertvalue",
    "extractelement", "insertelement", "shufflevector", "freeze",
))  # fmt: skip
_PURE_CALLS = (
    "@llvm.smin.", "@llvm.smax.", "@llvm.umin.", "@llvm.umax.", "@llvm.abs.", "@llvm.fabs.",
    "@llvm.sqrt.", "@llvm.minnum.", "@llvm.maxnum.", "@llvm.minimum.", "@llvm.maximum.",
    "@llvm.floor.", "@llvm.ceil.", "@llvm.trunc.", "@llvm.rint.", "@llvm.fma.", "@llvm.fmuladd.",
    "@llvm.copysign.", "@llvm.ctpop.", "@llvm.ctlz.", "@llvm.cttz.", "@llvm.bswap.",
    "@llvm.bitreverse.", "@llvm.fshl.", "@llvm.fshr.", "@llvm.scmp.", "@llvm.ucmp.",
    "@llvm.sadd.sat.", "@llvm.uadd.sat.", "@llvm.ssub.sat.", "@llvm.usub.sat.",
    "@llvm.minimumnum.", "@llvm.maximumnum.",
)  # fmt: skip


def follows_from_operands(i: Instruction) -> bool:
    """Whether the same operands give the same value, at any time and in any thread."""
    return i.opcode in _FOLLOWS or (i.opcode == "call" and i.callee.startswith(_PURE_CALLS))


def divergent_values(kernel: CutKernel) -> set[str]:
    """The values that may differ between threads that meet, thread coordinates included."""
    analysis = _Analysis(kernel, THREAD_NAMES | set(kernel.local_arrays))
    if not kernel.barriers:
        return analysis.run([])
    levels = {min(b.level, Level.BLOCK) for b in kernel.barriers} | {Level.BLOCK}
    live = Liveness(kernel.function.blocks, kernel.graph(), kernel.names)
    branches: list[_Branches] = [_Ways(kernel, level, live) for level in levels]
    if min(levels) < Level.BLOCK:
        branches.append(_Rounds(kernel, live))
    return analysis.run(branches)


class _Branches(Protocol):
    def influenced(self, branch: str) -> set[str]:
        """The values that become divergent if threads go different ways at the end of `branch`."""
        ...


def values_of_memory(kernel: CutKernel) -> set[str]:
    """The values that follow from what was read, or from what a call gave."""
    return _Analysis(kernel, ()).run([])


class _Ways:
    """The ways between two barriers of a level, and what a divergent branch on them does."""

    def __init__(self, kernel: CutKernel, level: Level, live: Liveness) -> None:
        self._blocks = kernel.function.blocks
        cut_graph = kernel.graph(level)
        self._leaves = {b.block: b.resume for b in kernel.barriers if b.level >= level}
        backwards = predecessors(cut_graph)
        leading = reached_from(backwards, self._leaves)
        self.graph = {
            b: [s for s in following if s in leading]
            for b, following in cut_graph.items()
            if b in leading
        }
        self._before = predecessors(self.graph)
        self._meets = post_dominators(self.graph)
        self._live = live

    def influenced(self, branch: str) -> set[str]:
        if branch not in self.graph or len(self.graph[branch]) < 2:
            return set()
        meeting = self._meets[branch]
        stop = None if meeting == END else meeting
        between = reached_from(self.graph, self.graph[branch], stop)
        ways = between | {branch}
        found: set[str] = set()
        for block in between | ({meeting} if stop else set()):
            comes_from = [p for p in self._before[block] if p in ways]
            if len(comes_from) < 2:
                continue
            for i in self._blocks[block]:
                if i.opcode != "phi":
                    break
                values = {v for v, label in i.incoming if label in ways}
                if len(values) > 1 or "undef" in values or "poison" in values:
                    found.add(i.result)
        if branch in between:
            found |= self._left_alive(ways)
        return found

    def _left_alive(self, ways: set[str]) -> set[str]:
        """What is made on `ways` and needed where they are left."""
        made = {i.result for block in ways for i in self._blocks[block] if i.result}
        needed: set[str] = set()
        for block in ways:
            for following in self.graph[block]:
                if following not in ways:
                    needed |= self._live.along(block, following)
            if block in self._leaves:
                needed |= self._live.at_begin[self._leaves[block]]
        return made & needed


class _Rounds:
    """What has two values while some threads wait and others go round."""

    def __init__(self, kernel: CutKernel, live: Liveness) -> None:
        blocks = kernel.function.blocks
        self._barriers = {b.block: b for b in kernel.barriers}
        ends = kernel.graph(Level.WARP)
        leading = reached_from(predecessors(ends), self._barriers)
        self._to_next = {b: [s for s in ends[b] if s in leading] for b in leading}
        self._meets = post_dominators(self._to_next)
        self._within = kernel.graph(Level.BLOCK)  # where nobody waits for those left behind
        # In a loop of any kind: threads that have gone into its next round, as far as a barrier of
        # the block there, have made its values anew while others still need those of this round.
        full = kernel.graph()
        around = in_cycles(full, kernel.function.entry)
        self._made = {
            i.result: block
            for block, code in blocks.items()
            if block in around
            for i in code
            if i.result
        }
        definitions = {i.result: i for code in blocks.values() for i in code if i.result}
        self._loops = natural_loops(full, kernel.function.entry)
        self._needed = {
            b.block: _with_operands(live.at_begin[b.resume], definitions) for b in kernel.barriers
        }

    def influenced(self, branch: str) -> set[str]:
        if self._meets.get(branch) != END:
            return set()
        parted = reached_from(self._to_next, self._to_next[branch])
        if sum(block in self._barriers for block in parted) < 2:
            return set()
        reached = reached_from(self._within, self._within[branch])
        waits = [barrier for block, barrier in self._barriers.items() if block in reached]
        has_masks = any(b.mask != "-1" for b in waits)  # groups that do not wait for each other
        around = [loop.blocks for loop in self._loops if branch in loop.blocks]
        loop = min(around, key=len, default=set())
        behind = {b.block for b in waits if b.level is Level.LOOP and loop and b.block not in loop}
        found: set[str] = set()
        for value, block in self._made.items():
            if block in reached:
                needing = [b.block for b in waits if value in self._needed[b.block]]
                if len(needing) > 1 or (has_masks and needing) or not behind.isdisjoint(needing):
                    found.add(value)
        return found


def _with_operands(values: Collection[str], definitions: Mapping[str, Instruction]) -> set[str]:
    """The values, and what they can be made from again."""
    found: set[str] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value in found:
            continue
        found.add(value)
        i = definitions.get(value)
        if i is not None and i.opcode != "phi" and follows_from_operands(i):
            waiting += i.uses
    return found


class _Analysis:
    """What follows from some values, and from all that does not follow from operands."""

    def __init__(self, kernel: CutKernel, sources: Collection[str]) -> None:
        self._blocks = kernel.function.blocks
        self._users: dict[str, list[tuple[str, Instruction]]] = {}
        self._sources = set(sources)
        for block, code in self._blocks.items():
            for i in code:
                for used in set(i.uses):
                    self._users.setdefault(used, []).append((block, i))
                if i.result and not follows_from_operands(i):
                    self._sources.add(i.result)

    def run(self, branches: Collection[_Branches]) -> set[str]:
        divergent: set[str] = set()
        branched: set[str] = set()
        waiting = list(self._sources)
        while waiting:
            value = waiting.pop()
            if value in divergent:
                continue
            divergent.add(value)
            for block, i in self._users.get(value, ()):
                if i.result:
                    waiting.append(i.result)
                elif i.opcode in ("br", "switch") and block not in branched:
                    branched.add(block)
                    for each in branches:
                        waiting += each.influenced(block)
        return divergent


def divergent_branches(
    blocks: Mapping[str, list[Instruction]], divergent: Collection[str]
) -> Callable[[str], bool]:
    """Whether threads may go different ways at the end of a block."""

    def is_divergent(block: str) -> bool:
        last = blocks[block][-1]
        return last.opcode in ("br", "switch") and any(u in divergent for u in last.uses)

    return is_divergent
