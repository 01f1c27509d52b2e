"""Twenty kernels after the ideas of Numba's CUDA documentation, each with what it is to give.

They import nothing of numbasync: a kernel is tested as it is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, float32, int32
from numba.cuda.random import init_xoroshiro128p_states_cpu, xoroshiro128p_dtype
from numba.cuda.random import xoroshiro128p_uniform_float32 as uniform

from tests.planted_bugs.cases import Case

RNG = np.random.default_rng(2024)
TPB = 8  # threads along an axis of a block that has two
PADDED = TPB + 1
BLOCK = 64


def floats(*shape):
    return RNG.random(shape, np.float32)


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


# --- one thread an element ---


@cuda.jit
def vector_add(out, x, y):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i] + y[i]


@cuda.jit
def grid_stride(z):
    for i in range(cuda.grid(1), z.shape[0], cuda.gridsize(1)):
        z[i] += 1


@cuda.jit
def increment_by_one(z):
    tx, ty, bw = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockDim.x
    i = tx + ty * bw
    if i < z.size:
        z[i] += 1


@cuda.jit
def increment_2d(z):
    x, y = cuda.grid(2)
    if x < z.shape[0] and y < z.shape[1]:
        z[x, y] += 1


@cuda.jit
def flat_image(out, image, width, height):
    x, y = cuda.grid(2)
    if x < width and y < height:
        out[y * width + x] = 255 - image[y * width + x]


TABLE = np.array([1, 10, 100, 1000], np.float32)


@cuda.jit
def look_up(out, x):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = TABLE[x[i]]


@cuda.jit(device=True)
def clamped(x, low, high):
    return min(max(x, low), high)


@cuda.jit
def clamp(out, x, low, high):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = clamped(x[i], low, high)


@cuda.jit
def sines(out, x):
    i = cuda.grid(1)
    if i == 0:
        np.sin(x, out)


@cuda.jit
def stencil(out, x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        if i == 0 or i == x.shape[0] - 1:
            out[i] = x[i]
        else:
            out[i] = (x[i - 1] + x[i] + x[i + 1]) / 3


def smoothed(out, x):
    out[:] = x
    out[1:-1] = (x[:-2] + x[1:-1] + x[2:]) / 3
    return out


# --- matrices ---


@cuda.jit
def matmul(c, a, b):
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


@cuda.jit
def matmul_shared(c, a, b):
    left = cuda.shared.array((TPB, TPB), float32)
    right = cuda.shared.array((TPB, TPB), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for step in range((a.shape[1] + TPB - 1) // TPB):
        left[ty, tx] = 0
        right[ty, tx] = 0
        if y < a.shape[0] and tx + step * TPB < a.shape[1]:
            left[ty, tx] = a[y, tx + step * TPB]
        if x < b.shape[1] and ty + step * TPB < b.shape[0]:
            right[ty, tx] = b[ty + step * TPB, x]
        cuda.syncthreads()
        for k in range(TPB):
            total += left[ty, k] * right[k, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


@cuda.jit
def transpose(out, x):
    held = cuda.shared.array((TPB, PADDED), float32)
    column, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    if row < x.shape[0] and column < x.shape[1]:
        held[ty, tx] = x[row, column]
    cuda.syncthreads()
    i = cuda.blockIdx.x * TPB + ty
    j = cuda.blockIdx.y * TPB + tx
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = held[tx, ty]


# --- threads of a block together ---


@cuda.jit
def block_sums(out, x):
    held = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    held[t] = x[i] if i < x.shape[0] else 0
    cuda.syncthreads()
    s = BLOCK // 2
    while s > 0:
        if t < s:
            held[t] += held[t + s]
        cuda.syncthreads()
        s //= 2
    if t == 0:
        out[cuda.blockIdx.x] = held[0]


def sums_of_blocks(out, x):
    return np.pad(x, (0, -x.size % BLOCK)).reshape(-1, BLOCK).sum(1)


@cuda.jit
def prefix_sums(out, x):
    held = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    held[t] = x[t]
    cuda.syncthreads()
    step = 1
    while step < BLOCK:
        before = held[t - step] if t >= step else float32(0)
        cuda.syncthreads()
        held[t] += before
        cuda.syncthreads()
        step *= 2
    out[t] = held[t]


@cuda.jit
def reverse(z):
    held = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    held[t] = z[t]
    cuda.syncthreads()
    z[t] = held[z.shape[0] - 1 - t]


@cuda.jit
def warp_sums(out, x):
    i = cuda.grid(1)
    value = x[i]
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    if cuda.laneid == 0:
        out[i // 32] = value


@cuda.jit
def warps_with_any(out, x, limit):
    i = cuda.grid(1)
    found = cuda.any_sync(0xFFFFFFFF, x[i] > limit)
    if cuda.laneid == 0:
        out[i // 32] = 1 if found else 0


# --- many threads, one element ---


@cuda.jit
def histogram(bins, x):
    held = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        held[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(held, x[i], 1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(bins, t, held[t])


@cuda.jit
def maximum(out, x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.max(out, 0, x[i])


# --- more of the documents ---


@cuda.jit
def sessions(out, user, time):
    """A session of a user begins after so much time; every event gets its session's first."""
    i = cuda.grid(1)
    if i < user.shape[0]:
        first = i
        while first > 0 and user[first] == user[first - 1] and time[first] - time[first - 1] <= 30:
            first -= 1
        out[i] = first


