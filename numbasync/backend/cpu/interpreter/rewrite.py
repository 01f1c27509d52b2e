"""A kernel's code, changed where Python's objects would do something else than Numba's.

The changes are made in the source's syntax tree:

- `~x` of a bool is `not x`, and a quotient of integers is a float64.
- A comparison whose result is kept gives a Python bool: two of NumPy's add up to True, not 2.
- Where an integer may grow beyond 64 bits, it is replaced by one that wraps.

For the last, every operation has a bound of bits. A name, an element and a result of a call
have 32 bits or know their width; what is kept, passed or returned is checked if it may have
more, and so is a part of an expression if it may have more than 64.
"""

from __future__ import annotations

import ast
import types
from typing import Any

import numpy as np

from numbasync.backend.cpu.interpreter.integers import SMALL, TOP, fit
from numbasync.backend.cpu.library.source import compiled_like, definition

# No program can write these names, so they are free in each.
INVERT, DIVIDE, BOOL, INT, FIT, VALUE = "@invert", "@divide", "@bool", "@int", "@fit", "@value"
LEAF_BITS = 32
STEP_BITS = 16
MOST_BITS = 64


def _invert(value: Any) -> Any:
    return not value if value.__class__ is bool else ~value


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return np.float64(int(a)) / np.float64(int(b))
    return a / b


HELPERS: dict[str, Any] = {INVERT: _invert, DIVIDE: _divide, BOOL: bool, INT: int, FIT: fit}


def rewritten(function: types.FunctionType) -> tuple[types.CodeType, bool] | None:
    """The changed code, and whether it needs to know which integers are unsigned.

    None if the source is not at hand, or not the function's.
    """
    found = definition(function)
    if found is None:
        return None
    tree, node = found
    rewriter = _Rewriter(function)
    rewriter.visit(node)
    code = compiled_like(ast.fix_missing_locations(tree), function.__code__)
    return None if code is None else (code, rewriter.signs_matter)


_CONSTANT = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)


