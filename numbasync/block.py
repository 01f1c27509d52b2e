"""Values of the threads of a block combined, in kernels.

As in `numbasync.warp`, by all threads of a block of one, two or three axes, x fastest, of any
number. They use shared memory of their own, 32 values for each type, and wait for one another in
it: a call behind an `if` or a `return` that only some threads take is a mistake, which the CPU
device finds (`BarrierDivergenceError`). To give a thread that has nothing to do a value is better:
`na.block.sum(x[i] if i < x.shape[0] else 0)`. Calls may follow one another, without
`cuda.syncthreads()` between them. Each begins with one: what threads have written to shared memory
before it, all of them see behind it.

Examples:
    >>> @na.launcher
    ... @cuda.jit
    ... def means(z: na.KernelOutput, x: na.KernelInput):
    ...     row = cuda.blockIdx.x
    ...     total = na.block.sum(x[row, cuda.threadIdx.x])
    ...     if cuda.threadIdx.x == 0:
    ...         z[row] = total / x.shape[1]
    >>> x = await na.arange(200).reshape((2, 100))
    >>> result = await means[2, 100](na.zeros(2), x)
    >>> await result.z.to_host()
    array([ 49.5, 149.5], dtype=float32)
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda
from numba.cuda import extending, types

from numbasync.warp import (
    WARP,
    _plus,
    caster,
    check_operator,
    fold,
    in_kernels,
    kind_of,
    moves,
    rank,
    run,
    scan_overload,
    threads,
)

__all__ = ["reduce", "scan", "sum"]

SHARED = 3  # the address space of shared memory, in LLVM's code for GPUs

_api: Any = extending
_types: Any = types
_cuda: Any = cuda


def sum(value: Any) -> Any:
    """The sum of the values of the block's threads, for each of them.

    Args:
        value: a number, of whose type the sum is. Of bool the sum is an int32: how many are true.

    Error bound of floats: at most 36 roundings for each value on its way into the sum.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def count(z: na.KernelOutput, x: na.KernelInput):
        ...     found = na.block.sum(x[cuda.threadIdx.y, cuda.threadIdx.x] > 2)
        ...     if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        ...         z[0] = found
        >>> x = await na.from_host(np.arange(70).reshape(7, 10))
        >>> result = await count[1, (10, 7)](na.zeros(1, np.int32), x)
        >>> await result.z.item()
        67
    """
    in_kernels("block.sum")


def reduce(value: Any, op: Any) -> Any:
    """The values of the block's threads combined to one, for each of them.

    Args:
        value: a number, or a tuple of numbers.
        op: a device function of two values, of one of which the value that it gives is; or one that
            kernels know, such as `max`. It is associative and need not be commutative.

    Examples:
        >>> @cuda.jit(device=True)
        ... def higher(a, b):
        ...     return b if b[0] > a[0] else a
        >>> @na.launcher
        ... @cuda.jit
        ... def peaks(places: na.KernelOutput, x: na.KernelInput):
        ...     row, i = cuda.blockIdx.x, cuda.threadIdx.x
        ...     _, place = na.block.reduce((x[row, i], i), higher)
        ...     if i == 0:
        ...         places[row] = place
        >>> x = await na.from_host(np.sin(np.arange(200)).reshape(2, 100))
        >>> result = await peaks[2, 100](na.zeros(2, np.int32), x)
        >>> await result.places.to_host()
        array([33, 21], dtype=int32)
    """
    in_kernels("block.reduce")


def scan(value: Any, op: Any = None, exclusive: bool = False, initial: Any = None) -> Any:
    """For each thread, the values of the threads before it in the block and its own, combined.

    Args:
        value: a number, or a tuple of numbers.
        op: as in `reduce`. None: the sum, as `sum` forms it.
        exclusive: True or False, which is written there. True: a thread's own value is left out,
            and the first thread gets `initial`.
        initial: what is combined before the first value; the same for all threads. None: nothing,
            or for an exclusive sum 0. An exclusive scan by another operator needs it.

    Error bound of floats: as `sum`, of the values up to the thread's.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def compact(z: na.KernelOutput, x: na.KernelInput):
        ...     i = cuda.threadIdx.x
        ...     place = na.block.scan(x[i] > 0, exclusive=True)
        ...     if x[i] > 0:
        ...         z[place] = x[i]
        >>> x = await na.from_host(np.array([0, 3, 0, 5, 7, 0]))
        >>> result = await compact[1, 6](na.zeros(3, np.int32), x)
        >>> await result.z.to_host()
        array([3, 5, 7], dtype=int32)
    """
    in_kernels("block.scan")


# --- how ---


@_api.intrinsic
def _of_this_function(_typing: Any) -> Any:
    """Make the shared memory of the function that calls this known to that function alone.

    Numba hands NVVM the code of a function once for each way on which the kernel calls it. Copies
    of a function are one then, but two definitions of its shared memory are refused.
    """

    def make(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        for variable in builder.module.global_values:
            if getattr(variable, "addrspace", 0) == SHARED:
                variable.linkage = "internal"
        return context.get_dummy_value()

    return _types.void(), make


@cache
def _held(kind: Any, position: int = 0) -> Any:
    """The device function ``(warp, value, is_put)`` that gives what is held for a warp: this value,
    where it is put.

    Args:
        position: among the numbers of a tuple, which have an array each.
    """
    if isinstance(kind, _types.BaseTuple):
        return _held_tuple(list(kind), position)
    index, flag = caster(_types.int32), caster(_types.boolean)

    @_cuda.jit(device=True)
    def hold_in_place(warp: Any, value: Any, is_put: Any) -> Any:
        room = cuda.shared.array(WARP, kind)
        _of_this_function()
        if is_put:
            room[warp] = value
        return room[warp]

    @_cuda.jit(device=True)
    def hold(warp: Any, value: Any, is_put: Any) -> Any:
        # There is one array for each of the types of arguments: so these are always the same.
        return hold_in_place(index(warp), value, flag(is_put))

    return hold


def _held_tuple(kinds: list[Any], position: int) -> Any:
    first = _held(kinds[0], position)
    if len(kinds) == 1:

        @_cuda.jit(device=True)
        def hold_one(warp: Any, value: Any, is_put: Any) -> Any:
            return (first(warp, value[0], is_put),)

        return hold_one
    others = _held_tuple(kinds[1:], position + 1)

    @_cuda.jit(device=True)
    def hold_several(warp: Any, value: Any, is_put: Any) -> Any:
        return (first(warp, value[0], is_put), *others(warp, value[1:], is_put))

    return hold_several


@cache
def _fold(kind: Any) -> Any:
    """The device function ``(value, op)`` of `reduce`, behind a barrier: warps fold their values,
    and then each thread folds those of the warps.
    """
    cast, fold_warp, pick = caster(kind), fold(kind), moves(kind).pick
    hold = _held(kind)

    @_cuda.jit(device=True)
    def fold_block(value: Any, op: Any) -> Any:
        total = fold_warp(value, op)
        count = threads()
        if count <= WARP:
            return pick(total, 0)
        if cuda.laneid == 0:
            hold(rank() // WARP, total, True)
        cuda.syncthreads()
        total = hold(0, total, False)
        for warp in range(1, (count + WARP - 1) // WARP):
            total = cast(op(total, hold(warp, total, False)))
        return total

    return fold_block


@cache
def _scan_of(kind: Any, is_exclusive: bool, has_start: bool) -> Any:
    """The device function ``(value, op, start)`` of `scan`, behind a barrier. If `is_exclusive`, it
    has a start.
    """
    cast, run_warp, up = caster(kind), run(kind), moves(kind).up
    hold = _held(kind)
    begins = is_exclusive or has_start

    @_cuda.jit(device=True)
    def scan_block(value: Any, op: Any, start: Any) -> Any:
        total = run_warp(value, op)
        lane = cuda.laneid
        own = up(total, 1) if is_exclusive else total
        front = cast(start) if begins else total  # what is before the warp
        has_front = begins
        if threads() > WARP:
            warp = rank() // WARP
            if lane == WARP - 1:  # of the last warp nobody asks
                hold(warp, total, True)
            cuda.syncthreads()
            if warp > 0:
                before = hold(0, total, False)
                for k in range(1, warp):
                    before = cast(op(before, hold(k, total, False)))
                front = cast(op(front, before)) if begins else before
                has_front = True
        if is_exclusive and lane == 0:
            return front
        return cast(op(front, own)) if has_front else own

    return scan_block


# --- what is called: see `numbasync.warp` ---


def sum_together(value: Any) -> Any: ...
def reduce_together(value: Any, op: Any) -> Any: ...
def scan_together(value: Any, op: Any, exclusive: Any, initial: Any) -> Any: ...


@_api.overload(sum_together)
def _sum_together(value):  # type: ignore[no-untyped-def]
    combined = _fold(kind_of("block.sum", value, is_sum=True))
    return lambda value: combined(value, _plus)


@_api.overload(reduce_together)
def _reduce_together(value, op):  # type: ignore[no-untyped-def]
    check_operator("block.reduce", op)
    combined = _fold(kind_of("block.reduce", value))
    return lambda value, op: combined(value, op)


@_api.overload(scan_together, prefer_literal=True)
def _scan_together(value, op, exclusive, initial):  # type: ignore[no-untyped-def]
    return scan_overload("block.scan", _scan_of, value, op, exclusive, initial)


# The barrier in front: of an earlier call, threads may still read.


@_api.overload(sum)
def _sum(value):  # type: ignore[no-untyped-def]
    def meet_and_sum(value):  # type: ignore[no-untyped-def]
        cuda.syncthreads()
        return sum_together(value)

    return meet_and_sum


@_api.overload(reduce)
def _reduce(value, op):  # type: ignore[no-untyped-def]
    def meet_and_reduce(value, op):  # type: ignore[no-untyped-def]
        cuda.syncthreads()
        return reduce_together(value, op)

    return meet_and_reduce


@_api.overload(scan, prefer_literal=True)
def _scan(value, op=None, exclusive=False, initial=None):  # type: ignore[no-untyped-def]
    def meet_and_scan(value, op=None, exclusive=False, initial=None):  # type: ignore[no-untyped-def]
        cuda.syncthreads()
        return scan_together(value, op, exclusive, initial)

    return meet_and_scan
