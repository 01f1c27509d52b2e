"""How a function uses its parameters, read from its code with Numba's own front end.

Arrays are traced through names, views, tuples, closures and device functions to every store. Code
that cannot be analysed counts as a store: a false store costs an ordering, a missed store is a
race.
"""

from __future__ import annotations

import inspect
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from numbasync.errors import LauncherError
from numbasync.facts import callees
from numbasync.facts.ir import NO_CONSTANT, UNKNOWN, Method, read
from numbasync.facts.parts import (
    Form,
    Key,
    Root,
    in_any_place,
    inner,
    items,
    of_function,
    put,
)

__all__ = ["Store", "only_stored_to", "summary", "values_read"]

# Attributes of an array that are not a view of the array.
_PLAIN = frozenset({"shape", "size", "ndim", "strides", "dtype", "itemsize", "nbytes"})
_VIEWS = frozenset({"T", "flat", "real", "imag"})
# Expressions that give their operands, or parts of them, and use no value of them.
_FOLLOWED = frozenset(
    {"getattr", "phi", "cast", "build_tuple", "exhaust_iter", "getiter", "iternext", "pair_first",
     "pair_second"}
)  # fmt: skip
_IDENTITIES = (operator.is_, operator.is_not)


def _takes_numbers(callee: Any) -> bool:
    """Whether a function other than a device function takes numbers and no arrays."""
    package = getattr(callee, "__module__", None)
    is_type = isinstance(callee, type) and issubclass(callee, np.generic | int | float | complex)
    return is_type or callee is range or package in ("math", "cmath")


class Store(Enum):
    """How a parameter is stored to."""

    ELEMENTS = "its elements"
    IN_PLACE = "x += 1: an array's elements, but a number is only bound anew"
    MEMBERS = "v = x[i]; v += 1: the elements of a row, but of no row if x has one axis"
    UNKNOWN = "code that cannot be followed has it, and may store to it"


Found: TypeAlias = set[tuple[int, Store]]


@dataclass(frozen=True, slots=True)
class Summary:
    """The facts about a function that its callers need.

    Attributes:
        stores: positions of parameters, and how the function stores to them.
        reads: positions of parameters of which the function may use a value: an element, or a
            number. `x[i][j] = 1` and `x.shape` use none of x.
        returns: positions of parameters, and the part of them that the result may be.
        line: the line that returns a value other than None; 0 if no line does.
        tested: positions of parameters that are compared with None.
        numbers: positions of parameters used as numbers only: the function reads no elements or
            attributes of them, and passes them to no function that could.
    """

    stores: frozenset[tuple[int, Store]] = frozenset()
    returns: frozenset[Root] = frozenset()
    line: int = 0
    tested: frozenset[int] = frozenset()
    numbers: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()


# Weak, so that the summaries do not keep a dropped kernel alive.
_summaries: WeakKeyDictionary[FunctionType, Summary] = WeakKeyDictionary()
_lock = threading.RLock()


def summary(function: FunctionType) -> Summary:
    """How `function` uses its parameters.

    Those that it calls come first. Functions that call each other are analysed repeatedly until no
    summary counts on one that has changed, and are cached only then.

    Raises:
        LauncherError: Numba cannot read the code.
    """
    with _lock:
        cached = _summaries.get(function)
        if cached is not None:
            return cached
        summaries: dict[FunctionType, Summary] = {}
        readers: dict[FunctionType, _Reader] = {}

        def ask(callee: FunctionType) -> Summary:
            cached = _summaries.get(callee)
            if cached is not None:
                return cached
            if callee not in summaries:
                summaries[callee] = Summary()  # for a function that calls itself
                readers[callee] = _Reader(callee, ask)
                summaries[callee] = readers[callee].summary()
            return summaries[callee]

        ask(function)
        while stale := [f for f, reader in readers.items() if not reader.is_current()]:
            for current in stale:
                summaries[current] = readers[current].summary()
        _summaries.update(summaries)
        return summaries[function]


def values_read(function: FunctionType) -> frozenset[int]:
    """`Summary.reads` of a function; nothing where Numba cannot read the code."""
    try:
        return summary(function).reads
    except LauncherError:
        return frozenset()


