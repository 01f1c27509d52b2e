"""Functions of `numbasync.block` and `numbasync.warp` in kernels that run as Python: the thread
that comes last computes what all of them get, one value after the other.

The elements of `load` and `store` are accessed by each thread for itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import numpy as np

from numbasync import block, warp
from numbasync.backend.cpu.interpreter.block_state import current
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


def _sort(keys: Any, values: Any = None, descending: bool = False, threads: int = 1024) -> Any:
    is_tuple, has_values = isinstance(keys, tuple), values is not None
    own = (keys if is_tuple else (keys,), values if is_tuple or not has_values else (values,))

    def combine(brought: list[Any]) -> Any:
        count = len(brought[0][0])
        found = np.array([key for keys, _ in brought for key in keys])
        # Each number stands for all that equal it: so a descending order is stable, too.
        ranks = np.unique(found, return_inverse=True)[1]
        order = np.argsort(-ranks if descending else ranks, kind="stable")
        moved = [found, np.array([v for _, values in brought for v in values])] if has_values else [
            found
        ]  # fmt: skip
        parts = [[tuple(array[order][i : i + count]) for array in moved]
                 for i in range(0, len(order), count)]  # fmt: skip
        if not is_tuple:
            parts = [[one for (one,) in part] for part in parts]
        return [tuple(part) if has_values else part[0] for part in parts]

    return _meet("sort", True, own, combine)


def _indices(first: Any, count: int, is_striped: bool) -> range:
    """Those of the thread's elements."""
    state = current()
    wide, high, deep = state.block_extent
    x, y, z = state.thread
    rank, step = x + wide * (y + high * z), wide * high * deep
    if not is_striped:
        rank, step = rank * count, 1
    return range(int(first) + rank, int(first) + rank + step * count, step)


def _load(x: Any, first: Any, count: int, default: Any = 0, striped: bool = False) -> Any:
    places = _indices(first, count, striped)
    return tuple(x[i] if i < len(x) else x.dtype.type(default) for i in places)


def _store(z: Any, first: Any, values: Any, striped: bool = False) -> None:
    for i, value in zip(_indices(first, len(values), striped), values, strict=True):
        if i < len(z):
            z[i] = value


# By identity, as those of `numba.cuda`: the name and what stands in for it.
FUNCTIONS = {
    id(getattr(module, name)): (name, function)
    for module in (block, warp)
    for name, function in _functions(module is block).items()
}
FUNCTIONS |= {
    id(block.sort): ("sort", _sort),
    id(block.load): ("load", _load),
    id(block.store): ("store", _store),
}
