"""How far apart the values of neighbouring threads are: whether accesses are side by side."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from numbasync.backend.cpu.regions.divergence import follows_from_operands
from numbasync.backend.cpu.regions.instructions import Instruction
from numbasync.backend.cpu.regions.llvm_types import (
    UnknownFormError,
    elements_of,
    size_and_alignment,
    split_list,
)

AXES: dict[str, dict[str, int | None]] = {
    "x": {"%na.tx": 1, "%na.tid": 1, "%na.ty": 0, "%na.tz": 0},
    "y": {"%na.tx": 0, "%na.tid": None, "%na.ty": 1, "%na.tz": 0},
    "z": {"%na.tx": 0, "%na.tid": None, "%na.ty": 0, "%na.tz": 1},
}
_SAME = frozenset(("sext", "zext", "trunc", "freeze", "ptrtoint", "inttoptr", "bitcast"))


class Strides:
    """By how much a value grows from a thread to the next one along an axis.

    Args:
        definitions: the instruction of each value.
        divergent: values that may differ at all; others have the stride 0.
        along: the strides of thread coordinates, or of what else counts.
        from_end: pass over it that negative indices count from the end: `i + (n if i < 0 else 0)`.
    """

    def __init__(
        self,
        definitions: Mapping[str, Instruction],
        divergent: Collection[str],
        along: Mapping[str, int | None] | None = None,
        from_end: bool = True,
    ) -> None:
        self._definitions, self._divergent, self._from_end = definitions, divergent, from_end
        self._known: dict[str, int | None] = dict(AXES["x"] if along is None else along)

    def of(self, value: str) -> int | None:
        """The stride: of addresses in bytes; None if it is not known."""
        if value[0] != "%" or value not in self._divergent:
            return 0
        if value not in self._known:
            self._known[value] = None
            i = self._definitions.get(value)
            try:
                self._known[value] = None if i is None else self._of(i)
            except UnknownFormError:
                self._known[value] = None
        return self._known[value]

    def _of(self, i: Instruction) -> int | None:
        if i.opcode != "phi" and follows_from_operands(i) and all(self.of(u) == 0 for u in i.uses):
            return 0
        if i.opcode == "phi":
            return self._of_phi(i)
        if i.opcode in _SAME:
            return self.of(i.uses[0])
        if i.opcode == "select":
            return self._of_select(i)
        if i.opcode == "getelementptr":
            return self._of_address(i)
        if i.opcode in ("add", "sub", "mul", "shl", "or"):
            left, right = i.operands()
            a, b = self.of(left), self.of(right)
            if a is None or b is None:
                return None
            if i.opcode == "add" or (i.opcode == "or" and "disjoint" in i.text):
                return a + b
            if i.opcode == "sub":
                return a - b
            if i.opcode == "mul":
                left, right, a, b = (right, left, b, a) if _is_number(left) else (left, right, a, b)
                return a * int(right) if _is_number(right) else None
            if i.opcode == "shl" and _is_number(right):
                return a << int(right)
        return None

    def _of_phi(self, i: Instruction) -> int | None:
        """The stride with which a loop begins, if each round keeps it."""
        first: int | None = None
        for value, _ in i.incoming:
            stride = self.of(value)
            if stride is not None:
                first = stride
                break
        if first is None:
            return None
        before = dict(self._known)
        self._known[i.result] = first
        for name in [n for n, s in self._known.items() if s is None and n != i.result]:
            del self._known[name]
        if any(self.of(value) != first for value, _ in i.incoming):
            self._known = before
            return None
        return first

    def _of_select(self, i: Instruction) -> int | None:
        condition, a, b = i.operands()
        strides = self.of(a), self.of(b)
        if strides[0] != strides[1]:
            return None
        is_sign_test = False
        if condition in self._divergent:
            test = self._definitions.get(condition)
            is_sign_test = test is not None and bool(re.match(r"icmp slt \w+ %\S+, 0$", test.text))
            if not (is_sign_test and self._from_end):
                return None
        return strides[0]

    def _of_address(self, i: Instruction) -> int | None:
        parts = split_list(i.text)
        kind = re.sub(r"^getelementptr (?:(?:inbounds|nuw|nusw) )*", "", parts[0])
        total = self.of(parts[1].rsplit(" ", 1)[-1])
        for n, part in enumerate(parts[2:]):
            index = part.rsplit(" ", 1)[-1]
            if n:
                inner = elements_of(kind)
                if isinstance(inner, list):
                    if not _is_number(index):
                        return None
                    kind = inner[int(index)]
                    continue
                kind = inner[1]
            stride = self.of(index)
            if stride is None or total is None:
                return None
            total += stride * size_and_alignment(kind)[0]
        return total


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+", text))
