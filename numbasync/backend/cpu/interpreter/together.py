"""Functions of `numbasync.block` and `numbasync.warp` in kernels that run as Python: the thread
that comes last computes what all of them get, one value after the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import numpy as np

from numbasync import block, warp
from numbasync.backend.cpu.interpreter.places import place_of_call
from numbasync.backend.cpu.interpreter.scheduler import Wait
from numbasync.backend.cpu.interpreter.waiting import WARP, meet, threads_that_wait


def _meet(name: str, is_block: bool, brought: Any, combine: Callable[[list[Any]], Any]) -> Any:
    """What `combine` gives to the thread, of what all threads of the block or the warp bring."""
    threads = threads_that_wait(name)
    first = 0 if is_block else threads.current.number // WARP * WARP
    need = len(threads.all) if is_block else min(len(threads.all) - first, WARP)
    call = Wait(f"na.{'block' if is_block else 'warp'}.{name}", place_of_call(3), is_block=is_block)
    return meet(call, first, need, brought, lambda _, values: list(combine(values)))


def _as_value(value: Any) -> Any:
    """The value, or of bool a number, for a sum."""
    return np.int32(value) if isinstance(value, bool | np.bool_) else value


def _runs(values: Iterable[Any], op: Any) -> list[Any]:
    """Each value combined with all before it, of the type that the first one has."""

    def combined(a: Any, b: Any) -> Any:
        total = op(a, b)
        if isinstance(a, tuple):
            return tuple(type(own)(part) for own, part in zip(a, total, strict=True))
        return type(a)(total)

    return list(accumulate(values, combined))


def _functions(is_block: bool) -> dict[str, Callable[..., Any]]:
    def sum_(value: Any) -> Any:
        def combine(values: list[Any]) -> Any:
            return [_runs(values, operator.add)[-1]] * len(values)

        return _meet("sum", is_block, _as_value(value), combine)

    def reduce(value: Any, op: Any) -> Any:
        def combine(values: list[Any]) -> Any:
            return [_runs(values, op)[-1]] * len(values)

        return _meet("reduce", is_block, value, combine)

    def scan(value: Any, op: Any = None, exclusive: bool = False, initial: Any = None) -> Any:
        own, combined = (_as_value(value), operator.add) if op is None else (value, op)
        start = type(own)(0) if exclusive and initial is None else initial

        def combine(values: list[Any]) -> Any:
            if start is None:
                return _runs(values, combined)
            first = start if isinstance(start, tuple) else type(own)(start)
            runs = _runs((first, *values), combined)
            return runs[:-1] if exclusive else runs[1:]

        return _meet("scan", is_block, own, combine)

    return {"sum": sum_, "reduce": reduce, "scan": scan}


# By identity, as those of `numba.cuda`: the name and what stands in for it.
FUNCTIONS = {
    id(getattr(module, name)): (name, function)
    for module in (block, warp)
    for name, function in _functions(module is block).items()
}
