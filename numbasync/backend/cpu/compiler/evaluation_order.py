"""The order in which parts of an expression are computed, where a part needs statements of its
own: a barrier, or an inlined function.
"""

from __future__ import annotations

import ast
from typing import Any

from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.compiler.program import Program

# Marks a statement that is put before another one and may change what others read.
_ACTS = "acts"


class Parts(ast.NodeTransformer):
    """Visits expressions. Statements that must run before the expression are added to `_before`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._before: list[ast.stmt] = []

    def generic_visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Compare):
            node.left, *node.comparators = self._in_order([node.left, *node.comparators])
            return node
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            node.elts = self._in_order(node.elts)
            return node
        if isinstance(node, ast.BoolOp):
            return self._in_turn(node)
        if isinstance(node, ast.IfExp):
            return self._chosen(node)
        if isinstance(node, ast.AugAssign):
            return self._changed(node)
        return super().generic_visit(node)

    def _binary(self, node: ast.BinOp) -> Any:
        node.left, node.right = self._in_order([node.left, node.right])
        return node

    def _in_order(self, parts: list[ast.expr]) -> list[ast.expr]:
        """Visit parts in order. Parts before one that acts become variables before it."""
        done: list[ast.expr] = []
        for part in parts:
            first = len(self._before)
            new = self.visit(part)
            acts = any(map(_acts, self._before[first:]))
            if acts or any(map(has_barrier_call, self._before[first:])):
                for i, earlier in enumerate(done):
                    # A barrier does not change a variable of the thread.
                    if not isinstance(earlier, ast.Constant | ast.Name) or (
                        acts and isinstance(earlier, ast.Name)
                    ):
                        name = f"_h{self._program.number()}"
                        assignment = ast.Assign([ast.Name(name, ast.Store())], earlier)
                        self._before.insert(first, assignment)
                        first += 1
                        done[i] = ast.Name(name, ast.Load())
            done.append(new)
        return done

    def _apart(self, part: ast.expr) -> tuple[list[ast.stmt], Any]:
        """A part that may be skipped: the statements that it needs, and the part."""
        outer, self._before = self._before, []
        try:
            new = self.visit(part)
            first = self._before
        finally:
            self._before = outer
        return first, new

    def _in_turn(self, node: ast.BoolOp) -> Any:
        """`and` and `or`; as conditions, if a part that may be skipped needs statements."""
        first, *rest = node.values
        # The first part is never skipped.
        parts: list[tuple[list[ast.stmt], Any]] = [([], self.visit(first))]
        parts += map(self._apart, rest)
        if not any(before for before, _ in parts):
            node.values = [value for _, value in parts]
            return node
        name = f"_h{self._program.number()}"
        statements: list[ast.stmt] = []
        for before, value in reversed(parts):
            # A name of its own: the values of `name` may have other types.
            part = f"_h{self._program.number()}"
            test: ast.expr = ast.Name(part, ast.Load())
            if isinstance(node.op, ast.Or):
                test = ast.UnaryOp(ast.Not(), test)
            inner = [ast.If(test, statements, [])] if statements else []
            given = ast.Assign([ast.Name(part, ast.Store())], value)
            taken = ast.Assign([ast.Name(name, ast.Store())], ast.Name(part, ast.Load()))
            statements = [*before, given, taken, *inner]
        self._before += _acting(statements)
        return ast.Name(name, ast.Load())

    def _chosen(self, node: ast.IfExp) -> Any:
        test = self.visit(node.test)
        yes, no = self._apart(node.body), self._apart(node.orelse)
        if not yes[0] and not no[0]:
            node.test, node.body, node.orelse = test, yes[1], no[1]
            return node
        name = f"_h{self._program.number()}"
        target = ast.Name(name, ast.Store())
        ways = [[*before, ast.Assign([target], value)] for before, value in (yes, no)]
        self._before += _acting([ast.If(test, ways[0], ways[1])])
        return ast.Name(name, ast.Load())

    def _changed(self, node: ast.AugAssign) -> Any:
        """`a += b`, which reads `a` first."""
        first = len(self._before)
        text, value = ast.unparse(node), ast.unparse(node.value)  # before they are rewritten
        rewritten: Any = super().generic_visit(node)
        before = self._before[first:]
        if any(map(_acts, before)) and not _is_own(node.target, before):
            raise UntranslatableError(
                f"{text} with a function that may write (write `value = {value}` before it)", node
            )
        return rewritten


def _is_own(target: ast.expr, before: list[ast.stmt]) -> bool:
    """Whether a target is a variable that the statements in front of it do not change."""
    stored = {
        n.id
        for statement in before
        for n in ast.walk(statement)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return isinstance(target, ast.Name) and target.id not in stored


def has_barrier_call(statement: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id.startswith("@")
        for n in ast.walk(statement)
    )


def written_out(program: Program, statements: list[ast.stmt], outside: bool) -> list[ast.stmt]:
    """Statements of a function that is written out: they act if they may write something else
    than its own variables, or do what must be done in order. `outside`: it assigns to variables
    of a function around it.
    """
    nodes = [n for s in statements for n in ast.walk(s)]
    writes = any(
        (isinstance(n, ast.Subscript | ast.Attribute) and isinstance(n.ctx, ast.Store))
        or (isinstance(n, ast.Call) and not program.only_reads(n.func))
        for n in nodes
    )
    return _acting(statements) if writes or outside else statements


def _acting(statements: list[ast.stmt]) -> list[ast.stmt]:
    for statement in statements:
        setattr(statement, _ACTS, True)
    return statements


def _acts(statement: ast.stmt) -> bool:
    return getattr(statement, _ACTS, False)
