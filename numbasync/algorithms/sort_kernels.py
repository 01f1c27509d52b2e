"""The kernels that sort: by digits of the keys' bits, from the last to the first, each time stably.

An input is seen as ``(rows, n)``. Rows of one chunk are sorted by one launch: a block stages the
keys in shared memory and sorts the numbers of their places, `BITS` at a time. Each thread counts
the digits of its run of neighbours, the block scans these counts, ordered by digit and then by
thread, and each thread gives its elements their new places. Of longer rows a launch sorts by 8
bits: it writes each key behind those of lesser digits, and of its digit before it. Of earlier
chunks `count_kernel` has counted these, and a scan has added the counts up; in its own chunk a
block counts them by warps, and it collects keys of one digit, so that they are written together.

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
from numba import cuda, int32, int64, uint16, uint32

from numbasync import dtypes
from numbasync.algorithms.reduce_kernels import THREADS, Block, numba_type
from numbasync.algorithms.scan_kernels import each_of
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput

BITS = 4  # of a step within a block
BINS = 1 << BITS
PASS_BITS = 8  # of a launch
PASS_BINS = 1 << PASS_BITS  # as many as threads: each has one
WARP = 32


def bits_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The unsigned dtype of as many bits."""
    return np.dtype(f"u{dtype.itemsize}")


@cache
def ordered(dtype: np.dtype[Any], descending: bool) -> Any:
    """The device function from an element's bits to unsigned bits in the order of the elements."""
    kind = numba_type(bits_of(dtype))
    every = kind((1 << 8 * dtype.itemsize) - 1)
    sign = kind(1 << 8 * dtype.itemsize - 1)
    rest = kind((1 << 8 * dtype.itemsize - 1) - 1)
    zero = kind(0)
    flip = every if descending else zero

    @cuda.jit(device=True)
    def of_unsigned(bits: Any) -> Any:
        return kind(bits ^ flip)

    @cuda.jit(device=True)
    def of_signed(bits: Any) -> Any:
        return kind(kind(bits ^ sign) ^ flip)

    if not dtypes.is_float(dtype):
        return of_signed if dtype.kind == "i" else of_unsigned
    infinity = kind(int(np.array(np.inf).astype(dtype).view(bits_of(dtype))))

    @cuda.jit(device=True)
    def of_float(bits: Any) -> Any:
        size = kind(bits & rest)
        key = kind(bits ^ every) if bits & sign else kind(bits | sign)
        if size == zero:
            key = sign  # of either zero
        if size > infinity:
            key = every  # each NaN, behind all others
        return kind(key ^ flip)

    return of_float


@cache
def count_kernel(dtype: np.dtype[Any], descending: bool) -> Any:
    """The launcher ``(counts, x, shift)``: how often each digit comes in each chunk.

    `counts` is of shape ``(rows, PASS_BINS, parts)``, and `x` of the keys' bits, ``(rows, n)``.
    """
    key_of = ordered(dtype, descending)
    kind = numba_type(bits_of(dtype))
    each = each_of(dtype)
    chunk = THREADS * each

    @launcher
    @cuda.jit
    def count_digits(counts: KernelOutput, x: KernelInput, shift: int) -> None:
        found = cuda.shared.array(PASS_BINS, int32)
        keys = cuda.local.array(each, kind)
        t = int64(cuda.threadIdx.x)
        number = int64(cuda.blockIdx.x)
        row = number // counts.shape[2]
        part = number - row * counts.shape[2]
        first = part * chunk + t
        left = x.shape[1] - part * chunk
        found[t] = 0
        if left >= chunk:
            for k in range(each):
                keys[k] = x[row, first + k * THREADS]
            cuda.syncthreads()
            for k in range(each):
                digit = (key_of(keys[k]) >> shift) & (PASS_BINS - 1)
                cuda.atomic.add(found, int32(digit), 1)
        else:
            cuda.syncthreads()
            for k in range(t, left, THREADS):
                digit = (key_of(x[row, part * chunk + k]) >> shift) & (PASS_BINS - 1)
                cuda.atomic.add(found, int32(digit), 1)
        cuda.syncthreads()
        counts[row, t, part] = found[t]

    return count_digits


