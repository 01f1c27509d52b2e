"""What Numba's compiler knows of a kernel's values before it runs: which are literals.

Some functions of `numba.cuda` take literals alone. Which values are literals is for Numba to say,
so it is read from the code that its front end makes, in which branches that are never taken are
gone and a variable is several, each assigned once: a variable is a literal where all that it may
have been assigned is the same. What arithmetic gives is none, but where Python itself computes
it, as it does `8 + 1`.
"""

from __future__ import annotations

import enum
import operator
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba.core import analysis, compiler, ir, ssa
from numba.core.compiler_lock import global_compiler_lock

from numbasync.backend.cpu.compiler.names import device_function
from numbasync.backend.cpu.library.entry_points import types as numba_types


@dataclass(frozen=True, eq=False)
class Known:
    """A literal, or something else that a name stands for: a type, a function, an array."""

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Known) or type(self.value) is not type(other.value):
            return False
        try:
            return self.value is other.value or bool(self.value == other.value)
        except ValueError:  # of arrays
            return False


@dataclass(frozen=True)
class Items:
    """A tuple."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Computed:
    """Something that is surely no literal.

    Attributes:
        text: how it is written.
        is_static: whether it could be computed before the kernel is compiled.
    """

    text: str
    is_static: bool = False


@dataclass(frozen=True)
class Open:
    """Something of which it is not known here whether it is a literal."""


Fact: TypeAlias = Known | Items | Computed | Open
OPEN = Open()

_SIGNS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//",
    operator.truediv: "/", operator.mod: "%", operator.pow: "**", operator.lshift: "<<",
    operator.rshift: ">>", operator.and_: "&", operator.or_: "|", operator.xor: "^",
    operator.neg: "-", operator.pos: "+", operator.invert: "~", operator.not_: "not ",
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=", operator.iadd: "+", operator.isub: "-", operator.imul: "*",
    operator.ifloordiv: "//", operator.ilshift: "<<", operator.irshift: ">>",
}  # fmt: skip
# Attributes of arrays, of indices and of enumerations that are numbers, or tuples of them.
_NUMBERS = frozenset({"shape", "size", "itemsize", "nbytes", "strides", "x", "y", "z", "value"})
_COMPUTING = frozenset(
    {int, float, bool, complex, len, min, max, abs, round, sum, pow, divmod, range, tuple}
)
_PLAIN = (int, float, complex, str, tuple, np.generic)


@dataclass(frozen=True)
class Call:
    """A call in a function's code."""

    callee: Any
    positional: tuple[Fact, ...]
    keywords: dict[str, Fact]
    line: int