def sessions_of(out, user, time):
    begins = np.ones(user.size, bool)
    begins[1:] = (user[1:] != user[:-1]) | (np.diff(time) > 30)
    return np.maximum.accumulate(np.where(begins, np.arange(user.size), 0))


@cuda.jit
def heat(old, new, steps, k):
    i = cuda.grid(1)
    everybody = cuda.cg.this_grid()
    for step in range(steps):
        source, target = (old, new) if step % 2 == 0 else (new, old)
        if i < old.shape[0]:
            left = source[i - 1] if i > 0 else float32(0)
            right = source[i + 1] if i < old.shape[0] - 1 else float32(0)
            target[i] = source[i] + k * (left - 2 * source[i] + right)
        everybody.sync()


def warmed(old, new, steps, k):
    for _ in range(steps):
        padded = np.pad(old, 1)
        old, new = old + k * (padded[:-2] - 2 * old + padded[2:]), old
    return (old, new) if steps % 2 == 0 else (new, old)


@cuda.jit
def monte_carlo(out, states, throws):
    i = cuda.grid(1)
    if i < out.shape[0]:
        inside = 0
        for _ in range(throws):
            x = uniform(states, i)
            y = uniform(states, i)
            if x * x + y * y <= 1:
                inside += 1
        out[i] = 4 * inside / throws


def pis(out, states, throws):
    s0, s1 = states["s0"].copy(), states["s1"].copy()

    def rotated(x, k):
        return (x << np.uint64(k)) | (x >> np.uint64(64 - k))

    def drawn():
        nonlocal s0, s1
        total = s0 + s1
        s1 ^= s0
        s0, s1 = rotated(s0, 55) ^ s1 ^ (s1 << np.uint64(14)), rotated(s1, 36)
        return ((total >> np.uint64(11)) * 2.0**-53).astype(np.float32)

    inside = np.zeros(out.size)
    for _ in range(throws):
        x, y = drawn(), drawn()
        inside += x * x + y * y <= 1
    assert abs(4 * inside.sum() / throws / out.size - math.pi) < 0.2
    states["s0"], states["s1"] = s0, s1
    return 4 * inside / throws, states


def generators(n):
    states = np.empty(n, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, 7, 0)
    return states


IMAGE = RNG.integers(0, 256, 12 * 20, dtype=np.uint8)
USERS = np.repeat([3, 5, 9], [20, 30, 27])
TIMES = np.concatenate([np.cumsum(RNG.integers(1, 60, n)) for n in (20, 30, 27)])

CASES = [
    Case(vector_add, [zeros(100), floats(100), floats(100)], lambda out, x, y: x + y, tile=32),
    Case(grid_stride, [floats(1000)], lambda z: z + 1, grid=3, block=32, grids=((1, 1), (40, 64))),
    Case(increment_by_one, [floats(100)], lambda z: z + 1, tile=32),
    Case(increment_2d, [floats(20, 13)], lambda z: z + 1, tile=(8, 4)),
    Case(flat_image, [zeros(240, dtype=np.uint8), IMAGE, 20, 12],
         lambda out, image, w, h: 255 - image, grid=(3, 2), block=(8, 8)),
    Case(look_up, [zeros(50), RNG.integers(0, 4, 50)], lambda out, x: TABLE[x], tile=16),
    Case(clamp, [zeros(50), floats(50), 0.25, 0.75],
         lambda out, x, low, high: np.clip(x, low, high), tile=16),
    Case(sines, [zeros(10), floats(10)], lambda out, x: np.sin(x), grid=1, block=1),
    Case(stencil, [zeros(100), floats(100)], smoothed, tile=32),
    Case(matmul, [zeros(20, 11), floats(20, 30), floats(30, 11)], lambda c, a, b: a @ b,
         tile=(8, 8)),
    Case(matmul_shared, [zeros(20, 11), floats(20, 30), floats(30, 11)], lambda c, a, b: a @ b,
         grid=(2, 3), block=(TPB, TPB)),
    Case(transpose, [zeros(13, 20), floats(20, 13)], lambda out, x: x.T, grid=(2, 3),
         block=(TPB, TPB)),
    Case(block_sums, [zeros(4), floats(250)], sums_of_blocks, grid=4, block=BLOCK),
    Case(prefix_sums, [zeros(BLOCK), floats(BLOCK)], lambda out, x: np.cumsum(x), grid=1,
         block=BLOCK),
    Case(reverse, [floats(50)], lambda z: z[::-1], grid=1, block=50, shared_bytes=200),
    Case(warp_sums, [zeros(4), floats(128)], lambda out, x: x.reshape(4, 32).sum(1), grid=2,
         block=64),
    Case(warps_with_any, [zeros(4, dtype=np.int32), np.repeat([0.1, 0.9, 0.2, 0.8], 32), 0.5],
         lambda out, x, limit: (x.reshape(4, 32) > limit).any(1), grid=2, block=64),
    Case(histogram, [zeros(16, dtype=np.int32), RNG.integers(0, 16, 500)],
         lambda bins, x: bins + np.bincount(x, minlength=16), grid=3, block=32),
    Case(maximum, [zeros(1), floats(500)], lambda out, x: x.max(), grid=8, block=64),
    Case(sessions, [zeros(77, dtype=np.int64), USERS, TIMES], sessions_of, tile=32),
    Case(heat, [floats(100), zeros(100), 6, 0.25], warmed, grid=2, block=64),
    Case(monte_carlo, [zeros(50), generators(50), 100], pis, grid=2, block=32),
]  # fmt: skip
