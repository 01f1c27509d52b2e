"""The kernels that sort: by digits of the keys' bits, from the last to the first, each time stably.

An input is seen as ``(rows, n)``. Rows of one chunk are sorted by one launch: a block stages the
keys in shared memory and sorts the numbers of their places, `BITS` at a time. Each thread counts
the digits of its run of neighbours, the block scans these counts, ordered by digit and then by
thread, and each thread gives its elements their new places.

Longer rows are sorted by 8 bits at a time, in a pass for each. `count_kernel` counts the digits of
all passes in one go. In a pass a block draws a chunk of a row, and writes each key behind those of
lesser digits, and of its digit before it. Of its own chunk it counts these by warps, and it
collects keys of one digit, so that they are written together. Of earlier chunks it is told by their
blocks, which write down what they have counted, and then what they and all before them have: it
looks back until it comes upon the latter.

Digits are taken of `ordered` bits, whose order as unsigned numbers is NumPy's. The elements
themselves stay as they are, with the sign of a zero and the bits of a NaN.

Places behind the end count as the largest key. They come last at first, and stay last.

Source: G. E. Blelloch, Prefix sums and their applications, 1990, of the split by scans;
A. Adinets and D. Merrill, Onesweep: a faster least significant digit radix sort for GPUs, 2022, of
the ranks by warps.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from numbasync import block, dtypes
from numbasync.algorithms.look_back import WARP, read_word
from numbasync.algorithms.reduce_kernels import THREADS, Block, numba_type
from numbasync.algorithms.scan_kernels import each_of
from numbasync.intrinsics import intrinsic
from numbasync.kernel_names import (
    cuda,
    int32,
    int64,
    types,
    uint16,
    uint32,
    uint64,
)
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput

_types: Any = types

BITS = 4  # of a step within a block
BINS = 1 << BITS
PASS_BITS = 8  # of a launch
PASS_BINS = 1 << PASS_BITS  # at most as many as threads: each has one
PASS_THREADS = 256
PASS_EACH = 16  # elements of a thread
CHUNK_BITS = 16  # of a number of elements of a chunk
SUM_BITS = 58  # of a number of elements, beside a mark
SUM_MASK = (1 << SUM_BITS) - 1
MARK_MASK = (1 << 64) - 1 - SUM_MASK
SPANS = 2048  # blocks that count digits


def bits_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The unsigned dtype of as many bits."""
    return np.dtype(f"u{dtype.itemsize}")


def pass_each(dtype: np.dtype[Any]) -> int:
    """Elements of a thread in a pass over long rows: their bits fit into shared memory."""
    return PASS_EACH // 2 if dtype.itemsize > 4 else PASS_EACH


@cache
def ordered(dtype: np.dtype[Any], descending: bool) -> Any:
    """The device function from an element's bits to unsigned bits in the order of the elements."""
    kind = numba_type(bits_of(dtype))
    # By their signed values: numba-cuda-mlir has no constants from 2**63 on.
    every, sign = -1, -(1 << 8 * dtype.itemsize - 1)
    rest = kind((1 << 8 * dtype.itemsize - 1) - 1)
    zero = kind(0)
    flip = every if descending else 0

    @cuda.jit(device=True)
    def of_unsigned(bits: Any) -> Any:
        return kind(bits ^ kind(flip))

    @cuda.jit(device=True)
    def of_signed(bits: Any) -> Any:
        return kind(kind(bits ^ kind(sign)) ^ kind(flip))

    if not dtypes.is_float(dtype):
        return of_signed if dtype.kind == "i" else of_unsigned
    infinity = kind(int(np.array(np.inf).astype(dtype).view(bits_of(dtype))))

    @cuda.jit(device=True)
    def of_float(bits: Any) -> Any:
        size = kind(bits & rest)
        key = kind(bits ^ kind(every)) if bits & kind(sign) else kind(bits | kind(sign))
        if size == zero:
            key = kind(sign)  # of either zero
        if size > infinity:
            key = kind(every)  # each NaN, behind all others
        return kind(key ^ kind(flip))

    return of_float