class Code:
    """One function as Numba's front end has it.

    Args:
        arguments: what is known of its arguments.
        kinds: their types; of a device function, as far as known.

    Raises:
        NumbaError: Numba does not have some construct of it.
    """

    def __init__(
        self, function: types.FunctionType, arguments: Sequence[Fact], kinds: Sequence[Any]
    ) -> None:
        with global_compiler_lock:  # names and labels are numbered for all threads
            found = compiler.run_frontend(function, inline_closures=True)
            analysis.rewrite_semantic_constants(found, kinds)
            analysis.dead_branch_prune(found, kinds)
            self._blocks = ssa.reconstruct_ssa(found).blocks
        self._arguments = arguments
        self._kinds = kinds
        self._facts: dict[str, Fact | None] = {}  # None: it is being looked for
        self._made: dict[str, list[Any]] = {}
        for statement in self._statements():
            if isinstance(statement, ir.Assign):
                self._made.setdefault(statement.target.name, []).append(statement.value)

    def calls(self) -> Iterator[Call]:
        """All calls of functions that are known."""
        for statement in self._statements():
            value: Any = getattr(statement, "value", None)
            if getattr(value, "op", None) == "call":
                callee = self._fact(value.func)
                passed = self._passed(value)
                if isinstance(callee, Known) and passed is not None:
                    keywords = {name: self._fact(v) for name, v in value.kws}
                    yield Call(callee.value, passed, keywords, statement.loc.line)

    def _statements(self) -> Iterator[Any]:
        for _, block in sorted(self._blocks.items()):
            yield from block.body

    def _passed(self, call: Any) -> tuple[Fact, ...] | None:
        passed = tuple(self._fact(a) for a in call.args)
        if call.varkwarg is not None:
            return None
        if call.vararg is None:
            return passed
        more = items(self._fact(call.vararg))
        return None if more is None else passed + more

    # --- facts ---

    def _fact(self, variable: Any) -> Fact:
        name = variable.name
        if name not in self._facts:
            self._facts[name] = None
            self._facts[name] = self._merged(variable, self._made.get(name, []))
        return self._facts[name] or OPEN

    def _merged(self, variable: Any, values: Sequence[Any]) -> Fact:
        """What is known of one that may be any of these; of those that it is made of itself, by
        a loop, nothing is asked.
        """
        found = [
            self._of(v)
            for v in values
            if not (isinstance(v, ir.Var) and self._facts.get(v.name, OPEN) is None)
        ]
        if not found:
            return OPEN
        if len(found) > 1 and not all(_same(found[0], f) for f in found):
            if any(isinstance(f, Open) for f in found):
                return OPEN
            return Computed(self._either(variable, values))
        return found[0]

    def _of(self, value: Any) -> Fact:
        match value:
            case ir.Const() | ir.Global() | ir.FreeVar():
                return Known(value.value)
            case ir.Var():
                return self._fact(value)
            case ir.Arg():
                found: Fact = self._arguments[value.index]
                return found
            case ir.Expr():
                return self._of_expression(value)
        return OPEN

    def _of_expression(self, value: Any) -> Fact:
        match value.op:
            case "cast" | "exhaust_iter":
                return self._fact(value.value)
            case "phi":
                taken = [v for v in value.incoming_values if v is not ir.UNDEFINED]
                return self._merged(value.incoming_values[0], taken)
            case "build_tuple":
                return Items(tuple(self._fact(i) for i in value.items))
            case "binop" | "inplace_binop" | "unary" | "build_list" | "build_set" | "build_map":
                return self._computed(value)
            case "getattr":
                return self._attribute(value)
            case "getitem" | "static_getitem":
                return self._item(value)
            case "call":
                return self._result(value)
            case "pair_first":
                return self._element(value)
        return OPEN

    def _computed(self, value: Any) -> Computed:
        operands = [self._fact(v) for v in value.list_vars()]
        return Computed(self._written(value), all(map(_is_static, operands)))

    def _attribute(self, value: Any) -> Fact:
        base = self._fact(value.value)
        owner, name = getattr(base, "value", None), value.attr
        is_known = isinstance(base, Known)
        is_home = isinstance(owner, types.ModuleType | type | numba_types.Type)
        if is_known and is_home and hasattr(owner, name):
            found = getattr(owner, name)
            if isinstance(found, enum.Enum):
                return Known(found)
            if isinstance(found, property):
                return self._computed(value)
            # Numba takes the value, but not as a literal.
            return self._computed(value) if isinstance(found, _PLAIN) else Known(found)
        if is_known and isinstance(owner, np.ndarray | np.dtype) and name in ("dtype", "type"):
            return Known(getattr(owner, name, None))
        is_number = isinstance(owner, (*_PLAIN, enum.Enum))
        if name in _NUMBERS or is_number or (isinstance(owner, np.ndarray) and name == "ndim"):
            return self._computed(value)
        return OPEN

    def _item(self, value: Any) -> Fact:
        base = self._fact(value.value)
        index = Known(value.index) if value.op == "static_getitem" else self._fact(value.index)
        of = items(base)
        if of is None:
            is_array = isinstance(base, Known) and isinstance(base.value, np.ndarray)
            return OPEN if isinstance(base, Open) or is_array else self._computed(value)
        if not isinstance(index, Known):
            return OPEN if isinstance(index, Open) else self._computed(value)
        try:
            found = of[index.value]
        except (IndexError, TypeError):
            return OPEN
        return Items(found) if isinstance(found, tuple) else found

    def _result(self, value: Any) -> Fact:
        callee = self._fact(value.func)
        if not isinstance(callee, Known):
            return OPEN
        function = callee.value
        if function is len and len(value.args) == 1:
            return self._length(value)
        if device_function(function) is not None:
            return OPEN  # it may return a literal
        module = str(getattr(function, "__module__", None) or "").split(".")
        is_number = isinstance(function, numba_types.Number | numba_types.Boolean) or (
            isinstance(function, type) and issubclass(function, np.generic)
        )
        is_type = isinstance(function, type | numba_types.Type)
        if module[:2] == ["numba", "cuda"] and not is_type:
            return Computed(self._written(value))
        is_known = module[0] == "numpy" or _is_of_math(function)
        is_computing = is_number or _is_one_of(function, _COMPUTING) or (is_known and not is_type)
        return self._computed(value) if is_computing else OPEN

    def _length(self, call: Any) -> Fact:
        (passed,) = call.args
        (made, *more) = self._made.get(passed.name, [None])
        if not isinstance(made, ir.Arg) or more:
            return self._computed(call)
        if self._kinds[made.index] is not numba_types.unknown:
            return self._computed(call)  # of a tuple, it stands here as a number
        found = items(self._fact(passed))
        return OPEN if found is None else Known(len(found))

    def _element(self, value: Any) -> Fact:
        """What a loop's variable is."""
        source = value
        for op in ("pair_first", "iternext", "getiter"):
            made = source if source is value else self._single(source)
            if not (isinstance(made, ir.Expr) and made.op == op):
                return OPEN
            source = made.value
        of = self._fact(source)
        found = items(of)
        if found:
            return found[0] if all(_same(found[0], f) for f in found) else self._computed(value)
        return OPEN if found is None and isinstance(of, Open) else self._computed(value)

    def _single(self, variable: Any) -> Any:
        """What a variable is made by, if that is one thing."""
        made: Any = variable
        while isinstance(made, ir.Var):
            (made, *more) = self._made.get(made.name, [None])
            if more:
                return None
        return made

    # --- as text ---

    def _either(self, variable: Any, values: Sequence[Any]) -> str:
        name: str = variable.unversioned_name
        if not name.startswith("$"):
            return name
        return " or ".join(sorted({self._written(v) for v in values}))

    def _said(self, variable: Any) -> str:
        name: str = variable.unversioned_name
        made = self._made.get(variable.name, [])
        is_named = not name.startswith("$")
        if len(made) != 1 or (is_named and not isinstance(self._facts.get(variable.name), Known)):
            return name if is_named else "..."
        return self._written(made[0])

    def _written(self, value: Any) -> str:
        match value:
            case ir.Global() | ir.FreeVar():
                return str(value.name)
            case ir.Arg():  # its name means nothing where the text is to be written
                found = self._arguments[value.index]
                return repr(found.value) if isinstance(found, Known) else str(value.name)
            case ir.Const():
                return repr(value.value)
            case ir.Var():
                return self._said(value)
            case ir.Expr(op="binop" | "inplace_binop"):
                sign = _SIGNS.get(value.fn, "?")
                return f"{self._operand(value.lhs)} {sign} {self._operand(value.rhs)}"
            case ir.Expr(op="unary"):
                return f"{_SIGNS.get(value.fn, '?')}{self._operand(value.value)}"
            case ir.Expr(op="getattr"):
                return f"{self._said(value.value)}.{value.attr}"
            case ir.Expr(op="static_getitem"):
                return f"{self._said(value.value)}[{value.index}]"
            case ir.Expr(op="getitem"):
                return f"{self._said(value.value)}[{self._said(value.index)}]"
            case ir.Expr(op="call"):
                return f"{self._said(value.func)}({', '.join(map(self._said, value.args))})"
            case ir.Expr(op="pair_first"):
                return "the loop's variable"
            case ir.Expr(op="build_tuple" | "build_list"):
                return f"({', '.join(map(self._said, value.items))})"
        return "..."

    def _operand(self, variable: Any) -> str:
        made = self._made.get(variable.name, [])
        text = self._said(variable)
        is_compound = len(made) == 1 and getattr(made[0], "op", "") in ("binop", "inplace_binop")
        return f"({text})" if is_compound and not text.isidentifier() else text


def items(fact: Fact) -> tuple[Fact, ...] | None:
    """What a tuple is of, if its items are literals where they are ints; None if it is none."""
    if isinstance(fact, Items):
        return fact.facts
    if isinstance(fact, Known) and type(fact.value) is tuple:
        # Of a tuple, Numba has literals if all are.
        plain = all(type(v) in (int, bool, str) for v in fact.value)
        return tuple(
            Known(v) if plain or type(v) not in (int, bool, str, tuple) else Computed(repr(v), True)
            for v in fact.value
        )
    return None


def _is_of_math(function: Any) -> bool:
    return isinstance(function, types.BuiltinFunctionType) and function.__module__ == "math"


def _is_one_of(function: Any, known: frozenset[Any]) -> bool:
    try:
        return function in known
    except TypeError:  # it has no hash
        return False


def _is_static(fact: Fact) -> bool:
    if isinstance(fact, Items):
        return all(map(_is_static, fact.facts))
    return isinstance(fact, Known) or (isinstance(fact, Computed) and fact.is_static)


def _same(a: Fact, b: Fact) -> bool:
    of = items(a)
    return a == b or (of is not None and of == items(b))
