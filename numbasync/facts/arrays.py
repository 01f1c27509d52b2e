"""The parameters that a kernel uses as arrays, each with the number of axes that its uses show.

Only uses that the code makes plain count: an index, an extent, an attribute of arrays. A parameter
that is only handed to code that cannot be read is not among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from numbasync.errors import LauncherError
from numbasync.facts.callees import function_of, is_atomic
from numbasync.facts.ir import NO_CONSTANT, Names, read

__all__ = ["axes_of"]

_OF_ARRAYS = frozenset({"shape", "size", "ndim", "strides", "dtype", "itemsize", "nbytes"})


def axes_of(function: FunctionType, callers: tuple[FunctionType, ...] = ()) -> dict[str, int]:
    """By the name of a parameter, the least number of axes that an array passed there may have.

    Args:
        callers: functions through which this one is called. A function that calls itself shows
            nothing more, and code that Numba cannot read shows nothing.
    """
    if function in callers:
        return {}
    try:
        names = read(function)
    except LauncherError:
        return {}
    axes: dict[str, int] = {}
    reader = _Reader(names, (*callers, function))
    for statement in names.statements:
        for variable, count in reader.seen(statement):
            for parameter in reader.parameters(variable):
                axes[parameter] = max(axes.get(parameter, 1), count)
    return axes


class _Reader:
    def __init__(self, names: Names, callers: tuple[FunctionType, ...]) -> None:
        from numba.core import ir

        self._ir, self._names, self._callers = ir, names, callers

    def parameters(self, variable: Any) -> set[str]:
        """The names of the parameters for which a variable is another name."""
        origins = self._names.origins(variable)
        return {origin.name for origin in origins if isinstance(origin, self._ir.Arg)}

    def seen(self, statement: Any) -> Iterator[tuple[Any, int]]:
        """Variables that a statement shows to be arrays, with their least numbers of axes."""
        ir = self._ir
        value: Any = getattr(statement, "value", None)
        op = getattr(value, "op", "")
        if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.DelItem):
            yield statement.target, self._count(statement)
        elif op in ("getitem", "static_getitem"):
            yield value.value, self._count(value)
            yield from self._of_shape(value.value, self._axis(value) + 1)
        elif op == "exhaust_iter":  # rows, columns = x.shape
            yield from self._of_shape(value.value, value.count)
        elif op == "getattr" and value.attr in _OF_ARRAYS:
            yield value.value, 1
        elif op == "call":
            for callee in self._names.callees(value.func):
                yield from self._passed(callee, value)

    def _of_shape(self, variable: Any, count: int) -> Iterator[tuple[Any, int]]:
        shape = self._names.one(variable)
        if getattr(shape, "op", "") == "getattr" and shape.attr in ("shape", "strides"):
            yield shape.value, count

    def _passed(self, callee: Any, call: Any) -> Iterator[tuple[Any, int]]:
        """As `seen`, of the arguments of a call."""
        if callee is len and call.args:
            yield call.args[0], 1
        if is_atomic(callee) and len(call.args) > 1:
            yield call.args[0], self._indices(call.args[1])
        inner = function_of(callee)
        if inner is not None:
            axes = axes_of(inner, self._callers)
            passed = [*zip(inner.__code__.co_varnames, call.args, strict=False), *call.kws]
            yield from ((variable, axes[name]) for name, variable in passed if name in axes)

    def _count(self, item: Any) -> int:
        """The number of axes that an expression or a statement indexes."""
        index = self._names.index(item)
        return self._indices(item.index) if index is NO_CONSTANT else _length(index)

    def _indices(self, variable: Any) -> int:
        items = self._names.items(variable)
        return _length(self._names.constant(variable)) if items is None else len(items)

    def _axis(self, item: Any) -> int:
        index = self._names.index(item)
        return index if type(index) is int and index >= 0 else 0


def _length(index: Any) -> int:
    return len(index) if isinstance(index, tuple) else 1