@cache
def count_kernel(dtype: np.dtype[Any], descending: bool, passes: int) -> Any:
    """The launcher ``(counts, x, spans)``: how often each digit of each pass comes in each row.

    `counts`, of shape ``(rows, passes, PASS_BINS)``, is added to; `x` has the keys' bits, of shape
    ``(rows, n)``, and each row is read by `spans` blocks.
    """
    key_of = ordered(dtype, descending)
    kind = numba_type(bits_of(dtype))
    each = each_of(dtype)
    chunk = THREADS * each
    cells = passes * PASS_BINS

    @launcher
    @cuda.jit
    def count_digits(counts: KernelOutput, x: KernelInput, spans: int) -> None:
        found = cuda.shared.array(cells, int32)
        keys = cuda.local.array(each, kind)
        t = int64(cuda.threadIdx.x)
        number = int64(cuda.blockIdx.x)
        row = number // spans
        n = x.shape[1]
        for p in range(passes):
            found[p * PASS_BINS + t] = 0
        cuda.syncthreads()
        for first in range((number - row * spans) * chunk, n, spans * chunk):
            if first + chunk <= n:
                for k in range(each):
                    keys[k] = x[uint64(row), uint64(first + t + k * THREADS)]
                for k in range(each):
                    key = key_of(keys[k])
                    for p in range(passes):
                        digit = int32((key >> (p * PASS_BITS)) & (PASS_BINS - 1))
                        cuda.atomic.add(found, p * PASS_BINS + digit, 1)
            else:
                for i in range(first + t, n, THREADS):
                    key = key_of(x[uint64(row), uint64(i)])
                    for p in range(passes):
                        digit = int32((key >> (p * PASS_BITS)) & (PASS_BINS - 1))
                        cuda.atomic.add(found, p * PASS_BINS + digit, 1)
        cuda.syncthreads()
        for p in range(passes):
            count = found[p * PASS_BINS + t]
            if count != 0:
                cuda.atomic.add(counts, (row, p, t), uint64(count))

    return count_digits


@intrinsic(lambda digit: lambda digit: cuda.match_any_sync(0xFFFFFFFF, digit))
def lanes_with(typingctx: Any, digit: Any):  # type: ignore[no-untyped-def]
    """The lanes of a full warp that have this lane's digit, of `PASS_BITS` bits, as a mask.

    By a vote on each bit: `cuda.match_any_sync` takes a GPU longer. The CPU device, which knows
    these instructions by their first line, does that.
    """
    word = ir.IntType(32)
    vote = (
        "and.b32 bit, $1, {0}; setp.ne.u32 is_one, bit, 0; vote.sync.ballot.b32 ones, is_one, -1;"
        " @!is_one not.b32 ones, ones; and.b32 $0, $0, ones;"
    )
    text = "\n".join(
        (
            "// lanes with this digit",
            "{ .reg .pred is_one; .reg .b32 bit, ones;",
            "mov.b32 $0, -1;",
            *(vote.format(1 << b) for b in range(PASS_BITS)),
            "}",
        )
    )

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(word, [word])
        votes = ir.InlineAsm(kind, text, "=&r,r", side_effect=True)
        return builder.call(votes, args, attrs=("convergent",))

    return _types.uint32(_types.uint32), codegen


