"""What values of a region are for one thread and round, before its loop begins."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from numbasync.backend.cpu.regions.cut import CutKernel, Level
from numbasync.backend.cpu.regions.divergence import follows_from_operands
from numbasync.backend.cpu.regions.flow import (
    dominates,
    dominators,
    natural_loops,
    predecessors,
    reached_from,
)
from numbasync.backend.cpu.regions.instructions import Instruction

BEFORE = ""  # in the place of a block: where the region begins
MOST_OPERATIONS = 400
_COORDINATES = {"%na.tx": "x", "%na.ty": "y", "%na.tz": "z"}


class NotHoistedError(Exception):
    """A check that has to stay where it is."""


@dataclass(slots=True)
class HoistedChecks:
    """Checks that are made before a region.

    Attributes:
        taken: by block, the label that is taken if the checks hold.
        lines: code that computes `result`, an i1.
        uniform: kept values that the code needs, as `%TAG.in.V`.
        facts: what some values of the region are if the checks hold.
        entered: by block, the label that all threads take if `all_enter` holds, an i1, too: behind
            conditions such as `i < n`, which are false for some threads of the last blocks only.
    """

    taken: dict[str, str]
    lines: list[str] = field(default_factory=list)
    uniform: set[str] = field(default_factory=set)
    facts: dict[str, str] = field(default_factory=dict)
    result: str = "true"
    entered: dict[str, str] = field(default_factory=dict)
    all_enter: str = "true"


class CornerValues:
    """Writes code that computes values for a thread and round.

    Args:
        uniform_live: kept values of which all threads have the same, known at the start.
        remade: values that are made again at the start.
    """

    def __init__(
        self, kernel: CutKernel, region_blocks: Collection[str], start: str,
        uniform_live: Collection[str], remade: Collection[str], row: bool, tag: str,
    ) -> None:  # fmt: skip
        self.blocks = kernel.function.blocks
        self.names = kernel.names
        self._arrays = kernel.local_arrays
        inside = set(region_blocks)
        graph = kernel.graph()
        for barrier in kernel.barriers:
            graph[barrier.block] = []
        self.graph = {b: [s for s in graph[b] if s in inside] for b in region_blocks}
        self.start, self.tag, self._row = start, tag, row
        self._uniform_live, self.remade = uniform_live, remade
        self.definitions = kernel.function.made()
        self.home = {i.result: b for b in inside for i in self.blocks[b] if i.result}
        self.tree = dominators(self.graph, start)
        self.before = predecessors(self.graph)
        ends = [b for b in inside if self.blocks[b][-1].opcode in ("ret", "barrier")]
        self.leading = reached_from(self.before, ends)
        self.loops = natural_loops(self.graph, start)
        turns = {b.block for b in kernel.barriers if b.level is Level.LOOP}
        self.turned = [
            loop
            for loop in natural_loops(kernel.graph(), kernel.function.entry)
            if loop.blocks & turns
        ]
        self._made: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
        self._count = 0
        self._led: dict[str, set[str]] = {}
        self.found = HoistedChecks({})

    def forget(self, lines: int) -> None:
        """Take back what was written behind so many lines."""
        del self.found.lines[lines:]
        self._made.clear()

    def at(self, value: str, place: Mapping[str, str], block: str) -> str:
        """The name of what a value is for a thread and round, when control comes to a block."""
        if value[0] != "%":
            return value
        if value in place:
            return place[value]
        if value in _COORDINATES or value == "%na.tid":
            return self._coordinate(value, place)
        if value in self.names:
            if value in self._arrays:
                raise NotHoistedError
            return value
        home = self.home.get(value)
        if block == BEFORE or home is None or not self._leads(home, block):
            return self._before_region(value, place)
        if not dominates(self.tree, home, block):
            raise NotHoistedError  # made anew on some ways only
        key = value, tuple(sorted(place.items()))
        if key not in self._made:
            i = self.definitions[value]
            if i.opcode == "phi":
                ways = [(v, b) for v, b in i.incoming if home in self.graph.get(b, ())]
                if len(ways) != 1:
                    raise NotHoistedError
                self._made[key] = self.at(ways[0][0], place, ways[0][1])
            else:
                self._made[key] = self._again(i, place, home)
        return self._made[key]

    def _before_region(self, value: str, place: Mapping[str, str]) -> str:
        """What a value is where the region begins."""
        if value in self._uniform_live:
            self.found.uniform.add(value)
            return f"%{self.tag}.in.{value[1:]}"
        if value not in self.remade:
            raise NotHoistedError
        key = f"{value} {BEFORE}", tuple(sorted(place.items()))
        if key not in self._made:
            self._made[key] = self._again(self.definitions[value], place, BEFORE)
        return self._made[key]

    def _again(self, i: Instruction, place: Mapping[str, str], block: str) -> str:
        """Do an instruction for a thread and round."""
        if i.opcode == "phi" or not follows_from_operands(i) or i.opcode.endswith(("div", "rem")):
            raise NotHoistedError
        if len(self.found.lines) > MOST_OPERATIONS:
            raise NotHoistedError
        operands = {u: self.at(u, place, block) for u in i.uses}
        return self.line(_for_any_thread(i).renamed(operands))

    def _leads(self, home: str, block: str) -> bool:
        """Whether a value that is made in `home` may be made anew before control is at `block`."""
        if home not in self._led:
            self._led[home] = reached_from(self.graph, [home])
        return block in self._led[home]

    def _coordinate(self, value: str, place: Mapping[str, str]) -> str:
        if value == "%na.tid":
            if self._row:
                return place.get("x", "0")
            raise NotHoistedError
        axis = _COORDINATES[value]
        if axis not in place:
            return "0"
        key = value, (("at", place[axis]),)
        if key not in self._made:
            self._made[key] = self.line(f"trunc i64 {place[axis]} to i32")
        return self._made[key]

    # --- lines ---

    def line(self, text: str) -> str:
        self._count += 1
        name = f"%{self.tag}.h{self._count}"
        self.found.lines.append(f"  {name} = {text}")
        return name

    def call(self, name: str, a: str, b: str) -> str:
        return self.line(f"call i64 @llvm.{name}.i64(i64 {a}, i64 {b})")


_FLAGS = re.compile(r" (?:nuw|nsw|exact|nneg|inbounds|samesign|nusw)(?= )")


def _for_any_thread(i: Instruction) -> Instruction:
    """An instruction that may be done where no thread does it: without promises."""
    text = _FLAGS.sub("", i.text).replace("or disjoint ", "add ")
    return Instruction(i.result, i.opcode, i.type, text, i.uses, callee=i.callee)
