"""Values of the threads of a warp combined, in kernels.

A warp is 32 threads that follow one another, x fastest, in a block of one, two or three axes; the
last warp of a block has what is left. Each thread gives a value, a number or a tuple of numbers,
and all threads of the warp call the same function: one behind an `if` or a `return` that only some
of them take is a mistake, which the CPU device finds (`BarrierDivergenceError`).

An operator is a function of two values, `@cuda.jit(device=True)`, or one that kernels know, such as
`max` and `operator.mul`. It is associative and need not be commutative: what comes first in the
warp is its first argument. It is given, and its result becomes, what the thread's value is: the sum
of float16 is a float16. Numbers of more bits are the caller's to make: `float32(x)`.

The order of the combinations follows from the threads alone, so that results have the same bits on
every GPU. `numbasync.block` has the same functions for all threads of a block.

Examples:
    >>> @na.launcher
    ... @cuda.jit
    ... def ends(z: na.KernelOutput):
    ...     i = cuda.grid(1)
    ...     z[i] = na.warp.scan(1)
    ...     if na.warp.sum(i) != 31 * 16:
    ...         z[i] = -1
    >>> result = await ends[1, 32](na.zeros(32, np.int32))
    >>> (await result.z.to_host())[[0, 1, 31]]
    array([ 1,  2, 32], dtype=int32)
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, NoReturn

from numbasync.errors import CallerError
from numbasync.intrinsics import intrinsic
from numbasync.kernel_names import TypingError, cuda, extending, int32, types

__all__ = ["reduce", "scan", "sum"]

WARP = 32

_api: Any = extending  # of type Any: type checkers do not know what they define
_types: Any = types
_cuda: Any = cuda


def sum(value: Any) -> Any:
    """The sum of the values of the warp's threads, for each of them.

    Args:
        value: a number, of whose type the sum is. Of bool the sum is an int32: how many are true.

    Error bound of floats: at most 5 roundings for each value on its way into the sum.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def count(z: na.KernelOutput, x: na.KernelInput):
        ...     i = cuda.grid(1)
        ...     z[i] = na.warp.sum(x[i] > 2)
        >>> x = await na.from_host(np.arange(32))
        >>> result = await count[1, 32](na.zeros(32, np.int32), x)
        >>> await result.z[0].item()
        29
    """
    in_kernels("warp.sum")


def reduce(value: Any, op: Any) -> Any:
    """The values of the warp's threads combined to one, for each of them.

    Args:
        value: a number, or a tuple of numbers.
        op: a device function of two values, of one of which the value that it gives is; or one that
            kernels know, such as `max`.

    Examples:
        >>> @cuda.jit(device=True)
        ... def further(a, b):
        ...     return b if abs(b) > abs(a) else a
        >>> @na.launcher
        ... @cuda.jit
        ... def furthest(z: na.KernelOutput, x: na.KernelInput):
        ...     z[cuda.grid(1)] = na.warp.reduce(x[cuda.grid(1)], further)
        >>> x = await na.from_host(np.arange(-20, 12))
        >>> result = await furthest[1, 32](na.zeros(32, np.int32), x)
        >>> await result.z[0].item()
        -20
    """
    in_kernels("warp.reduce")


def scan(value: Any, op: Any = None, exclusive: bool = False, initial: Any = None) -> Any:
    """For each thread, the values of the threads before it in the warp and its own, combined.

    Args:
        value: a number, or a tuple of numbers.
        op: as in `reduce`. None: the sum, as `sum` forms it.
        exclusive: True or False, which is written there. True: a thread's own value is left out,
            and the first thread gets `initial`.
        initial: what is combined before the first value; the same for all threads. None: nothing,
            or for an exclusive sum 0. An exclusive scan by another operator needs it.

    Error bound of floats: as `sum`, of the values up to the thread's.
    """
    in_kernels("warp.scan")


def in_kernels(name: str) -> NoReturn:
    """Refuse a call outside of kernels."""
    raise CallerError(
        f"na.{name} combines values of threads: call it in a kernel, of @cuda.jit.\n"
        "Of a whole tensor, na.algorithms has reductions and scans."
    )


# --- values and operators ---


@_cuda.jit(device=True)
def _plus(a: Any, b: Any) -> Any:
    return a + b


def kind_of(name: str, value: Any, is_sum: bool = False) -> Any:
    """The type in which values are combined.

    Raises:
        TypingError: they are neither numbers nor tuples of numbers.
    """
    kind = _types.unliteral(value)
    parts = list(kind) if isinstance(kind, _types.BaseTuple) and not is_sum else [kind]
    is_named = isinstance(kind, _types.BaseNamedTuple)
    if is_named or not parts or not all(map(_is_number, parts)):
        what = "a number" if is_sum else "a number, or a plain tuple of numbers"
        raise TypingError(f"na.{name} of a {value}; write {what}.")
    return _types.int32 if is_sum and isinstance(kind, _types.Boolean) else kind


def _is_number(kind: Any) -> bool:
    return isinstance(kind, _types.Number | _types.Boolean)


def check_operator(name: str, op: Any) -> None:
    """Refuse what is no function."""
    if not isinstance(op, _types.Dispatcher | _types.Function):
        raise TypingError(
            f"na.{name} by a {op}; write a function of two values, @cuda.jit(device=True), or one "
            "that kernels know, such as max."
        )


def start_of(name: str, op: Any, exclusive: Any, initial: Any) -> tuple[bool, Any]:
    """Whether a scan is exclusive, and its initial value if the operator tells it: 0 of a sum.

    Raises:
        TypingError: a scan that has no first result, or of which it is not written what it is.
    """
    is_exclusive = getattr(exclusive, "literal_value", getattr(exclusive, "value", exclusive))
    if not isinstance(is_exclusive, bool):
        raise TypingError(f"exclusive={exclusive} of na.{name}; write True or False there.")
    if is_exclusive and is_none(initial) and not is_none(op):
        raise TypingError(
            f"an exclusive na.{name} by {op} needs a first result, which no function tells; write "
            "initial=."
        )
    return is_exclusive, 0 if is_exclusive and is_none(initial) else None


def is_none(given: Any) -> bool:
    """Whether an argument is None, or left out."""
    value = getattr(given, "value", given)
    return value is None or isinstance(given, _types.NoneType)


@cache
def caster(kind: Any) -> Any:
    """The intrinsic that converts a value to a type."""

    @intrinsic(lambda value: _cast_by_one(kind))
    def cast(typingctx: Any, value: Any) -> Any:
        if typingctx.can_convert(value, kind) is None:
            raise TypingError(f"an operator that gives a {value}, of values that are {kind}.")

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return context.cast(builder, args[0], value, kind)

        return kind(value), codegen

    return cast


def _cast_by_one(kind: Any) -> Any:
    """The function ``(value)`` that converts to a type, each number of a tuple by itself."""
    if not isinstance(kind, _types.BaseTuple):
        return lambda value: kind(value)
    numbers = each_number(kind, _number_caster)
    return lambda value: numbers(value, None)


def _number_caster(kind: Any) -> Any:
    @_cuda.jit(device=True)
    def cast_number(value: Any, _: Any) -> Any:
        return kind(value)

    return cast_number


def each_number(kind: Any, of_number: Any) -> Any:
    """The device function ``(value, *more)`` that does to each number of a value what the one that
    `of_number` makes, of its type, does.
    """
    if not isinstance(kind, _types.BaseTuple):
        return of_number(kind)
    first = of_number(kind[0])
    if len(kind) == 1:

        @_cuda.jit(device=True)
        def of_one(value: Any, more: Any) -> Any:
            return (first(value[0], more),)

        return of_one
    others = each_number(_types.Tuple(list(kind)[1:]), of_number)

    @_cuda.jit(device=True)
    def of_several(value: Any, more: Any) -> Any:
        return (first(value[0], more), *others(value[1:], more))

    return of_several


# --- exchanges within a warp ---


def _moved_as(kind: Any) -> Any:
    """The type that shuffles have and that every value of `kind` fits into, and back."""
    if isinstance(kind, _types.Integer | _types.Boolean):
        is_wide = isinstance(kind, _types.Integer) and kind.bitwidth > 32
        return _types.int64 if is_wide else _types.int32
    return kind if isinstance(kind, _types.Float) and kind.bitwidth == 64 else _types.float32


def _mover(kind: Any, shuffle: Any) -> Any:
    """The device function ``(number, lane or distance)`` of a shuffle, for one type."""
    back = caster(kind)
    if isinstance(kind, _types.Complex):
        part = _mover(kind.underlying_float, shuffle)

        @_cuda.jit(device=True)
        def move_parts(value: Any, by: Any) -> Any:
            return back(complex(part(value.real, by), part(value.imag, by)))

        return move_parts
    there = caster(_moved_as(kind))

    @_cuda.jit(device=True)
    def move(value: Any, by: Any) -> Any:
        return back(shuffle(0xFFFFFFFF, there(value), by))

    return move


class Moves(NamedTuple):
    """The device functions ``(value, lane or distance)`` that give the value of another lane."""

    up: Any
    down: Any
    pick: Any


@cache
def moves(kind: Any) -> Moves:
    """The exchanges of values of a type."""
    shuffles = _cuda.shfl_up_sync, _cuda.shfl_down_sync, _cuda.shfl_sync
    return Moves(*(each_number(kind, lambda part, s=s: _mover(part, s)) for s in shuffles))


@_cuda.jit(device=True)
def threads() -> Any:
    """How many threads the block has."""
    return int32(int32(cuda.blockDim.x * cuda.blockDim.y) * cuda.blockDim.z)


@_cuda.jit(device=True)
def rank() -> Any:
    """The place of the thread in its block, x fastest."""
    row = int32(cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    return int32(cuda.threadIdx.x + cuda.blockDim.x * row)


@_cuda.jit(device=True)
def lanes() -> Any:
    """How many threads the warp has."""
    return min(int32(threads() - (rank() & -WARP)), int32(WARP))


# --- functions of a warp ---


@cache
def fold(kind: Any) -> Any:
    """The device function ``(value, op)``: in lane 0, the warp's values combined. Lane i combines
    what the 1, 2, 4 ... lanes from i on have with what as many behind them have.
    """
    cast, down = caster(kind), moves(kind).down

    @_cuda.jit(device=True)
    def fold_warp(value: Any, op: Any) -> Any:
        total = cast(value)
        behind = int32(lanes() - cuda.laneid)
        step = 1
        while step < WARP:
            there = down(total, step)
            if step < behind:
                total = cast(op(total, there))
            step *= 2
        return total

    return fold_warp


@cache
def run(kind: Any) -> Any:
    """The device function ``(value, op)``: each lane's value combined with all before it. Lane i
    combines what the 1, 2, 4 ... lanes up to i have with what as many in front of them have.

    Source: W. D. Hillis and G. L. Steele, Data parallel algorithms, CACM 29(12), 1986.
    """
    cast, up = caster(kind), moves(kind).up

    @_cuda.jit(device=True)
    def run_warp(value: Any, op: Any) -> Any:
        total = cast(value)
        lane = cuda.laneid
        step = 1
        while step < WARP:
            there = up(total, step)
            if lane >= step:
                total = cast(op(there, total))
            step *= 2
        return total

    return run_warp


@cache
def scan_of(kind: Any, is_exclusive: bool, has_start: bool) -> Any:
    """The device function ``(value, op, start)`` of `scan`. If `is_exclusive`, it has a start."""
    cast, up, inclusive = caster(kind), moves(kind).up, run(kind)

    @_cuda.jit(device=True)
    def scan_warp(value: Any, op: Any, start: Any) -> Any:
        total = inclusive(value, op)
        if is_exclusive:
            before = up(total, 1)
            total = cast(op(cast(start), before)) if cuda.laneid > 0 else cast(start)
        elif has_start:
            total = cast(op(cast(start), total))
        return total

    return scan_warp


# --- what is called ---
# The functions that programs call do what these do. The CPU device calls these itself, where it has
# seen that all threads make the call that is written there.


def sum_together(value: Any) -> Any: ...
def reduce_together(value: Any, op: Any) -> Any: ...
def scan_together(value: Any, op: Any, exclusive: Any, initial: Any) -> Any: ...


@_api.overload(sum_together)
def _sum_together(value):  # type: ignore[no-untyped-def]
    kind = kind_of("warp.sum", value, is_sum=True)
    folded, pick = fold(kind), moves(kind).pick
    return lambda value: pick(folded(value, _plus), 0)


@_api.overload(reduce_together)
def _reduce_together(value, op):  # type: ignore[no-untyped-def]
    check_operator("warp.reduce", op)
    kind = kind_of("warp.reduce", value)
    folded, pick = fold(kind), moves(kind).pick
    return lambda value, op: pick(folded(value, op), 0)


@_api.overload(scan_together, prefer_literal=True)
def _scan_together(value, op, exclusive, initial):  # type: ignore[no-untyped-def]
    return scan_overload("warp.scan", scan_of, value, op, exclusive, initial)


@_api.overload(sum)
def _sum(value):  # type: ignore[no-untyped-def]
    return lambda value: sum_together(value)


@_api.overload(reduce)
def _reduce(value, op):  # type: ignore[no-untyped-def]
    return lambda value, op: reduce_together(value, op)


@_api.overload(scan, prefer_literal=True)
def _scan(value, op=None, exclusive=False, initial=None):  # type: ignore[no-untyped-def]
    return lambda value, op=None, exclusive=False, initial=None: scan_together(
        value, op, exclusive, initial
    )


def scan_overload(
    name: str, scan_of: Any, value: Any, op: Any, exclusive: Any, initial: Any
) -> Any:
    """What a scan is compiled as, from the types of its arguments."""
    is_exclusive, known = start_of(name, op, exclusive, initial)
    kind = kind_of(name, value, is_none(op))
    scanned = scan_of(kind, is_exclusive, not is_none(initial))
    start = known or 0
    if is_none(op):
        if is_none(initial):
            return lambda value, op, exclusive, initial: scanned(value, _plus, start)
        return lambda value, op, exclusive, initial: scanned(value, _plus, initial)
    check_operator(name, op)
    if is_none(initial):
        return lambda value, op, exclusive, initial: scanned(value, op, start)
    return lambda value, op, exclusive, initial: scanned(value, op, initial)
