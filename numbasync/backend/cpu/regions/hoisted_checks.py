"""Checks of indices before a region's loop over threads, instead of in it.

An index that grows by the same number from thread to thread, and from round to round of a loop that
counts, is in range everywhere if it is at the corners: for the first and the last thread, in the
first and the last round. A condition around it (`if i < n:`) limits which thread is the last. If
all checks of a region are such ones, it is written twice: without checks, for when the corners are
in range, and with them, which finds the thread that is not. (LLVM would make masked stores of what
a thread that fails leaves behind, in each round.)
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection

from numbasync.backend.cpu.regions.corner_values import (
    BEFORE,
    CornerValues,
    HoistedChecks,
    NotHoistedError,
)
from numbasync.backend.cpu.regions.cut import CutKernel
from numbasync.backend.cpu.regions.flow import NaturalLoop, dominates
from numbasync.backend.cpu.regions.instructions import Comparison
from numbasync.backend.cpu.regions.strides import AXES, Strides

MOST_STRIDE = 1 << 16
MOST_CORNERS = 16
_INTERVALS = frozenset(("slt", "sle", "sgt", "sge", "ult", "ule", "eq"))


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
    except NotHoistedError:
        return None


class _Hoister(CornerValues):
    def __init__(
        self, kernel: CutKernel, region_blocks: Collection[str], start: str,
        divergent: Collection[str], uniform_live: Collection[str], remade: Collection[str],
        row: bool, tag: str,
    ) -> None:  # fmt: skip
        super().__init__(kernel, region_blocks, start, uniform_live, remade, row, tag)
        axes = ("x",) if row else ("x", "y", "z")
        self._strides = {a: Strides(self.definitions, divergent, AXES[a]) for a in axes}
        self._plain_strides = {
            a: Strides(self.definitions, divergent, AXES[a], from_end=False) for a in axes
        }
        self.extents = {a: ("0", f"%na.w{a}64") for a in axes}
        self._conditions: dict[str, str] = {}  # by block: the way to a check, if not all take it

    def run(self) -> HoistedChecks | None:
        results = []
        for block in self.graph:
            following = self.graph[block]
            good = [s for s in following if s in self.leading]
            if block not in self.leading or len(good) == len(following):
                continue
            last = self.blocks[block][-1]
            if last.opcode != "br" or len(good) != 1 or not last.uses:
                return None
            self.found.taken[block] = good[0]
            tests = self._tests(last.uses[0], last.labels[0] == good[0])
            results += [self._check(test, block) for test in tests]
        if not self.found.taken:
            return None
        self._stay()
        results += self._signs()
        for result in results:
            self.found.result = self.line(f"and i1 {self.found.result}, {result}")
        self._enter()
        return self.found

    def _stay(self) -> None:
        """Note the conditions by which threads stay in a turned loop for another round."""
        for loop in self.turned:
            for block in loop.blocks & self.graph.keys():
                last, ways = self.blocks[block][-1], set(self.graph[block])
                if last.opcode == "br" and len(ways) == 2 and ways <= self.leading:
                    inside = ways & loop.blocks
                    if len(inside) == 1:
                        self._conditions[block] = inside.pop()

    def _enter(self) -> None:
        """Whether all threads pass the conditions before the checks, and stay in turned loops."""
        for block, following in list(self._conditions.items()):  # more may be found
            last = self.blocks[block][-1]
            before = len(self.found.lines)
            tests: list[Comparison] = []
            try:
                tests = self._tests(last.uses[0], last.labels[0] == following)
                checks = [self._check(t, block) for t in tests if self._is_plain(t)]
            except NotHoistedError:
                checks = []
            if not checks or len(checks) < len(tests):
                self.forget(before)
                continue
            self.found.entered[block] = following
            for check in checks:
                self.found.all_enter = self.line(f"and i1 {self.found.all_enter}, {check}")

    def _is_plain(self, test: Comparison) -> bool:
        """Whether what is tested grows with the thread alone, as it is written."""
        strides = [s.of(test.left) for s in self._plain_strides.values()]
        return None not in strides and not self._grows_in(test.left)

    def _signs(self) -> list[str]:
        """Checks that indices do not count from the end, of those that are the same everywhere."""
        results = []
        for name, i in self.definitions.items():
            test = re.fullmatch(r"icmp (?:samesign )?slt (i\d+) (%[\w.]+), 0", i.text)
            home = self.home.get(name)
            if test is None or (home is None) == (name not in self.remade):
                continue
            before = len(self.found.lines)
            try:
                check = self._check(Comparison("sge", test[1], test[2], "0"), home or BEFORE)
            except NotHoistedError:
                self.forget(before)
            else:
                results.append(check)
                self.found.facts[name] = "false"
        return results

    # --- what is tested ---

    def _tests(self, condition: str, truth: bool) -> list[Comparison]:
        """Comparisons all of which hold if `condition` is as `truth` says, and only then."""
        i = self.definitions.get(condition)
        if i is None:
            raise NotHoistedError
        comparison = Comparison.of(i)
        if comparison is not None and comparison.type != "ptr":
            test = comparison if truth else comparison.opposite()
            # With what does not grow on the right.
            return [test if self._is_fixed(test.right) else test.mirrored()]
        operands = i.operands()
        if i.opcode == "xor" and operands[1] == "true":
            return self._tests(operands[0], not truth)
        if i.opcode == "select":
            if truth and operands[2] == "false":
                return self._tests(operands[0], True) + self._tests(operands[1], True)
            if not truth and operands[1] == "true":
                return self._tests(operands[0], False) + self._tests(operands[2], False)
        if (i.opcode == "and" and truth) or (i.opcode == "or" and not truth):
            return self._tests(operands[0], truth) + self._tests(operands[1], truth)
        raise NotHoistedError

    def _is_fixed(self, value: str) -> bool:
        return all(s.of(value) == 0 for s in self._strides.values()) and not self._grows_in(value)

    def _grows_in(self, value: str) -> list[NaturalLoop]:
        """The loops of the region whose counters are in `value`."""
        return [loop for loop in self.loops if self._uses_counter(value, loop, set())]

    def _uses_counter(self, value: str, loop: NaturalLoop, seen: set[str]) -> bool:
        if value in seen or value[0] != "%" or self.home.get(value) not in loop.blocks:
            return False
        seen.add(value)
        i = self.definitions[value]
        if i.opcode == "phi" and self.home[value] == loop.header:
            return True
        return any(self._uses_counter(u, loop, seen) for u in i.uses)

    # --- one check ---

    def _check(self, test: Comparison, block: str) -> str:
        """The name of an i1: the test holds for all that come to the block."""
        if not self._is_fixed(test.right):
            raise NotHoistedError
        ranges: dict[str, tuple[str, str]] = {}  # by axis: first, and last, as i64 or as counters
        empty = []
        for axis, strides in self._strides.items():
            stride = strides.of(test.left)
            if stride is None or abs(stride) > MOST_STRIDE:
                raise NotHoistedError
            if stride:
                begin, end = self._range(axis, block)
                empty.append(self.line(f"icmp sge i64 {begin}, {end}"))
                ranges[axis] = begin, self.line(f"sub i64 {end}, 1")
        for loop in self._grows_in(test.left):
            counter, first, last, is_none = self._counter(test.left, loop, block)
            ranges[counter] = first, last
            empty.append(is_none)
        if 1 << len(ranges) > MOST_CORNERS or (ranges and test.predicate not in _INTERVALS):
            raise NotHoistedError
        holds = "true"
        for corner in itertools.product(*([(k, v) for v in pair] for k, pair in ranges.items())):
            place = dict(corner)
            left = self.at(test.left, place, block)
            right = self.at(test.right, place, block)
            one = self.line(f"icmp {test.predicate} {test.type} {left}, {right}")
            holds = self.line(f"and i1 {holds}, {one}")
        for none in empty:
            holds = self.line(f"or i1 {holds}, {none}")
        return holds

    def _range(self, axis: str, block: str) -> tuple[str, str]:
        """The first thread along an axis that may come to a block, and the one behind the last."""
        begin, end = self.extents[axis]
        node = block or self.start
        while node != self.start:
            above = self.tree[node]
            last = self.blocks[above][-1]
            if (
                last.opcode == "br"
                and last.uses
                and len(last.labels) == 2
                and node in last.labels
                and last.labels[0] != last.labels[1]
                and self.before[node] == [above]
                and all(s in self.leading for s in last.labels)  # and no check of an index
            ):
                try:
                    guards = self._tests(last.uses[0], last.labels[0] == node)
                except NotHoistedError:
                    guards = []
                if guards:
                    self._conditions[above] = node
                for guard in guards:
                    begin, end = self._narrowed(guard, axis, above, begin, end)
            node = above
        return begin, end

    def _narrowed(
        self, guard: Comparison, axis: str, block: str, begin: str, end: str
    ) -> tuple[str, str]:
        strides = {a: s.of(guard.left) for a, s in self._plain_strides.items()}
        own = strides.pop(axis)
        if own != 1 or any(strides.values()) or None in strides.values():
            return begin, end
        if not self._is_fixed(guard.right) or self._grows_in(guard.left):
            return begin, end
        before = len(self.found.lines)
        try:
            left = self._as_i64(guard.type, self.at(guard.left, {axis: "0"}, block))
            right = self._as_i64(guard.type, self.at(guard.right, {axis: "0"}, block))
        except NotHoistedError:
            self.forget(before)
            return begin, end
        away = self.call("ssub.sat", right, left)
        behind = self.call("sadd.sat", away, "1")
        predicate = guard.signed().predicate
        match predicate:
            case "slt" | "sle":
                end = self.call("smin", end, away if predicate == "slt" else behind)
            case "ult" | "ule":
                # Of two that are not negative, as it is of signed ones; else nothing is known.
                good = self.line(f"icmp sge i64 {right}, 0")
                limit = away if predicate == "ult" else behind
                limit = self.line(f"select i1 {good}, i64 {limit}, i64 {end}")
                end = self.call("smin", end, limit)
            case "sgt" | "sge":
                begin = self.call("smax", begin, away if predicate == "sge" else behind)
            case "eq":
                begin = self.call("smax", begin, away)
                end = self.call("smin", end, behind)
            case _:
                pass
        return begin, end

    def _as_i64(self, kind: str, value: str) -> str:
        if kind == "i64":
            return value
        if int(kind[1:]) > 64:
            raise NotHoistedError
        return self.line(f"sext {kind} {value} to i64")

    # --- loops that count ---

    def _counter(self, value: str, loop: NaturalLoop, block: str) -> tuple[str, str, str, str]:
        """A counter in `value`: its name, first and last value, and whether there is no round."""
        if len(loop.latches) != 1 or block == loop.header or block not in loop.blocks:
            raise NotHoistedError
        body = [s for s in self.graph[loop.header] if s in loop.blocks]
        if len(body) != 1 or not dominates(self.tree, body[0], block):
            raise NotHoistedError
        phis = [
            i.result
            for i in self.blocks[loop.header]
            if i.opcode == "phi" and self._depends(value, i.result, set())
        ]
        if len(phis) != 1:
            raise NotHoistedError
        first, step = self._steps(phis[0], loop)
        along = Strides(
            self.definitions, self.definitions, {**dict.fromkeys(self.names, 0), phis[0]: 1}
        )
        stride = along.of(value)
        if stride is None or abs(stride * step) > MOST_STRIDE:
            raise NotHoistedError
        kind = self.definitions[phis[0]].type
        last = self.blocks[loop.header][-1]
        if last.opcode != "br" or not last.uses:
            raise NotHoistedError
        tests = self._tests(last.uses[0], last.labels[0] in loop.blocks)
        left = tests[0]
        if len(tests) != 1 or left.left[0] != "%":
            raise NotHoistedError
        counted = self.definitions[left.left]
        if counted.opcode != "phi" or self.home.get(left.left) != loop.header:
            raise NotHoistedError
        count_first, count_step = self._steps(left.left, loop)
        if left.predicate != "sgt" or left.right != "0" or count_step != -1:
            raise NotHoistedError
        if not self._is_fixed(count_first):
            raise NotHoistedError
        rounds = self.at(count_first, {}, loop.header)
        is_none = self.line(f"icmp sle {left.type} {rounds}, 0")
        more = self.line(f"sub {left.type} {rounds}, 1")
        if left.type != kind:
            raise NotHoistedError
        grown = self.line(f"mul {kind} {more}, {step}")
        if not self._is_fixed(first):
            raise NotHoistedError
        begin = self.at(first, {}, loop.header)
        return phis[0], begin, self.line(f"add {kind} {begin}, {grown}"), is_none

    def _depends(self, value: str, on: str, seen: set[str]) -> bool:
        if value == on:
            return True
        if value in seen or value not in self.home:
            return False
        seen.add(value)
        i = self.definitions[value]
        return i.opcode != "phi" and any(self._depends(u, on, seen) for u in i.uses)

    def _steps(self, phi: str, loop: NaturalLoop) -> tuple[str, int]:
        """What a counter begins with, and by how much it grows."""
        i = self.definitions[phi]
        begins = [v for v, b in i.incoming if b not in loop.blocks and b in self.graph]
        after = [self.definitions.get(v) for v, b in i.incoming if b in loop.blocks]
        if len(begins) != 1 or len(after) != 1 or after[0] is None:
            raise NotHoistedError
        match = re.fullmatch(rf"add (?:n[us]w )*i\d+ {re.escape(phi)}, (-?\d+)", after[0].text)
        if match is None:
            raise NotHoistedError
        return begins[0], int(match[1])
