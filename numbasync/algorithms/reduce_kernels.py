"""The kernels that reduce: one tree of combinations, for every operator and every axis.

An input is seen as ``(rows, n, columns)``, and reduced along the middle axis. A block has `rows` x
`along` x `columns` threads, and a chunk of ``along * each`` elements of that axis. Of one column,
thread i of a chunk has four neighbours, from 4 i on, and the four that are 4 `along` further on, 8
`along`, and so on, which it loads 16 bytes at a time where they are aligned. Of several columns it
has the elements i, i + `along`, i + 2 `along` and so on. It combines each fourth of its elements,
from the first, the second, the third and the fourth on, so that four combinations do not wait for
one another; then these four, and with them what is left over. Then the threads combine their
results by halves in shared memory. Several chunks of a row give several
results, which the next launch reduces in the same way, until there is one.

The shape of the tree follows from n, and from whether `columns` is 1: neither the grid nor the
device has a part in it, nor where an array begins. No neutral element is needed: threads without
elements take no part.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from numbasync import vectors
from numbasync.kernel_names import cuda, int64, uint64
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput

THREADS = 256
EACH = 16  # elements of a thread
MANY = 64  # of a thread, of long rows


class Block(NamedTuple):
    """How the threads of a block are laid out: their product is `THREADS`."""

    rows: int
    along: int
    columns: int
    each: int = EACH

    @property
    def chunk(self) -> int:
        """Elements along the reduced axis that a block reduces to one."""
        return self.along * self.each


def block_of(n: int, columns: int) -> Block:
    """The layout for `n` elements to reduce, with so many columns beside one another."""
    if columns == 1:
        # As few threads as have work for four loads: each level of the tree is a barrier.
        along = next((k for k in (4, 8, 16, 32) if n <= k * EACH), THREADS) if n > 8 else 1
        each = 4 if n <= 4 * along else EACH if n <= THREADS * EACH else MANY
        return Block(THREADS // along, along, 1, each)
    beside = 4 if columns <= 8 else 32
    return Block(1, THREADS // beside, beside)


@cuda.jit(device=True)
def _put_1(a: Any, b: Any, c: Any, at: Any, state: Any) -> None:
    a[at] = state[0]


@cuda.jit(device=True)
def _put_2(a: Any, b: Any, c: Any, at: Any, state: Any) -> None:
    a[at] = state[0]
    b[at] = state[1]


@cuda.jit(device=True)
def _put_3(a: Any, b: Any, c: Any, at: Any, state: Any) -> None:
    a[at] = state[0]
    b[at] = state[1]
    c[at] = state[2]


@cuda.jit(device=True)
def _get_1(a: Any, b: Any, c: Any, at: Any) -> Any:
    return (a[at],)


@cuda.jit(device=True)
def _get_2(a: Any, b: Any, c: Any, at: Any) -> Any:
    return a[at], b[at]


@cuda.jit(device=True)
def _get_3(a: Any, b: Any, c: Any, at: Any) -> Any:
    return a[at], b[at], c[at]


PUT = {1: _put_1, 2: _put_2, 3: _put_3}
GET = {1: _get_1, 2: _get_2, 3: _get_3}


def numba_type(dtype: np.dtype[Any]) -> Any:
    """The type of shared memory for elements of a state."""
    from numbasync.kernel_names import from_dtype

    return from_dtype(dtype)


@cache
def four_loader(dtype: np.dtype[Any]) -> Any:
    """The device function ``(x, row, i)``: four neighbours, from an aligned index on, of an array
    that is seen as ``(rows, 1, n)``.
    """
    if dtype.itemsize <= 4:

        @cuda.jit(device=True)
        def load_four(x: Any, row: Any, i: Any) -> Any:
            return vectors.load(x, (row, 0, i), 4)
    else:

        @cuda.jit(device=True)
        def load_four(x: Any, row: Any, i: Any) -> Any:
            return vectors.load(x, (row, 0, i), 2) + vectors.load(x, (row, 0, i + 2), 2)

    return load_four


def vector_of(dtype: np.dtype[Any]) -> int:
    """How many of four neighbours one instruction loads; 0: they are too wide."""
    return 0 if dtype.itemsize > 8 else min(4, 16 // dtype.itemsize)


@cache
def reduce_kernel(
    states: tuple[np.dtype[Any], ...],
    lift: Any,
    combine: Any,
    finish: Any,
    block: Block,
    is_first: bool,
    is_last: bool,
    dtype: np.dtype[Any],
) -> Any:
    """The launcher of one level: of `n` elements of each row and column, one for each chunk.

    Of one column, the inputs are seen as ``(rows, 1, n)``.

    Args:
        states: the dtypes of what is combined, one to three.
        lift, combine, finish: of an `Operator`.
        is_first: elements of the input are read and lifted, else states of the level before.
        is_last: there is one chunk, whose state is finished.
        dtype: of the elements.
    """
    room_0, room_1, room_2 = (numba_type(d) for d in (*states, states[0], states[0])[:3])
    size_1 = THREADS if len(states) > 1 else 1
    size_2 = THREADS if len(states) > 2 else 1
    put, get = PUT[len(states)], GET[len(states)]
    rows, along, columns, each = block
    chunk, half, apart = block.chunk, along // 2, 4 * along
    # Neighbours that a thread has, and where the next of its first four elements is.
    beside, step_beside = (4, 1) if columns == 1 else (1, along)
    wide = vector_of(dtype) if is_first and beside == 4 else 0

    @cuda.jit(device=True)
    def along_last(row: Any, i: Any, column: Any) -> Any:
        return row, column, i

    @cuda.jit(device=True)
    def along_middle(row: Any, i: Any, column: Any) -> Any:
        return row, i, column

    at_place = along_last if columns == 1 else along_middle
    axis, across_axis = (2, 1) if columns == 1 else (1, 2)

    @cuda.jit(device=True)
    def load_element(x0: Any, x1: Any, x2: Any, row: Any, i: Any, column: Any) -> Any:
        return lift(x0[at_place(row, i, column)], i)

    @cuda.jit(device=True)
    def load_state(x0: Any, x1: Any, x2: Any, row: Any, i: Any, column: Any) -> Any:
        return get(x0, x1, x2, at_place(row, i, column))

    @cuda.jit(device=True)
    def store_result(z0: Any, z1: Any, z2: Any, at: Any, state: Any, total: Any, last: Any) -> None:
        z0[at] = finish(state, total, last)

    @cuda.jit(device=True)
    def store_state(z0: Any, z1: Any, z2: Any, at: Any, state: Any, total: Any, last: Any) -> None:
        put(z0, z1, z2, at, state)

    load = load_element if is_first else load_state
    store = store_result if is_last else store_state

    @cuda.jit(device=True)
    def fold_chunk(x0: Any, x1: Any, x2: Any, row: Any, i: Any, column: Any) -> Any:
        """The thread's elements of a full chunk, from `i` on."""
        a = load(x0, x1, x2, row, i, column)
        b = load(x0, x1, x2, row, i + step_beside, column)
        c = load(x0, x1, x2, row, i + 2 * step_beside, column)
        d = load(x0, x1, x2, row, i + 3 * step_beside, column)
        for m in range(1, each // 4):
            k = i + m * apart
            a = combine(a, load(x0, x1, x2, row, k, column))
            b = combine(b, load(x0, x1, x2, row, k + step_beside, column))
            c = combine(c, load(x0, x1, x2, row, k + 2 * step_beside, column))
            d = combine(d, load(x0, x1, x2, row, k + 3 * step_beside, column))
        return combine(combine(a, b), combine(c, d))

    load_four = four_loader(dtype)

    @cuda.jit(device=True)
    def fold_vectors(x: Any, row: Any, i: Any) -> Any:
        """The same, by vectors."""
        four = load_four(x, row, i)
        a, b = lift(four[0], i), lift(four[1], i + 1)
        c, d = lift(four[2], i + 2), lift(four[3], i + 3)
        for m in range(1, each // 4):
            k = i + m * apart
            four = load_four(x, row, k)
            a = combine(a, lift(four[0], k))
            b = combine(b, lift(four[1], k + 1))
            c = combine(c, lift(four[2], k + 2))
            d = combine(d, lift(four[3], k + 3))
        return combine(combine(a, b), combine(c, d))

    @launcher(may_alias=True)
    @cuda.jit
    def reduce_chunks(
        z0: KernelOutput, z1: KernelOutput, z2: KernelOutput,
        x0: KernelInput, x1: KernelInput, x2: KernelInput, total: int, last: Any,
    ) -> None:  # fmt: skip
        held_0 = cuda.shared.array(THREADS, room_0)
        held_1 = cuda.shared.array(size_1, room_1)
        held_2 = cuda.shared.array(size_2, room_2)
        t = int64(cuda.threadIdx.x)
        i = t // columns % along
        across = (x0.shape[across_axis] + columns - 1) // columns
        number = int64(cuda.blockIdx.x)
        column = number % across * columns + t % columns
        number = number // across
        part = number % z0.shape[1]
        row = number // z0.shape[1] * rows + t // (columns * along)
        first = part * chunk
        left = min(x0.shape[axis] - first, chunk)
        is_there = row < x0.shape[0] and column < x0.shape[across_axis]
        # Unsigned, so that device functions need not ask whether an index is negative.
        row_in = uint64(min(row, x0.shape[0] - 1))
        column_in = uint64(min(column, x0.shape[across_axis] - 1))
        start = i * beside
        if left == chunk:
            if wide:
                if vectors.is_aligned(x0, (row_in, 0, uint64(first)), wide):
                    state = fold_vectors(x0, row_in, uint64(first + start))
                else:
                    state = fold_chunk(x0, x1, x2, row_in, uint64(first + start), column_in)
            else:
                state = fold_chunk(x0, x1, x2, row_in, uint64(first + start), column_in)
        else:
            state = load(x0, x1, x2, row_in, uint64(first + min(start, left - 1)), column_in)
            k, end = start + step_beside, left
            if left >= apart:
                b = load(x0, x1, x2, row_in, uint64(first + k), column_in)
                c = load(x0, x1, x2, row_in, uint64(first + k + step_beside), column_in)
                d = load(x0, x1, x2, row_in, uint64(first + k + 2 * step_beside), column_in)
                k = start + apart
                while k + 3 * step_beside < left:
                    i0, i1 = uint64(first + k), uint64(first + k + step_beside)
                    i2 = uint64(first + k + 2 * step_beside)
                    i3 = uint64(first + k + 3 * step_beside)
                    state = combine(state, load(x0, x1, x2, row_in, i0, column_in))
                    b = combine(b, load(x0, x1, x2, row_in, i1, column_in))
                    c = combine(c, load(x0, x1, x2, row_in, i2, column_in))
                    d = combine(d, load(x0, x1, x2, row_in, i3, column_in))
                    k += apart
                state = combine(combine(state, b), combine(c, d))
            elif beside > 1:
                end = min(left, start + beside)
            while k < end:
                state = combine(state, load(x0, x1, x2, row_in, uint64(first + k), column_in))
                k += step_beside
        if half:
            put(held_0, held_1, held_2, t, state)
            step = half
            while step > 0:
                cuda.syncthreads()
                if i < step and (i + step) * beside < left:
                    there = get(held_0, held_1, held_2, t + step * columns)
                    state = combine(state, there)
                    put(held_0, held_1, held_2, t, state)
                step = step // 2
        if is_there and i == 0:
            store(z0, z1, z2, (row, part, column), state, total, last)

    return reduce_chunks
