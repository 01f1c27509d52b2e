"""Values of the threads of a block combined, sorted, loaded and stored, in kernels.

As in `numbasync.warp`, by all threads of a block of one, two or three axes, x fastest, of any
number. They use shared memory of their own, 32 values for each type (`sort`: more), and wait for
one another in it, except in `load` and `store`: a call behind an `if` or a `return` that only some
threads take is a mistake, which the CPU device finds (`BarrierDivergenceError`). To give a thread
that has nothing to do a value is better: `na.block.sum(x[i] if i < x.shape[0] else 0)`. Calls may
follow one another, without `cuda.syncthreads()` between them. Each begins with one: what threads
have written to shared memory before it, all of them see behind it.

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

from numbasync import vectors
from numbasync.intrinsics import intrinsic
from numbasync.kernel_names import (
    TypingError,
    cuda,
    extending,
    int32,
    types,
    uint16,
    uint32,
    uint64,
)
from numbasync.warp import (
    WARP,
    _is_number,
    _plus,
    caster,
    check_operator,
    fold,
    in_kernels,
    is_none,
    kind_of,
    moves,
    rank,
    run,
    scan_overload,
    threads,
)

__all__ = ["load", "reduce", "scan", "sort", "store", "sum"]

MOST_THREADS = 1024
WARP_BITS = 5  # a warp has 2 ** 5 threads
STATIC_BYTES = 48 * 1024  # of shared memory that a kernel declares, on every GPU
PLACE_BYTES = 2  # a block has fewer keys than a uint16 has values: they fit into shared memory
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


def load(x: Any, first: Any, count: int, default: Any = 0, striped: bool = False) -> Any:
    """`count` elements for each thread of the block, as a tuple.

    Args:
        x: one axis, such as a row ``x[i]``.
        first: the index of the block's first element, not negative.
        count: how many, an int that is written there, or a global one.
        default: what stands for elements behind the end.
        striped: True or False, which is written there. False: thread t has `count` neighbours, from
            ``first + t * count`` on. True: of p threads, it has elements p apart, from
            ``first + t`` on.

    Neighbours that begin at a multiple of 16 bytes are loaded 16 bytes at a time.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def sums(z: na.KernelOutput, x: na.KernelInput):
        ...     a, b, c, d = na.block.load(x, cuda.blockIdx.x * 128, 4)
        ...     total = na.block.sum(a + b + c + d)
        ...     if cuda.threadIdx.x == 0:
        ...         z[cuda.blockIdx.x] = total
        >>> result = await sums[2, 32](na.zeros(2), na.ones(200))
        >>> await result.z.to_host()
        array([128.,  72.], dtype=float32)
    """
    in_kernels("block.load")


def store(z: Any, first: Any, values: Any, striped: bool = False) -> None:
    """Assign the values that each thread of the block has, where `load` would load them.

    Args:
        z: one axis, such as a row ``z[i]``. What lies behind its end is not written.
        first: the index of the block's first element, not negative.
        values: a tuple of numbers, as many in each thread.
        striped: as in `load`.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def double(z: na.KernelOutput, x: na.KernelInput):
        ...     a, b = na.block.load(x, cuda.blockIdx.x * 64, 2)
        ...     na.block.store(z, cuda.blockIdx.x * 64, (2 * a, 2 * b))
        >>> result = await double[2, 32](na.zeros(100), na.ones(100))
        >>> (await result.z.to_host()).sum()
        np.float32(200.0)
    """
    in_kernels("block.store")


def sort(keys: Any, values: Any = None, descending: bool = False, threads: int = 1024) -> Any:
    """The keys of the block's threads in order: the first thread has the first ones.

    Args:
        keys: a number, or a tuple of as many numbers of one type in each thread: integers, floats
            or bool. A thread without keys gives the largest number, which then comes last.
        values: numbers that move with the keys, a number or a tuple as `keys` is one; None: none.
        descending: True or False, which is written there: the largest first.
        threads: the most threads that a block has, an int that is written there. The keys of so
            many, and their values with 2 bytes more each, are kept in shared memory.

    Returns the keys, or keys and values, each as they were given. The order is that of NumPy: a NaN
    counts as the largest. It is stable, from one thread's keys to the next one's, also where
    `descending`. Exact.

    Each thread sorts its keys, and runs of keys are merged, 2, 4, 8 ... threads' at a time, each
    thread writing as many keys as it has.
    Source: O. Green, R. McColl and D. Bader, GPU Merge Path, ICS 2012.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def sort_tiles(z: na.KernelOutput, x: na.KernelInput):
        ...     first = cuda.blockIdx.x * 64
        ...     keys = na.block.load(x, first, 2, default=np.inf)
        ...     na.block.store(z, first, na.block.sort(keys))
        >>> x = np.cos(np.arange(100, dtype=np.float32))
        >>> result = await sort_tiles[2, 32](na.zeros(100), x)
        >>> z = await result.z.to_host()
        >>> (z[:64] == np.sort(x[:64])).all() and (z[64:] == np.sort(x[64:])).all()
        np.True_
    """
    in_kernels("block.sort")


# --- how ---


@intrinsic(lambda: lambda: None)
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
    index, flag = caster(_types.uint32), caster(_types.boolean)

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
    and then the first thread folds those of the warps.
    """
    cast, fold_warp, pick = caster(kind), fold(kind), moves(kind).pick
    hold = _held(kind)

    @_cuda.jit(device=True)
    def fold_block(value: Any, op: Any) -> Any:
        total = fold_warp(value, op)
        count = threads()
        if count <= WARP:
            return pick(total, 0)
        own = rank()
        if cuda.laneid == 0:
            hold(own >> WARP_BITS, total, True)
        cuda.syncthreads()
        if own == 0:  # the others would only take turns with it
            warp = int32(1)
            while warp << WARP_BITS < count:
                total = cast(op(total, hold(warp, total, False)))
                warp += int32(1)
            hold(0, total, True)
        cuda.syncthreads()
        return hold(0, total, False)

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
            warp = rank() >> WARP_BITS
            if lane == WARP - 1:  # of the last warp nobody asks
                hold(warp, total, True)
            cuda.syncthreads()
            if warp > 0:
                before = hold(0, total, False)
                k = int32(1)
                while k < warp:
                    before = cast(op(before, hold(k, total, False)))
                    k += int32(1)
                front = cast(op(front, before)) if begins else before
                has_front = True
        if is_exclusive and lane == 0:
            return front
        return cast(op(front, own)) if has_front else own

    return scan_block