@cache
def place_kernel(dtype: np.dtype[Any], descending: bool, values: str) -> Any:
    """The launcher ``(z, carried, x, given, counts, words, tickets, number)`` of one pass over rows
    of many chunks: each key is written behind those of lesser digits, and of its digit before it.

    `counts` is that of `count_kernel`, `number` the pass. The blocks draw their chunks from
    ``tickets[number]``, 0 at first, so that a block waits only for those that have begun. `words`,
    of ``rows * parts * PASS_BINS`` and 0 before the first pass, is for what a chunk tells the later
    ones of a digit: with the pass in its first bits, how many keys of it the chunk has, and later,
    how many it and all before it have. One word has both, so that no order of memory is needed.
    The other arguments are those of `sort_kernel`.

    A warp takes 32 neighbouring keys at a time. The lanes that have one digit find one another, and
    the first of them adds their number to what the warp has counted of it: with that count, and
    the number of such lanes before it, a key has its place among those of its digit in the warp.
    """
    key_of = ordered(dtype, descending)
    kind = numba_type(bits_of(dtype))
    each = pass_each(dtype)
    threads = PASS_THREADS
    chunk = threads * each
    warps = threads // WARP
    cells = warps * PASS_BINS
    has_values = values != "none"
    has_given = values == "given"
    room = chunk if has_values else 1
    in_warp = uint32(WARP)

    @launcher(may_alias=True)
    @cuda.jit
    def place_keys(
        z: KernelOutput, carried: KernelOutput, x: KernelInput, given: KernelInput,
        counts: KernelInput, words: KernelOutput, tickets: KernelOutput, number: int,
    ) -> None:  # fmt: skip
        tile = cuda.shared.array(chunk, kind)
        places = cuda.shared.array(room, uint16)
        found = cuda.shared.array(cells, uint32)
        firsts = cuda.shared.array(PASS_BINS, int64)
        keys = cuda.local.array(each, kind)
        ranks = cuda.local.array(each, uint32)  # with the digit in the last bits
        t = uint32(cuda.threadIdx.x)
        lane, warp = uint32(t % in_warp), uint32(t // in_warp)
        is_bin = t < uint32(PASS_BINS)
        shift = number * PASS_BITS
        if t == 0:
            firsts[0] = int64(cuda.atomic.add(tickets, number, uint64(1)))
        for k in range(t, cells, threads):
            found[k] = 0
        cuda.syncthreads()
        parts = (x.shape[1] + chunk - 1) // chunk
        ticket = firsts[0]
        row = ticket // parts
        part = ticket - row * parts
        first = part * chunk
        left = uint32(min(x.shape[1] - first, chunk))
        own = uint32(warp * uint32(WARP * each) + lane)
        if left == chunk:
            for k in range(each):
                keys[k] = x[uint64(row), uint64(first + int64(own) + k * WARP)]
        else:
            for k in range(each):
                at = int64(own) + k * WARP
                keys[k] = x[uint64(row), uint64(first + at)] if at < int64(left) else kind(0)
        earlier = uint32((uint32(1) << lane) - uint32(1))
        base = uint32(warp * uint32(PASS_BINS))
        for k in range(each):
            digit = uint32((key_of(keys[k]) >> shift) & (PASS_BINS - 1))
            if own + uint32(k * WARP) >= left:
                digit = uint32(PASS_BINS - 1)
            peers = lanes_with(digit)
            before = uint32(cuda.popc(uint32(peers & earlier)))
            count = found[base + digit]
            cuda.syncwarp()
            if before == 0:
                found[base + digit] = uint32(count + uint32(cuda.popc(peers)))
            cuda.syncwarp()
            ranks[k] = uint32((count + before) << uint32(PASS_BITS)) | digit
        cuda.syncthreads()

        # Thread t adds up what warps have of digit t. One scan has these sums of the chunk in its
        # last bits, and those of the row above them.
        total = uint32(0)
        in_row = uint64(0)
        word = int64(0)
        own_mark = uint64(2 * number + 1) << uint64(SUM_BITS)
        all_mark = uint64(2 * number + 2) << uint64(SUM_BITS)
        if is_bin:
            for k in range(warps):
                at_warp = uint32(k * PASS_BINS) + t
                count = found[at_warp]
                found[at_warp] = total
                total = uint32(total + count)
            word = row * parts * PASS_BINS + part * PASS_BINS + int64(t)
            mark = own_mark if part > 0 else all_mark
            cuda.atomic.exch(words, word, mark | uint64(total))
            in_row = counts[row, number, int64(t)]
        both = uint64(in_row << uint64(CHUNK_BITS)) | uint64(total)
        lesser = uint64(block.scan(both) - both)
        if is_bin:
            begin = uint32(lesser & uint64((1 << CHUNK_BITS) - 1))
            for k in range(warps):
                at_warp = uint32(k * PASS_BINS) + t
                found[at_warp] = uint32(found[at_warp] + begin)
            earlier_keys = uint64(0)
            missing = part
            at = word
            while missing > 0:
                there = read_word(words, at - PASS_BINS)
                mark = there & uint64(MARK_MASK)
                if mark >= own_mark:  # else it is not there yet, or is of the pass before
                    earlier_keys += there & uint64(SUM_MASK)
                    at -= PASS_BINS
                    missing = int64(0) if mark == all_mark else missing - 1
            if part > 0:
                cuda.atomic.exch(words, word, all_mark | (earlier_keys + uint64(total)))
            firsts[t] = int64(lesser >> uint64(CHUNK_BITS)) + int64(earlier_keys) - int64(begin)
        cuda.syncthreads()

        for k in range(each):
            rank = ranks[k]
            digit = uint32(rank & uint32(PASS_BINS - 1))
            place = uint32(found[base + digit] + (rank >> uint32(PASS_BITS)))
            tile[place] = keys[k]
            if has_values:
                places[place] = own + uint32(k * WARP)
        cuda.syncthreads()
        for k in range(each):
            at_key = uint32(uint32(k * threads) + t)
            if at_key < left:
                bits = tile[at_key]
                digit = uint32((key_of(bits) >> shift) & (PASS_BINS - 1))
                to = uint64(firsts[digit] + int64(at_key))
                z[uint64(row), to] = bits
                if has_values:
                    local = int64(places[at_key])
                    if has_given:
                        carried[uint64(row), to] = given[uint64(row), uint64(first + local)]
                    else:
                        carried[uint64(row), to] = first + local

    return place_keys


@cache
def sort_kernel(dtype: np.dtype[Any], descending: bool, block: Block, values: str) -> Any:
    """The launcher ``(z, carried, x, given, end, kept)`` of rows of one chunk.

    The last `end` bits of the keys are sorted by, and the first `kept` of each row are written.

    Args:
        dtype: of the keys, whose bits `x` has and `z` is given.
        block: the layout of `scan_block`, of one column.
        values: what moves with the keys to `carried`: `"none"`, `"places"` (the number of each
            key in its row), or `"given"` (the elements of `given`).
    """
    key_of = ordered(dtype, descending)
    kind = numba_type(bits_of(dtype))
    each = each_of(dtype)
    rows, along = block.rows, block.along
    chunk = along * each
    size = THREADS * each
    padded = size + size // 32
    cells = BINS * THREADS + BINS * THREADS // 32
    twice_places, twice_threads = 2 * size, 2 * THREADS
    has_places, has_given = values == "places", values == "given"

    @launcher(may_alias=True)
    @cuda.jit
    def sort_chunks(
        z: KernelOutput, carried: KernelOutput, x: KernelInput, given: KernelInput,
        end: int, kept: int,
    ) -> None:  # fmt: skip
        tile = cuda.shared.array(padded, kind)
        places = cuda.shared.array(twice_places, uint16)
        counts = cuda.shared.array(cells, uint16)
        totals = cuda.shared.array(twice_threads, int32)
        t = int64(cuda.threadIdx.x)
        first_row = int64(cuda.blockIdx.x) * rows
        left = x.shape[1]
        for k in range(each):
            at = k * THREADS + t
            row = min(first_row + at // chunk, x.shape[0] - 1)
            i = min(at % chunk, left - 1)
            tile[at + at // 32] = x[row, i]
            places[at] = at % chunk
        own_row = t // along
        own_i = t % along
        base = own_row * chunk
        here = 0
        low = int64(0)
        while low < end:
            for digit in range(BINS):
                at = (own_row * BINS + digit) * along + own_i
                counts[at + at // 32] = 0
            cuda.syncthreads()
            for k in range(each):
                place = base + places[here + base + own_i * each + k]
                digit = BINS - 1
                if place - base < left:
                    digit = int32((key_of(tile[place + place // 32]) >> low) & (BINS - 1))
                at = (own_row * BINS + digit) * along + own_i
                counts[at + at // 32] += 1
            cuda.syncthreads()
            # Each thread adds up BINS neighbouring counts of its row, and the threads their sums.
            total = 0
            cell = (own_row * along + own_i) * BINS
            for k in range(BINS):
                total += counts[cell + k + (cell + k) // 32]
            sums = 0
            running = total
            totals[t] = running
            step = 1
            while step < along:
                cuda.syncthreads()
                if own_i >= step:
                    running += totals[sums + t - step]
                sums = THREADS - sums
                totals[sums + t] = running
                step = step * 2
            running -= total
            for k in range(BINS):
                at = cell + k + (cell + k) // 32
                count = counts[at]
                counts[at] = running
                running += count
            cuda.syncthreads()
            there = size - here
            for k in range(each):
                local = places[here + base + own_i * each + k]
                place = base + local
                digit = BINS - 1
                if local < left:
                    digit = int32((key_of(tile[place + place // 32]) >> low) & (BINS - 1))
                at = (own_row * BINS + digit) * along + own_i
                at += at // 32
                places[there + base + counts[at]] = local
                counts[at] += 1
            here = there
            low = low + BITS
        cuda.syncthreads()

        for k in range(each):
            at = k * THREADS + t
            row = first_row + at // chunk
            to = at % chunk
            if row < x.shape[0] and to < left and to < kept:
                local = int64(places[here + at])
                place = at - to + local
                z[row, to] = tile[place + place // 32]
                if has_places:
                    carried[row, to] = local
                if has_given:
                    carried[row, to] = given[row, local]

    return sort_chunks
