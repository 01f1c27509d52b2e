"""The kernels that find the first few of each row: they count digits, and sort nothing.

An input is seen as ``(rows, n)`` of keys' bits, as by the kernels that sort, and the `kept` first
keys of the order are wanted. Of the last of these, the launches find one digit after the other,
from the first: of the keys that begin with the digits found so far, `digit_kernel` counts the next
digit, and `pick_digit` goes through the counts up to the place that is looked for. Then the keys
before that one are taken, and of those equal to it the first ones: `rank_kernel` counts both for
each chunk, a scan adds the counts up, and `take_kernel` writes the elements side by side, in their
order in the row.

Whole numbers are counted, so that nothing depends on the grid.

Source: T. Alabi, J. Blanchard, B. Gordon and R. Steinbach, Fast k-selection algorithms for graphics
processing units, ACM Journal of Experimental Algorithmics 17, 2012, of the selection by digits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from numbasync import block
from numbasync.algorithms.reduce_kernels import THREADS, numba_type
from numbasync.algorithms.sort_kernels import PASS_BINS, PASS_BITS, bits_of, ordered
from numbasync.kernel_names import cuda, int32, int64, uint64
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput

EACH = 16  # elements of a thread, in a chunk
CHUNK = EACH * THREADS
EQUAL = 32  # bits of a count of lesser keys: above them is the count of equal ones


@cache
def digit_kernel(dtype: np.dtype[Any], descending: bool, is_first: bool) -> Any:
    """The launcher ``(counts, x, begin, shift, spans)``: how often each digit comes in a row.

    Args:
        is_first: all keys are counted, else those whose bits above the digit are those of `begin`,
            which is of shape ``(rows,)``, uint64.

    `counts` is of shape ``(rows, PASS_BINS)``, and 0. `spans` blocks count a row.
    """
    key_of = ordered(dtype, descending)
    kind = numba_type(bits_of(dtype))

    @launcher
    @cuda.jit
    def count_digits(
        counts: KernelOutput, x: KernelInput, begin: KernelInput, shift: int, spans: int
    ) -> None:
        found = cuda.shared.array(PASS_BINS, int32)
        keys = cuda.local.array(EACH, kind)
        t = int64(cuda.threadIdx.x)
        row = int64(cuda.blockIdx.x) // spans
        span = int64(cuda.blockIdx.x) % spans
        found[t] = 0
        cuda.syncthreads()
        by, beginning = uint64(shift + PASS_BITS), begin[row]
        for first in range(span * CHUNK, x.shape[1], spans * CHUNK):
            left = x.shape[1] - first
            if left >= CHUNK:
                for k in range(EACH):
                    keys[k] = x[row, first + k * THREADS + t]
                for k in range(EACH):
                    key = key_of(keys[k])
                    if is_first or uint64(key) >> by == beginning:
                        cuda.atomic.add(found, int32((key >> shift) & (PASS_BINS - 1)), 1)
            else:
                for k in range(t, left, THREADS):
                    key = key_of(x[row, first + k])
                    if is_first or uint64(key) >> by == beginning:
                        cuda.atomic.add(found, int32((key >> shift) & (PASS_BINS - 1)), 1)
        cuda.syncthreads()
        if found[t] > 0:
            cuda.atomic.add(counts, (row, t), int64(found[t]))

    return count_digits


@launcher(threads=PASS_BINS)
@cuda.jit
def pick_digit(
    begin: KernelOutput, missing: KernelOutput, counts: KernelInput, before: KernelInput,
    sought: KernelInput,
) -> None:  # fmt: skip
    """Find the digit at which the counts of a row reach the place sought, and append it to what
    keys begin with; `missing` is the place among the keys with this digit. A block for each row.
    """
    row, digit = int64(cuda.blockIdx.x), int64(cuda.threadIdx.x)
    count = counts[row, digit]
    end = block.scan(count)
    place = sought[row]
    if end - count < place and place <= end:
        begin[row] = before[row] << uint64(PASS_BITS) | uint64(digit)
        missing[row] = place - (end - count)


@cache
def rank_kernel(dtype: np.dtype[Any], descending: bool) -> Any:
    """The launcher ``(counts, x, last)``: of each chunk, how many keys are before `last`, and above
    `EQUAL` bits how many are equal to it. `counts` is of shape ``(rows, parts, 1)``, int64.
    """
    key_of = ordered(dtype, descending)
    kind = numba_type(bits_of(dtype))

    @launcher
    @cuda.jit
    def rank_keys(counts: KernelOutput, x: KernelInput, last: KernelInput) -> None:
        keys = cuda.local.array(EACH, kind)
        t = int64(cuda.threadIdx.x)
        parts = counts.shape[1]
        row = int64(cuda.blockIdx.x) // parts
        part = int64(cuda.blockIdx.x) % parts
        first = part * CHUNK
        left = x.shape[1] - first
        if left >= CHUNK:
            for k in range(EACH):
                keys[k] = x[row, first + k * THREADS + t]
        else:
            for k in range(EACH):
                keys[k] = x[row, first + min(k * THREADS + t, left - 1)]
        bound = kind(last[row])
        lesser, equal = int32(0), int32(0)
        for k in range(EACH):
            key = key_of(keys[k])
            is_there = k * THREADS + t < left
            lesser += int32(is_there and key < bound)
            equal += int32(is_there and key == bound)
        total = block.sum(int64(equal) << EQUAL | int64(lesser))
        if t == 0:
            counts[row, part, 0] = total

    return rank_keys


@cache
def take_kernel(dtype: np.dtype[Any], descending: bool) -> Any:
    """The launcher ``(z, places, x, last, missing, ends)``: the keys before `last`, and the first
    `missing` of those equal to it, with their places. `ends` has the counts of `rank_kernel`, of
    all chunks up to each; the results are of shape ``(rows, kept)``.
    """
    key_of = ordered(dtype, descending)
    kind = numba_type(bits_of(dtype))
    below = (1 << EQUAL) - 1

    @launcher
    @cuda.jit
    def take_keys(
        z: KernelOutput, places: KernelOutput, x: KernelInput, last: KernelInput,
        missing: KernelInput, ends: KernelInput,
    ) -> None:  # fmt: skip
        t = int64(cuda.threadIdx.x)
        parts = ends.shape[1]
        row = int64(cuda.blockIdx.x) // parts
        part = int64(cuda.blockIdx.x) % parts
        first = part * CHUNK
        bound, most = kind(last[row]), missing[row]
        running = int64(0)
        if part > 0:
            running = ends[row, part - 1, 0]
        here = ends[row, part, 0] - running
        if here & below == 0 and (here == 0 or running >> EQUAL >= most):
            return  # nothing of this chunk is wanted: all threads see that
        for k in range(EACH):
            i = first + k * THREADS + t
            bits = x[row, min(i, x.shape[1] - 1)]
            key = key_of(bits)
            is_there = i < x.shape[1]
            mark = int64(0)
            if is_there and key < bound:
                mark = int64(1)
            if is_there and key == bound:
                mark = int64(1) << EQUAL
            before = running + block.scan(mark, exclusive=True)
            equal = before >> EQUAL
            if mark != 0 and (mark == 1 or equal < most):
                to = (before & below) + min(equal, most)
                z[row, to] = bits
                places[row, to] = i
            running += block.sum(mark)

    return take_keys