# --- elements in and out ---


def _literal(given: Any, least: int, name: str) -> int:
    """An argument that is an int written in the kernel.

    Raises:
        TypingError: it is none, or is less than `least`.
    """
    number = getattr(given, "literal_value", getattr(given, "value", given))
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise TypingError(f"{name} of {given}; write an int there, of {least} or more.")
    return number


def _is_true(given: Any, name: str) -> bool:
    """An argument that is True or False, written in the kernel."""
    answer = getattr(given, "literal_value", getattr(given, "value", given))
    if not isinstance(answer, bool):
        raise TypingError(f"{name} of {given}; write True or False there.")
    return answer


def _check_axis(name: str, array: Any) -> None:
    """Refuse what is no array of one axis of numbers."""
    if not isinstance(array, _types.Array) or array.ndim != 1 or not _is_number(array.dtype):
        raise TypingError(f"na.{name} of {array}; write one axis of numbers, such as x[row].")


@_cuda.jit(device=True)
def own_place(first: Any, each: Any) -> Any:
    """The index of the thread's first element. Unsigned, so that none counts from the end."""
    return uint64(first) + uint64(int32(rank() * each))


def _at_once(array: Any, count: int) -> int:
    """How many of `count` neighbours one instruction moves; 1: no vectors."""
    if array.layout != "C":
        return 1
    wide = vectors.item_bytes(array.dtype)
    return next((n // wide for n in (16, 8, 4, 2) if n > wide and count % (n // wide) == 0), 1)


@cache
def _loader(kind: Any, count: int) -> Any:
    """The device function ``(x, at, step, default)``: elements, the first of them at an index."""
    cast = caster(kind)

    @_cuda.jit(device=True)
    def load_one(x: Any, at: Any, step: Any, default: Any) -> Any:
        return (x[at] if at < uint64(x.shape[0]) else cast(default),)

    if count == 1:
        return load_one
    others = _loader(kind, count - 1)

    @_cuda.jit(device=True)
    def load_several(x: Any, at: Any, step: Any, default: Any) -> Any:
        return load_one(x, at, step, default) + others(x, at + uint64(step), step, default)

    return load_several


@cache
def _vector_loader(count: int, wide: int) -> Any:
    """The device function ``(x, at)``: `count` neighbours, `wide` of them at a time."""

    @_cuda.jit(device=True)
    def load_one(x: Any, at: Any) -> Any:
        return vectors.load(x, at, wide)

    if count == wide:
        return load_one
    others = _vector_loader(count - wide, wide)

    @_cuda.jit(device=True)
    def load_several(x: Any, at: Any) -> Any:
        return load_one(x, at) + others(x, at + uint64(wide))

    return load_several


@cache
def _storer(count: int) -> Any:
    """The device function ``(z, at, step, values)``."""
    if count == 1:

        @_cuda.jit(device=True)
        def store_one(z: Any, at: Any, step: Any, values: Any) -> None:
            if at < uint64(z.shape[0]):
                z[at] = values[0]

        return store_one
    others = _storer(count - 1)

    @_cuda.jit(device=True)
    def store_several(z: Any, at: Any, step: Any, values: Any) -> None:
        if at < uint64(z.shape[0]):
            z[at] = values[0]
        others(z, at + uint64(step), step, values[1:])

    return store_several


@cache
def _vector_storer(count: int, wide: int) -> Any:
    """The device function ``(z, at, values)``."""

    @_cuda.jit(device=True)
    def store_one(z: Any, at: Any, values: Any) -> None:
        vectors.store(z, at, values[:wide])

    if count == wide:
        return store_one
    others = _vector_storer(count - wide, wide)

    @_cuda.jit(device=True)
    def store_several(z: Any, at: Any, values: Any) -> None:
        vectors.store(z, at, values[:wide])
        others(z, at + uint64(wide), values[wide:])

    return store_several


@_api.overload(load, prefer_literal=True)
def _load(x, first, count, default=0, striped=False):  # type: ignore[no-untyped-def]
    _check_axis("block.load", x)
    many = _literal(count, 1, "count= of na.block.load")
    is_striped = _is_true(striped, "striped= of na.block.load")
    each = _loader(x.dtype, many)
    if is_striped:

        def load_striped(x, first, count, default=0, striped=False):  # type: ignore[no-untyped-def]
            return each(x, own_place(first, 1), threads(), default)

        return load_striped
    wide = _at_once(x, many)
    if wide == 1:

        def load_blocked(x, first, count, default=0, striped=False):  # type: ignore[no-untyped-def]
            return each(x, own_place(first, many), 1, default)

        return load_blocked
    vector = _vector_loader(many, wide)

    def load_vectors(x, first, count, default=0, striped=False):  # type: ignore[no-untyped-def]
        at = own_place(first, many)
        if at + uint64(many) <= uint64(x.shape[0]) and vectors.is_aligned(x, at, wide):
            return vector(x, at)
        return each(x, at, 1, default)

    return load_vectors


@_api.overload(store, prefer_literal=True)
def _store(z, first, values, striped=False):  # type: ignore[no-untyped-def]
    _check_axis("block.store", z)
    if not isinstance(values, _types.BaseTuple) or not len(values):
        raise TypingError(f"na.block.store of {values}; write a tuple of numbers.")
    many = len(values)
    is_striped = _is_true(striped, "striped= of na.block.store")
    each = _storer(many)
    if is_striped:

        def store_striped(z, first, values, striped=False):  # type: ignore[no-untyped-def]
            each(z, own_place(first, 1), threads(), values)

        return store_striped
    wide = _at_once(z, many)
    if wide == 1:

        def store_blocked(z, first, values, striped=False):  # type: ignore[no-untyped-def]
            each(z, own_place(first, many), 1, values)

        return store_blocked
    vector = _vector_storer(many, wide)

    def store_vectors(z, first, values, striped=False):  # type: ignore[no-untyped-def]
        at = own_place(first, many)
        if at + uint64(many) <= uint64(z.shape[0]) and vectors.is_aligned(z, at, wide):
            vector(z, at, values)
        else:
            each(z, at, 1, values)

    return store_vectors


# --- sorting ---


@_cuda.jit(device=True)
def _is_less(a: Any, b: Any) -> Any:
    return a < b or (b != b and a == a)  # a NaN comes last


@_cuda.jit(device=True)
def _is_more(a: Any, b: Any) -> Any:
    return _is_less(b, a)


@cache
def _tuple_of(count: int) -> Any:
    """The device function ``(array, first)``: a tuple of an array's elements."""

    @_cuda.jit(device=True)
    def take_one(array: Any, first: Any) -> Any:
        return (array[first],)

    if count == 1:
        return take_one
    others = _tuple_of(count - 1)

    @_cuda.jit(device=True)
    def take_several(array: Any, first: Any) -> Any:
        return take_one(array, first) + others(array, first + 1)

    return take_several


@cache
def _sorter(
    kind: Any, count: int, most: int, descending: bool, has_values: bool, is_spread: bool
) -> Any:
    """The device function ``(keys, places)``, behind a barrier: the sorted keys of a tuple. If
    something moves with them, `places` is given the place, among all of the block, that each of
    them came from.

    Args:
        is_spread: leave a place free behind every 32 keys in shared memory. The keys of a thread
            are neighbours there, so that else of 32 threads several access one bank.
    """
    precedes = _is_more if descending else _is_less
    size = most * count
    places_held = size if has_values else 1
    as_tuple = _tuple_of(count)
    held = size + size // WARP if is_spread else size
    bits = WARP_BITS if is_spread else 31  # a block has fewer than 2 ** 31 keys

    @_cuda.jit(device=True)
    def slot(i: Any) -> Any:  # unsigned: no index counts from the end
        return uint32(i + (i >> bits))

    @_cuda.jit(device=True)
    def sort_block(keys: Any, places: Any) -> Any:
        room, from_ = cuda.shared.array(held, kind), cuda.shared.array(places_held, uint16)
        _of_this_function()
        own = cuda.local.array(count, kind)
        thread, total = rank(), int32(threads() * count)
        first = int32(thread * count)
        for k in range(count):
            own[k] = keys[k]
            if has_values:
                places[k] = first + k
        for turn in range(count):  # neighbours change places, which is stable
            for k in range(turn & 1, count - 1, 2):
                if precedes(own[k + 1], own[k]):
                    own[k], own[k + 1] = own[k + 1], own[k]
                    if has_values:
                        places[k], places[k + 1] = places[k + 1], places[k]
        pair = int32(2)  # the threads that have the keys of two runs
        while pair >> 1 < threads():
            for k in range(count):
                room[slot(int32(first + k))] = own[k]
                if has_values:
                    from_[uint32(first + k)] = places[k]
            cuda.syncthreads()
            # Of the two runs, how many keys of the first one come before this thread's.
            begin = int32((thread & -pair) * count)
            middle = min(int32(begin + (pair >> 1) * count), total)
            end = min(int32(begin + pair * count), total)
            ahead = int32(first - begin)
            low = max(int32(0), int32(ahead - (end - middle)))
            high = min(ahead, int32(middle - begin))
            while low < high:
                at = int32((low + high) >> 1)
                behind = int32(middle + ahead - 1 - at)
                if precedes(room[slot(behind)], room[slot(int32(begin + at))]):
                    high = at
                else:
                    low = int32(at + 1)
            a, b = int32(begin + low), int32(middle + ahead - low)
            # The next key of either run is at hand: one is read for each that is taken.
            key_a, key_b = room[slot(a)], room[slot(min(b, int32(total - 1)))]
            for k in range(count):
                is_a = b >= end or (a < middle and not precedes(key_b, key_a))
                own[k] = key_a if is_a else key_b
                if has_values:
                    places[k] = from_[uint32(a if is_a else b)]
                a, b = int32(a + is_a), int32(b + (not is_a))
                after = room[slot(min(a if is_a else b, int32(total - 1)))]
                key_a, key_b = after if is_a else key_a, key_b if is_a else after
            cuda.syncthreads()
            pair = int32(2 * pair)
        return as_tuple(own, 0)

    return sort_block


@cache
def _carrier(kind: Any, count: int, most: int) -> Any:
    """The device function ``(values, places)``: those of all threads, from these places."""
    size = most * count
    as_tuple = _tuple_of(count)

    @_cuda.jit(device=True)
    def carry(values: Any, places: Any) -> Any:
        room = cuda.shared.array(size, kind)
        _of_this_function()
        own = cuda.local.array(count, kind)
        for k in range(count):
            room[rank() * count + k] = values[k]
        cuda.syncthreads()
        for k in range(count):
            own[k] = room[places[k]]
        return as_tuple(own, 0)

    return carry


def _one_kind(given: Any, name: str) -> tuple[Any, int]:
    """The type of a number, or of those of a tuple, and how many there are; 0: no tuple."""
    kind = _types.unliteral(given)
    parts = {_types.unliteral(k) for k in kind} if isinstance(kind, _types.BaseTuple) else {kind}
    if len(parts) != 1 or not _is_number(next(iter(parts))):
        raise TypingError(
            f"na.block.sort of {name} that are {given}; write a number, or a tuple of numbers of "
            "one type."
        )
    return parts.pop(), len(kind) if isinstance(kind, _types.BaseTuple) else 0


# --- what is called: see `numbasync.warp` ---


def sum_together(value: Any) -> Any: ...
def reduce_together(value: Any, op: Any) -> Any: ...
def scan_together(value: Any, op: Any, exclusive: Any, initial: Any) -> Any: ...
def sort_together(keys: Any, values: Any, descending: Any, threads: Any) -> Any: ...


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


@_api.overload(sort_together, prefer_literal=True)
def _sort_together(keys, values, descending, threads):  # type: ignore[no-untyped-def]
    most = _literal(threads, 1, "threads= of na.block.sort")
    is_descending = _is_true(descending, "descending= of na.block.sort")
    kind, count = _one_kind(keys, "keys")
    if isinstance(kind, _types.Complex):
        raise TypingError(f"na.block.sort of {kind}: complex numbers have no order.")
    many = max(count, 1)
    has_values = not is_none(values)
    value_kind, room = kind, most * many * vectors.item_bytes(kind)
    if has_values:
        value_kind, values_count = _one_kind(values, "values")
        if values_count != count:
            raise TypingError(f"na.block.sort of keys {keys} and values {values}; write as many.")
        room += most * many * (PLACE_BYTES + vectors.item_bytes(value_kind))
    is_spread = room + most * many // WARP * vectors.item_bytes(kind) <= STATIC_BYTES
    if most > MOST_THREADS or room > STATIC_BYTES:
        raise TypingError(
            f"na.block.sort of {many} keys in each of {most} threads takes {room:,} bytes of "
            f"shared memory, of {STATIC_BYTES:,}; write threads= as many as a block has, at most "
            f"{MOST_THREADS:,}, or fewer keys a thread."
        )
    sorter = _sorter(kind, many, most, is_descending, has_values, is_spread)
    carrier = _carrier(value_kind, many, most)

    def sort_tuples(keys, values, descending, threads):  # type: ignore[no-untyped-def]
        return sorter(keys, cuda.local.array(1, uint16))

    def sort_numbers(keys, values, descending, threads):  # type: ignore[no-untyped-def]
        return sorter((keys,), cuda.local.array(1, uint16))[0]

    def sort_pairs(keys, values, descending, threads):  # type: ignore[no-untyped-def]
        places = cuda.local.array(many, uint16)
        found = sorter(keys, places)
        return found, carrier(values, places)

    def sort_pair(keys, values, descending, threads):  # type: ignore[no-untyped-def]
        places = cuda.local.array(1, uint16)
        found = sorter((keys,), places)
        return found[0], carrier((values,), places)[0]

    if has_values:
        return sort_pairs if count else sort_pair
    return sort_tuples if count else sort_numbers


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


@_api.overload(sort, prefer_literal=True)
def _sort(keys, values=None, descending=False, threads=1024):  # type: ignore[no-untyped-def]
    def meet_and_sort(keys, values=None, descending=False, threads=1024):  # type: ignore[no-untyped-def]
        cuda.syncthreads()
        return sort_together(keys, values, descending, threads)

    return meet_and_sort
