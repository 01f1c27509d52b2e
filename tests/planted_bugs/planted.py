"""Thirty mistakes: five of each of six kinds, planted into kernels that are right without them.

What is wrong stands behind each `BUG`. They import nothing of numbasync.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, int32

from tests.planted_bugs.cases import Case
from tests.planted_bugs.kernels import (
    BLOCK,
    PADDED,
    RNG,
    TIMES,
    TPB,
    USERS,
    floats,
    sessions_of,
    smoothed,
    sums_of_blocks,
    zeros,
)

WITH_HALO = BLOCK + 2

# --- a missing barrier ---


@cuda.jit
def matmul_overwrites_its_tiles(c, a, b):
    left = cuda.shared.array((TPB, TPB), float32)
    right = cuda.shared.array((TPB, TPB), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for step in range((a.shape[1] + TPB - 1) // TPB):
        left[ty, tx] = a[y, tx + step * TPB] if y < a.shape[0] else 0
        right[ty, tx] = b[ty + step * TPB, x] if x < b.shape[1] else 0
        cuda.syncthreads()
        for k in range(TPB):
            total += left[ty, k] * right[k, tx]
        # BUG: a barrier before the next step
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


@cuda.jit
def block_sums_do_not_wait(out, x):
    held = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    held[t] = x[i] if i < x.shape[0] else 0
    cuda.syncthreads()
    s = BLOCK // 2
    while s > 0:
        if t < s:
            held[t] += held[t + s]
        s //= 2  # BUG: a barrier between the steps
    if t == 0:
        out[cuda.blockIdx.x] = held[0]


@cuda.jit
def reverse_reads_too_early(z):
    held = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    held[t] = z[t]
    # BUG: a barrier
    z[t] = held[z.shape[0] - 1 - t]


@cuda.jit
def transpose_reads_too_early(out, x):
    held = cuda.shared.array((TPB, PADDED), float32)
    column, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    if row < x.shape[0] and column < x.shape[1]:
        held[ty, tx] = x[row, column]
    i = cuda.blockIdx.x * TPB + ty  # BUG: a barrier before this
    j = cuda.blockIdx.y * TPB + tx
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = held[tx, ty]


@cuda.jit
def prefix_sums_in_place(out, x):
    held = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    held[t] = x[t]
    cuda.syncthreads()
    step = 1
    while step < BLOCK:
        before = held[t - step] if t >= step else float32(0)
        held[t] += before  # BUG: a barrier before this
        cuda.syncthreads()
        step *= 2
    out[t] = held[t]


# --- a guard that is off by one ---


@cuda.jit
def add_up_to_n(out, x, y):
    i = cuda.grid(1)
    if i <= out.shape[0]:  # BUG: <
        out[i] = x[i] + y[i]


@cuda.jit
def increment_to_the_edge(z):
    x, y = cuda.grid(2)
    if x < z.shape[0] and y <= z.shape[1]:  # BUG: <
        z[x, y] += 1


@cuda.jit
def stencil_at_the_edge(out, x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        if i == 0:  # BUG: or i == x.shape[0] - 1
            out[i] = x[i]
        else:
            out[i] = (x[i - 1] + x[i] + x[i + 1]) / 3


@cuda.jit
def stride_without_the_last(z):
    for i in range(cuda.grid(1), z.shape[0] - 1, cuda.gridsize(1)):  # BUG: z.shape[0]
        z[i] += 1


@cuda.jit
def sessions_from_the_second(out, user, time):
    i = cuda.grid(1)
    if i < user.shape[0]:
        first = i
        # BUG: first > 0
        while first > 1 and user[first] == user[first - 1] and time[first] - time[first - 1] <= 30:
            first -= 1
        out[i] = first


# --- a wrong stride ---


@cuda.jit
def stride_of_a_block(z):
    for i in range(cuda.grid(1), z.shape[0], cuda.blockDim.x):  # BUG: gridsize(1)
        z[i] += 1


@cuda.jit
def rows_as_long_as_columns(out, image, width, height):
    x, y = cuda.grid(2)
    if x < width and y < height:
        out[y * height + x] = 255 - image[y * height + x]  # BUG: y * width + x


@cuda.jit
def matmul_of_the_transposed(c, a, b):
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[i, k] * b[j, k]  # BUG: b[k, j]
        c[i, j] = total


@cuda.jit
def block_sums_skip(out, x):
    held = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    held[t] = x[i] if i < x.shape[0] else 0
    cuda.syncthreads()
    s = BLOCK // 4  # BUG: BLOCK // 2
    while s > 0:
        if t < s:
            held[t] += held[t + s]
        cuda.syncthreads()
        s //= 2
    if t == 0:
        out[cuda.blockIdx.x] = held[0]


@cuda.jit
def every_second_pair(out, x):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i] + x[i + 1]  # BUG: x[2 * i] + x[2 * i + 1]


# --- shared memory that nobody has written ---


@cuda.jit
def block_sums_of_part(out, x):
    held = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.shape[0]:
        held[t] = x[i]  # BUG: else held[t] = 0
    cuda.syncthreads()
    s = BLOCK // 2
    while s > 0:
        if t < s:
            held[t] += held[t + s]
        cuda.syncthreads()
        s //= 2
    if t == 0:
        out[cuda.blockIdx.x] = held[0]


@cuda.jit
def histogram_of_old_counts(bins, x):
    held = cuda.shared.array(16, int32)  # BUG: zero it
    t = cuda.threadIdx.x
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(held, x[i], 1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(bins, t, held[t])


@cuda.jit
def matmul_without_padding(c, a, b):
    left = cuda.shared.array((TPB, TPB), float32)
    right = cuda.shared.array((TPB, TPB), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for step in range((a.shape[1] + TPB - 1) // TPB):
        if y < a.shape[0] and tx + step * TPB < a.shape[1]:
            left[ty, tx] = a[y, tx + step * TPB]  # BUG: else 0
        if x < b.shape[1] and ty + step * TPB < b.shape[0]:
            right[ty, tx] = b[ty + step * TPB, x]  # BUG: else 0
        cuda.syncthreads()
        for k in range(TPB):
            total += left[ty, k] * right[k, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


@cuda.jit
def stencil_without_halo(out, x):
    held = cuda.shared.array(WITH_HALO, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.shape[0]:
        held[t + 1] = x[i]  # BUG: and the first and the last load their neighbours
    cuda.syncthreads()
    if 0 < i < x.shape[0] - 1:
        out[i] = (held[t] + held[t + 1] + held[t + 2]) / 3
    elif i < x.shape[0]:
        out[i] = x[i]


@cuda.jit
def first_warp_loads(out, x):
    weights = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t < 32:  # BUG: for all BLOCK of them
        weights[t] = t + 1
    cuda.syncthreads()
    if i < x.shape[0]:
        out[i] = x[i] * weights[t]


# --- an increment that is not atomic ---


@cuda.jit
def histogram_in_plain(bins, x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        bins[x[i]] += 1  # BUG: cuda.atomic.add


@cuda.jit
def shared_histogram_in_plain(bins, x):
    held = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        held[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        held[x[i]] += 1  # BUG: cuda.atomic.add
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(bins, t, held[t])


@cuda.jit
def total_of_blocks(total, x):
    held = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    held[t] = x[i]
    cuda.syncthreads()
    if t == 0:
        own = float32(0)
        for k in range(BLOCK):
            own += held[k]
        total[0] += own  # BUG: cuda.atomic.add


@cuda.jit
def maximum_by_comparison(out, x):
    i = cuda.grid(1)
    if i < x.shape[0] and x[i] > out[0]:
        out[0] = x[i]  # BUG: cuda.atomic.max


@cuda.jit
def next_free_place(out, count, x):
    i = cuda.grid(1)
    if i < x.shape[0] and x[i] > 0.5:
        place = count[0]
        count[0] = place + 1  # BUG: place = cuda.atomic.add(count, 0, 1)
        out[place] = 1


# --- a write outside the block's tile ---


@cuda.jit
def shifted_by_one(out, x):
    i = cuda.grid(1)
    if i + 1 < out.shape[0]:
        out[i + 1] = x[i]  # BUG: out[i] = x[i - 1]


@cuda.jit
def two_elements_each(out, x):
    i = 2 * cuda.grid(1)  # BUG: the tile has one for each thread
    for k in range(i, min(i + 2, out.shape[0])):
        out[k] = x[k]


@cuda.jit
def strides_through_all(out, x):
    for i in range(cuda.grid(1), out.shape[0], 32):  # BUG: every block goes to the end
        out[i] = x[i]


@cuda.jit
def axes_swapped(out, x):
    j, i = cuda.grid(2)  # BUG: the partition has axis 0 on x
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j]


@cuda.jit
def next_block_first(out, x):
    b = (cuda.blockIdx.x + 1) % cuda.gridDim.x  # BUG: its own
    i = b * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.shape[0]:
        out[i] = x[i]


def bins_of(bins, x):
    return bins + np.bincount(x, minlength=16)


def pairs(out, x):
    return x[::2] + x[1::2]


def same(out, x):
    return x


def after(out, x):
    return np.concatenate([out[:1], x[:-1]])


def compacted(out, count, x):
    n = int((x > 0.5).sum())
    return np.where(np.arange(out.size) < n, 1, out), n


IN_BLOCKS = {"grid": 4, "block": BLOCK}
TILED = {"grid": (2, 3), "block": (TPB, TPB)}
NUMBERS = RNG.integers(0, 16, 250)
BINS = zeros(16, dtype=np.int32)
IMAGE = RNG.integers(0, 256, 240, dtype=np.uint8)

PLANTED = {
    "missing barrier": [
        Case(matmul_overwrites_its_tiles, [zeros(24, 16), floats(24, 32), floats(32, 16)],
             lambda c, a, b: a @ b, **TILED),
        Case(block_sums_do_not_wait, [zeros(4), floats(250)], sums_of_blocks, **IN_BLOCKS),
        Case(reverse_reads_too_early, [floats(50)], lambda z: z[::-1], grid=1, block=50,
             shared_bytes=200),
        Case(transpose_reads_too_early, [zeros(13, 20), floats(20, 13)], lambda out, x: x.T,
             **TILED),
        Case(prefix_sums_in_place, [zeros(BLOCK), floats(BLOCK)], lambda out, x: np.cumsum(x),
             grid=1, block=BLOCK),
    ],
    "off-by-one guard": [
        Case(add_up_to_n, [zeros(100), floats(100), floats(100)], lambda out, x, y: x + y,
             tile=32),
        Case(increment_to_the_edge, [floats(20, 13)], lambda z: z + 1, tile=(8, 4)),
        Case(stencil_at_the_edge, [zeros(100), floats(100)], smoothed, tile=32),
        Case(stride_without_the_last, [floats(1000)], lambda z: z + 1, grid=3, block=32),
        Case(sessions_from_the_second, [zeros(77, dtype=np.int64), USERS, TIMES // 10],
             sessions_of, tile=32),
    ],
    "wrong stride": [
        Case(stride_of_a_block, [floats(1000)], lambda z: z + 1, grid=3, block=32),
        Case(rows_as_long_as_columns, [zeros(240, dtype=np.uint8), IMAGE, 20, 12],
             lambda out, image, w, h: 255 - image, grid=(3, 2), block=(8, 8)),
        Case(matmul_of_the_transposed, [zeros(16, 16), floats(16, 16), floats(16, 16)],
             lambda c, a, b: a @ b, tile=(8, 8)),
        Case(block_sums_skip, [zeros(4), floats(250)], sums_of_blocks, **IN_BLOCKS),
        Case(every_second_pair, [zeros(50), floats(100)], pairs, tile=32),
    ],
    "uninitialised shared memory": [
        Case(block_sums_of_part, [zeros(4), floats(250)], sums_of_blocks, **IN_BLOCKS),
        Case(histogram_of_old_counts, [BINS, NUMBERS], bins_of, grid=3, block=32),
        Case(matmul_without_padding, [zeros(20, 11), floats(20, 30), floats(30, 11)],
             lambda c, a, b: a @ b, **TILED),
        Case(stencil_without_halo, [zeros(250), floats(250)], smoothed, **IN_BLOCKS),
        Case(first_warp_loads, [zeros(250), floats(250)],
             lambda out, x: x * (np.arange(250) % BLOCK + 1), **IN_BLOCKS),
    ],
    "non-atomic increment": [
        Case(histogram_in_plain, [BINS, NUMBERS], bins_of, **IN_BLOCKS),
        Case(shared_histogram_in_plain, [BINS, NUMBERS], bins_of, grid=3, block=32),
        Case(total_of_blocks, [zeros(1), floats(256)], lambda total, x: x.sum(), **IN_BLOCKS),
        Case(maximum_by_comparison, [zeros(1), floats(250)], lambda out, x: x.max(), **IN_BLOCKS),
        Case(next_free_place, [zeros(250), zeros(1, dtype=np.int32), floats(250)], compacted,
             **IN_BLOCKS),
    ],
    "tile overrun": [
        Case(shifted_by_one, [floats(100), floats(100)], after, tile=32),
        Case(two_elements_each, [floats(100), floats(100)], same, tile=32),
        Case(strides_through_all, [floats(100), floats(100)], same, tile=32),
        Case(axes_swapped, [floats(16, 16), floats(16, 16)], same, tile=(8, 8)),
        Case(next_block_first, [floats(100), floats(100)], same, tile=32),
    ],
}  # fmt: skip
