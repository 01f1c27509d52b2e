"""Indices of a kernel that are certainly not negative, read from its source.

Numba tests every signed index, since a negative one counts from the end of its axis. A kernel whose
indices are sums and products of positions, extents, loop variables and constants needs no such
tests, which can be half of its instructions. `mark` finds these indices and wraps each in a call.

A local variable is not negative if each of its assignments gives a value that is not, provided that
the other such variables are not: by induction over the steps of a thread. A variable that is
multiplied by something in every turn of a loop may overflow, and counts as unknown.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

MOST_FACTOR = 2**20  # a larger constant is taken for part of a hash, whose products overflow
_PLACES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_GROWING = ast.Mult | ast.LShift | ast.Pow


def mark(definition: ast.FunctionDef, function: FunctionType, name: str) -> int:
    """Wrap the indices of a kernel that are certainly not negative in calls of `name`, in place.

    Only indices of the kernel's parameters and of its shared and local arrays are wrapped, and no
    constants, which cost nothing.

    Returns:
        The number of wrapped indices.
    """
    try:
        scopes = inspect.getclosurevars(function)
    except ValueError:  # an enclosing variable is not assigned yet
        return 0
    scope = {**vars(builtins), **scopes.globals, **scopes.nonlocals}
    signs = _Signs(definition, scope)
    marker = _Marker(signs, name)
    definition.body = [marker.visit(statement) for statement in definition.body]
    return marker.count


class _Signs:
    """The signs of a kernel's integers.

    Attributes:
        arrays: names that stand for one array throughout the kernel.
    """

    def __init__(self, definition: ast.FunctionDef, scope: dict[str, Any]) -> None:
        from numba import cuda

        self._cuda = cuda
        self._globals = scope
        args = definition.args
        parameters = {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
        stored = {
            node.id
            for node in ast.walk(definition)
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        }
        self._locals = parameters | stored
        self._assigned: dict[str, list[ast.expr | None]] = {name: [] for name in stored}
        for node in ast.walk(definition):
            for target, value in _assignments(node):
                self._assign(target, value)
        self._variables = set(self._assigned) - parameters
        self._drop_growing()
        changed = True
        while changed:
            unknown = {v for v in self._variables if not self._all(v, self._is_value)}
            self._variables -= unknown
            changed = bool(unknown)
        own = {name for name in stored if self._all(name, self._is_array)}
        self.arrays = (parameters - stored) | (own - parameters)

    def _all(self, name: str, test: Callable[[ast.expr | None], bool]) -> bool:
        """Whether a test holds for all that is assigned to a variable, and something is."""
        values = self._assigned[name]
        return bool(values) and all(map(test, values))

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self._assigned[target.id].append(value)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, None)
        elif isinstance(target, ast.Tuple | ast.List):
            for i, part in enumerate(target.elts):
                inner: ast.expr | None = None
                if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                    inner = value.elts[i]
                elif value is not None and self._is_tuple(value):
                    inner = ast.Constant(0)  # any number that is not negative
                self._assign(part, inner)

    def _drop_growing(self) -> None:
        """Drop variables that are computed from themselves by a multiplication."""
        sources = {v: set(self._names_in(self._assigned[v])) for v in self._variables}
        products = {
            v: {n for e in self._assigned[v] if e is not None for n in _factors(e)}
            for v in self._variables
        }
        for variable in list(self._variables):
            reached, waiting = set[str](), list(products[variable])
            while waiting:
                name = waiting.pop()
                if name not in reached:
                    reached.add(name)
                    waiting += sources.get(name, ())
            if variable in reached:
                self._variables.discard(variable)

    @staticmethod
    def _names_in(values: list[ast.expr | None]) -> Iterator[str]:
        for value in values:
            for node in ast.walk(value) if value is not None else ():
                if isinstance(node, ast.Name):
                    yield node.id

    def _is_value(self, value: ast.expr | None) -> bool:
        return value is not None and self.holds(value)

    def _is_array(self, value: ast.expr | None) -> bool:
        allocators = (self._cuda.shared.array, self._cuda.local.array)
        return isinstance(value, ast.Call) and self._is_one_of(value.func, *allocators)

    def _is_tuple(self, value: ast.expr) -> bool:
        """Whether an expression is a tuple of numbers that are not negative."""
        if isinstance(value, ast.Attribute) and value.attr == "shape":
            return True
        positions = self._cuda.grid, self._cuda.gridsize
        return isinstance(value, ast.Call) and self._is_one_of(value.func, *positions)

    def holds(self, e: ast.expr) -> bool:
        """Whether an expression is certainly an integer that is not negative."""
        if isinstance(e, ast.Constant):
            return type(e.value) is int and e.value >= 0
        if isinstance(e, ast.Name):
            if e.id in self._locals:
                return e.id in self._variables
            value = self._globals.get(e.id)
            return type(value) is int and value >= 0
        if isinstance(e, ast.NamedExpr):
            return self.holds(e.value)
        if isinstance(e, ast.IfExp):
            return self.holds(e.body) and self.holds(e.orelse)
        if isinstance(e, ast.BinOp):
            return self._holds_of(e)
        if isinstance(e, ast.Subscript):
            return self._is_tuple(e.value) and not isinstance(e.slice, ast.Slice)
        if isinstance(e, ast.Attribute):
            return self._is_place(e)
        return isinstance(e, ast.Call) and self._holds_call(e)

    def _holds_of(self, e: ast.BinOp) -> bool:
        left, right = self.holds(e.left), self.holds(e.right)
        if isinstance(e.op, ast.BitAnd):
            return left or right
        if isinstance(e.op, ast.Mod):
            return right  # the sign of the divisor
        if isinstance(e.op, ast.Mult) and any(map(_is_large, (e.left, e.right))):
            return False
        allowed = ast.Add | ast.Mult | ast.FloorDiv | ast.RShift | ast.BitOr | ast.BitXor
        return left and right and isinstance(e.op, allowed)

    def _is_place(self, e: ast.Attribute) -> bool:
        if e.attr in ("size", "ndim"):
            return isinstance(e.value, ast.Name) and e.value.id in self._locals
        if self._is_one_of(e, self._cuda.laneid, self._cuda.warpsize):
            return True
        places = (getattr(self._cuda, name) for name in _PLACES)
        return e.attr in "xyz" and self._is_one_of(e.value, *places)

    def _holds_call(self, e: ast.Call) -> bool:
        function = self._object(e.func)
        if e.keywords or not e.args:
            return False
        if self._is_one_of(e.func, self._cuda.grid, self._cuda.gridsize):
            return isinstance(e.args[0], ast.Constant) and e.args[0].value == 1
        if function is max:
            return any(map(self.holds, e.args))
        if function is min or function is int:
            return all(map(self.holds, e.args))
        if function is range:
            return self._holds_range(e.args)
        return function is len

    def _holds_range(self, args: list[ast.expr]) -> bool:
        """Whether the numbers of a range are not negative."""
        if len(args) == 1:
            return True
        step = args[2] if len(args) == 3 else ast.Constant(1)
        if self.holds(step):
            return self.holds(args[0])
        try:
            return bool(ast.literal_eval(args[1]) >= -1) and self.holds(args[0])
        except (ValueError, TypeError):
            return False

    def _is_one_of(self, e: ast.expr, *objects: Any) -> bool:
        named = self._object(e)
        return any(named is thing for thing in objects)

    def _object(self, e: ast.expr) -> Any:
        """The global object that an expression such as `cuda.threadIdx` names, or None."""
        if isinstance(e, ast.Attribute):
            return getattr(self._object(e.value), e.attr, None)
        if isinstance(e, ast.Name) and e.id not in self._locals:
            return self._globals.get(e.id)
        return None


class _Marker(ast.NodeTransformer):
    """Wraps indices. `count`: so far."""

    def __init__(self, signs: _Signs, name: str) -> None:
        self._signs = signs
        self._name = name
        self.count = 0

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self._signs.arrays:
            if isinstance(node.slice, ast.Tuple):
                node.slice.elts = [self._marked(e) for e in node.slice.elts]
            else:
                node.slice = self._marked(node.slice)
        return node

    def _marked(self, index: ast.expr) -> ast.expr:
        if isinstance(index, ast.Constant) or not self._signs.holds(index):
            return index
        self.count += 1
        call = ast.Call(ast.Name(self._name, ast.Load()), [index], [])
        return ast.fix_missing_locations(ast.copy_location(call, index))


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The names that a statement or an expression assigns, and the values; None: unknown."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        yield node.target, node.value
    elif isinstance(node, ast.AugAssign):
        if isinstance(node.target, ast.Name):
            old = ast.Name(node.target.id, ast.Load())
            yield node.target, ast.BinOp(old, node.op, node.value)
    elif isinstance(node, ast.For):
        is_range = isinstance(node.iter, ast.Call)
        yield node.target, node.iter if is_range else None
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, None


def _factors(e: ast.expr) -> Iterator[str]:
    """The names that an expression multiplies."""
    for node in ast.walk(e):
        if isinstance(node, ast.BinOp) and isinstance(node.op, _GROWING):
            yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _is_large(e: ast.expr) -> bool:
    return isinstance(e, ast.Constant) and isinstance(e.value, int) and e.value > MOST_FACTOR