def only_stored_to(function: FunctionType) -> frozenset[str]:
    """The names of the parameters whose elements a function stores to and certainly never reads;
    none where Numba cannot read the code.
    """
    try:
        uses = summary(function)
    except LauncherError:
        return frozenset()
    stored = {position for position, store in uses.stores if store is Store.ELEMENTS}
    return frozenset(function.__code__.co_varnames[i] for i in stored - uses.reads)


def _met(root: Root, store: Store) -> Store:
    """The effect on a parameter of a store to a variable that holds this of the parameter."""
    if root.form is Form.ELEMENT and store in (Store.IN_PLACE, Store.MEMBERS):
        return Store.MEMBERS
    # Of a tuple it is not known which item is stored to.
    return Store.UNKNOWN if root.form is Form.MEMBER or root.path else store


def _passed(
    function: FunctionType, args: list[Any], named: dict[str, Any], rest: Any
) -> list[tuple[int | None, Any, Form]]:
    """Each parameter that receives something in a call, None if it is not known which; the variable
    passed there; and the form that the parameter holds of it.
    """
    code = function.__code__
    count, only = code.co_argcount, code.co_kwonlyargcount
    names = list(code.co_varnames[: count + only])
    star = count if code.co_flags & inspect.CO_VARARGS else None
    if star is not None:
        names.insert(star, "*")  # its place among the parameters
    passed: list[tuple[int | None, Any, Form]] = []
    for i, v in enumerate(args):
        passed.append((i, v, Form.WHOLE) if i < count else (star, v, Form.MEMBER))
    for name, v in named.items():
        passed.append((names.index(name) if name in names else None, v, Form.WHOLE))
    if rest is not None:
        passed += [(i, rest, Form.MEMBER) for i in range(len(args), count)]
        passed += [] if star is None else [(star, rest, Form.MEMBER)]
    return passed


