"""The one reader of Numba's IR: a function's statements, and what its variables certainly are.

A variable is traced back to the values that it may have been assigned: constants, parameters,
expressions, and the objects that a callee may be. Every question about a function's code is put to
its one reading (`read`): Numba's front end takes 5 to 20 ms for a kernel.
"""

from __future__ import annotations

import builtins
import operator
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from numbasync.errors import LauncherError
from numbasync.facts.assigned_once import assign_once
from numbasync.facts.callees import is_slice
from numbasync.facts.source import captured

__all__ = ["UNKNOWN", "Method", "Names", "read"]

UNKNOWN = object()  # stands for a callee of which nothing is known
NO_CONSTANT = object()
MOST_DOTS = 8  # in the name of a callee; `node = node.next` in a loop has no end


@dataclass(frozen=True, slots=True)
class Method:
    """A call of an attribute of an object that is not a global name."""

    name: str
    owner: Any


class Names:
    """The variables of one function's IR, and the values assigned to them.

    Attributes:
        statements: all statements of the function, in no meaningful order.
        blocks: the same statements, by the labels of their basic blocks.
        definitions: by a variable's name, all values that are assigned to it.
    """

    def __init__(self, function: FunctionType) -> None:
        from numba.core import ir

        self._ir = ir
        code = _read(function)
        self.blocks: dict[int, Any] = code.blocks
        self.statements: list[Any] = [s for block in self.blocks.values() for s in block.body]
        self.definitions: dict[str, list[Any]] = defaultdict(list)
        for s in self.statements:
            if isinstance(s, ir.Assign):
                self.definitions[s.target.name].append(s.value)
        self._written = {
            version: name
            for block in self.blocks.values()
            for name, versions in block.scope.var_redefinitions.items()
            for version in versions
        }
        self._origins: dict[str, list[Any]] = {}
        self._function = weakref.ref(function)  # a reading does not keep a dropped kernel alive
        self._constants = (ir.Const, ir.Global, ir.FreeVar)

    def is_current(self) -> bool:
        """Whether the function's globals and enclosing variables are what they were when it was
        read. Numba puts them into the code.
        """
        ir, function = self._ir, self._function()
        if function is None:
            return False
        scope, outer, enclosing = function.__globals__, vars(builtins), captured(function)

        def stands_for(name: str, is_global: bool) -> Any:
            return scope.get(name, outer.get(name)) if is_global else enclosing.get(name)

        return all(
            value.value is stands_for(value.name, isinstance(value, ir.Global))
            for values in self.definitions.values()
            for value in values
            if isinstance(value, ir.Global | ir.FreeVar)
        )

    def as_written(self, name: str) -> str:
        """The name in the source of a variable that stands for one assignment of it."""
        while name in self._written:
            name = self._written[name]
        return name

    def origins(self, variable: Any) -> list[Any]:
        """The values that a variable may have been assigned, traced through other names for it."""
        origins = self._origins.get(variable.name)
        if origins is None:
            ir = self._ir
            origins = []
            seen, waiting = {variable.name}, [variable.name]
            while waiting:
                for value in self.definitions.get(waiting.pop(), []):
                    is_name = isinstance(value, ir.Var)
                    if not is_name and getattr(value, "op", "") not in ("phi", "cast"):
                        origins.append(value)
                        continue
                    aliases = {v.name for v in ([value] if is_name else value.list_vars())} - seen
                    seen |= aliases
                    waiting += aliases
            self._origins[variable.name] = origins
        return origins

    def one(self, variable: Any) -> Any:
        """The value that a variable certainly was assigned, None if that is not certain."""
        origins = self.origins(variable)
        return origins[0] if len(origins) == 1 else None

    def constant(self, variable: Any) -> Any:
        """The constant that a variable certainly is, or NO_CONSTANT."""
        origins = self.origins(variable)
        if len(origins) == 1 and isinstance(origins[0], self._constants):
            return origins[0].value
        return NO_CONSTANT

    def index(self, item: Any) -> Any:
        """The constant index of an expression or a statement that takes an item of an object, or
        stores to one; NO_CONSTANT if it is none.
        """
        index = item.index
        return self.constant(index) if isinstance(index, self._ir.Var) else index

    def items(self, variable: Any) -> list[Any] | None:
        """The variables of which a tuple was built, if that is certain."""
        origins = self.origins(variable)
        value: Any = origins[0] if len(origins) == 1 else None
        if not isinstance(value, self._ir.Expr):
            return None
        if value.op == "build_tuple":
            return list(value.items)
        if value.op == "exhaust_iter":
            return self.items(value.value)
        # f(x, *pair) is f(*((x,) + tuple(pair))).
        if value.op == "call" and self.callees(value.func) == [tuple] and len(value.args) == 1:
            return self.items(value.args[0])
        if value.op == "binop" and value.fn is operator.add:
            left, right = self.items(value.lhs), self.items(value.rhs)
            return None if left is None or right is None else left + right
        return None

    def computed_from(self, variables: Iterable[Any]) -> set[str]:
        """The names of the parameters from which variables are computed, in any number of steps."""
        ir = self._ir
        waiting = [variable.name for variable in variables]
        seen, parameters = set(waiting), set()
        while waiting:
            for value in self.definitions.get(waiting.pop(), []):
                if isinstance(value, ir.Arg):
                    parameters.add(value.name)
                used = [value] if isinstance(value, ir.Var) else []
                if isinstance(value, ir.Expr):
                    used = value.list_vars()
                new = {v.name for v in used} - seen
                seen |= new
                waiting += new
        return parameters

    def slices(self, variable: Any) -> bool:
        """Whether an index may be, or contain, a slice: the result is then a view, not a number."""
        for value in self.origins(variable):
            parts = value.items if getattr(value, "op", "") == "build_tuple" else ()
            if self._is_slice(value) or any(
                self._is_slice(v) for part in parts for v in self.origins(part)
            ):
                return True
        return False

    def _is_slice(self, value: Any) -> bool:
        if isinstance(value, self._constants):
            return is_slice(value.value)
        op = getattr(value, "op", "")
        if op == "call":
            return slice in self.callees(value.func)
        return op == "getattr" and None in self._callees_of(value, 0)  # np.newaxis

    def callees(self, variable: Any, depth: int = 0) -> list[Any]:
        """The objects that a variable may stand for: global objects, `Method`s, `UNKNOWN`."""
        callees = [c for value in self.origins(variable) for c in self._callees_of(value, depth)]
        return callees or [UNKNOWN]

    def _callees_of(self, value: Any, depth: int) -> Iterator[Any]:
        ir = self._ir
        if isinstance(value, ir.Global | ir.FreeVar):
            yield UNKNOWN if value.value is ir.UNDEFINED else value.value
        elif getattr(value, "op", "") == "getattr" and depth < MOST_DOTS:
            for owner in self.callees(value.value, depth + 1):
                if owner is UNKNOWN or isinstance(owner, Method):
                    yield Method(value.attr, value.value)
                else:
                    yield getattr(owner, value.attr, UNKNOWN)
        else:
            yield UNKNOWN


