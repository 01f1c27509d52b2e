"""Checks of indices before a region's loop over threads, instead of in it.

An index that grows by the same number from thread to thread, and from round to round of a loop that
counts, is in range everywhere if it is at the corners: for the first and the last thread, in the first
and the last round. A condition around it (`if i < n:`) limits which thread is the last. If all checks of
a region are such ones, it is written twice: without checks, for when the corners are in range,
and with them, which finds the thread that is not. (LLVM would make masked stores of what a thread that fails
leaves behind, in each round.)
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from numbasync.backend.cpu.regions.cut import CutKernel
from numbasync.backend.cpu.regions.divergence import follows_from_operands
from numbasync.backend.cpu.regions.flow import (
    NaturalLoop,
    dominates,
    dominators,
    natural_loops,
    predecessors,
    reached_from,
)
from numbasync.backend.cpu.regions.instructions import Instruction
from numbasync.backend.cpu.regions.llvm_types import split_list
from numbasync.backend.cpu.regions.strides import AXES, Strides

BEFORE = ""  # in the place of a block: where the region begins
MOST_STRIDE = 1 << 16
MOST_CORNERS = 16
MOST_OPERATIONS = 400
_COORDINATES = {"%na.tx": "x", "%na.ty": "y", "%na.tz": "z"}
_COMPARISON = re.compile(r"icmp (samesign )?(\w+) (i\d+) (\S+), (\S+)$")
_OPPOSITE = {
    "slt": "sge", "sge": "slt", "sle": "sgt", "sgt": "sle",
    "ult": "uge", "uge": "ult", "ule": "ugt", "ugt": "ule", "eq": "ne", "ne": "eq",
}  # fmt: skip
_MIRRORED = {
    "slt": "sgt", "sgt": "slt", "sle": "sge", "sge": "sle",
    "ult": "ugt", "ugt": "ult", "ule": "uge", "uge": "ule", "eq": "eq", "ne": "ne",
}  # fmt: skip
_INTERVALS = frozenset(("slt", "sle", "sgt", "sge", "ult", "ule", "eq"))


class _NotHoistedError(Exception):
    """A check that has to stay where it is."""


@dataclass(frozen=True, slots=True)
class _Test:
    """A comparison that has to hold: of `left`, which grows, with `right`, which does not.

    Attributes:
        has_same_signs: nothing is promised of operands of two signs.
    """

    predicate: str
    type: str
    left: str
    right: str
    has_same_signs: bool = False


@dataclass(slots=True)
class HoistedChecks:
    """Checks that are made before a region.

    Attributes:
        taken: by block, the label that is taken if the checks hold.
        lines: code that computes `result`, an i1.
        uniform: kept values that the code needs, as `%TAG.in.V`.
        facts: what some values of the region are if the checks hold.
    """

    taken: dict[str, str]
    lines: list[str] = field(default_factory=list)
    uniform: set[str] = field(default_factory=set)
    facts: dict[str, str] = field(default_factory=dict)
    result: str = "true"


def hoist_checks(
    kernel: CutKernel,
    region_blocks: Collection[str],
    start: str,
    divergent: Collection[str],
    uniform_live: Collection[str],
    remade: Collection[str],
    row: bool,
    tag: str,
    extent: tuple[str, str] | None = None,
) -> HoistedChecks | None:
    """The checks of a region, to be made before it; None if one of them cannot be.

    Args:
        uniform_live: kept values of which all threads have the same, known at the start.
        remade: values that are made again at the start.
        extent: the first thread and the one behind the last in x, if not all of the block.
    """
    hoister = _Hoister(kernel, region_blocks, start, divergent, uniform_live, remade, row, tag)
    if extent is not None:
        hoister.extents["x"] = extent
    try:
        return hoister.run()
    except _NotHoistedError:
        return None


class _Hoister:
    def __init__(
        self, kernel: CutKernel, region_blocks: Collection[str], start: str,
        divergent: Collection[str], uniform_live: Collection[str], remade: Collection[str],
        row: bool, tag: str,
    ) -> None:  # fmt: skip
        self._blocks = kernel.function.blocks
        self._names = kernel.names
        self._arrays = kernel.local_arrays
        inside = set(region_blocks)
        graph = kernel.graph()
        for barrier in kernel.barriers:
            graph[barrier.block] = []
        self._graph = {b: [s for s in graph[b] if s in inside] for b in region_blocks}
        self._start, self._divergent, self._row, self._tag = start, divergent, row, tag
        self._uniform_live, self._remade = uniform_live, remade
        self._definitions = {n: i for n, (_, i) in kernel.function.definitions().items()}
        self._home = {i.result: b for b in inside for i in self._blocks[b] if i.result}
        self._tree = dominators(self._graph, start)
        self._before = predecessors(self._graph)
        ends = [b for b in inside if self._blocks[b][-1].opcode in ("ret", "barrier")]
        self._leading = reached_from(self._before, ends)
        self._loops = natural_loops(self._graph, start)
        axes = ("x",) if row else ("x", "y", "z")
        self._strides = {a: Strides(self._definitions, divergent, AXES[a]) for a in axes}
        self._plain_strides = {
            a: Strides(self._definitions, divergent, AXES[a], from_end=False) for a in axes
        }
        self._made: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
        self._count = 0
        self._led: dict[str, set[str]] = {}
        self.found = HoistedChecks({})
        self.extents = {a: ("0", f"%na.w{a}64") for a in axes}

    def run(self) -> HoistedChecks | None:
        results = []
        for block in self._graph:
            following = self._graph[block]
            good = [s for s in following if s in self._leading]
            if block not in self._leading or len(good) == len(following):
                continue
            last = self._blocks[block][-1]
            if last.opcode != "br" or len(good) != 1 or not last.uses:
                return None
            self.found.taken[block] = good[0]
            tests = self._tests(last.uses[0], last.labels[0] == good[0])
            results += [self._check(test, block) for test in tests]
        if not self.found.taken:
            return None
        results += self._signs()
        for result in results:
            self.found.result = self._line(f"and i1 {self.found.result}, {result}")
        return self.found


    def _signs(self) -> list[str]:
        """Checks that indices do not count from the end, of those that are the same everywhere."""
        results = []
        for name, i in self._definitions.items():
            test = re.fullmatch(r"icmp (?:samesign )?slt (i\d+) (%[\w.]+), 0", i.text)
            home = self._home.get(name)
            if test is None or (home is None) == (name not in self._remade):
                continue
            before = len(self.found.lines)
            try:
                check = self._check(_Test("sge", test[1], test[2], "0"), home or BEFORE)
            except _NotHoistedError:
                del self.found.lines[before:]
                self._made.clear()
            else:
                results.append(check)
                self.found.facts[name] = "false"
        return results

    # --- what is tested ---

    def _tests(self, condition: str, truth: bool) -> list[_Test]:
        """Comparisons all of which hold if `condition` is as `truth` says, and only then."""
        i = self._definitions.get(condition)
        if i is None:
            raise _NotHoistedError
        match = _COMPARISON.match(i.text)
        if match is not None:
            predicate = match[2] if truth else _OPPOSITE[match[2]]
            return [self._ordered(_Test(predicate, *match.group(3, 4, 5), bool(match[1])))]
        operands = [part.rsplit(" ", 1)[-1] for part in split_list(i.text)] if i.text else []
        if i.opcode == "xor" and operands[1] == "true":
            return self._tests(operands[0], not truth)
        if i.opcode == "select":
            if truth and operands[2] == "false":
                return self._tests(operands[0], True) + self._tests(operands[1], True)
            if not truth and operands[1] == "true":
                return self._tests(operands[0], False) + self._tests(operands[2], False)
        if (i.opcode == "and" and truth) or (i.opcode == "or" and not truth):
            return self._tests(operands[0], truth) + self._tests(operands[1], truth)
        raise _NotHoistedError

    def _ordered(self, test: _Test) -> _Test:
        """With what does not grow on the right."""
        if self._is_fixed(test.right):
            return test
        mirrored = _MIRRORED[test.predicate]
        return _Test(mirrored, test.type, test.right, test.left, test.has_same_signs)

    def _is_fixed(self, value: str) -> bool:
        return all(s.of(value) == 0 for s in self._strides.values()) and not self._grows_in(value)

    def _grows_in(self, value: str) -> list[NaturalLoop]:
        """The loops of the region whose counters are in `value`."""
        return [loop for loop in self._loops if self._uses_counter(value, loop, set())]

    def _uses_counter(self, value: str, loop: NaturalLoop, seen: set[str]) -> bool:
        if value in seen or value[0] != "%" or self._home.get(value) not in loop.blocks:
            return False
        seen.add(value)
        i = self._definitions[value]
        if i.opcode == "phi" and self._home[value] == loop.header:
            return True
        return any(self._uses_counter(u, loop, seen) for u in i.uses)

    # --- one check ---

    def _check(self, test: _Test, block: str) -> str:
        """The name of an i1: the test holds for all that come to the block."""
        if not self._is_fixed(test.right):
            raise _NotHoistedError
        ranges: dict[str, tuple[str, str]] = {}  # by axis: first, and last, as i64 or as counters
        empty = []
        for axis, strides in self._strides.items():
            stride = strides.of(test.left)
            if stride is None or abs(stride) > MOST_STRIDE:
                raise _NotHoistedError
            if stride:
                begin, end = self._range(axis, block)
                empty.append(self._line(f"icmp sge i64 {begin}, {end}"))
                ranges[axis] = begin, self._line(f"sub i64 {end}, 1")
        for loop in self._grows_in(test.left):
            counter, first, last, is_none = self._counter(test.left, loop, block)
            ranges[counter] = first, last
            empty.append(is_none)
        if 1 << len(ranges) > MOST_CORNERS or (ranges and test.predicate not in _INTERVALS):
            raise _NotHoistedError
        holds = "true"
        for corner in itertools.product(*([(k, v) for v in pair] for k, pair in ranges.items())):
            place = dict(corner)
            left = self._at(test.left, place, block)
            right = self._at(test.right, place, block)
            one = self._line(f"icmp {test.predicate} {test.type} {left}, {right}")
            holds = self._line(f"and i1 {holds}, {one}")
        for none in empty:
            holds = self._line(f"or i1 {holds}, {none}")
        return holds

    def _range(self, axis: str, block: str) -> tuple[str, str]:
        """The first thread along an axis that may come to a block, and the one behind the last."""
        begin, end = self.extents[axis]
        node = block or self._start
        while node != self._start:
            above = self._tree[node]
            last = self._blocks[above][-1]
            if (
                last.opcode == "br"
                and last.uses
                and len(last.labels) == 2
                and node in last.labels
                and last.labels[0] != last.labels[1]
                and self._before[node] == [above]
                and all(s in self._leading for s in last.labels)  # and no check of an index
            ):
                try:
                    guards = self._tests(last.uses[0], last.labels[0] == node)
                except _NotHoistedError:
                    guards = []
                for guard in guards:
                    begin, end = self._narrowed(guard, axis, above, begin, end)
            node = above
        return begin, end

    def _narrowed(
        self, guard: _Test, axis: str, block: str, begin: str, end: str
    ) -> tuple[str, str]:
        strides = {a: s.of(guard.left) for a, s in self._plain_strides.items()}
        own = strides.pop(axis)
        if own != 1 or any(strides.values()) or None in strides.values():
            return begin, end
        if not self._is_fixed(guard.right) or self._grows_in(guard.left):
            return begin, end
        before = len(self.found.lines)
        try:
            left = self._as_i64(guard.type, self._at(guard.left, {axis: "0"}, block))
            right = self._as_i64(guard.type, self._at(guard.right, {axis: "0"}, block))
        except _NotHoistedError:
            del self.found.lines[before:]
            self._made.clear()
            return begin, end
        away = self._call("ssub.sat", right, left)
        behind = self._call("sadd.sat", away, "1")
        predicate = guard.predicate
        if guard.has_same_signs:
            predicate = predicate.replace("u", "s", 1)
        match predicate:
            case "slt" | "sle":
                end = self._call("smin", end, away if predicate == "slt" else behind)
            case "ult" | "ule":
                # Of two that are not negative, as it is of signed ones; else nothing is known.
                good = self._line(f"icmp sge i64 {right}, 0")
                limit = away if predicate == "ult" else behind
                limit = self._line(f"select i1 {good}, i64 {limit}, i64 {end}")
                end = self._call("smin", end, limit)
            case "sgt" | "sge":
                begin = self._call("smax", begin, away if predicate == "sge" else behind)
            case "eq":
                begin = self._call("smax", begin, away)
                end = self._call("smin", end, behind)
            case _:
                pass
        return begin, end

    def _as_i64(self, kind: str, value: str) -> str:
        if kind == "i64":
            return value
        if int(kind[1:]) > 64:
            raise _NotHoistedError
        return self._line(f"sext {kind} {value} to i64")

    # --- loops that count ---

    def _counter(self, value: str, loop: NaturalLoop, block: str) -> tuple[str, str, str, str]:
        """A counter in `value`: its name, first and last value, and whether there is no round."""
        if len(loop.latches) != 1 or block == loop.header or block not in loop.blocks:
            raise _NotHoistedError
        body = [s for s in self._graph[loop.header] if s in loop.blocks]
        if len(body) != 1 or not dominates(self._tree, body[0], block):
            raise _NotHoistedError
        phis = [
            i.result
            for i in self._blocks[loop.header]
            if i.opcode == "phi" and self._depends(value, i.result, set())
        ]
        if len(phis) != 1:
            raise _NotHoistedError
        first, step = self._steps(phis[0], loop)
        along = Strides(self._definitions, self._definitions, {**dict.fromkeys(self._names, 0), phis[0]: 1})
        stride = along.of(value)
        if stride is None or abs(stride * step) > MOST_STRIDE:
            raise _NotHoistedError
        kind = self._definitions[phis[0]].type
        last = self._blocks[loop.header][-1]
        if last.opcode != "br" or not last.uses:
            raise _NotHoistedError
        tests = self._tests(last.uses[0], last.labels[0] in loop.blocks)
        left = tests[0]
        if len(tests) != 1 or left.left[0] != "%":
            raise _NotHoistedError
        counted = self._definitions[left.left]
        if counted.opcode != "phi" or self._home.get(left.left) != loop.header:
            raise _NotHoistedError
        count_first, count_step = self._steps(left.left, loop)
        if left.predicate != "sgt" or left.right != "0" or count_step != -1:
            raise _NotHoistedError
        if not self._is_fixed(count_first):
            raise _NotHoistedError
        rounds = self._at(count_first, {}, loop.header)
        is_none = self._line(f"icmp sle {left.type} {rounds}, 0")
        more = self._line(f"sub {left.type} {rounds}, 1")
        if left.type != kind:
            raise _NotHoistedError
        grown = self._line(f"mul {kind} {more}, {step}")
        if not self._is_fixed(first):
            raise _NotHoistedError
        begin = self._at(first, {}, loop.header)
        return phis[0], begin, self._line(f"add {kind} {begin}, {grown}"), is_none

    def _depends(self, value: str, on: str, seen: set[str]) -> bool:
        if value == on:
            return True
        if value in seen or value not in self._home:
            return False
        seen.add(value)
        i = self._definitions[value]
        return i.opcode != "phi" and any(self._depends(u, on, seen) for u in i.uses)

    def _steps(self, phi: str, loop: NaturalLoop) -> tuple[str, int]:
        """What a counter begins with, and by how much it grows."""
        i = self._definitions[phi]
        begins = [v for v, b in i.incoming if b not in loop.blocks and b in self._graph]
        after = [self._definitions.get(v) for v, b in i.incoming if b in loop.blocks]
        if len(begins) != 1 or len(after) != 1 or after[0] is None:
            raise _NotHoistedError
        match = re.fullmatch(rf"add (?:n[us]w )*i\d+ {re.escape(phi)}, (-?\d+)", after[0].text)
        if match is None:
            raise _NotHoistedError
        return begins[0], int(match[1])

    # --- values at a corner ---

    def _at(self, value: str, place: Mapping[str, str], block: str) -> str:
        """The name of what a value is for a thread and round, when control comes to a block."""
        if value[0] != "%":
            return value
        if value in place:
            return place[value]
        if value in _COORDINATES or value == "%na.tid":
            return self._coordinate(value, place)
        if value in self._names:
            if value in self._arrays:
                raise _NotHoistedError
            return value
        home = self._home.get(value)
        if block == BEFORE or home is None or not self._leads(home, block):
            return self._before_region(value, place)
        if not dominates(self._tree, home, block):
            raise _NotHoistedError  # made anew on some ways only
        key = value, tuple(sorted(place.items()))
        if key not in self._made:
            i = self._definitions[value]
            if i.opcode == "phi":
                ways = [(v, b) for v, b in i.incoming if home in self._graph.get(b, ())]
                if len(ways) != 1:
                    raise _NotHoistedError
                self._made[key] = self._at(ways[0][0], place, ways[0][1])
            else:
                self._made[key] = self._again(i, place, home)
        return self._made[key]

    def _before_region(self, value: str, place: Mapping[str, str]) -> str:
        """What a value is where the region begins."""
        if value in self._uniform_live:
            self.found.uniform.add(value)
            return f"%{self._tag}.in.{value[1:]}"
        if value not in self._remade:
            raise _NotHoistedError
        key = f"{value} {BEFORE}", tuple(sorted(place.items()))
        if key not in self._made:
            self._made[key] = self._again(self._definitions[value], place, BEFORE)
        return self._made[key]

    def _again(self, i: Instruction, place: Mapping[str, str], block: str) -> str:
        """Do an instruction for a thread and round."""
        if i.opcode == "phi" or not follows_from_operands(i) or i.opcode.endswith(("div", "rem")):
            raise _NotHoistedError
        if len(self.found.lines) > MOST_OPERATIONS:
            raise _NotHoistedError
        operands = {u: self._at(u, place, block) for u in i.uses}
        return self._line(_for_any_thread(i).renamed(operands))

    def _leads(self, home: str, block: str) -> bool:
        """Whether a value that is made in `home` may be made anew before control is at `block`."""
        if home not in self._led:
            self._led[home] = reached_from(self._graph, [home])
        return block in self._led[home]

    def _coordinate(self, value: str, place: Mapping[str, str]) -> str:
        if value == "%na.tid":
            if self._row:
                return place.get("x", "0")
            raise _NotHoistedError
        axis = _COORDINATES[value]
        if axis not in place:
            return "0"
        key = value, (("at", place[axis]),)
        if key not in self._made:
            self._made[key] = self._line(f"trunc i64 {place[axis]} to i32")
        return self._made[key]

    # --- lines ---

    def _line(self, text: str) -> str:
        self._count += 1
        name = f"%{self._tag}.h{self._count}"
        self.found.lines.append(f"  {name} = {text}")
        return name

    def _call(self, name: str, a: str, b: str) -> str:
        return self._line(f"call i64 @llvm.{name}.i64(i64 {a}, i64 {b})")



_FLAGS = re.compile(r" (?:nuw|nsw|exact|nneg|inbounds|samesign|nusw)(?= )")


def _for_any_thread(i: Instruction) -> Instruction:
    """An instruction that may be done where no thread does it: without promises."""
    text = _FLAGS.sub("", i.text).replace("or disjoint ", "add ")
    return Instruction(i.result, i.opcode, i.type, text, i.uses, callee=i.callee)
