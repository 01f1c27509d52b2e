"""Plain kernels, of which one thread can compute several positions: thread coarsening.

A plain kernel asks for its position with `cuda.grid`, compares it with an extent, and computes
without loops. A device that overlaps the loads of one thread runs such a kernel faster if a thread
computes several positions. This module reads the kernel's code and decides whether it is plain; the
backend compiles the coarsened variant, and the planner chooses between the two at each new call.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from numbasync.backend.shared_layout import SharedLayout
from numbasync.errors import LauncherError
from numbasync.facts import callees
from numbasync.facts.bounds import Integers, rank_of
from numbasync.facts.ir import UNKNOWN, Method, Names, read
from numbasync.facts.source import compiled_like, find_definition

# Functions of `numba.cuda` that depend on their arguments alone.
_PURE = frozenset({"popc", "fma", "cbrt", "selp", "brev", "clz", "ffs"})
_PURE_MODULES = frozenset({"numba.cuda.libdevice", "numba.cuda.stubs.fp16"})
# Objects of `numba.cuda` by which threads differ in more than their position in the grid.
_PLACES = ("threadIdx", "blockIdx", "blockDim", "gridDim", "laneid", "warpsize")
_SIMPLE = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Pass
MOST_BLOCKS = 8  # basic blocks of a device function; larger ones are copied, not merged


@dataclass(frozen=True, slots=True)
class PlainKernel:
    """A kernel of which one thread can compute several positions.

    Attributes:
        rank: the number of coordinates for which the kernel asks `cuda.grid`.
        along: the axes of `cuda.grid` whose coordinates index the last axis of arrays: threads side
            by side along one of them access elements side by side.
        guard: a function of the kernel's parameters, which computes without side effects whether
            the position has work; None if every position has.
    """

    rank: int
    along: frozenset[int]
    guard: Any


class NotPlainError(Exception):
    """A kernel whose threads compute one position each; the text says why."""


def plain_kernel(dispatcher: Any) -> PlainKernel:
    """The properties of a plain kernel, given as Numba's dispatcher.

    Raises:
        NotPlainError: the kernel is not plain, or is compiled with options that forbid it.
    """
    options = dispatcher.targetoptions
    for option in ("debug", "cooperative", "link", "extensions"):
        if options.get(option):
            raise NotPlainError(f"it is compiled with {option}=")
    if options.get("opt") in (False, 0):
        raise NotPlainError("it is compiled with opt=False")
    if not dispatcher._can_compile:
        raise NotPlainError("its signatures are declared")
    function: FunctionType = dispatcher.py_func
    reader = _Reader(function)
    return PlainKernel(reader.rank_of_kernel(), reader.along(), _guard(function))


class _Reader:
    """The calls and the control flow of one function, from Numba's own front end."""

    def __init__(self, function: FunctionType, seen: frozenset[FunctionType] = frozenset()) -> None:
        from numba.core import ir

        from numbasync.kernel_names import cuda

        self._ir, self._cuda = ir, cuda
        self._function = function
        self._seen = seen | {function}
        self._ranks: set[int] = set()
        self._names = _names_of(function)
        self._places = {id(getattr(cuda, name)): name for name in _PLACES}
        for statement in self._names.statements:
            self._check(statement)

    def rank_of_kernel(self) -> int:
        """The one number of coordinates that the kernel asks for."""
        if len(self._ranks) != 1:
            raise NotPlainError(
                "it does not ask for its position with cuda.grid"
                if not self._ranks
                else "it asks for cuda.grid of several ranks"
            )
        (rank,) = self._ranks
        return rank

    def along(self) -> frozenset[int]:
        """See `PlainKernel`."""
        integers = Integers(self._names)
        axes = set()
        for s in self._names.statements:
            value: Any = getattr(s, "value", None)
            if isinstance(s, self._ir.SetItem):
                index = s.index
            elif getattr(value, "op", "") == "getitem":
                index = value.index
            else:
                continue
            last = (self._names.items(index) or [index])[-1]
            axes.add(integers.coordinate_in(last))
        return frozenset(axis for axis in axes if axis is not None)

    def _check(self, statement: Any) -> None:
        ir = self._ir
        if isinstance(statement, ir.Raise | ir.StaticRaise | ir.TryRaise | ir.StaticTryRaise):
            raise NotPlainError("it raises an exception")
        if isinstance(statement, ir.Print | ir.EnterWith | ir.Yield):
            raise NotPlainError("it prints, or has a `with` block")
        value: Any = getattr(statement, "value", None)
        if isinstance(value, ir.Global | ir.FreeVar) or getattr(value, "op", "") == "getattr":
            for used in self._names.callees(statement.target):
                if id(used) in self._places:
                    raise NotPlainError(f"it looks at cuda.{self._places[id(used)]}")
                if isinstance(used, SharedLayout):
                    raise NotPlainError("it uses shared memory")
                if hasattr(type(used), "__cuda_array_interface__"):
                    raise NotPlainError("it uses an array that is no argument, and may alias one")
        op = getattr(value, "op", "")
        if op in ("make_function", "getiter"):
            raise NotPlainError("it has a loop" if op == "getiter" else "it has a nested function")
        if op == "call":
            for callee in self._names.callees(value.func):
                self._check_call(callee, value)

    def _check_call(self, callee: Any, call: Any) -> None:
        function = callees.function_of(callee)
        if callee is self._cuda.grid:
            rank: Any = self._names.constant(call.args[0]) if len(call.args) == 1 else None
            if rank_of(self._names, call) != rank:
                raise NotPlainError("it asks for cuda.grid of a rank that is no constant")
            self._check_name_of_grid(call.func)
            self._ranks.add(rank)
        elif function is not None:
            self._check_device_function(function)
        elif isinstance(callee, Method) or callee is UNKNOWN:
            name = f".{callee.name}()" if isinstance(callee, Method) else "a function"
            raise NotPlainError(f"it calls {name}, of which nothing is known")
        elif callees.is_vector_access(callee):
            raise NotPlainError("it accesses several elements at once itself")
        elif callees.combines_threads(callee):
            raise NotPlainError("its threads give one another values")
        elif not callees.is_atomic(callee) and not _is_pure(callee, len(call.args)):
            raise NotPlainError(f"it calls {getattr(callee, '__name__', callee)}")

    def _check_name_of_grid(self, variable: Any) -> None:
        """Refuse `cuda.grid` under a name that `Coarsener` does not replace: it must be reached by
        `cuda`, `numba.cuda`, or its own name.
        """
        import numba

        names = self._names
        value = names.one(variable)
        while getattr(value, "op", "") == "getattr":
            value = names.one(value.value)
        if getattr(value, "value", None) not in (numba, self._cuda, self._cuda.grid):
            raise NotPlainError("it reaches cuda.grid through another object")

    def _check_device_function(self, function: FunctionType) -> None:
        if function in self._seen:
            raise NotPlainError(f"{function.__name__} calls itself")
        try:
            _Reader(function, self._seen).check_device_function()
        except NotPlainError as error:
            raise NotPlainError(f"it calls {function.__name__}: {error}") from None

    def check_device_function(self) -> None:
        """Refuse a position of its own, which is that of another copy; and loops and many branches,
        of which a copy for each position would be too large.
        """
        from numba.core.analysis import compute_cfg_from_blocks

        if self._ranks:
            raise NotPlainError("it asks for cuda.grid")
        blocks = self._names.blocks
        if len(blocks) > MOST_BLOCKS or compute_cfg_from_blocks(blocks).loops():
            raise NotPlainError("it has loops or many branches")


