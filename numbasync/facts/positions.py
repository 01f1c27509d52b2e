"""The CUDA axes that a kernel uses, read from its code with Numba's own front end.

Threads that differ only along an axis whose index the kernel never reads repeat the same work. Code
that cannot be analysed counts as reading the index along every axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

from numbasync.errors import LauncherError
from numbasync.facts import callees
from numbasync.facts.bounds import LETTERS, rank_of
from numbasync.facts.guards import Bound, Guards
from numbasync.facts.ir import UNKNOWN, Method, read

__all__ = ["ALL", "Usage", "usage"]

ALL = frozenset(range(3))  # the axes of the grid
_METHODS = (
    callees.METHODS_THAT_STORE
    | callees.METHODS_THAT_VIEW
    | callees.METHODS_THAT_REDUCE
    | {"type", "sync"}
)
# The results of these functions depend on the number of threads, but do not distinguish threads.
_MEETINGS = frozenset(
    {"activemask", "all_sync", "any_sync", "ballot_sync", "eq_sync", "match_all_sync",
     "match_any_sync", "shfl_down_sync", "shfl_sync", "shfl_up_sync", "shfl_xor_sync",
     "syncthreads_and", "syncthreads_count", "syncthreads_or", "this_grid"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Usage:
    """How a kernel uses the position of a thread.

    Attributes:
        blocks: axes of `blockIdx` that the kernel reads.
        threads: axes of `threadIdx` that the kernel reads.
        counts: the kernel's effect depends on the number of threads: atomics, votes.
        bounded: pairs of a CUDA axis and an axis of a parameter (its position, the axis): the
            kernel compares a thread's coordinate along the first with the extent of the second, so
            that threads beyond the extent do nothing.
        is_idempotent: the kernel reads nothing that it stores to.
        reach: such pairs, and numbers: threads up to that extent plus the number have work that no
            other thread does for them. The axis may be `SIZE`.
        rank: the most coordinates that the kernel asks `cuda.grid` or `gridsize` for; 1 if none.
        walks: a thread may take the work of several: the kernel reads the number of threads or
            blocks in the grid.
    """

    blocks: frozenset[int] = ALL
    threads: frozenset[int] = ALL
    counts: bool = True
    bounded: frozenset[Bound] = frozenset()
    is_idempotent: bool = False
    reach: frozenset[tuple[Bound, int]] = frozenset()
    rank: int = 1
    walks: bool = False

    @property
    def repeats(self) -> bool:
        """Whether every thread does the same work, harmlessly: repeating the work changes
        nothing.
        """
        return self.is_idempotent and not self.axes and not self.counts

    @property
    def axes(self) -> frozenset[int]:
        """The axes along which the kernel distinguishes threads in some way."""
        return self.blocks | self.threads


def usage(function: FunctionType) -> Usage:
    """How a kernel, with the device functions that it calls, uses a thread's position."""
    waiting, seen = [function], {function}
    blocks: set[int] = set()
    threads: set[int] = set()
    counts = False
    walks = False
    rank = 1
    bounded: frozenset[Bound] = frozenset()
    reach: frozenset[tuple[Bound, int]] = frozenset()
    is_idempotent = True
    while waiting:
        current = waiting.pop()
        try:
            reader = _Reader(current)
        except LauncherError:
            return Usage()
        if current is function:
            guards = Guards(reader._names)
            bounded, reach = guards.bounded(), guards.reach()
            is_idempotent = reader.is_idempotent()
        blocks |= reader.blocks
        threads |= reader.threads
        counts = counts or reader.counts
        walks = walks or reader.walks
        rank = max(rank, reader.rank)
        new = reader.called - seen
        seen |= new
        waiting += new
    reach = frozenset() if walks else reach
    return Usage(
        frozenset(blocks), frozenset(threads), counts, bounded, is_idempotent, reach, rank, walks
    )


@cache
def _places() -> tuple[Any, Any, Any]:
    from numbasync.kernel_names import cuda

    return cuda.threadIdx, cuda.blockIdx, cuda.laneid


