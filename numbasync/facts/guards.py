"""The threads of a kernel that have work, read from the conditions around the kernel's effects.

A store lies behind conditions: `if i < z.shape[0]:`, `if i >= len(z): return`, a loop over a range.
Where every store lies behind a condition that compares the thread's coordinate with an extent,
threads beyond that extent do nothing. A condition is identified by the edge of the control flow
graph that it opens.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, TypeAlias

from numbasync.facts import callees
from numbasync.facts.bounds import SIZE, Affine, Integers
from numbasync.facts.effects import summary
from numbasync.facts.ir import UNKNOWN, Method, Names

# A CUDA axis; a parameter's position; an axis of that parameter.
Bound: TypeAlias = tuple[int, int, int]
# Bounds, each with the number that is added to the extent.
Bounds: TypeAlias = dict[Bound, int]

_FIRST = -1  # instead of a parameter: `i == 0`, which is within any extent
_LT, _LE, _GT, _GE, _EQ = operator.lt, operator.le, operator.gt, operator.ge, operator.eq
_NEGATED: dict[Any, Any] = {_LT: _GE, _LE: _GT, _GT: _LE, _GE: _LT, operator.ne: _EQ}
_TURNED: dict[Any, Any] = {_LT: _GT, _LE: _GE, _GT: _LT, _GE: _LE, _EQ: _EQ}
_MORE = {_LT: 0, _LE: 1, _EQ: 1}  # i <= n is i < n + 1


class Guards:
    """The conditions in front of the stores of one function."""

    def __init__(self, names: Names) -> None:
        from numba.core import ir

        from numbasync.kernel_names import cuda

        self._ir, self._cuda, self._names = ir, cuda, names
        self._integers = Integers(names)
        self._walked: set[int] = set()  # CUDA axes along which a thread continues in a loop
        self._held = self._common()

    def bounded(self) -> frozenset[Bound]:
        """See `Usage.bounded`: every effect of the function lies behind these bounds."""
        return frozenset(b for b, more in self._held.items() if more <= 0 and b[2] != SIZE)

    def reach(self) -> frozenset[tuple[Bound, int]]:
        """See `Usage.reach`. Excludes an axis whose coordinate is also compared with anything else:
        then fewer threads may have work.
        """
        unsure = self._walked.union(self._otherwise_compared())
        return frozenset((b, more) for b, more in self._held.items() if b[0] not in unsure)

    def _common(self) -> Bounds:
        """The bounds that lie in front of every store."""
        from numba.core.analysis import compute_cfg_from_blocks

        blocks = self._names.blocks
        acting = [label for label, block in blocks.items() if any(map(self._acts, block.body))]
        flow = compute_cfg_from_blocks(blocks)
        dominators = flow.dominators()
        edges = list(self._edges())
        held: list[Bounds] = []
        for label in acting:
            if label not in dominators:
                continue  # dead code
            guards: Bounds = {}
            for start, end, bounds in edges:
                other_predecessors = [p for p, _ in flow.predecessors(end) if p != start]
                if end in dominators[label] and all(
                    end in dominators[p] for p in other_predecessors
                ):
                    for bound, more in bounds:
                        guards[bound] = min(more, guards.get(bound, more))
                        if other_predecessors:
                            self._walked.add(bound[0])
            held.append(guards)
        common: Bounds = {}
        for bound in set().union(*held):
            first = bound[0], _FIRST, 0
            if bound != first and all(bound in guards or first in guards for guards in held):
                common[bound] = max(guards[bound] for guards in held if bound in guards)
        return common

    def _edges(self) -> Iterator[tuple[int, int, list[tuple[Bound, int]]]]:
        """Edges of the control flow graph that are taken only within bounds, and these bounds."""
        for label, block in self._names.blocks.items():
            end = block.body[-1]
            if isinstance(end, self._ir.Branch) and end.truebr != end.falsebr:
                for target, is_true in ((end.truebr, True), (end.falsebr, False)):
                    bounds = list(self._implied(end.cond, is_true))
                    if bounds:
                        yield label, target, bounds

    def _implied(self, variable: Any, is_true: bool) -> Iterator[tuple[Bound, int]]:
        """The bounds that hold if a condition is true, or if it is false."""
        value = self._names.one(variable)
        op = getattr(value, "op", "")
        if op == "call" and self._names.callees(value.func) == [bool]:
            yield from self._implied(value.args[0], is_true)
        elif op == "unary" and value.fn is operator.not_:
            yield from self._implied(value.value, not is_true)
        elif op == "binop" and value.fn is (operator.and_ if is_true else operator.or_):
            yield from self._implied(value.lhs, is_true)
            yield from self._implied(value.rhs, is_true)
        elif op == "binop":
            fn = value.fn if is_true else _NEGATED.get(value.fn)
            yield from self._compared(fn, value.lhs, value.rhs)
            yield from self._compared(_TURNED.get(fn), value.rhs, value.lhs)
        elif op == "pair_second" and is_true:
            args = self._range(value)
            for bound, more in self._compared(_LT, *args[:2]) if len(args) > 1 else ():
                self._walked.add(bound[0])
                yield bound, more

    def _compared(self, fn: Any, left: Any, right: Any) -> Iterator[tuple[Bound, int]]:
        axis, extent = self._coordinate(left), self._extent(right)
        if axis is None:
            return
        if fn is _EQ and self._names.constant(right) == 0:
            yield (axis, _FIRST, 0), 0
        elif extent is not None and fn in _MORE:
            position, along, more = extent
            yield (axis, position, along), more + _MORE[fn]

    def _range(self, pair: Any) -> list[Any]:
        """The arguments of the `range` that a loop iterates over, given the pair that an iteration
        yields.
        """
        value = pair
        for op in ("iternext", "getiter", "call"):
            value = self._names.one(value.value)
            if getattr(value, "op", "") != op:
                return []
        return list(value.args) if self._calls(value, range) else []

    def _otherwise_compared(self) -> Iterator[int]:
        """Axes whose coordinate is compared with a value that is neither an extent nor 0."""
        for s in self._names.statements:
            value: Any = getattr(s, "value", None)
            op = getattr(value, "op", "")
            if op == "binop" and value.fn in (*_TURNED, operator.ne):
                pairs = [(value.lhs, value.rhs), (value.rhs, value.lhs)]
            elif op == "call" and self._calls(value, range):
                pairs = [(value.args[0], value.args[1])] if len(value.args) > 1 else []
            else:
                continue
            for left, right in pairs:
                axis = self._coordinate(left)
                if axis is not None and self._extent(right) is None:
                    constant = self._names.constant(right)
                    if not isinstance(constant, int) or constant > 0:
                        yield axis

    # --- effects ---

    def _acts(self, statement: Any) -> bool:
        """Whether other blocks may see a statement's effect: stores to the block's own memory do
        not count.
        """
        ir = self._ir
        if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.SetAttr | ir.DelItem):
            return not self._is_own(statement.target)
        value: Any = getattr(statement, "value", None)
        if getattr(value, "op", "") != "call":
            return False
        return any(self._stores(c, value) for c in self._names.callees(value.func))

    def _stores(self, callee: Any, call: Any) -> bool:
        function = callees.function_of(callee)
        if function is not None:
            return bool(summary(function).stores)
        if isinstance(callee, Method):
            harmless = callees.METHODS_THAT_VIEW | callees.METHODS_THAT_REDUCE | {"type", "sync"}
            return callee.name not in harmless and not self._is_own(callee.owner)
        effect = None if callee is UNKNOWN else callees.known(callee, len(call.args))
        if effect is None or call.kws or call.vararg is not None:
            return effect is None or bool(effect[0])
        return any(i < len(call.args) and not self._is_own(call.args[i]) for i in effect[0])

    def _is_own(self, variable: Any) -> bool:
        """Whether an array is certainly in the memory of the block, or of the thread."""
        allocators = self._cuda.shared.array, self._cuda.local.array
        return any(self._calls(self._names.one(variable), f) for f in allocators)

    # --- comparisons ---

    def _coordinate(self, variable: Any) -> int | None:
        """The axis along which a variable is the thread's coordinate in the grid."""
        known = self._integers.affine(variable)
        return None if known is None or known != Affine(known.coordinate) else known.coordinate

    def _extent(self, variable: Any) -> tuple[int, int, int] | None:
        """The parameter and axis whose extent a variable is, and the number added to the extent."""
        known = self._integers.affine(variable)
        if known is None or known.extent is None or known.coordinate is not None:
            return None
        return *known.extent, known.constant

    def _calls(self, value: Any, function: Any) -> bool:
        is_call = getattr(value, "op", "") == "call"
        return is_call and self._names.callees(value.func) == [function]
