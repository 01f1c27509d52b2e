"""The kernels that find the first few of each row: they count digits, and sort nothing.

An input is seen as ``(rows, n)`` of keys' bits, as by the kernels that sort, and the first keys of
the order are wanted. Of the last of these, the launches find one digit after the other, from the
first: `digit_kernel` counts, of the keys that begin with the digits found so far, the next digit.
Each block of the next launch goes through these counts up to the place that is looked for. Then
`take_kernel` takes the keys before that one, and of those equal to it the first ones: each chunk
counts both, is told what is before it (`numbasync.algorithms.look_back`), and writes its elements
side by side, in their order in the row.

Whole numbers are counted, so that nothing depends on the grid.

Source: T. Alabi, J. Blanchard, B. Gordon and R. Steinbach, Fast k-selection algorithms for graphics
processing units, ACM Journal of Experimental Algorithmics 17, 2012, of the selection by digits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from numbasync import block
from numbasync.algorithms.look_back import before
from numbasync.algorithms.operators import I64, named
from numbasync.algorithms.reduce_kernels import THREADS, numba_type
from numbasync.algorithms.sort_kernels import PASS_BINS, PASS_BITS, bits_of, ordered
from numbasync.kernel_names import cuda, int32, int64, uint64
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput

EACH = 16  # elements of a thread, in a chunk
CHUNK = EACH * THREADS
EQUAL = 32  # bits of a count of lesser keys: above them is the count of equal ones


@cuda.jit(device=True)
def find_digit(counts: Any, found: Any, row: Any, number: Any, wanted: Any) -> Any:
    """What the key at the `wanted` place of a row begins with, of `number` digits, and its place
    among the keys that do. All threads of a block of `PASS_BINS` call it.

    Args:
        counts: of `digit_kernel`, of the earlier digits.
        found: the results for each number of digits, of which the last one is read; the first block
            of a row writes what it finds.
    """
    chosen = cuda.shared.array(2, int64)
    t = int64(cuda.threadIdx.x)
    if number == 0:
        return uint64(0), int64(wanted)
    place = int64(wanted)
    if number > 1:
        place = found[row, number - 1, 1]
    count = counts[row, number - 1, t]
    end = block.scan(count)
    if end - count < place and place <= end:
        beginning = int64(0)
        if number > 1:
            beginning = found[row, number - 1, 0]
        chosen[0] = beginning << PASS_BITS | t
        chosen[1] = place - (end - count)
    cuda.syncthreads()
    return uint64(chosen[0]), chosen[1]


@cache
def digit_kernel(dtype: np.dtype[Any], descending: bool) -> Any:
    """The launcher ``(counts, found, x, number, wanted, spans)``: how often digit `number` comes,
    from the first one on, among the keys of a row that begin as `find_digit` finds.

    `counts` is of shape ``(rows, digits, PASS_BINS)``, and 0; `found` ``(rows, digits, 2)``. Both
    are int64. `spans` blocks count a row.
    """
    key_of = ordered(dtype, descending)
    kind = numba_type(bits_of(dtype))
    bits = 8 * dtype.itemsize

    @launcher(may_alias=True)
    @cuda.jit
    def count_digits(
        counts: KernelOutput, found: KernelOutput, x: KernelInput, number: int, wanted: int,
        spans: int,
    ) -> None:  # fmt: skip
        sums = cuda.shared.array(PASS_BINS, int32)
        keys = cuda.local.array(EACH, kind)
        t = int64(cuda.threadIdx.x)
        row = int64(cuda.blockIdx.x) // spans
        span = int64(cuda.blockIdx.x) % spans
        sums[t] = 0
        beginning, place = find_digit(counts, found, row, number, wanted)
        if span == 0 and t == 0 and number > 0:
            found[row, number, 0] = int64(beginning)
            found[row, number, 1] = place
        cuda.syncthreads()
        shift = bits - (number + 1) * PASS_BITS
        by, is_first = uint64(shift + PASS_BITS), number == 0
        for first in range(span * CHUNK, x.shape[1], spans * CHUNK):
            left = x.shape[1] - first
            if left >= CHUNK:
                for k in range(EACH):
                    keys[k] = x[row, first + k * THREADS + t]
                for k in range(EACH):
                    key = key_of(keys[k])
                    if is_first or uint64(key) >> by == beginning:
                        cuda.atomic.add(sums, int32((key >> shift) & (PASS_BINS - 1)), 1)
            else:
                for k in range(t, left, THREADS):
                    key = key_of(x[row, first + k])
                    if is_first or uint64(key) >> by == beginning:
                        cuda.atomic.add(sums, int32((key >> shift) & (PASS_BINS - 1)), 1)
        cuda.syncthreads()
        if sums[t] > 0:
            cuda.atomic.add(counts, (row, number, t), int64(sums[t]))

    return count_digits


@cache
def take_kernel(dtype: np.dtype[Any], descending: bool) -> Any:
    """The launcher ``(z, places, words, x, counts, found, wanted)``: the first `wanted` keys of the
    order of each row, in their order in the row, with their places.

    `counts` and `found` are of `digit_kernel`, of all digits. `words` has the words of
    `look_back.before`, of the chunks of all rows, and one more, from which the blocks draw them;
    all of them are 0 at first. The results are of shape ``(rows, wanted)``.
    """
    key_of = ordered(dtype, descending)
    kind = numba_type(bits_of(dtype))
    combine_before = before(I64, named("sum", I64).combine)
    below = (1 << EQUAL) - 1
    digits = dtype.itemsize

    @launcher(may_alias=True)
    @cuda.jit
    def take_keys(
        z: KernelOutput, places: KernelOutput, words: KernelOutput, x: KernelInput,
        counts: KernelInput, found: KernelInput, wanted: int,
    ) -> None:  # fmt: skip
        drawn = cuda.shared.array(1, int64)
        keys = cuda.local.array(EACH, kind)
        t = int64(cuda.threadIdx.x)
        if t == 0:
            drawn[0] = int64(cuda.atomic.add(words, words.shape[0] - 1, uint64(1)))
        cuda.syncthreads()
        parts = (x.shape[1] + CHUNK - 1) // CHUNK
        row = drawn[0] // parts
        part = drawn[0] - row * parts
        first = part * CHUNK
        left = x.shape[1] - first
        for k in range(EACH):
            keys[k] = x[row, first + min(k * THREADS + t, left - 1)]
        last, most = find_digit(counts, found, row, digits, wanted)
        bound = kind(last)
        lesser, equal = int32(0), int32(0)
        for k in range(EACH):
            key = key_of(keys[k])
            is_there = k * THREADS + t < left
            lesser += int32(is_there and key < bound)
            equal += int32(is_there and key == bound)
        here = block.sum(int64(equal) << EQUAL | int64(lesser))
        is_behind, running = combine_before(words, row, part, parts, here)
        if is_behind == 0:
            running = int64(0)
        if here & below == 0 and (here == 0 or running >> EQUAL >= most):
            return  # nothing of this chunk is wanted: all threads see that
        for k in range(EACH):
            i = first + k * THREADS + t
            key = key_of(keys[k])
            is_there = i < x.shape[1]
            mark = int64(0)
            if is_there and key < bound:
                mark = int64(1)
            if is_there and key == bound:
                mark = int64(1) << EQUAL
            ahead = running + block.scan(mark, exclusive=True)
            equals = ahead >> EQUAL
            if mark != 0 and (mark == 1 or equals < most):
                to = (ahead & below) + min(equals, most)
                z[row, to] = keys[k]
                places[row, to] = i
            running += block.sum(mark)

    return take_keys