class _Reader:
    """The analysis of one function's code.

    Attributes:
        blocks, threads, counts: as of `Usage`.
        rank, walks: as of `Usage`.
        called: functions whose code must be read, too.
    """

    def __init__(self, function: FunctionType) -> None:
        from numba.core import ir

        from numbasync.kernel_names import cuda

        self._ir, self._cuda = ir, cuda
        self._names = read(function)
        self.blocks: set[int] = set()
        self.threads: set[int] = set()
        self.counts = False
        self.walks = False
        self.rank = 1
        self.called: set[FunctionType] = set()
        places = set()  # variables that are all of `threadIdx` or `blockIdx`
        for s in self._names.statements:
            if isinstance(s, ir.Assign) and self._is_place(s.target):
                places.add(s.target.name)
        self._used = self._needed()
        for s in self._names.statements:
            self._read(s, places)

    def _all(self) -> None:
        self.blocks |= ALL
        self.threads |= ALL

    def _is_place(self, variable: Any) -> bool:
        return any(c is p for c in self._names.callees(variable) for p in _places()[:2])

    def _operands(self, statement: Any) -> Iterator[Any]:
        """The variables that a statement uses."""
        ir = self._ir
        if isinstance(statement, ir.Assign):
            value = statement.value
            if isinstance(value, ir.Var):
                yield value
            elif isinstance(value, ir.Expr):
                yield from value.list_vars()
        elif not isinstance(statement, ir.Del):
            yield from statement.list_vars()

    def _needed(self) -> set[str]:
        """Variables whose values are used: not `_` in `i, _ = cuda.grid(2)`."""
        waiting: list[str] = []
        sources: dict[str, list[str]] = {}
        for s in self._names.statements:
            operands = [v.name for v in self._operands(s)]
            op = getattr(getattr(s, "value", None), "op", "")
            if not isinstance(s, self._ir.Assign) or op in ("call", "inplace_binop"):
                waiting += operands
            else:
                sources.setdefault(s.target.name, []).extend(operands)
        needed: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting += sources.get(name, [])
        return needed

    def _read(self, statement: Any, places: set[str]) -> None:
        ir = self._ir
        value: Any = statement.value if isinstance(statement, ir.Assign) else None
        if isinstance(value, ir.Var):
            return  # an alias; uses are traced through it
        if isinstance(value, ir.Global | ir.FreeVar | ir.Const | ir.Arg):
            self._lane(statement.target)
            return
        op = getattr(value, "op", "")
        if op == "getattr":
            self._attribute(statement.target, value)
            return
        if op in ("phi", "cast"):
            return
        if op == "call":
            self._call(value, statement.target.name)
        elif op == "make_function" or isinstance(statement, ir.EnterWith):
            self._all()
        if any(v.name in places for v in self._operands(statement)):
            self._all()  # passed on as a whole

    def _lane(self, variable: Any) -> None:
        if any(c is _places()[2] for c in self._names.callees(variable)):
            self.threads |= ALL

    def _attribute(self, target: Any, value: Any) -> None:
        if target.name not in self._used:
            return
        thread, block, _ = _places()
        self._lane(target)
        self.walks |= any(c is self._cuda.gridDim for c in self._names.callees(value.value))
        for owner in self._names.callees(value.value):
            if owner is thread or owner is block:
                axes = {LETTERS[value.attr]} if value.attr in LETTERS else ALL
                if owner is thread:
                    self.threads |= axes
                else:
                    self.blocks |= axes

    def _call(self, call: Any, target: str) -> None:
        for callee in self._names.callees(call.func):
            function = callees.function_of(callee)
            if function is not None:
                self.called.add(function)
            elif isinstance(callee, Method):
                if callee.name not in _METHODS:
                    self._all()
            elif callee is self._cuda.gridsize:
                self.walks = True
                self.rank = max(self.rank, rank_of(self._names, call))
            elif callee is self._cuda.grid:
                self.rank = max(self.rank, rank_of(self._names, call))
                asked = self._items_of(target, rank_of(self._names, call))
                self.blocks |= asked
                self.threads |= asked
            elif any(callee is f for f in vars(self._cuda.atomic).values()):
                self.counts = True
                if target in self._used:  # the old value distinguishes threads: each gets another
                    self._all()
            elif getattr(callee, "__name__", "") in _MEETINGS:
                self.counts = True
            elif getattr(callee, "__name__", "") == "lanemask_lt":
                self.threads |= ALL
            elif callees.combines_threads(callee):
                self.counts = True
                self.threads |= ALL
            elif callee is UNKNOWN or callees.known(callee, len(call.args)) is None:
                self._all()

    def _items_of(self, name: str, rank: int) -> set[int]:
        """The items of a coordinate tuple whose values are used."""
        if rank == 1:
            return {0} if name in self._used else set()
        axes: set[int] = set()
        waiting, seen = [name], {name}
        while waiting:
            name = waiting.pop()
            for s in self._names.statements:
                if not any(v.name == name for v in self._operands(s)):
                    continue
                value: Any = s.value if isinstance(s, self._ir.Assign) else None
                op = getattr(value, "op", "")
                if isinstance(value, self._ir.Var) or op == "exhaust_iter":
                    waiting += {s.target.name} - seen
                    seen.add(s.target.name)
                    continue
                index = self._names.index(value) if op.endswith("getitem") else None
                if type(index) is not int:
                    return set(range(rank))
                axes |= {index % rank} if s.target.name in self._used else set()
        return axes

    def is_idempotent(self) -> bool:
        """Whether the function certainly reads nothing that it stores to."""
        ir = self._ir
        stored: list[Any] = []
        read: list[Any] = []
        for s in self._names.statements:
            value: Any = getattr(s, "value", None)
            if isinstance(s, ir.SetItem | ir.StaticSetItem):
                stored.append(self._names.one(s.target))
            elif getattr(value, "op", "") in ("getitem", "static_getitem", "getiter"):
                read.append(self._names.one(value.value))
            elif getattr(value, "op", "") == "inplace_binop":
                read.append(self._names.one(value.lhs))
        arrays = {v.index if isinstance(v, ir.Arg) else None for v in stored}
        parts = [v for v in read if getattr(v, "op", "") != "getattr" or v.attr != "shape"]
        sources = {v.index if isinstance(v, ir.Arg) else None for v in parts}
        return not self.called and None not in arrays | sources and arrays.isdisjoint(sources)