class _Rewriter(ast.NodeTransformer):
    """Visits from the leaves up; `_bits` holds the bounds of what was visited."""

    def __init__(self, function: types.FunctionType) -> None:
        self.signs_matter = False
        self._function = function
        self._bits: dict[ast.AST, int] = {}
        self._tests: set[ast.AST] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.body = [self.visit(statement) for statement in node.body]
        return node

    # --- where a value goes ---

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> Any:
        self._test(node.test)
        self.generic_visit(node)
        if isinstance(node, ast.IfExp):
            self._bits[node] = max(self._bound(node.body), self._bound(node.orelse))
        return node

    visit_While = visit_If  # noqa: N815
    visit_IfExp = visit_If  # noqa: N815

    def _test(self, node: ast.AST) -> None:
        """Mark an expression of which only the truth is asked."""
        self._tests.add(node)
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._test(value)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._test(node.operand)

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        if not all(isinstance(t, ast.Subscript) for t in node.targets):  # a store reduces itself
            node.value = self._kept(node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """`a op= b` as `a = a op b`, which is the same for what a kernel can hold."""
        if not isinstance(node.target, ast.Name):
            self.generic_visit(node)
            return node
        load = ast.Name(node.target.id, ast.Load())
        value = ast.BinOp(ast.copy_location(load, node), node.op, node.value)
        made = ast.Assign([node.target], ast.copy_location(value, node))
        return self.visit_Assign(ast.copy_location(made, node))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is not None:
            node.value = self._kept(self.visit(node.value))
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        node.value = self._kept(self.visit(node.value))
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        self._bits[node] = max(map(self._bound, node.values))
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        self._test(node.test)
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        if node.value is not None:
            node.value = self._kept(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "abs"):
            self._bits[node] = max(map(self._bound, node.args), default=LEAF_BITS)
            return node
        node.args = [self._kept(a) for a in node.args]
        for keyword in node.keywords:
            keyword.value = self._kept(keyword.value)
        return node

    def _kept(self, value: ast.expr) -> ast.expr:
        if isinstance(value, ast.Tuple):
            value.elts = [self._kept(e) for e in value.elts]
            return value
        return self._fit(value) if self._bound(value) > LEAF_BITS else value

    # --- what is computed ---

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        return node if node in self._tests else _call(BOOL, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        self._bits[node] = self._bound(node.operand)
        if isinstance(node.op, (ast.Invert, ast.USub)) and not self._is_signed(node.operand):
            self.signs_matter = True
        return _call(INVERT, node.operand) if isinstance(node.op, ast.Invert) else node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        if all(isinstance(n, _CONSTANT) for n in ast.walk(node)):
            return node  # the compiler folds it; as a constant it knows its width
        self.generic_visit(node)
        left, right = self._bound(node.left), self._bound(node.right)
        if isinstance(node.op, (ast.Sub, ast.Mult, ast.LShift, ast.Pow)) and not (
            self._is_signed(node.left) or self._is_signed(node.right)
        ):
            # Sums, quotients and bits of unsigned numbers below 2**32 are the same if signed.
            self.signs_matter = True
        match node.op:
            case ast.Div():
                return _call(DIVIDE, node.left, node.right)
            case ast.Add() | ast.Sub() if right <= STEP_BITS or left <= STEP_BITS:
                bits = max(left, right)  # 2**40 of them would be needed to reach 64 bits
            case ast.Add() | ast.Sub():
                bits = max(left, right) + 1
            case ast.Mult():
                bits = left + right
            case ast.LShift() if isinstance(node.right, ast.Constant):
                count = node.right.value
                bits = left + (count if isinstance(count, int) else MOST_BITS)
            case ast.LShift() | ast.Pow():
                bits = 2 * MOST_BITS
            case ast.RShift() | ast.FloorDiv():
                bits = left
            case ast.Mod():
                bits = right
            case _:
                bits = max(left, right)
        self._bits[node] = bits
        return self._fit(node) if bits > MOST_BITS else node

    def _bound(self, node: ast.AST) -> int:
        if isinstance(node, ast.Constant):
            return node.value.bit_length() if isinstance(node.value, int) else 0
        return self._bits.get(node, LEAF_BITS)

    def _is_signed(self, node: ast.expr) -> bool:
        """Whether it is a small constant: with one, no operation has an unsigned result."""
        if isinstance(node, ast.Constant):
            return not isinstance(node.value, int) or node.value < TOP
        if isinstance(node, ast.UnaryOp):
            return self._is_signed(node.operand)
        code = self._function.__code__
        if not isinstance(node, ast.Name) or node.id in code.co_varnames + code.co_freevars:
            return False
        value = self._function.__globals__.get(node.id)
        return type(value) is float or (type(value) is int and value < TOP)

    def _fit(self, value: ast.expr) -> ast.expr:
        """`value`, or what fits into 64 bits if it is a Python integer that is not small."""
        kept = ast.NamedExpr(ast.Name(VALUE, ast.Store()), value)
        name = ast.Name(VALUE, ast.Load())
        other = ast.Compare(
            ast.Attribute(kept, "__class__", ast.Load()), [ast.IsNot()], [ast.Name(INT, ast.Load())]
        )
        bounds = [ast.Constant(-SMALL), ast.Constant(SMALL - 1)]  # which stay Python integers
        small = ast.Compare(bounds[0], [ast.LtE(), ast.LtE()], [name, bounds[1]])
        test = ast.BoolOp(ast.Or(), [other, small])
        made = ast.IfExp(test, name, ast.Call(ast.Name(FIT, ast.Load()), [name], []))
        for node in (kept, kept.target, name, other, other.left, *other.comparators, *bounds,
                     small, test, made, made.orelse):  # fmt: skip
            ast.copy_location(node, value)
        return made


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    call = ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
    return ast.copy_location(call, arguments[0])
