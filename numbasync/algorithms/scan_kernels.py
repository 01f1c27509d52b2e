"""The kernels that scan: running combinations along an axis, for every operator.

An input is seen as ``(rows, n, columns)``, as by the kernels that reduce, and scanned along the
middle axis. A block stages a chunk in shared memory, coalesced, of which each thread has a run of
`EACH` neighbours. It combines its run; the threads scan these totals by doubling steps; then each
goes through its run again, from what is before it. Of several chunks and columns, a first launch
writes the totals, which are scanned in the same way, and the last launch begins each chunk with
what is before it.

Long rows of one column need no staging: `scan_row_kernel`. Each thread has four neighbours in each
part of a chunk, which it loads 16 bytes at a time where they are aligned, and `numbasync.block`
scans what its fours combine to, of all parts at once. Their chunks tell one another their totals
(`numbasync.algorithms.look_back`), so that one launch reads and writes each element once.

The shape of it follows from n, the dtype, and whether `columns` is 1: neither the grid nor the
device has a part in it. No neutral element is needed. Places behind the end hold a copy of the last
element, which nothing in front of it sees.

Source: W. D. Hillis and G. L. Steele, Data parallel algorithms, CACM 29(12), 1986, of the doubling
steps; G. E. Blelloch, Prefix sums and their applications, 1990, of the levels.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from numbasync import block, vectors
from numbasync.algorithms.look_back import before
from numbasync.algorithms.reduce_kernels import THREADS, Block, four_loader, numba_type, vector_of
from numbasync.kernel_names import cuda, int64, uint32, uint64
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput

TILE = 16 * 1024  # bytes of a staged chunk


def each_of(dtype: np.dtype[Any]) -> int:
    """Elements of a thread's run: fewer of wide ones, as they share one tile."""
    return min(16, TILE // (THREADS * dtype.itemsize))


def scan_block(n: int, columns: int, each: int) -> Block:
    """The threads of a block for `n` elements to scan, with so many columns beside one another."""
    if columns == 1:
        along = 1 if n <= each else 32 if n <= 32 * each else THREADS
        return Block(THREADS // along, along, 1)
    beside = 4 if columns <= 8 else 32
    return Block(1, THREADS // beside, beside)


def _ends(kind: Any, lift: Any, finish: Any, is_first: bool, is_total: bool) -> tuple[Any, Any]:
    """The device functions of what a level reads, ``(value, i)`` to a state, and of what it writes,
    a state to a result. Only the first level has elements, and only its last launch results.
    """

    @cuda.jit(device=True)
    def lift_element(value: Any, i: Any) -> Any:
        return lift(value, i)[0]

    @cuda.jit(device=True)
    def take_state(value: Any, i: Any) -> Any:
        return kind(value)

    @cuda.jit(device=True)
    def finish_result(total: Any) -> Any:
        return finish((total,), 1, 0)

    @cuda.jit(device=True)
    def keep_state(total: Any) -> Any:
        return total

    has_results = is_first and not is_total
    return lift_element if is_first else take_state, finish_result if has_results else keep_state


@cache
def scan_kernel(
    state: np.dtype[Any], lift: Any, combine: Any, finish: Any, layout: Block,
    is_first: bool, is_total: bool, has_before: bool, has_start: bool, is_exclusive: bool,
) -> Any:  # fmt: skip
    """The launcher ``(z, x, before, start, parts)`` of one level.

    Args:
        state: the dtype of what is combined.
        lift, combine, finish: of an `Operator` whose states are single numbers.
        is_first: elements of the input are lifted and results finished, else both are states.
        is_total: write the combination of each of the first `parts` chunks, which are full.
        has_before: `before` has the combination of all chunks up to each.
        has_start: `start` is combined before the first element.
        is_exclusive: each result is of what is before its element, of which there is a start.
    """
    kind = numba_type(state)
    rows, along, columns, _ = layout
    each = each_of(state)
    chunk = along * each
    wide = chunk * columns
    size = THREADS * each
    padded = size + size // 32  # no bank is hit twice where runs of 16 are read side by side
    apart = THREADS + THREADS // 32  # places between elements that a thread stages
    twice = 2 * THREADS

    lifted, finished = _ends(kind, lift, finish, is_first, is_total)

    @launcher(may_alias=True)
    @cuda.jit
    def scan_chunks(
        z: KernelOutput, x: KernelInput, before: KernelInput, start: Any, parts: int
    ) -> None:
        tile = cuda.shared.array(padded, kind)
        totals = cuda.shared.array(twice, kind)
        t = int64(cuda.threadIdx.x)
        number = uint32(cuda.blockIdx.x)
        first_column = int64(0)
        if columns > 1:
            across = uint32((x.shape[2] + columns - 1) // columns)
            beside = number // across
            first_column = int64(number - beside * across) * columns
            number = uint32(beside)
        above = number // uint32(parts)
        part = int64(number - above * uint32(parts))
        first_row = int64(above) * rows
        first = part * chunk
        # Element k of thread t is number k * THREADS + t of the block: its place is a sum of two,
        # as `THREADS` divides a row of the block, or is some of them.
        row_t = first_row + t // wide
        i_t = first + t % wide // columns
        column_t = first_column + t % columns
        is_full = (
            first_row + rows <= x.shape[0]
            and first + chunk <= x.shape[1]
            and first_column + columns <= x.shape[2]
        )
        staged = t + t // 32
        if is_full:
            for k in range(each):
                row = row_t + k * THREADS // wide
                i = i_t + k * THREADS % wide // columns
                value = x[uint64(row), uint64(i), uint64(column_t)]
                tile[staged + k * apart] = lifted(value, i)
        else:
            column = min(column_t, x.shape[2] - 1)
            for k in range(each):
                row = min(row_t + k * THREADS // wide, x.shape[0] - 1)
                i = min(i_t + k * THREADS % wide // columns, x.shape[1] - 1)
                tile[staged + k * apart] = lifted(x[uint64(row), uint64(i), uint64(column)], i)
        cuda.syncthreads()

        own_column = t % columns
        own_i = t // columns % along
        own_row = t // (columns * along)
        run = (own_row * chunk + own_i * each) * columns + own_column
        run += run // 32  # and of element k: it carries nothing into the multiple of 32
        total = tile[run]
        for k in range(1, each):
            total = combine((total,), (tile[run + k * columns + k * columns // 32],))[0]
        here = 0
        totals[t] = total
        step = 1
        while step < along:
            cuda.syncthreads()
            if own_i >= step:
                total = combine((totals[here + t - step * columns],), (total,))[0]
            here = THREADS - here
            totals[here + t] = total
            step = step * 2
        cuda.syncthreads()

        row = first_row + own_row
        column = first_column + own_column
        is_there = row < x.shape[0] and column < x.shape[2]
        if is_total:
            if is_there and own_i == along - 1:
                z[row, part, column] = total
        else:
            is_begun = False
            carry = total
            if own_i > 0:
                carry = totals[here + t - columns]
                is_begun = True
            if has_before:  # noqa: SIM102 - a branch by itself, so that it is not even typed
                if part > 0 and is_there:
                    front = before[row, part - 1, column]
                    carry = combine((front,), (carry,))[0] if is_begun else front
                    is_begun = True
            if has_start:
                carry = combine((kind(start),), (carry,))[0] if is_begun else kind(start)
                is_begun = True
            for k in range(each):
                at = run + k * columns + k * columns // 32
                there = tile[at]
                if is_exclusive:
                    tile[at] = carry
                    carry = combine((carry,), (there,))[0]
                else:
                    carry = combine((carry,), (there,))[0] if is_begun else there
                    is_begun = True
                    tile[at] = carry
            cuda.syncthreads()
            for k in range(each):
                row = row_t + k * THREADS // wide
                i = i_t + k * THREADS % wide // columns
                if is_full or (row < x.shape[0] and i < x.shape[1] and column_t < x.shape[2]):
                    z[row, i, column_t] = finished(tile[staged + k * apart])

    return scan_chunks


@cache
def four_storer(dtype: np.dtype[Any]) -> Any:
    """The device function ``(z, row, i, a, b, c, d)``, of what `four_loader` loads."""
    if dtype.itemsize <= 4:

        @cuda.jit(device=True)
        def store_four(z: Any, row: Any, i: Any, a: Any, b: Any, c: Any, d: Any) -> None:
            vectors.store(z, (row, 0, i), (a, b, c, d))
    else:

        @cuda.jit(device=True)
        def store_four(z: Any, row: Any, i: Any, a: Any, b: Any, c: Any, d: Any) -> None:
            vectors.store(z, (row, 0, i), (a, b))
            vectors.store(z, (row, 0, i + 2), (c, d))

    return store_four


@cuda.jit(device=True)
def _fourths_4(runs: Any) -> Any:
    return runs[3], runs[7], runs[11], runs[15]


@cuda.jit(device=True)
def _fourths_2(runs: Any) -> Any:
    return runs[3], runs[7]


@cuda.jit(device=True)
def _fourths_1(runs: Any) -> Any:
    return (runs[3],)


FOURTHS = {4: _fourths_4, 2: _fourths_2, 1: _fourths_1}


@cache
def _side_by_side(combine: Any, fours: int) -> Any:
    """The operator of so many states, each combined with its like."""

    @cuda.jit(device=True)
    def combine_1(a: Any, b: Any) -> Any:
        return combine(a, b)

    @cuda.jit(device=True)
    def combine_2(a: Any, b: Any) -> Any:
        return combine((a[0],), (b[0],))[0], combine((a[1],), (b[1],))[0]

    @cuda.jit(device=True)
    def combine_4(a: Any, b: Any) -> Any:
        low, high = combine_2((a[0], a[1]), (b[0], b[1])), combine_2((a[2], a[3]), (b[2], b[3]))
        return low[0], low[1], high[0], high[1]

    return {1: combine_1, 2: combine_2, 4: combine_4}[fours]


@cache
def scan_row_kernel(
    state: np.dtype[Any], lift: Any, combine: Any, finish: Any, dtype: np.dtype[Any],
    out: np.dtype[Any], is_first: bool, has_before: bool, has_start: bool, is_exclusive: bool,
) -> Any:  # fmt: skip
    """The launcher ``(z, x, words, start, parts)`` of long rows, seen as ``(rows, 1, n)``.

    Args:
        dtype, out: of the elements, and of what is written.
        has_before: rows have several chunks, `parts`. Then `words` has the words of
            `look_back.before` for all rows, and one more, from which the blocks draw their chunks;
            all of them are 0 at first.

    The others are those of `scan_kernel`.
    """
    kind = numba_type(state)
    each = each_of(state)
    fours, part_size = each // 4, 4 * THREADS
    chunk, size = THREADS * each, THREADS * each // 4
    wide_in, wide_out = vector_of(dtype), vector_of(out)
    load_four, store_four = four_loader(dtype), four_storer(out)
    fourths, together = FOURTHS[fours], _side_by_side(combine, fours)

    lifted, finished = _ends(kind, lift, finish, is_first, False)
    combine_before = before(state, combine)

    @launcher(may_alias=True)
    @cuda.jit
    def scan_row_chunks(
        z: KernelOutput, x: KernelInput, words: KernelOutput, start: Any, parts: int
    ) -> None:
        totals = cuda.shared.array(size, kind)
        drawn = cuda.shared.array(1, uint32)
        runs = cuda.local.array(each, kind)
        t = int64(cuda.threadIdx.x)
        number = uint32(cuda.blockIdx.x)
        if has_before:
            if t == 0:
                drawn[0] = uint32(cuda.atomic.add(words, words.shape[0] - 1, uint64(1)))
            cuda.syncthreads()
            number = drawn[0]
        row = int64(number // uint32(parts))
        part = int64(number) - row * parts
        first = part * chunk
        left = x.shape[2] - first
        own = first + 4 * t
        is_loaded = False
        if wide_in:  # noqa: SIM102 - as below: where it is 0, what follows has no types
            if left >= chunk and vectors.is_aligned(x, (uint64(row), 0, uint64(own)), wide_in):
                for g in range(fours):
                    a, b, c, d = load_four(x, uint64(row), uint64(own + g * part_size))
                    runs[4 * g] = lifted(a, own)
                    runs[4 * g + 1] = lifted(b, own)
                    runs[4 * g + 2] = lifted(c, own)
                    runs[4 * g + 3] = lifted(d, own)
                is_loaded = True
        if not is_loaded:
            for k in range(each):
                i = min(own + k // 4 * part_size + k % 4, x.shape[2] - 1)
                runs[k] = lifted(x[uint64(row), 0, uint64(i)], own)
        for g in range(fours):
            for k in range(4 * g + 1, 4 * g + 4):
                runs[k] = combine((runs[k - 1],), (runs[k],))[0]
        upto = block.scan(fourths(runs), together)
        for g in range(fours):
            totals[g * THREADS + t] = upto[g]
        cuda.syncthreads()

        is_begun = False
        front = runs[0]
        if has_before:
            total = totals[THREADS - 1]
            for g in range(1, fours):
                total = combine((total,), (totals[g * THREADS + THREADS - 1],))[0]
            is_there, front = combine_before(words, row, part, int64(parts), total)
            is_begun = is_there != 0
        if has_start:
            front = combine((kind(start),), (front,))[0] if is_begun else kind(start)
            is_begun = True
        for g in range(fours):
            carry, is_behind = front, is_begun
            if t > 0:
                there = totals[g * THREADS + t - 1]
                carry = combine((front,), (there,))[0] if is_begun else there
                is_behind = True
            if is_exclusive:
                for k in range(4 * g + 3, 4 * g, -1):
                    runs[k] = combine((carry,), (runs[k - 1],))[0]
                runs[4 * g] = carry
            elif is_behind:
                for k in range(4 * g, 4 * g + 4):
                    runs[k] = combine((carry,), (runs[k],))[0]
            last = totals[g * THREADS + THREADS - 1]
            front = combine((front,), (last,))[0] if is_begun else last
            is_begun = True
        is_stored = False
        if wide_out:  # noqa: SIM102
            if left >= chunk and vectors.is_aligned(z, (uint64(row), 0, uint64(own)), wide_out):
                for g in range(fours):
                    store_four(
                        z, uint64(row), uint64(own + g * part_size), finished(runs[4 * g]),
                        finished(runs[4 * g + 1]), finished(runs[4 * g + 2]),
                        finished(runs[4 * g + 3]),
                    )  # fmt: skip
                is_stored = True
        if not is_stored:
            for k in range(each):
                i = own + k // 4 * part_size + k % 4
                if i < x.shape[2]:
                    z[uint64(row), 0, uint64(i)] = finished(runs[k])

    return scan_row_chunks
