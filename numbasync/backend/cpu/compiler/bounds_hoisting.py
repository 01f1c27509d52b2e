"""Index checks once a block instead of once a thread, where indices are sums of multiples.

An index such as `cuda.grid(1) + 1` is greatest and least at the ends of the block. If it is in
range there, it is for every thread: the block is run by a copy of the code that checks nothing,
which the compiler can make vector instructions of. Else it is run as ever. A condition that
holds at all ends, such as `i < n`, is left out of the copy as well.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from numbasync.backend.cpu.compiler.program import Program, parsed
from numbasync.backend.cpu.compiler.uniformity import names
from numbasync.backend.cpu.library.entry_points import types

_OF_BLOCK = frozenset({"_bx", "_by", "_bz", "_wx", "_wy", "_wz", "_gx", "_gy", "_gz"})
_CONVERSIONS = ("_i32", "_natural")
MOST_ENDS = 16  # combinations of the ends of an index's variables
MOST_CONDITIONS = 64
_ENDS_OF_THREADS = {f"_t{axis}": ("0", f"_w{axis} - 1") for axis in "xyz"}


class _UnknownError(Exception):
    """An expression that is no sum of multiples."""


class BoundsHoisting:
    """A condition on a block, and the code without index checks for blocks that satisfy it.

    Args:
        argument_types: Numba's types of the parameters.

    Attributes:
        condition: an expression of the block alone; None if nothing can be left out.
        body: one thread's statements without their checks.
    """

    def __init__(self, program: Program, argument_types: Sequence[Any]) -> None:
        self._program = program
        self._argument_types = dict(zip(program.parameters, argument_types, strict=True))
        self._ends = dict(_ENDS_OF_THREADS)
        self._values: dict[str, ast.expr] = {}
        self._conditions: dict[str, None] = {}
        self._find(program.body)
        self.body = copy.deepcopy(program.body)
        self.condition: ast.expr | None = None
        try:
            self._guards(self.body)
            self._accesses()
        except _UnknownError:
            return
        if self._conditions and len(self._conditions) <= MOST_CONDITIONS:
            self.condition = parsed(" and ".join(self._conditions))

    # --- variables ---

    def _find(self, body: list[ast.stmt]) -> None:
        """Variables that are assigned once, and those of loops over ranges."""
        nodes = [n for s in body for n in ast.walk(s)]
        stores = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        once = {name for name in stores if stores.count(name) == 1}
        self._parameters = {p for p in self._argument_types if p not in stores}
        for node in nodes:
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                ends = self._ends_of(node.iter)
                if ends is not None and node.target.id in once:
                    self._ends[node.target.id] = ends
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
                pairs = [(target, value)]
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs = list(zip(target.elts, value.elts, strict=False))
                for one, of in pairs:
                    if isinstance(one, ast.Name) and one.id in once - set(self._argument_types):
                        self._values[one.id] = of

    def _ends_of(self, call: ast.expr) -> tuple[str, str] | None:
        """The first and the last number of a range that is the same for all threads."""
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            return None
        if self._program.names.get(call.func.id) is not range or len(call.args) > 2:
            return None
        try:
            bounds = [self._sum(a) for a in call.args]
        except _UnknownError:
            return None
        if any(self._moves(b) for b in bounds):
            return None
        first, end = ["0", *map(ast.unparse, bounds)][-2:]
        return first, f"({end}) - 1"

    def _moves(self, node: ast.AST) -> set[str]:
        """The variables of an expression that differ within the block."""
        return names(node, ast.Load) & set(self._ends)

    # --- expressions ---

    def _sum(self, node: ast.expr) -> ast.expr:
        """An index in terms of the block, of threads and of loops; a sum of multiples of these."""
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            array = node.value.value
            is_extent = node.value.attr == "shape" and isinstance(node.slice, ast.Constant)
            if is_extent and isinstance(array, ast.Name) and self._is_array(array.id):
                return node
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _CONVERSIONS:
            return self._sum(node.args[0])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return ast.UnaryOp(node.op, self._sum(node.operand))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            left, right = self._sum(node.left), self._sum(node.right)
            if isinstance(node.op, ast.Mult) and self._moves(left) and self._moves(right):
                raise _UnknownError
            return ast.BinOp(left, node.op, right)
        raise _UnknownError

    def _name(self, node: ast.Name) -> ast.expr:
        if node.id in self._ends or node.id in _OF_BLOCK:
            return ast.Name(node.id, ast.Load())
        numba_type: Any = self._argument_types.get(node.id)
        if (
            node.id in self._parameters
            and isinstance(numba_type, types.Integer)
            and numba_type.signed
        ):
            return ast.Name(node.id, ast.Load())
        value = self._values.pop(node.id, None)  # it is not made of itself
        if value is None:
            raise _UnknownError
        try:
            return self._sum(value)
        finally:
            self._values[node.id] = value

    def _is_array(self, name: str) -> bool:
        return name in self._parameters and isinstance(self._argument_types[name], types.Array)

    def _at_the_ends(self, expression: ast.expr, holds: Callable[[str], str]) -> None:
        """Require a condition at all ends of the variables."""
        moving = sorted(self._moves(expression))
        if 2 ** len(moving) > MOST_ENDS:
            raise _UnknownError
        for ends in itertools.product(*(self._ends[name] for name in moving)):
            at = _Replaced(dict(zip(moving, ends, strict=True))).visit(copy.deepcopy(expression))
            self._conditions[f"({holds(ast.unparse(at))})"] = None

    # --- checks that are removed ---

    def _guards(self, body: list[ast.stmt]) -> None:
        """Conditions that hold for the whole block."""
        for statement in body:
            if isinstance(statement, ast.If) and not statement.orelse:
                leaves = isinstance(statement.body[0], ast.Return)
                known = dict(self._conditions)
                try:
                    self._compares(statement.test, wanted=not leaves)
                except _UnknownError:
                    self._conditions = known
                    continue
                statement.test = ast.Constant(not leaves)
                self._guards(statement.body)

    def _compares(self, test: ast.expr, wanted: bool) -> None:
        if isinstance(test, ast.BoolOp):
            if isinstance(test.op, ast.And) is not wanted:
                raise _UnknownError  # either side could be true
            for each in test.values:
                self._compares(each, wanted)
            return
        signs = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            raise _UnknownError
        sign = signs.get(type(test.ops[0]))
        if sign is None:
            raise _UnknownError
        difference = ast.BinOp(self._sum(test.left), ast.Sub(), self._sum(test.comparators[0]))
        if not names(difference, ast.Load) & self._parameters:
            raise _UnknownError  # the condition is about some threads of each block
        no = "" if wanted else "not "
        self._at_the_ends(difference, lambda text: f"{no}{text} {sign} 0")

    def _accesses(self) -> None:
        """Require every index to be in range. One that is not understood keeps all checks."""
        hoisting = self

        class Checks(ast.NodeTransformer):
            def visit_Call(self, node: ast.Call) -> Any:
                self.generic_visit(node)
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                if name not in ("_check", "_axis"):
                    return node
                array, first, *rest = node.args
                index = first if name == "_check" else rest[0]
                parts = index.elts if isinstance(index, ast.Tuple) else [index]
                axes = (
                    [first.value] if isinstance(first, ast.Constant) and name == "_axis" else None
                )
                for axis, part in zip(axes or range(len(parts)), parts, strict=True):
                    hoisting._in_range(array, axis, part)
                return ast.Call(ast.Name("_sure", ast.Load()), [index], [])

        self.body = [Checks().visit(s) for s in self.body]

    def _in_range(self, array: ast.expr, axis: Any, index: ast.expr) -> None:
        if not isinstance(array, ast.Name) or not self._is_array(array.id):
            raise _UnknownError
        if axis >= self._argument_types[array.id].ndim:
            raise _UnknownError
        self._at_the_ends(self._sum(index), lambda text: f"0 <= {text} < {array.id}.shape[{axis}]")


class _Replaced(ast.NodeTransformer):
    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> Any:
        return parsed(self._values[node.id]) if node.id in self._values else node