def _names_of(function: FunctionType) -> Names:
    try:
        return read(function)
    except LauncherError as error:
        raise NotPlainError(str(error)) from None


def _is_pure(callee: Any, count: int) -> bool:
    """Whether a function that is no device function depends on its arguments alone."""
    module = getattr(callee, "__module__", None) or ""
    if module.startswith("numba.cuda"):
        return module in _PURE_MODULES or getattr(callee, "__name__", "") in _PURE
    return callee is not print and callees.known(callee, count) is not None


# --- the guard ---


def _guard(function: FunctionType) -> FunctionType | None:
    """The condition under which a position has work, as a function of the kernel's parameters."""
    found = find_definition(function)
    if found is None:
        raise NotPlainError("its source is not at hand")
    tree, definition = found
    body = _condition(definition.body)
    if body is None:
        return None
    # A dead statement keeps the kernel's free variables those of the guard.
    free: list[ast.expr] = [ast.Name(name, ast.Load()) for name in function.__code__.co_freevars]
    definition.body = [*body, ast.Expr(ast.Tuple(free, ast.Load()))]
    code = compiled_like(ast.fix_missing_locations(tree), function.__code__)
    if code is None:
        raise NotPlainError("its condition cannot be compiled alone")
    name = f"{function.__name__}_guard"
    guard = FunctionType(
        code, function.__globals__, name, function.__defaults__, function.__closure__
    )
    _check_repeatable(guard)
    return guard


def _check_repeatable(guard: FunctionType) -> None:
    """Refuse what must not be run twice: stores, and calls of device functions and atomics."""
    from numba.core import ir

    from numbasync.kernel_names import cuda

    repeatable = (cuda.grid, len, min, max, abs, int, float, bool)
    names = _names_of(guard)
    for statement in names.statements:
        if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.SetAttr):
            raise NotPlainError("it stores in front of its condition")
        value: Any = getattr(statement, "value", None)
        for callee in names.callees(value.func) if getattr(value, "op", "") == "call" else ():
            if not any(callee is f for f in repeatable):
                raise NotPlainError("it calls a function in front of its condition")


def _condition(body: list[ast.stmt]) -> list[ast.stmt] | None:
    """The statements that return whether a position has work; None if the kernel has no condition.

    Raises:
        NotPlainError: the code behind the condition has loops or conditions of its own.
    """
    front: list[ast.stmt] = []
    condition: list[ast.stmt] | None = None
    remaining = list(body)
    while remaining:
        statement = remaining.pop(0)
        if isinstance(statement, ast.If):
            if statement.orelse:
                raise NotPlainError("it has an else branch")
            _check_straight(front)
            if all(isinstance(s, ast.Return | ast.Pass) for s in statement.body):
                leaves = ast.If(statement.test, [ast.Return(ast.Constant(False))], [])
                condition = [*(condition or []), *front, leaves]
                front = []
                continue
            _check_straight(statement.body)
            if any(not isinstance(s, ast.Return | ast.Pass) for s in remaining):
                raise NotPlainError("it computes outside its condition")
            return [*(condition or []), *front, ast.Return(statement.test)]
        front.append(statement)
    _check_straight(front)
    return None if condition is None else [*condition, ast.Return(ast.Constant(True))]


def _check_straight(statements: list[ast.stmt]) -> None:
    for statement in statements:
        if isinstance(statement, ast.Return):
            return
        if not isinstance(statement, _SIMPLE):
            word = type(statement).__name__.lower()
            raise NotPlainError(f"it has `{word}` in line {statement.lineno}")
