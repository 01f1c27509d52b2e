"""A function's statements by its bytecode, where its source is not at hand: made by `exec`, or
edited since it was imported.

Numba reads the bytecode of every Python that it supports; this module only turns the blocks
that it makes of it into expressions, conditions and loops again. Each block is written once.
What cannot be written so, such as a loop that is left to two places, is refused.
"""

from __future__ import annotations

import ast
import copy
import operator
import types
from collections import Counter
from typing import Any, NoReturn

from numba.core import compiler, ir
from numba.core.compiler_lock import global_compiler_lock

from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.compiler.structured_control_flow import Block, structured

_BINARY: dict[Any, Any] = {
    operator.add: ast.Add, operator.sub: ast.Sub, operator.mul: ast.Mult,
    operator.truediv: ast.Div, operator.floordiv: ast.FloorDiv, operator.mod: ast.Mod,
    operator.pow: ast.Pow, operator.lshift: ast.LShift, operator.rshift: ast.RShift,
    operator.and_: ast.BitAnd, operator.or_: ast.BitOr, operator.xor: ast.BitXor,
    operator.matmul: ast.MatMult,
}  # fmt: skip
_COMPARED: dict[Any, Any] = {
    operator.eq: ast.Eq, operator.ne: ast.NotEq, operator.lt: ast.Lt, operator.le: ast.LtE,
    operator.gt: ast.Gt, operator.ge: ast.GtE, operator.is_: ast.Is, operator.is_not: ast.IsNot,
}  # fmt: skip
_UNARY: dict[Any, Any] = {
    operator.neg: ast.USub, operator.pos: ast.UAdd, operator.invert: ast.Invert,
    operator.not_: ast.Not,
}  # fmt: skip


def recovered(function: types.FunctionType) -> ast.FunctionDef:
    """What `function` does, as a definition.

    Raises:
        UntranslatableError: it has something that is not written out again.
    """
    code = function.__code__
    with global_compiler_lock:
        blocks: dict[int, Any] = compiler.run_frontend(function).blocks
    reader = _Reader(code, blocks)
    body = structured({label: reader.read(b) for label, b in blocks.items()}, min(blocks))
    names = [ast.arg(name) for name in code.co_varnames[: code.co_argcount]]
    # Python evaluates defaults when it defines; they are the function's, and not read from here.
    arguments = ast.arguments([], names, None, [], [], None, [])
    if code.co_kwonlyargcount or code.co_flags & 0x0C:
        arguments.vararg = ast.arg("arguments")  # which is refused
    if len(body) > 1 and isinstance(body[-1], ast.Return) and body[-1].value is None:
        body.pop()
    made = ast.FunctionDef("recovered", arguments, body, [], None, None)
    made.lineno, made.col_offset = code.co_firstlineno, 0
    return ast.fix_missing_locations(made)


