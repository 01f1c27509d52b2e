"""What is kept across barriers: once for all threads, once a thread, or made again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from numbasync.backend.cpu.regions.cut import CutKernel
from numbasync.backend.cpu.regions.divergence import divergent_values, follows_from_operands
from numbasync.backend.cpu.regions.flow import Liveness
from numbasync.backend.cpu.regions.instructions import Instruction

MOST_OPERATIONS = 16  # of what is made again instead of being kept


@dataclass(slots=True)
class Kept:
    """What each region needs from before its barrier.

    Attributes:
        divergent: values that may differ between the threads that meet.
        uniform: kept values of which all threads have the same; type by name.
        per_thread: the other kept values; type by name.
        live: by number of the start, the kept values that are needed from there on.
        remade: by number of the start, what is made again there, in order.
    """

    divergent: set[str]
    uniform: dict[str, str] = field(default_factory=dict)
    per_thread: dict[str, str] = field(default_factory=dict)
    live: list[set[str]] = field(default_factory=list)
    remade: list[list[Instruction]] = field(default_factory=list)


def plan_kept(kernel: CutKernel, apart: bool) -> Kept:
    """Decide what is kept, and how.

    Args:
        apart: keep everything once a thread: what the analysis of divergence says is not used.
    """
    kept = Kept(divergent_values(kernel))
    if not kernel.barriers:
        kept.live, kept.remade = [set()], [[]]
        return kept
    definitions = kernel.function.made()
    shared = set() if apart else {v for v in definitions if v not in kept.divergent}
    starts = kernel.starts()
    live = Liveness(kernel.function.blocks, kernel.graph(), kernel.names)
    maker = _Maker(definitions, kernel.names, shared)
    wanted: dict[str, set[str]] = {}
    chains: dict[str, list[str]] = {}
    for start in starts[1:]:
        needed: set[str] = set()
        chains[start] = []
        for value in sorted(live.at_begin[start]):
            if maker.cost(value) <= MOST_OPERATIONS:
                needed |= maker.leaves(value)
                maker.chain(value, chains[start])
        wanted[start] = needed
    remade_at = {start: set(chain) for start, chain in chains.items()}
    live = _LivenessBeside(kernel, wanted, remade_at)
    for start in starts:
        values = set() if start == kernel.function.entry else set(live.at_begin[start])
        kept.live.append(values)
        kept.remade.append([definitions[v] for v in chains.get(start, ())])
        for value in values:
            (kept.uniform if value in shared else kept.per_thread)[value] = definitions[value].type
    return kept


class _LivenessBeside(Liveness):
    """What is live if each start makes some values again, for which it needs others."""

    def __init__(
        self, kernel: CutKernel, wanted: dict[str, set[str]], remade: dict[str, set[str]]
    ) -> None:
        blocks = dict(kernel.function.blocks)
        makes = {
            start: [Instruction(v, "remade", "", "") for v in sorted(values)]
            for start, values in remade.items()
        }
        graph = {b: list(s) for b, s in kernel.graph().items()}
        # A block of its own before each start, in which the values are made.
        for barrier in kernel.barriers:
            before = f"{barrier.resume} "
            blocks[before] = makes[barrier.resume]
            graph[before] = [barrier.resume]
            graph[barrier.block] = [before]
        super().__init__(
            blocks, graph, kernel.names, {f"{start} ": w for start, w in wanted.items()}
        )
        for barrier in kernel.barriers:
            self.at_begin[barrier.resume] = self.at_begin[f"{barrier.resume} "]


class _Maker:
    """Which values follow from names that are known everywhere and from uniform values."""

    def __init__(
        self, definitions: dict[str, Instruction], names: Collection[str], uniform: Collection[str]
    ) -> None:
        self._definitions, self._names, self._uniform = definitions, names, uniform
        self._costs: dict[str, int] = {}

    def cost(self, value: str) -> int:
        """Operations that make it again; more than MOST_OPERATIONS if it cannot be."""
        if value in self._names:
            return 0
        known = self._costs.get(value)
        if known is not None:
            return known
        self._costs[value] = MOST_OPERATIONS + 1  # while it is computed: phis make cycles
        i = self._definitions[value]
        if not is_cheap(i):
            total = MOST_OPERATIONS + 1
        else:
            total = 1 + sum(self._cost_as_operand(u) for u in set(i.uses))
        self._costs[value] = total
        return total

    def _cost_as_operand(self, value: str) -> int:
        cost = self.cost(value)
        return 0 if cost > MOST_OPERATIONS and value in self._uniform else cost

    def leaves(self, value: str) -> set[str]:
        """The uniform values that have to be kept for it."""
        if value in self._names:
            return set()
        found: set[str] = set()
        for used in self._definitions[value].uses:
            if used in self._names:
                continue
            if self.cost(used) > MOST_OPERATIONS:
                found.add(used)
            else:
                found |= self.leaves(used)
        return found

    def chain(self, value: str, order: list[str]) -> None:
        """Append what has to be made, operands first."""
        if value in self._names or value in order or self.cost(value) > MOST_OPERATIONS:
            return
        for used in self._definitions[value].uses:
            self.chain(used, order)
        order.append(value)


def is_cheap(i: Instruction) -> bool:
    """Whether it may be done anywhere, and again."""
    if i.opcode == "phi" or not follows_from_operands(i):
        return False
    return i.opcode not in ("fdiv", "frem") and not (
        i.opcode in ("udiv", "sdiv", "urem", "srem") and i.text.rsplit(" ", 1)[1][0] == "%"
    )