@cache
def place_kernel(dtype: np.dtype[Any], descending: bool, values: str) -> Any:
    """The launcher ``(z, carried, x, given, starts, shift)`` of one pass over rows of many chunks:
    each key is written behind those of lesser digits, and of its digit before it.

    `starts` is of shape ``(rows, PASS_BINS * parts, 1)``: for each digit and chunk, how many keys
    of the row come before the first one of them. The other arguments are those of `sort_kernel`.

    A warp takes 32 neighbouring keys at a time. The lanes that have one digit find one another, and
    the first of them adds their number to what the warp has counted of it: with that count, and
    the number of such lanes before it, a key has its place among those of its digit in the warp.
    """
    key_of = ordered(dtype, descending)
    kind = numba_type(bits_of(dtype))
    each = each_of(dtype)
    chunk = THREADS * each
    warps = THREADS // WARP
    cells = warps * PASS_BINS
    has_values = values != "none"
    has_given = values == "given"
    room = chunk if has_values else 1
    in_warp = uint32(WARP)

    @launcher(may_alias=True)
    @cuda.jit
    def place_keys(
        z: KernelOutput, carried: KernelOutput, x: KernelInput, given: KernelInput,
        starts: KernelInput, shift: int,
    ) -> None:  # fmt: skip
        tile = cuda.shared.array(chunk, kind)
        places = cuda.shared.array(room, uint16)
        counts = cuda.shared.array(cells, uint32)
        firsts = cuda.shared.array(PASS_BINS, int64)
        ends = cuda.shared.array(warps, uint32)
        keys = cuda.local.array(each, kind)
        ranks = cuda.local.array(each, uint32)  # with the digit in the last bits
        t = uint32(cuda.threadIdx.x)
        lane, warp = uint32(t % in_warp), uint32(t // in_warp)
        parts = starts.shape[1] // PASS_BINS
        number = int64(cuda.blockIdx.x)
        row = number // parts
        part = number - row * parts
        first = part * chunk
        left = uint32(min(x.shape[1] - first, chunk))
        own = uint32(warp * uint32(WARP * each) + lane)
        for k in range(warps):
            counts[uint32(k * PASS_BINS) + t] = 0
        if left == chunk:
            for k in range(each):
                keys[k] = x[row, first + int64(own) + k * WARP]
        else:
            for k in range(each):
                at = int64(own) + k * WARP
                keys[k] = x[row, first + at] if at < int64(left) else kind(0)
        cuda.syncthreads()
        earlier = uint32((uint32(1) << lane) - uint32(1))
        base = uint32(warp * uint32(PASS_BINS))
        for k in range(each):
            digit = uint32((key_of(keys[k]) >> shift) & (PASS_BINS - 1))
            if own + uint32(k * WARP) >= left:
                digit = uint32(PASS_BINS - 1)
            peers = uint32(cuda.match_any_sync(0xFFFFFFFF, int32(digit)))
            before = uint32(cuda.popc(uint32(peers & earlier)))
            found = counts[base + digit]
            cuda.syncwarp()
            if before == 0:
                counts[base + digit] = uint32(found + uint32(cuda.popc(peers)))
            cuda.syncwarp()
            ranks[k] = uint32((found + before) << uint32(PASS_BITS)) | digit
        cuda.syncthreads()

        # Thread t adds up what warps have of digit t, and the threads their sums.
        total = uint32(0)
        for k in range(warps):
            found = counts[uint32(k * PASS_BINS) + t]
            counts[uint32(k * PASS_BINS) + t] = total
            total = uint32(total + found)
        running = total
        step = uint32(1)
        while step < in_warp:
            there = uint32(cuda.shfl_up_sync(0xFFFFFFFF, int32(running), step))
            if lane >= step:
                running = uint32(running + there)
            step = uint32(step * uint32(2))
        if lane == in_warp - uint32(1):
            ends[warp] = running
        cuda.syncthreads()
        running = uint32(running - total)
        for k in range(warps - 1):
            if uint32(k) < warp:
                running = uint32(running + ends[k])
        for k in range(warps):
            at_warp = uint32(k * PASS_BINS) + t
            counts[at_warp] = uint32(counts[at_warp] + running)
        firsts[t] = int64(starts[row, int64(t) * parts + part, 0]) - int64(running)
        cuda.syncthreads()

        for k in range(each):
            rank = ranks[k]
            digit = uint32(rank & uint32(PASS_BINS - 1))
            place = uint32(counts[base + digit] + (rank >> uint32(PASS_BITS)))
            tile[place] = keys[k]
            if has_values:
                places[place] = own + uint32(k * WARP)
        cuda.syncthreads()
        for k in range(each):
            at_key = uint32(uint32(k * THREADS) + t)
            if at_key < left:
                bits = tile[at_key]
                digit = uint32((key_of(bits) >> shift) & (PASS_BINS - 1))
                to = firsts[digit] + int64(at_key)
                z[row, to] = bits
                if has_values:
                    local = int64(places[at_key])
                    if has_given:
                        carried[row, to] = given[row, first + local]
                    else:
                        carried[row, to] = first + local

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
