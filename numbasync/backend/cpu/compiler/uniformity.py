"""Which variables of a kernel are the same for all threads of a block."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from numbasync.backend.cpu.compiler.program import Program

# Values computed from a thread's index differ between threads.
_OWN = frozenset({"_tx", "_ty", "_tz"})
# In a cooperative launch every region runs over all blocks, so block indices differ, too.
_OF_BLOCKS = frozenset({"_bx", "_by", "_bz", "_m"})
WHOLE_BLOCK = ("@barrier", "@count", "@and", "@or", "@grid")


def names(nodes: Iterable[ast.AST] | ast.AST, context: type[ast.expr_context]) -> set[str]:
    trees = [nodes] if isinstance(nodes, ast.AST) else nodes
    return {
        n.id
        for each in trees
        for n in ast.walk(each)
        if isinstance(n, ast.Name) and isinstance(n.ctx, context)
    }


def barrier_of(statement: ast.AST) -> ast.Call | None:
    """The call of a barrier that a statement is; None if it is something else."""
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Name) and called.id.startswith("@"):
            return statement.value
    return None


def has_barrier(statement: ast.AST) -> bool:
    return any(barrier_of(n) is not None for n in ast.walk(statement))


def has_return(statement: ast.AST) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(statement))


def breaks(statement: ast.stmt) -> bool:
    """Whether a thread may leave the loop that the statement is in."""
    if isinstance(statement, ast.If):
        return any(map(breaks, [*statement.body, *statement.orelse]))
    return isinstance(statement, ast.Break | ast.Continue)


def leaves(statement: ast.stmt) -> bool:
    """Whether a thread may leave what the statement is in."""
    if isinstance(statement, ast.Break | ast.Continue | ast.Return):
        return True
    if isinstance(statement, ast.If):
        return any(map(leaves, [*statement.body, *statement.orelse]))
    return isinstance(statement, ast.For | ast.While) and has_return(statement)


class Uniform:
    """Which variables are the same for all threads of a block, and assigned for all at once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._pure = program.pure
        self._cooperative = program.cooperative
        self.varying = set(_OWN | _OF_BLOCKS if program.cooperative else _OWN)
        while True:
            before = len(self.varying)
            self._block(program.body, everyone=True)
            if len(self.varying) == before:
                return

    def __call__(self, node: ast.AST) -> bool:
        """Whether an expression has one value for all threads, and no effect."""
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                if each.id in self.varying:
                    return False
            elif (isinstance(each, ast.Subscript) and not (is_extent(each) or _is_view(each))) or (
                isinstance(each, ast.Call) and not self.is_pure(each.func)
            ):
                return False
        return True

    def is_pure(self, function: ast.expr) -> bool:
        return isinstance(function, ast.Name) and function.id in self._pure

    def _is_of_loop(self, loop: ast.For) -> bool:
        """Whether the variables of a loop are used in its body alone, so that they may change for
        threads that are not in it.
        """
        targets = names(loop.target, ast.Store)
        inside = sum(
            isinstance(n, ast.Name) and n.id in targets for s in loop.body for n in ast.walk(s)
        )
        everywhere = sum(
            isinstance(n, ast.Name) and n.id in targets
            for s in self._program.body
            for n in ast.walk(s)
        )
        return everywhere == inside + len(targets)

    def _vary(self, variables_: set[str]) -> None:
        self.varying |= variables_

    def _block(self, statements: list[ast.stmt], everyone: bool) -> None:
        for statement in statements:
            self._statement(statement, everyone)

    def _statement(self, statement: ast.stmt, everyone: bool) -> None:
        call = barrier_of(statement)
        if call is not None:
            name = call.func.id  # type: ignore[attr-defined]
            if name not in WHOLE_BLOCK or not everyone or self._cooperative:
                self._vary(names(statement, ast.Store))
        elif isinstance(statement, ast.Assign | ast.AugAssign):
            own = not everyone or not self(statement.value)
            if isinstance(statement, ast.AugAssign):
                own = own or not isinstance(statement.target, ast.Name)
                own = own or names(statement.target, ast.Store) & self.varying != set()
            if own:
                self._vary(variables(statement))
        elif not has_barrier(statement):
            self._vary(names(statement, ast.Store))  # assigned inside a loop over the threads
        elif isinstance(statement, ast.If):
            inside = everyone and self(statement.test)
            self._block(statement.body, inside)
            self._block(statement.orelse, inside)
        elif isinstance(statement, ast.While):
            inside = everyone and self(statement.test) and not self.some_leave(statement.body)
            self._block(statement.body, inside)
        elif isinstance(statement, ast.For):
            inside = everyone and self(statement.iter) and not self.some_leave(statement.body)
            if not inside and not (self(statement.iter) and self._is_of_loop(statement)):
                self._vary(names(statement.target, ast.Store))
            self._block(statement.body, inside)

    def is_done_once(self, statement: ast.stmt) -> bool:
        """Whether an assignment is the same for all threads, where all of them come to it."""
        if not isinstance(statement, ast.Assign | ast.AugAssign):
            return False
        targets = [statement.target] if isinstance(statement, ast.AugAssign) else statement.targets
        stored = variables(statement)
        are_plain = all(isinstance(t, ast.Name | ast.Tuple) for t in targets)
        return are_plain and bool(stored) and not stored & self.varying

    def ends_for_all(self, statement: ast.stmt) -> bool:
        """Whether a statement is a `break` or `continue` of all threads at once, in a loop that
        they are in together.
        """
        if isinstance(statement, ast.If):
            parts = [*statement.body, *statement.orelse]
            return (
                self(statement.test)
                and all(self.is_done_once(part) or self.ends_for_all(part) for part in parts)
                and any(map(leaves, parts))
            )
        return isinstance(statement, ast.Break | ast.Continue)

    def some_leave(self, body: list[ast.stmt]) -> bool:
        """Whether some threads may leave a loop that the others stay in."""
        for statement in body:
            if isinstance(statement, ast.If) and has_barrier(statement):
                if any(map(breaks, [*statement.body, *statement.orelse])):
                    return True
            elif breaks(statement) and not self.ends_for_all(statement):
                return True
        return False


def variables(statement: ast.Assign | ast.AugAssign) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return names(targets, ast.Store)


def is_extent(node: ast.Subscript) -> bool:
    """An element of `array.shape`, or of `array.strides`."""
    value = node.value
    return isinstance(value, ast.Attribute) and value.attr in ("shape", "strides")


def _is_view(node: ast.Subscript) -> bool:
    """A part of an array, and no element."""
    index = node.slice
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(p, ast.Slice) for p in parts)
