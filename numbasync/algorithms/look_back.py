"""What the blocks of one launch tell one another: the chunks of a row, each what is before it.

A chunk tells the later ones by words of global memory that are 0 at first: a word has 32 bits of
what is told, beside a mark that says that they are there, so that no order of memory is needed.
The blocks draw their chunks one after the other, so that a block waits only for those that have
begun.

`before` combines what all earlier chunks told, in an order that follows from the chunk's number
alone. A chunk tells its own total; the last of `WARP` chunks also that of all of these, and the
last of ``WARP * WARP`` chunks theirs. So a chunk reads up to `WARP` totals of chunks, as many of
groups, and all those of groups of groups, each level by a warp at a time; none waits for a chain
of others.

Source: D. Merrill and M. Garland, Single-pass parallel prefix scan with decoupled look-back, 2016,
of chunks that look back; here, not at whatever is there already, but at what makes one order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from numbasync import warp
from numbasync.algorithms.reduce_kernels import numba_type
from numbasync.intrinsics import elements_by_one, intrinsic
from numbasync.kernel_names import cgutils, cuda, extending, int32, int64, types, uint32, uint64

_api: Any = extending  # of type Any: type checkers do not know what they define
_types: Any = types

WARP = 32
LEVELS = 3  # of totals: of chunks, of groups, and of groups of groups
HALF = 32  # bits of a word that are told
MARK = 1 << HALF


@intrinsic(lambda words, at: lambda words, at: cuda.atomic.add(words, at, 0))
def read_word(typingctx: Any, words: Any, at: Any):  # type: ignore[no-untyped-def]
    """A word of global memory that another block may have just written.

    It is read anew each time. Numba's `cuda.ldcv` does not say so to the compiler, which may take
    two of these reads for one; and an atomic addition of 0 takes longer.
    """
    word = ir.IntType(64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(words)(context, builder, args[0])
        place = cgutils.get_item_pointer(context, builder, words, array, [args[1]])
        read = ir.FunctionType(word, [word.as_pointer()])
        text = "ld.relaxed.gpu.global.u64 $0, [$1];"
        return builder.call(ir.InlineAsm(read, text, "=l,l", side_effect=True), [place])

    return _types.uint64(words, _types.intp), codegen


def words_of(dtype: np.dtype[Any]) -> int:
    """Words that tell a value."""
    return -(-dtype.itemsize // 4)


def words_of_row(dtype: np.dtype[Any], parts: int) -> int:
    """Words that the chunks of a row tell their totals by."""
    groups = parts // WARP
    return words_of(dtype) * (parts + groups + groups // WARP)


@cache
def _bits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The device functions from a value to its bits, a tuple of uint32, and back."""
    kind, count = numba_type(dtype), words_of(dtype)
    several = _types.UniTuple(_types.uint32, count)
    room_type = ir.ArrayType(ir.IntType(32), count)
    part = np.dtype(f"u{min(dtype.itemsize, 4)}")
    in_parts = _types.Array(numba_type(part), 1, "C")
    load = cuda.jit(device=True)(elements_by_one(in_parts, _types.int64, count))
    store = cuda.jit(device=True)(elements_by_one(in_parts, _types.int64, count, is_store=True))

    def split_by_view(value: Any) -> Any:
        def split(value: Any) -> Any:
            room = cuda.local.array(1, kind)
            room[0] = value
            return load(room.view(part), 0, count)

        return split

    def join_by_view(parts: Any) -> Any:
        def join(parts: Any) -> Any:
            room = cuda.local.array(1, kind)
            store(room.view(part), 0, parts)
            return room[0]

        return join

    @intrinsic(split_by_view)
    def split(typingctx: Any, value: Any):  # type: ignore[no-untyped-def]
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            room = cgutils.alloca_once_value(builder, ir.Constant(room_type, [0] * count))
            data = context.data_model_manager[kind].as_data(builder, args[0])
            builder.store(data, builder.bitcast(room, data.type.as_pointer()))
            parts = [builder.load(cgutils.gep_inbounds(builder, room, 0, k)) for k in range(count)]
            return context.make_tuple(builder, several, parts)

        return several(kind), codegen

    @intrinsic(join_by_view)
    def join(typingctx: Any, parts: Any):  # type: ignore[no-untyped-def]
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            room = cgutils.alloca_once(builder, room_type)
            for k, part in enumerate(cgutils.unpack_tuple(builder, args[0])):
                builder.store(part, cgutils.gep_inbounds(builder, room, 0, k))
            model = context.data_model_manager[kind]
            place = builder.bitcast(room, model.get_data_type().as_pointer())
            return model.from_data(builder, builder.load(place))

        return kind(several), codegen

    return split, join