MOST_READINGS = 32  # that are kept: those of a kernel's decoration serve its first call, too
_readings: WeakKeyDictionary[FunctionType, Names] = WeakKeyDictionary()  # the latest last
_lock = threading.Lock()


def read(function: FunctionType) -> Names:
    """The variables of a function's IR, as of what its outer names stand for now.

    Raises:
        LauncherError: Numba cannot read the code.
    """
    with _lock:
        names = _readings.get(function)
    if names is None or not names.is_current():
        names = Names(function)
    with _lock:
        _readings.pop(function, None)
        _readings[function] = names
        for oldest in list(_readings)[:-MOST_READINGS]:
            del _readings[oldest]
    return names


def _read(function: FunctionType) -> Any:
    """Numba's IR, with closures inlined where they are called, and each variable assigned once."""
    from numba.core import ssa
    from numba.core.compiler import run_frontend

    try:
        code = _with_inlined_closures(function)
        code.blocks = assign_once(code.blocks, ssa)
        return code
    except Exception:  # a closure that cannot be inlined, for example, stays
        try:
            return run_frontend(function)
        except Exception as error:
            raise LauncherError(f"Numba cannot read {function.__name__}: {error}") from error


def _with_inlined_closures(function: FunctionType) -> Any:
    """Numba's `run_frontend` without the lives of variables, which no question is about."""
    from numba.core import bytecode, inline_closurecall, interpreter, transforms
    from numba.core.cpu_options import ParallelOptions

    identity = bytecode.FunctionIdentity.from_function(function)
    code: Any = interpreter.Interpreter(identity).interpret(bytecode.ByteCode(identity))
    inline_closurecall.InlineClosureCallPass(code, ParallelOptions(False), {}, False).run()
    code.blocks = transforms.canonicalize_cfg(code.blocks)
    return code