class _Reader:
    """Traces arrays through one function's Numba IR.

    Statements are taken in any order and repeated until nothing changes, so that a loop or a branch
    cannot hide a store.
    """

    def __init__(self, function: FunctionType, ask: Callable[[FunctionType], Summary]) -> None:
        from numba.core import ir

        self._ir = ir
        self._names = read(function)
        self._roots: dict[str, set[Root]] = {}  # what each variable may hold of the parameters
        self._ask_for = ask
        self._asked: dict[FunctionType, Summary] = {}  # what the last summary counts on
        self._harmless = (ir.Del, ir.Print, ir.EnterWith, ir.PopBlock, ir.Terminator)

    def is_current(self) -> bool:
        """Whether the last summary counts on what is known of other functions now."""
        return all(self._ask_for(f) == known for f, known in self._asked.items())

    def _ask(self, function: FunctionType) -> Summary:
        known = self._asked[function] = self._ask_for(function)
        return known

    def summary(self) -> Summary:
        self._asked.clear()
        statements = self._names.statements
        assigned = [s for s in statements if isinstance(s, self._ir.Assign)]
        changed = True
        while changed:
            changes = [self._flow(s) for s in assigned]
            changed = any(changes)
        stored: Found = set()
        for statement in statements:
            stored |= self._stores(statement)
        returns = [s for s in statements if isinstance(s, self._ir.Return)]
        lines = [s.loc.line for s in returns if self._is_value(s.value)]
        result = self._of(*(s.value for s in returns))
        return Summary(
            frozenset(stored),
            frozenset(result),
            min(lines, default=0),
            *self._kinds_of_parameters(),
            frozenset(p for s in statements for p in self._reads(s)),
        )

    def _kinds_of_parameters(self) -> tuple[frozenset[int], frozenset[int]]:
        """`tested` and `numbers` of the summary."""
        ir = self._ir
        tested: set[int] = set()
        others: set[int] = set()
        parameters: set[int] = set()
        for s in self._names.statements:
            value: Any = getattr(s, "value", None)
            if isinstance(value, ir.Arg):
                parameters.add(value.index)
            if isinstance(s, ir.SetItem | ir.StaticSetItem):
                others |= self._parameters([s.target])
            elif not isinstance(s, ir.Assign | ir.Branch):
                others |= self._parameters(s.list_vars())
            elif isinstance(value, ir.Expr):
                used = self._parameters(value.list_vars())
                if value.op == "binop" and value.fn in _IDENTITIES:
                    tested |= used
                elif value.op not in ("binop", "unary", "cast", "phi", "inplace_binop"):
                    others |= used - self._counted(value)
        return frozenset(tested), frozenset(parameters - others)

    def _counted(self, value: Any) -> set[int]:
        """The parameters that a call takes as numbers."""
        if value.op in ("getitem", "static_getitem"):
            return self._parameters(value.list_vars()) - self._parameters([value.value])
        if value.op != "call":
            return set()
        plain = [c for c in self._names.callees(value.func) if _takes_numbers(c)]
        return self._parameters(value.list_vars()) if plain else set()

    def _parameters(self, variables: Iterable[Any]) -> set[int]:
        """The parameters for which the variables are other names."""
        values = (v for variable in variables for v in self._names.origins(variable))
        return {v.index for v in values if isinstance(v, self._ir.Arg)}

    # --- stores ---

    def _stored(self, variables: Iterable[Any], store: Store) -> Found:
        return {(root.parameter, _met(root, store)) for root in self._of(*variables)}

    def _stores(self, statement: Any) -> Found:
        ir = self._ir
        if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.SetAttr | ir.DelItem):
            return self._stored([statement.target], Store.ELEMENTS)
        if isinstance(statement, self._harmless):
            return set()
        if not isinstance(statement, ir.Assign):
            return self._stored(statement.list_vars(), Store.UNKNOWN)
        value = statement.value
        if not isinstance(value, ir.Expr):
            return set()
        if value.op == "call":
            return self._call(value)[0]
        if value.op == "inplace_binop":
            return self._stored([value.lhs], Store.IN_PLACE)
        if value.op == "make_function":  # a closure that the front end did not inline
            return self._stored(value.list_vars(), Store.UNKNOWN)
        return set()

    # --- reads ---

    def _reads(self, statement: Any) -> set[int]:
        """The parameters of which a statement may use a value. Names, views and tuples of a value
        are not uses of it: `_of` follows them to theirs.
        """
        ir = self._ir
        if isinstance(statement, ir.Del):
            return set()
        if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.SetAttr | ir.DelItem):
            used = (getattr(statement, "value", None), getattr(statement, "index", None))
            return self._held(v for v in used if isinstance(v, ir.Var))
        if not isinstance(statement, ir.Assign):
            return self._held(statement.list_vars())
        value = statement.value
        if not isinstance(value, ir.Expr):
            return set()
        if value.op == "call":
            read = (self._read_by(callee, value) for callee in self._names.callees(value.func))
            return set().union(*read)
        if value.op in ("getitem", "static_getitem", "typed_getitem"):
            index = getattr(value, "index", None)
            return self._held([index] if isinstance(index, ir.Var) else [])
        compares = value.op == "binop" and value.fn in _IDENTITIES
        return set() if compares or value.op in _FOLLOWED else self._held(value.list_vars())

    def _held(self, variables: Iterable[Any]) -> set[int]:
        return {root.parameter for root in self._of(*variables)}

    def _read_by(self, callee: Any, call: Any) -> set[int]:
        """The parameters of which a callee may use a value."""
        args, rest, named = list(call.args), call.vararg, dict(call.kws)
        function = callees.function_of(callee)
        if isinstance(callee, Method):
            return self._held([*call.list_vars(), callee.owner])
        if callee is len:
            return set()
        if function is None or getattr(call, "varkwarg", None) is not None:
            known = None if callee is UNKNOWN else callees.known(callee, len(args))
            if known is None or named or rest is not None or not callees.overwrites(callee):
                return self._held(call.list_vars())
            return self._held(v for i, v in enumerate(args) if i not in known[0])
        reads = self._ask(function).reads
        return self._held(
            variable
            for position, variable, _ in _passed(function, args, named, rest)
            if position is None or position in reads
        )

    def _call(self, call: Any) -> tuple[Found, set[Root]]:
        """The stores of a call, and the possible values of its result."""
        stores: Found = set()
        result: set[Root] = set()
        for callee in self._names.callees(call.func):
            stored, returned = self._effect(callee, call)
            stores |= stored
            result |= returned
        return stores, result

    def _effect(self, callee: Any, call: Any) -> tuple[Found, set[Root]]:
        args, rest = list(call.args), call.vararg
        if rest is not None and (known := self._names.items(rest)) is not None:
            args, rest = args + known, None
        keywords = dict(call.kws)
        passed = [*args, *keywords.values(), *([] if rest is None else [rest])]
        if getattr(call, "varkwarg", None) is not None:
            callee = UNKNOWN
            passed.append(call.varkwarg)
        function = callees.function_of(callee)
        if function is not None:
            return self._of_function(function, args, keywords, rest)
        if isinstance(callee, Method):
            return self._of_method(callee, passed)
        if rest is None and (gathered := self._gathered(callee, args, keywords)) is not None:
            return set(), gathered
        effect = None if callee is UNKNOWN else callees.known(callee, len(args))
        if effect is not None:
            written, is_new = effect
            out = [keywords.pop("out")] if "out" in keywords else []
            # If the function stores to a position, the position of every argument must be known.
            if rest is None and not (written and keywords):
                targets = [args[i] for i in written if i < len(args)] + out
                result = set() if is_new else self._handed_on(passed)
                return self._stored(targets, Store.ELEMENTS), result
        # The function itself may be a parameter.
        return self._stored(passed, Store.UNKNOWN), self._handed_on([*passed, call.func])

    def _of_method(self, method: Method, passed: list[Any]) -> tuple[Found, set[Root]]:
        name, owner = method.name, method.owner
        if name in callees.METHODS_THAT_STORE:
            return self._stored([owner], Store.ELEMENTS), set()
        if name in callees.METHODS_THAT_VIEW:
            return set(), self._of(owner)
        if name in callees.METHODS_THAT_REDUCE:
            return self._stored(passed, Store.UNKNOWN), set()
        origins = self._names.origins(owner)
        if name == "type" and all(getattr(v, "attr", "") == "dtype" for v in origins):
            return set(), set()  # z.dtype.type(0)
        passed = [*passed, owner]
        return self._stored(passed, Store.UNKNOWN), self._handed_on(passed)

    def _of_function(
        self, function: FunctionType, args: list[Any], named: dict[str, Any], rest: Any
    ) -> tuple[Found, set[Root]]:
        """As `_effect`, for a device function, whose code is available."""
        analysis = self._ask(function)
        stores: Found = set()
        result: set[Root] = set()
        for position, variable, held in _passed(function, args, named, rest):
            for root in self._of(variable):
                part = root if held is Form.WHOLE else Root(root.parameter, inner(root.form, held))
                if position is None:
                    stores.add((root.parameter, Store.UNKNOWN))
                stores |= {(part.parameter, _met(part, s))
                           for k, s in analysis.stores if k == position}  # fmt: skip
                result |= {of_function(part, r)
                           for r in analysis.returns if r.parameter == position}  # fmt: skip
        return stores, result

    # --- what variables hold ---

    def _of(self, *variables: Any) -> set[Root]:
        return set().union(*(self._roots.get(v.name, set()) for v in variables))

    def _members(self, variables: Iterable[Any]) -> set[Root]:
        return {Root(root.parameter, Form.MEMBER) for root in self._of(*variables)}

    def _flow(self, statement: Any) -> bool:
        """Record what an assignment's target may be; returns whether that is new."""
        ir, value = self._ir, statement.value
        new: set[Root] = set()
        if isinstance(value, ir.Arg):
            new = {Root(value.index, Form.WHOLE)}
        elif isinstance(value, ir.Var):
            new = self._of(value)
        elif isinstance(value, ir.Expr):
            new = self._of_expression(value)
        roots = self._roots.setdefault(statement.target.name, set())
        if new <= roots:
            return False
        roots |= new
        return True

    def _of_expression(self, value: Any) -> set[Root]:
        op = value.op
        if op == "call":
            return self._call(value)[1]
        if op == "getattr":
            return set() if value.attr in _PLAIN else self._field(value.value, value.attr)
        if op in ("getitem", "static_getitem", "typed_getitem"):
            return self._of_item(value)
        if op in ("binop", "inplace_binop"):
            # A new number or array, or the left operand itself; but tuples are concatenated.
            joined = self._joined(value.lhs, value.rhs)
            return joined | (self._of(value.lhs) if op == "inplace_binop" else set())
        if op == "build_tuple":
            return self._tuple(dict(enumerate(value.items)))
        if op in ("unary", "pair_second"):
            return set()
        if op in ("cast", "phi", "exhaust_iter", "iternext", "pair_first"):
            return self._of(*value.list_vars())
        if op == "getiter":
            return items(self._of(value.value))
        return self._members(value.list_vars())

    def _tuple(self, variables: dict[int, Any], names: Sequence[str] = ()) -> set[Root]:
        """A tuple with these variables at these places."""
        roots: set[Root] = set()
        for i, variable in variables.items():
            roots |= put(self._of(variable), Key(i, names[i] if names else ""))
        return roots

    def _field(self, variable: Any, name: Any) -> set[Root]:
        """An attribute: a view of an array, or what a record or a named tuple has."""
        roots = self._of(variable)
        if name in _VIEWS:
            return roots
        return items(roots, Key(name=name if isinstance(name, str) else ""))

    def _joined(self, *pair: Any) -> set[Root]:
        """What the sum of two values holds if they are tuples."""
        roots = self._of(*pair)
        if any(root.path for root in roots):
            return in_any_place(root for root in roots if root.path) | {
                Root(root.parameter, Form.MEMBER) for root in roots if not root.path
            }
        return self._members(pair) if any(map(self._is_tuple, pair)) else set()

    def _of_item(self, value: Any) -> set[Root]:
        index = self._names.index(value)
        known = self._names.items(value.value)
        if known is not None and isinstance(index, int) and -len(known) <= index < len(known):
            return self._of(known[index])
        roots = self._of(value.value)
        if isinstance(index, str):  # of a record, or of an array of records
            return {r if r.form is Form.WHOLE else r._replace(form=inner(r.form, Form.ELEMENT))
                    for r in roots}  # fmt: skip
        if index is NO_CONSTANT:
            slices = self._names.slices(value.index)
        else:
            slices = callees.is_slice(index)
        if slices:
            parts = {r if r.form is Form.MEMBER else r._replace(form=Form.WHOLE)
                     for r in roots if not r.path}  # fmt: skip
            return parts | in_any_place(r for r in roots if r.path)
        return items(roots, Key(index if isinstance(index, int) and index >= 0 else None))

    def _is_tuple(self, variable: Any) -> bool:
        return self._names.items(variable) is not None or any(
            root.form is Form.MEMBER for root in self._of(variable)
        )

    # --- results of calls ---

    def _gathered(self, callee: Any, args: list[Any], keywords: dict[str, Any]) -> set[Root] | None:
        """The result of a function that puts its arguments together, or takes a part of them; None
        for other functions.
        """
        if callees.is_named_tuple(callee):
            fields: tuple[str, ...] = callee._fields
            named = {fields.index(name): v for name, v in keywords.items() if name in fields}
            return self._tuple(dict(enumerate(args[: len(fields)])) | named, fields)
        if callee is zip:
            each = [put(items(self._of(v)), Key(), Key(i)) for i, v in enumerate(args)]
            return set().union(*each)
        if not args:
            return None
        roots = self._of(args[0])
        if callee is enumerate:
            return put(items(roots), Key(), Key(1))
        if callee in (list, reversed, sorted):
            return in_any_place(roots)
        if callee in (tuple, iter):
            return {root for root in roots if root.path} | in_any_place(
                root for root in roots if not root.path
            )
        if callee is next:
            return items(roots)
        if callee is getattr and len(args) > 1:
            return self._field(args[0], self._names.constant(args[1]))
        return roots if callees.is_unrolled(callee) else None

    def _handed_on(self, variables: Iterable[Any]) -> set[Root]:
        """The possible results of a function that receives these variables."""
        # A result derived from an element is at most an element.
        forms = {Form.ELEMENT: Form.ELEMENT}
        return {
            Root(root.parameter, forms.get(root.form, Form.MEMBER)) for root in self._of(*variables)
        }

    # --- returned values ---

    def _is_value(self, variable: Any) -> bool:
        """Whether a variable is a value other than None, on some path at least."""
        ir = self._ir
        for value in self._names.origins(variable):
            if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
                is_value = value.value is not None
            elif isinstance(value, ir.Expr) and value.op == "call":
                is_value = any(map(self._gives_value, self._names.callees(value.func)))
            else:
                is_value = True
            if is_value:
                return True
        return False

    def _gives_value(self, callee: Any) -> bool:
        function = callees.function_of(callee)
        if function is not None:
            return self._ask(function).line > 0
        return not isinstance(callee, Method) and callees.gives_value(callee)
