"""Fills outputs with values that no result has, before the kernel writes them.

A kernel that omits an element gives a correct result wherever the array held that value before:
zeros of a fresh array, or the last run's result. Only arrays that the kernel's code stores to
and never reads are filled: an array that is read is part of the kernel's input.
"""

from __future__ import annotations

from collections import defaultdict
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from numbasync.dtypes import has_nan, limits_of
from numbasync.errors import LauncherError
from numbasync.facts.ir import Names
from numbasync.testing.check.closeness import Array

# Attributes of an array that do not read its elements.
_OF_THE_ARRAY = frozenset({"shape", "size", "ndim", "dtype", "strides", "itemsize", "nbytes"})

_names_by_function: WeakKeyDictionary[FunctionType, frozenset[str]] = WeakKeyDictionary()


def only_stored_to(function: FunctionType) -> frozenset[str]:
    """The parameters whose elements `function` stores to and certainly never reads."""
    names = _names_by_function.get(function)
    if names is None:
        names = _names_by_function[function] = _only_stored_to(function, ())
    return names


def _only_stored_to(function: FunctionType, callers: tuple[FunctionType, ...]) -> frozenset[str]:
    if function in callers:
        return frozenset()  # a recursive function
    try:
        uses = _Uses(function, callers)
    except LauncherError:  # Numba cannot read the code; its compilation will report that
        return frozenset()
    return frozenset(name for name in uses.parameters if uses.of(name) == {"store"})


class _Uses:
    """The uses of one function's parameters, followed through names, rows and fields."""

    def __init__(self, function: FunctionType, callers: tuple[FunctionType, ...]) -> None:
        from numba.core import ir

        self._ir = ir
        self._names = Names(function)
        self._callers = (*callers, function)
        self.parameters: dict[str, str] = {}  # with the first variable that holds each
        self._using: defaultdict[str, list[Any]] = defaultdict(list)
        for statement in self._names.statements:
            value: Any = getattr(statement, "value", None)
            if isinstance(statement, ir.Assign) and isinstance(value, ir.Arg):
                self.parameters[value.name] = statement.target.name
            by: Any = value if isinstance(statement, ir.Assign) else statement
            if isinstance(by, ir.Var):
                self._using[by.name].append(statement)
            elif isinstance(by, ir.Inst):
                for variable in by.list_vars():
                    self._using[variable.name].append(statement)

    def of(self, parameter: str) -> set[str]:
        """The uses of a parameter: `store`, `read`, both or none."""
        uses: set[str] = set()
        seen: set[str] = set()
        pending = [self.parameters[parameter]]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            for statement in self._using[name]:
                use = self._use(name, statement)
                if use == "part":  # a part of the array, or the same array by another name
                    pending.append(statement.target.name)
                elif use:
                    uses.add(use)
        return uses

    def _use(self, name: str, statement: Any) -> str:
        ir = self._ir
        if isinstance(statement, ir.Del):
            return ""
        if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.SetAttr):
            others = [statement.value, getattr(statement, "index", None)]
            inside = any(getattr(v, "name", None) == name for v in others)
            return "read" if inside else "store"
        if not isinstance(statement, ir.Assign):
            return "read"
        value = statement.value
        if isinstance(value, ir.Var):
            return "part"
        if value.op == "getattr":
            return "" if value.attr in _OF_THE_ARRAY else "part"
        if value.op in ("getitem", "static_getitem", "typed_getitem"):
            index = getattr(value, "index", None)
            return "read" if getattr(index, "name", None) == name else "part"
        if value.op == "phi":
            return "part"
        return self._passed(name, value) if value.op == "call" else "read"

    def _passed(self, name: str, call: Any) -> str:
        """The use of `name` as an argument, `store` only if all callees' code is known."""
        uses = {self._passed_to(c, name, call) for c in self._names.callees(call.func)}
        return uses.pop() if len(uses) == 1 else "read"

    def _passed_to(self, callee: Any, name: str, call: Any) -> str:
        if callee is len:
            return ""
        function = getattr(callee, "py_func", None)
        others = [call.func, call.vararg, getattr(call, "varkwarg", None)]
        unknown = any(getattr(v, "name", None) == name for v in others)
        if unknown or not isinstance(function, FunctionType):
            return "read"
        code = function.__code__
        parameters = code.co_varnames[: code.co_argcount]
        passed_as = [parameters[i : i + 1] for i, v in enumerate(call.args) if v.name == name]
        passed_as += [(keyword,) for keyword, v in call.kws if v.name == name]
        stored = _only_stored_to(function, self._callers)
        return "store" if all(p and p[0] in stored for p in passed_as) else "read"


def poisoned(array: Array, generator: np.random.Generator) -> Array:
    """An array like `array`, filled: floats with NaN, others with bytes drawn by `generator`."""
    if has_nan(array.dtype):
        return np.full_like(array, np.nan)
    if array.dtype.kind == "b":
        return ~array  # the opposite of the content
    drawn = generator.integers(0, 256, array.nbytes, dtype=np.uint8)
    return drawn.view(array.dtype).reshape(array.shape)


def told_apart(filled: Array, want: Array) -> Array | None:
    """A copy of `filled` in which the elements that equal the expected values by chance, such as
    a NaN or one of two bools, are replaced. None if there are no such elements.
    """
    if has_nan(filled.dtype):
        same = np.isnan(want) & np.isnan(filled)
        replacement = np.full_like(filled, limits_of(filled.dtype).max / 3)
    elif filled.dtype.names is None:
        same = np.asarray(filled == want)
        replacement = ~filled
    else:
        same = np.asarray(filled == want.astype(filled.dtype))
        replacement = (~filled.view(np.uint8)).view(filled.dtype)
    return np.where(same, replacement, filled) if same.any() else None
