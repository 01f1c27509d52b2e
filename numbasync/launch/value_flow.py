"""Which parts of its parameters the variables of a function may hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numbasync.launch import known_functions
from numbasync.launch.known_functions import NO_CONSTANT, Names
from numbasync.launch.parts import Form, Key, Root, in_any_place, inner, items, put

# Attributes of an array that are not a view of the array.
_PLAIN = frozenset({"shape", "size", "ndim", "strides", "dtype", "itemsize", "nbytes"})
_VIEWS = frozenset({"T", "flat", "real", "imag"})


class ValueFlow:
    """The parts that the variables of one function may hold. Its assignments are taken in any order
    and repeated until nothing changes.
    """

    def __init__(self, names: Names) -> None:
        from numba.core import ir

        self._ir = ir
        self._names = names
        self._roots: dict[str, set[Root]] = {}

    def _call(self, call: Any) -> tuple[Any, set[Root]]:
        """The stores of a call, and the possible values of its result."""
        raise NotImplementedError

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
        is_static = value.op == "static_getitem"
        index = value.index if is_static else self._names.constant(value.index)
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
            slices = known_functions.is_slice(index)
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
        if known_functions.is_named_tuple(callee):
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
        return roots if known_functions.is_unrolled(callee) else None

    def _handed_on(self, variables: Iterable[Any]) -> set[Root]:
        """The possible results of a function that receives these variables."""
        # A result derived from an element is at most an element.
        forms = {Form.ELEMENT: Form.ELEMENT}
        return {
            Root(root.parameter, forms.get(root.form, Form.MEMBER)) for root in self._of(*variables)
        }
