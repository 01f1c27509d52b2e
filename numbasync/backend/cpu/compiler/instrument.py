"""Instrumented kernels: accesses to elements as calls of the race checker."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from numbasync.backend.cpu.compiler.cuda_names import FENCES
from numbasync.backend.cpu.compiler.expressions import Expressions, called, is_extents, is_open
from numbasync.backend.cpu.library import atomics
from numbasync.backend.cpu.library.entry_points import types
from numbasync.backend.cpu.library.source import definition

_TO_32_BITS = (np.int32, types.int32)


class Instrumented(Expressions):
    """Expressions and assignments, whose accesses to elements are checked in a checked program."""

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if not self._program.checked or not isinstance(node.ctx, ast.Load) or _is_view(node):
            return super().visit_Subscript(node)
        site = self._program.site(self._function, node, ast.unparse(node.value))
        is_literal = isinstance(node.slice, ast.Constant) and not self._is_array(node.value)
        base, index = self._parts(node)
        if is_literal:
            whole = called("_at_literal", base, index, None, site)
            return ast.Subscript(whole, node.slice, ast.Load())
        return self._taken(base, index, site)

    @staticmethod
    def _taken(base: ast.expr, index: ast.expr, site: int) -> Any:
        # A function must not return a row.
        if isinstance(base, ast.Name):
            checked_index = called("_seen", base, index, None, site)
            return ast.Subscript(copy.deepcopy(base), checked_index, ast.Load())
        return called("_take", base, index, None, site)

    def visit_Call(self, node: ast.Call) -> Any:
        if self._program.checked and (is_wide := self._fence(node)) is not None:
            self._program.has_fences = True
            site = self._program.site(self._function, node, ast.unparse(node.func))
            return called("_fence", ast.Constant(is_wide), None, None, site)
        call = super().visit_Call(node)
        if self._program.checked and _place_of(node) in self._conversions:
            site = self._program.site(self._function, node, ast.unparse(node.func))
            return called("_narrow", call.args[0], None, None, site)
        return call

    def _fence(self, node: ast.Call) -> bool | None:
        """Whether a fence is one for other blocks, too; None if the call is no fence."""
        callee = self._scope.resolve(node.func)
        return next((wide for fence, wide in FENCES.items() if callee is fence), None)

    def _atomic_at(
        self, array: ast.expr, index: ast.expr, values: list[Any], function: Any, site: int
    ) -> Any:
        if not self._program.checked:
            return super()._atomic_at(array, index, values, function, site)
        if function is atomics.atomic_cas:
            if not isinstance(values[0], ast.Constant):
                values[0] = self._held(values[0])
            at = called("_compared", array, index, values[0], site)
        else:
            at = called("_atomic", array, index, None, site)
        return self._call(function, [array, at, *values])

    @cached_property
    def _conversions(self) -> set[tuple[int, int]]:
        """The places where numbers that become indices are converted to 32 bits."""
        tree = definition(self._function)
        return set() if tree is None else set(self._of_indices(tree[1]))

    def _of_indices(self, function: ast.FunctionDef) -> Iterator[tuple[int, int]]:
        nodes = list(ast.walk(function))
        used: list[ast.AST] = [n.slice for n in nodes if isinstance(n, ast.Subscript)]
        known: set[str] = set()
        while used:
            names_used = {n.id for each in used for n in ast.walk(each) if isinstance(n, ast.Name)}
            for call in (n for each in used for n in ast.walk(each) if isinstance(n, ast.Call)):
                if len(call.args) == 1 and self._scope.resolve(call.func) in _TO_32_BITS:
                    yield _place_of(call)
            new, known = names_used - known, known | names_used
            used = [
                n.value for n in nodes
                if isinstance(n, ast.Assign)
                and any(isinstance(t, ast.Name) and t.id in new for t in n.targets)
            ]  # fmt: skip

    def _parts(self, node: ast.Subscript) -> tuple[Any, ast.expr]:
        """An array and an index, visited."""
        base = self.visit(node.value)
        if isinstance(node.slice, ast.Tuple):
            return base, ast.Tuple([self.visit(e) for e in node.slice.elts], ast.Load())
        return base, self.visit(node.slice)

    def _assigned(self, statement: ast.Assign) -> list[ast.stmt]:
        """An assignment of a checked program."""
        value = self.visit(statement.value)
        single = len(statement.targets) == 1
        if single and isinstance(statement.targets[0], ast.Subscript):
            return self._stored(statement.targets[0], value)
        if not single:
            value = self._held(value)
        done: list[ast.stmt] = []
        for target in statement.targets:
            stores: list[ast.stmt] = []
            rewritten = self._target(target, stores)
            done += [ast.Assign([rewritten], value), *stores]
        return done

    def _target(self, target: ast.expr, stores: list[ast.stmt]) -> ast.expr:
        """A target of an assignment; an element is assigned last, from a variable."""
        if isinstance(target, ast.Subscript):
            name = f"_h{self._program.number()}"
            stores += self._stored(target, ast.Name(name, ast.Load()))
            return ast.Name(name, ast.Store())
        if isinstance(target, ast.Tuple | ast.List):
            target.elts = [self._target(e, stores) for e in target.elts]
            return target
        rewritten: ast.expr = self.visit(target)
        return rewritten

    def _stored(self, target: ast.Subscript, value: ast.expr) -> list[ast.stmt]:
        site = self._program.site(self._function, target, ast.unparse(target.value))
        if not _is_view(target):
            base, index = self._parts(target)
            return [ast.Expr(called("_put", base, index, value, site))]
        rewritten = super().visit_Subscript(target)
        done: list[ast.stmt] = [ast.Assign([rewritten], value)]
        if not isinstance(target.slice, ast.Constant):
            view = ast.Subscript(rewritten.value, rewritten.slice, ast.Load())
            done.append(ast.Expr(called("_filled", view, None, None, site)))
        return done

    def _added(self, statement: ast.AugAssign) -> list[ast.stmt]:
        """An augmented assignment to an element reads and writes it."""
        target = statement.target
        if not isinstance(target, ast.Subscript) or _is_view(target):
            rewritten: ast.stmt = self.generic_visit(statement)
            return [rewritten]
        site = self._program.site(self._function, target, ast.unparse(target.value))
        base, index = self._parts(target)
        base = self._held(base)
        index = index if isinstance(index, ast.Constant) else self._held(index)
        old = self._taken(base, index, site)
        new = ast.BinOp(old, statement.op, self.visit(statement.value))
        return [ast.Expr(called("_put", base, index, new, site))]


def _place_of(node: ast.Call) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_view(node: ast.Subscript) -> bool:
    """Whether a subscript is certainly no element: a slice, a field of a record, an extent."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if isinstance(node.slice, ast.Constant) and not isinstance(node.slice.value, int):
        return True
    is_cut = any(isinstance(p, ast.Slice) or is_open(p) for p in parts)
    return is_cut or is_extents(node.value)
