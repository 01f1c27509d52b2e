"""What `numbasync.block` does on the CPU device: threads leave their values in the block's memory,
and the first one combines them, in the order of a GPU's lanes and warps. So bits are the same, and
threads meet twice, instead of at each exchange between lanes.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from numba import cuda
from numba.cuda import extending

from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.collectives import memory_of_block
from numbasync.backend.cpu.target.module import I64, types
from numbasync.warp import WARP, _plus, caster, kind_of, rank, scan_overload, threads

_MOST = 1024

_api: Any = extending  # of type Any: type checkers do not know what they define
_cuda: Any = cuda


def _memory(builder: Builder, name: str, of: Any, count: int, index: Any) -> Any:
    """The address of a value in the memory of the block."""
    name = f"{name}.{re.sub(r'[^a-z0-9]+', '_', str(of))}"
    memory = memory_of_block(builder, name, of, count)
    return builder.gep(memory, [I64(0), index], inbounds=True)


def _accesses(name: str, count: int) -> tuple[Any, Any]:
    """The intrinsics ``(value, place)`` and ``(a value of the type, place)`` of some memory."""

    @_api.intrinsic
    def put(typingctx: Any, value: Any, at: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[0], _memory(builder, name, args[0].type, count, args[1]))
            return context.get_dummy_value()

        return types.void(value, types.int64), codegen

    @_api.intrinsic
    def get(typingctx: Any, like: Any, at: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(_memory(builder, name, args[0].type, count, args[1]))

        return like(like, types.int64), codegen

    return put, get


# What threads bring; and for all of them, the whole combination, or what is before each warp.
_put, _get = _accesses("na.exchange.group", _MOST)
_put_for_all, _get_for_all = _accesses("na.shared.group", _MOST // WARP)


@cache
def _bringer(kind: Any) -> Any:
    cast = caster(kind)

    @_cuda.jit(device=True)
    def bring(value: Any) -> None:
        _put(cast(value), rank())

    return bring


@cache
def _folder(kind: Any) -> Any:
    """The device function ``(value, op)``: all that threads have brought, combined as by `fold`."""
    cast = caster(kind)

    @_cuda.jit(device=True)
    def fold_brought(value: Any, op: Any) -> Any:
        like = cast(value)
        if rank() == 0:
            count = threads()
            for first in range(0, count, WARP):
                end = min(first + WARP, count)
                step = 1
                while step < end - first:
                    for i in range(first, end - step, 2 * step):
                        _put(cast(op(_get(like, i), _get(like, i + step))), i)
                    step *= 2
            total = _get(like, 0)
            for first in range(WARP, count, WARP):
                total = cast(op(total, _get(like, first)))
            _put_for_all(total, 0)
        cuda.syncthreads()
        return _get_for_all(like, 0)

    return fold_brought


@cache
def _scanner(kind: Any, is_exclusive: bool, has_start: bool) -> Any:
    """The device function ``(value, op, start)`` of `scan`, of what threads have brought."""
    cast = caster(kind)
    begins = is_exclusive or has_start

    @_cuda.jit(device=True)
    def scan_brought(value: Any, op: Any, start: Any) -> Any:
        like = cast(value)
        own = rank()
        if own == 0:
            count = threads()
            before = like
            for first in range(0, count, WARP):
                end = min(first + WARP, count)
                step = 1
                while step < end - first:
                    for k in range(end - 1 - first, step - 1, -1):
                        i = first + k
                        _put(cast(op(_get(like, i - step), _get(like, i))), i)
                    step *= 2
                _put_for_all(before, first // WARP)
                last = _get(like, end - 1)
                before = cast(op(before, last)) if first > 0 else last
                if is_exclusive:
                    for k in range(end - 1 - first, 0, -1):
                        _put(_get(like, first + k - 1), first + k)
        cuda.syncthreads()
        inside = _get(like, own)
        front = cast(start) if begins else inside
        has_front = begins
        if own >= WARP:
            before = _get_for_all(like, own // WARP)
            front = cast(op(front, before)) if begins else before
            has_front = True
        if is_exclusive and own % WARP == 0:
            return front
        return cast(op(front, inside)) if has_front else inside

    return scan_brought


# --- of each function: what it brings before threads meet, and what it gives behind ---


def bring_to_sum(value: Any) -> None: ...
def bring(value: Any) -> None: ...
def sum_brought(value: Any) -> Any: ...
def reduce_brought(value: Any, op: Any) -> Any: ...
def scan_brought(value: Any, op: Any, exclusive: Any, initial: Any) -> Any: ...


@_api.overload(bring_to_sum)
def _bring_to_sum(value):  # type: ignore[no-untyped-def]
    own = _bringer(kind_of("block.sum", value, is_sum=True))
    return lambda value: own(value)


@_api.overload(bring)
def _bring(value):  # type: ignore[no-untyped-def]
    own = _bringer(kind_of("block.reduce", value))
    return lambda value: own(value)


@_api.overload(sum_brought)
def _sum_brought(value):  # type: ignore[no-untyped-def]
    folded = _folder(kind_of("block.sum", value, is_sum=True))
    return lambda value: folded(value, _plus)


@_api.overload(reduce_brought)
def _reduce_brought(value, op):  # type: ignore[no-untyped-def]
    folded = _folder(kind_of("block.reduce", value))
    return lambda value, op: folded(value, op)


@_api.overload(scan_brought, prefer_literal=True)
def _scan_brought(value, op, exclusive, initial):  # type: ignore[no-untyped-def]
    return scan_overload("block.scan", _scanner, value, op, exclusive, initial)