@cuda.jit(device=True)
def _wait(words: Any, at: Any) -> Any:
    word = read_word(words, at)
    while word < uint64(MARK):
        word = read_word(words, at)
    return uint32(word & uint64(MARK - 1))


@cuda.jit(device=True)
def _wait_1(words: Any, at: Any) -> Any:
    return (_wait(words, at),)


@cuda.jit(device=True)
def _wait_2(words: Any, at: Any) -> Any:
    return _wait(words, at), _wait(words, at + 1)


@cuda.jit(device=True)
def _wait_4(words: Any, at: Any) -> Any:
    return _wait(words, at), _wait(words, at + 1), _wait(words, at + 2), _wait(words, at + 3)


WAITS = {1: _wait_1, 2: _wait_2, 4: _wait_4}


@cache
def telling(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The device functions ``(words, at, value)``, which tells a value, and ``(words, at)``, which
    waits for it and gives it.
    """
    count, wait = words_of(dtype), WAITS[words_of(dtype)]
    split, join = _bits(dtype)

    @cuda.jit(device=True)
    def tell(words: Any, at: Any, value: Any) -> None:
        bits = split(value)
        for k in range(count):
            cuda.atomic.exch(words, at + k, uint64(MARK) | uint64(bits[k]))

    @cuda.jit(device=True)
    def hear(words: Any, at: Any) -> Any:
        return join(wait(words, at))

    return tell, hear


@cache
def before(dtype: np.dtype[Any], combine: Any) -> Any:
    """The device function ``(words, row, part, parts, total)``: tell the total of a chunk, and
    combine those of all chunks before it in its row; a pair, whose first number is 0 where there
    are none.

    All threads of a block of at least ``LEVELS * WARP`` threads call it, and it waits for all of
    them. `words` has `words_of_row` for each row, and is 0 at first.

    Args:
        dtype: of a total.
        combine: of an `Operator` whose states are single numbers.
    """
    kind, each = numba_type(dtype), words_of(dtype)
    tell, hear = telling(dtype)

    @cuda.jit(device=True)
    def join(a: Any, b: Any) -> Any:
        if a[0] == 0:
            return b
        if b[0] == 0:
            return a
        return int32(1), kind(combine((a[1],), (b[1],))[0])

    @cuda.jit(device=True)
    def combine_before(words: Any, row: Any, part: Any, parts: Any, total: Any) -> Any:
        found = cuda.shared.array(LEVELS, kind)
        t = int64(cuda.threadIdx.x)
        groups = parts // WARP
        rows_words = (parts + groups + groups // WARP) * each
        base = row * rows_words
        if t == 0:
            tell(words, base + part * each, total)
        if t < LEVELS * WARP:
            level, lane = t // WARP, t % WARP
            at, first, last = base, part // WARP * WARP, part
            if level == 1:
                at, last = base + parts * each, part // WARP
                first = last // WARP * WARP
            if level == 2:
                at, first, last = base + (parts + groups) * each, int64(0), part // (WARP * WARP)
            there = int32(0), kind(total)
            for i in range(first, last, WARP):
                own = int32(0), kind(total)
                if i + lane < last:
                    own = int32(1), hear(words, at + (i + lane) * each)
                there = join(there, warp.reduce(own, join))
            if lane == 0:
                found[level] = there[1]
                if level == 0 and part % WARP == WARP - 1:
                    group = join(there, (int32(1), kind(total)))[1]
                    tell(words, base + (parts + part // WARP) * each, group)
        cuda.syncthreads()
        here = int32(part % WARP > 0), found[0]
        group = int32(part // WARP % WARP > 0), found[1]
        front = join(group, here)
        if t == 0 and part % (WARP * WARP) == WARP * WARP - 1:
            largest = join(front, (int32(1), kind(total)))[1]
            tell(words, base + (parts + groups + part // (WARP * WARP)) * each, largest)
        return join((int32(part >= WARP * WARP), found[2]), front)

    return combine_before
