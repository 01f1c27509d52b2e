"""Outputs that hold what no result has, until the kernel writes them.

A kernel that leaves an element out gives the right result wherever that was there before: zeros
of a fresh array, or the last run's. Only what a kernel stores to and never reads is filled, as far
as its code says so: what it reads is part of its arguments.
"""

from __future__ import annotations

from collections import defaultdict
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from numbasync.errors import LauncherError
from numbasync.launch.known_functions import Names
from numbasync.testing.check.closeness import Array

# What of an array may be asked without reading its elements.
_OF_THE_ARRAY = frozenset({"shape", "size", "ndim", "dtype", "strides", "itemsize", "nbytes"})

_known: WeakKeyDictionary[FunctionType, frozenset[str]] = WeakKeyDictionary()


def only_stored_to(function: FunctionType) -> frozenset[str]:
    """The parameters whose elements `function` stores to and certainly never reads."""
    found = _known.get(function)
    if found is None:
        found = _known[function] = _only_stored_to(function, ())
    return found


def _only_stored_to(function: FunctionType, callers: tuple[FunctionType, ...]) -> frozenset[str]:
    if function in callers:
        return frozenset()  # it calls itself
    try:
        uses = _Uses(function, callers)
    except LauncherError:  # Numba cannot read it; whoever compiles it says so
        return frozenset()
    return frozenset(name for name in uses.parameters if uses.of(name) == {"store"})


class _Uses:
    """What one function does with its parameters, followed through names, rows and fields."""

    def __init__(self, function: FunctionType, callers: tuple[FunctionType, ...]) -> None:
        from numba.core import ir

        self._ir = ir
        self._names = Names(function)
        self._callers = (*callers, function)
        self.parameters: dict[str, str] = {}  # and the variable that each is at first
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
        """`store`, `read`, both or nothing."""
        found: set[str] = set()
        seen: set[str] = set()
        waiting = [self.parameters[parameter]]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for statement in self._using[name]:
                use = self._use(name, statement)
                if use == "part":  # or the same, by another name
                    waiting.append(statement.target.name)
                elif use:
                    found.add(use)
        return found

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
        """As an argument, to functions whose code is at hand."""
        found = {self._passed_to(c, name, call) for c in self._names.callees(call.func)}
        return found.pop() if len(found) == 1 else "read"

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
        at = [parameters[i : i + 1] for i, v in enumerate(call.args) if v.name == name]
        at += [(keyword,) for keyword, v in call.kws if v.name == name]
        stored = _only_stored_to(function, self._callers)
        return "store" if all(p and p[0] in stored for p in at) else "read"


def poisoned(array: Array, generator: np.random.Generator) -> Array:
    """As `array`, filled: floats with NaN, all else with bytes that `generator` draws."""
    if array.dtype.kind in "fc":
        return np.full_like(array, np.nan)
    if array.dtype.kind == "b":
        return ~array  # one of the two is what was there
    drawn = generator.integers(0, 256, array.nbytes, dtype=np.uint8)
    return drawn.view(array.dtype).reshape(array.shape)


def told_apart(filled: Array, want: Array) -> Array | None:
    """As `filled`, but for elements that are what is wanted by chance: a NaN where that is the
    result, one of two bools. None if there are none.
    """
    if filled.dtype.kind in "fc":
        same = np.isnan(want) & np.isnan(filled)
        other = np.full_like(filled, np.finfo(filled.dtype).max / 3)
    elif filled.dtype.names is None:
        same = np.asarray(filled == want)
        other = ~filled
    else:
        same = np.asarray(filled == want.astype(filled.dtype))
        other = (~filled.view(np.uint8)).view(filled.dtype)
    return np.where(same, other, filled) if same.any() else None
