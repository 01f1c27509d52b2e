"""Loops that test behind their body, as LLVM writes a `while`, as loops that test before it.

A loop whose way in is tested by the same comparison is a loop that tests first. Only that form can
be turned inside out (`turned_loops`); LLVM makes the other one of it again in the end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from numbasync.backend.cpu.regions.cut import phi
from numbasync.backend.cpu.regions.flow import (
    NaturalLoop,
    natural_loops,
    predecessors,
    reached_from,
)
from numbasync.backend.cpu.regions.function_text import Function
from numbasync.backend.cpu.regions.instructions import Comparison, Instruction, parse_instruction


@dataclass(frozen=True, slots=True)
class _Test:
    """What holds where a branch goes one way; the other way is `outside`."""

    holds: Comparison
    outside: str


def test_first(function: Function) -> None:
    """Write all loops so that can be."""
    rewriter = _Rewriter(function)
    for loop in natural_loops(function.successors(), function.entry):
        if rewriter.run(loop):
            rewriter = _Rewriter(function)


class _Rewriter:
    """Writes loops of a function, each of them if that can be: then its blocks are others."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._blocks = function.blocks
        self._graph = function.successors()
        self._before = predecessors(self._graph)
        self._definitions = function.made()

    def run(self, loop: NaturalLoop) -> bool:
        """Write a loop so that it tests first; whether that is done."""
        self._loop = loop
        self._made = {i.result for b in loop.blocks for i in self._blocks[b] if i.result}
        header = loop.header
        ways_in = [b for b in self._before[header] if b not in loop.blocks]
        if len(loop.latches) != 1 or len(ways_in) != 1:
            return False
        (latch,), (entry,) = self._loop.latches, ways_in
        test = self._test(latch, header)
        if test is None or test.outside in self._loop.blocks or len(self._graph[latch]) != 2:
            return False
        phis = [i for i in self._blocks[header] if i.opcode == "phi"]
        heads = {tuple(v for _, v in sorted((b == latch, v) for v, b in i.incoming)): i.result
                 for i in phis}  # fmt: skip
        operands = self._operands(entry, header, test, heads)
        behind = self._behind(test.outside, latch, heads)
        if operands is None or behind is None or self._is_used_behind(test.outside):
            return False
        self._write(latch, entry, test, operands, phis, behind)
        return True

    def _test(self, block: str, following: str) -> _Test | None:
        """What holds on the way from a block to `following`."""
        last = self._blocks[block][-1]
        if last.opcode != "br" or len(last.uses) != 1 or len(set(last.labels)) != 2:
            return None
        holds = Comparison.of(self._definitions.get(last.uses[0]))
        if holds is None:
            return None
        holds = holds.signed()
        if last.labels[0] == following:
            return _Test(holds, last.labels[1])
        return _Test(holds.opposite(), last.labels[0])

    def _operands(
        self, entry: str, header: str, test: _Test, heads: Mapping[tuple[str, ...], str]
    ) -> str | None:
        """The operands of the test before the body, if the way in makes the same one."""
        block, following = entry, header
        while len(self._graph[block]) == 1 and len(self._before[block]) == 1:
            block, following = self._before[block][0], block
        guard = self._test(block, following)
        if guard is None:
            return None
        for first in (guard.holds, guard.holds.mirrored()):
            left = self._at_head(first.left, test.holds.left, heads)
            right = self._at_head(first.right, test.holds.right, heads)
            if first.kind == test.holds.kind and left is not None and right is not None:
                return f"{left}, {right}"
        return None

    def _at_head(self, first: str, later: str, heads: Mapping[tuple[str, ...], str]) -> str | None:
        """What is `first` when the loop begins, and `later` when a round has been done."""
        if first == later and later not in self._made:
            return later
        return heads.get((first, later))

    def _behind(
        self, outside: str, latch: str, heads: Mapping[tuple[str, ...], str]
    ) -> dict[str, str] | None:
        """For the phis behind the loop, what comes from the test before the body."""
        found: dict[str, str] = {}
        for i in self._blocks[outside]:
            if i.opcode != "phi":
                continue
            value = next(v for v, b in i.incoming if b == latch)
            head = next((n for (_, later), n in heads.items() if later == value), None)
            if value in self._made and head is None:
                return None
            found[i.result] = value if head is None else head
        return found

    def _is_used_behind(self, outside: str) -> bool:
        """Whether a value of the loop is used behind it, but by a phi at the edge out of it."""
        for block in reached_from(self._graph, [outside]) - self._loop.blocks:
            for i in self._blocks[block]:
                if i.opcode == "phi":
                    used: Collection[str] = [v for v, b in i.incoming if b not in self._loop.blocks]
                else:
                    used = i.uses
                if not self._made.isdisjoint(used):
                    return True
        return False

    def _write(
        self, latch: str, entry: str, test: _Test, operands: str, phis: list[Instruction],
        behind: Mapping[str, str],
    ) -> None:  # fmt: skip
        header = self._loop.header
        head = self._function.new_name("test")
        holds = f"{head}.holds"
        self._blocks[header] = self._blocks[header][len(phis) :]
        self._blocks[head] = [
            *phis,
            parse_instruction(f"{holds} = icmp {test.holds.kind} {operands}"),
            parse_instruction(f"br i1 {holds}, label {header}, label {test.outside}"),
        ]
        self._blocks[latch][-1] = parse_instruction(f"br label {head}")
        last = self._blocks[entry][-1]
        is_same = test.outside in last.labels and self._is_alike(entry, test.outside, behind, phis)
        if is_same:
            self._blocks[entry][-1] = parse_instruction(f"br label {head}")
        else:
            self._blocks[entry][-1] = last.with_label(header, head)
        gone = {latch, entry} if is_same else {latch}
        code = self._blocks[test.outside]
        for n, i in enumerate(code):
            if i.opcode == "phi":
                incoming = [(v, b) for v, b in i.incoming if b not in gone]
                code[n] = phi(i.result, i.type, [*incoming, (behind[i.result], head)])

    def _is_alike(
        self, entry: str, outside: str, behind: Mapping[str, str], phis: list[Instruction]
    ) -> bool:
        """Whether it is the same to go out before the loop and at its first test."""
        first = {i.result: v for i in phis for v, b in i.incoming if b == entry}
        return all(
            v == first.get(behind[i.result], behind[i.result])
            for i in self._blocks[outside]
            if i.opcode == "phi"
            for v, b in i.incoming
            if b == entry
        )