class _Reader:
    """Statements of one block after the other."""

    def __init__(self, code: types.CodeType, blocks: dict[int, Any]) -> None:
        self._code = code
        self._taken = {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names}
        self._named: dict[str, str] = {}
        self._free: dict[str, ast.expr] = {}  # constants, and names of what is outside
        self._iterators: dict[str, ast.expr] = {}
        self._uses: Counter[str] = Counter()
        homes: dict[str, set[int]] = {}
        for label, block in blocks.items():
            for statement in block.body:
                given = statement.target.name if isinstance(statement, ir.Assign) else None
                for var in _read(statement):
                    self._uses[var] += 1
                    homes.setdefault(var, set()).add(label)
                if given is not None:
                    homes.setdefault(given, set()).add(label)
        # What is computed once and used once, in the same block, is a part of an expression.
        assigned = Counter(
            s.target.name for b in blocks.values() for s in b.body if isinstance(s, ir.Assign)
        )
        self._parts = {
            name for name, count in self._uses.items()
            if name.startswith("$") and count == 1 and assigned[name] == 1 and len(homes[name]) == 1
        }  # fmt: skip

    def read(self, block: Any) -> Block:
        self._done: list[ast.stmt] = []
        self._pending: dict[str, ast.expr] = {}
        self._step: tuple[str, str, str] | None = None  # iterator, value, whether there is one
        self._added: tuple[str, Any] | None = None
        made = Block(self._done)
        for statement in block.body:
            self._line = statement.loc.line
            self._statement(statement, made)
        return made

    def _statement(self, s: Any, made: Block) -> None:
        match s:
            case ir.Assign():
                self._assigned(s.target.name, s.value)
            case ir.SetItem():
                # Python evaluates the value first, then the array, then the index.
                value, array, index = self._all(s.value, s.target, s.index)
                target = ast.Subscript(array, index, ast.Store())
                self._write(ast.Assign([target], value))
            case ir.StaticSetItem():
                value, array = self._all(s.value, s.target)
                target = ast.Subscript(array, self._constant(s.index), ast.Store())
                self._write(ast.Assign([target], value))
            case ir.SetAttr():
                value, owner = self._all(s.value, s.target)
                self._write(ast.Assign([ast.Attribute(owner, s.attr, ast.Store())], value))
            case ir.Jump():
                self._flush()
                made.targets = (s.target,)
            case ir.Branch():
                made.targets = (s.truebr, s.falsebr)
                if self._step is not None and s.cond.name == self._step[2]:
                    if self._done or self._pending:
                        self._refuse("a loop over something that is computed in between")
                    made.loop = (self._iterators[self._step[0]], self._target(self._step[1]))
                else:
                    (made.test,) = self._all(s.cond)
                    self._flush()
            case ir.Return():
                (value,) = self._all(s.value)
                none = isinstance(value, ast.Constant) and value.value is None
                self._write(ast.Return(None if none else value))
            case ir.Raise():
                raised = None if s.exception is None else self._all(s.exception)[0]
                self._write(ast.Raise(raised, None))
            case ir.Del():
                pass
            case _:
                self._refuse(f"`{type(s).__name__}`")

    def _assigned(self, name: str, value: Any) -> None:
        if isinstance(value, ir.Arg):
            return
        if isinstance(value, ir.Var) and value.name in self._iterators:
            self._iterators[name] = self._iterators[value.name]
            return
        if isinstance(value, ir.Expr):
            if value.op == "getiter":
                (self._iterators[name],) = self._all(value.value)
                return
            if value.op == "iternext":
                self._step = (value.value.name, "", "")
                return
            if value.op == "pair_first" and self._step is not None:
                self._step = (self._step[0], name, self._step[2])
                return
            if value.op == "pair_second" and self._step is not None:
                self._step = (*self._step[:2], name)
                return
            if value.op == "inplace_binop" and not value.lhs.name.startswith("$"):
                if name.startswith("$"):
                    self._added = (name, value)  # and assigned next
                else:
                    self._add(name, value)
                return
        if self._step is not None and isinstance(value, ir.Var) and value.name == self._step[1]:
            self._step = (self._step[0], name, self._step[2])
            return
        if self._added is not None:
            (given, added), self._added = self._added, None
            if not isinstance(value, ir.Var) or value.name != given:
                self._refuse("an operation on a variable that is not assigned to one")
            self._add(name, added)
            return
        found, is_free = self._value(value)
        if is_free and name.startswith("$") and self._uses[name] and name not in self._free:
            self._free[name] = found
        elif name in self._parts:
            self._pending[name] = found
        elif name.startswith("$") and not self._uses[name]:
            self._write(ast.Expr(found))
        else:
            self._write(ast.Assign([self._name(name, ast.Store())], found))

    def _add(self, name: str, added: Any) -> None:
        """`name += ...`, which of an array is another operation than `name = name + ...`."""
        left, right = self._all(added.lhs, added.rhs)
        if name != added.lhs.name:
            self._write(ast.Assign([self._name(name, ast.Store())], left))
        kind = _BINARY[added.immutable_fn]()
        self._write(ast.AugAssign(self._name(name, ast.Store()), kind, right))

    def _value(self, value: Any) -> tuple[ast.expr, bool]:
        """An expression, and whether it is a constant or stands outside of the function."""
        if isinstance(value, ir.Const):
            return self._constant(value.value), True
        if isinstance(value, ir.Global | ir.FreeVar):
            return ast.Name(value.name, ast.Load()), True
        if isinstance(value, ir.Var):
            return self._all(value)[0], False
        if not isinstance(value, ir.Expr):
            self._refuse(f"`{type(value).__name__}`")
        match value.op:
            case "getattr":
                is_free = value.value.name in self._free
                return ast.Attribute(self._all(value.value)[0], value.attr, ast.Load()), is_free
            case "binop" | "inplace_binop":
                left, right = self._all(value.lhs, value.rhs)
                fn = value.fn if value.op == "binop" else value.immutable_fn
                if fn in _BINARY:
                    return ast.BinOp(left, _BINARY[fn](), right), False
                if fn in _COMPARED:
                    return ast.Compare(left, [_COMPARED[fn]()], [right]), False
            case "unary" if value.fn in _UNARY:
                return ast.UnaryOp(_UNARY[value.fn](), self._all(value.value)[0]), False
            case "getitem":
                array, index = self._all(value.value, value.index)
                return ast.Subscript(array, index, ast.Load()), False
            case "static_getitem":
                array = self._all(value.value)[0]
                return ast.Subscript(array, self._constant(value.index), ast.Load()), False
            case "build_tuple":
                return ast.Tuple(self._all(*value.items), ast.Load()), False
            case "exhaust_iter" | "cast":
                return self._all(value.value)[0], False
            case "call" if value.vararg is None and value.varkwarg is None:
                return self._call(value), False
        return self._refuse(f"`{value.op}`")

    def _call(self, call: Any) -> ast.expr:
        names = [name for name, _ in call.kws]
        function, *given = self._all(call.func, *call.args, *(v for _, v in call.kws))
        count = len(call.args)
        keywords = [ast.keyword(n, v) for n, v in zip(names, given[count:], strict=True)]
        if "build_slice" in call.func.name:
            bounds = [None if _is_none(g) else g for g in given] + [None] * (3 - count)
            return ast.Slice(bounds[0], bounds[1], bounds[2])
        if call.func.name.startswith("$bool"):
            return given[0]  # which Numba puts around every condition
        return ast.Call(function, given[:count], keywords)

    # --- in which order ---

    def _all(self, *variables: Any) -> list[ast.expr]:
        """Expressions for what is used together."""
        waiting = list(self._pending)
        used = [waiting.index(v.name) for v in variables if v.name in self._pending]
        in_order = used == list(range(len(waiting) - len(used), len(waiting)))
        if not in_order:
            self._flush()  # a stack gives them in order; what does not is computed first
        return [self._used(v.name) for v in variables]

    def _used(self, name: str) -> Any:
        if name in self._free:
            return copy.deepcopy(self._free[name])
        if name in self._pending:
            return self._pending.pop(name)
        if name in self._iterators:
            self._refuse("an iterator as a value")
        return self._name(name, ast.Load())

    def _flush(self) -> None:
        """Compute what waits for its use, before something is done that it might depend on."""
        for name, value in self._pending.items():
            self._done.append(self._at(ast.Assign([self._name(name, ast.Store())], value)))
        self._pending.clear()

    def _write(self, statement: ast.stmt) -> None:
        self._flush()
        self._done.append(self._at(statement))

    # --- parts ---

    def _name(self, name: str, context: ast.expr_context) -> Any:
        if name in self._code.co_varnames or name in self._code.co_cellvars:
            return ast.Name(name, context)
        # A part of an expression, or a variable that is assigned again: `a.1`.
        if name not in self._named:
            base = name.split(".")[0]
            made = f"{base if base.isidentifier() else 'v'}_{len(self._named)}"
            while made in self._taken:
                made += "_"
            self._named[name] = made
        return ast.Name(self._named[name], context)

    def _target(self, name: str) -> ast.expr:
        target: ast.expr = self._name(name, ast.Store())
        return target

    def _constant(self, value: Any) -> ast.expr:
        if isinstance(value, tuple):
            return ast.Tuple([self._constant(v) for v in value], ast.Load())
        if isinstance(value, slice):
            bounds = (value.start, value.stop, value.step)
            low, high, step = (None if b is None else self._constant(b) for b in bounds)
            return ast.Slice(low, high, step)
        if value is None or isinstance(value, bool | int | float | complex | str):
            return ast.Constant(value)
        return self._refuse(f"the constant {value!r}")

    def _at(self, statement: ast.stmt) -> ast.stmt:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt | ast.expr) and not hasattr(node, "lineno"):
                node.lineno = node.end_lineno = self._line
                node.col_offset = node.end_col_offset = 0
        return statement

    def _refuse(self, what: str) -> NoReturn:
        name, line = self._code.co_name, self._line
        raise UntranslatableError(
            f"{what} in {name}, whose source is not at hand, line {line}"
        ) from None


def _read(statement: Any) -> list[str]:
    """Variables that a statement uses."""
    given = statement.target.name if isinstance(statement, ir.Assign) else None
    found = [v.name for v in statement.list_vars()]
    if given is not None:
        found.remove(given)
    return found


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
