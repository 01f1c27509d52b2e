"""Locks, flags, tickets, counters: what atomic operations and fences order, right and wrong.

A kernel makes the mistake whose number is passed; 0 is none. So a pattern is compiled once. They
import nothing of numbasync.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, int32

# The mistakes. Not every kernel can make each.
(
    NONE, NO_FENCES, NO_FENCE_BEFORE, NO_FENCE_BEHIND, PLAIN_STORE, PLAIN_READ, OTHER_ELEMENT,
    NO_WAIT, NO_BARRIER, NEIGHBOUR, OUTSIDE, FENCE_OF_BLOCK, FENCE_OF_BLOCK_BEHIND, ONE_FENCES,
    FENCED_BEFORE_BARRIER, FENCE_OF_BLOCK_BEFORE,
) = range(16)  # fmt: skip
MISTAKES = [
    "none", "no fences", "no fence before", "no fence behind", "a plain store", "a plain read",
    "another element", "no wait", "no barrier", "the neighbour's", "outside of it",
    "a fence of the block", "a fence of the block behind", "one thread fences for all",
    "each fences before the barrier", "a fence of the block before",
]  # fmt: skip


@cuda.jit(device=True)
def fence_before(mistake):
    if mistake in (FENCE_OF_BLOCK, FENCE_OF_BLOCK_BEFORE):
        cuda.threadfence_block()
    elif mistake != NO_FENCES and mistake != NO_FENCE_BEFORE:
        cuda.threadfence()


@cuda.jit(device=True)
def fence_behind(mistake):
    if mistake in (FENCE_OF_BLOCK, FENCE_OF_BLOCK_BEHIND):
        cuda.threadfence_block()
    elif mistake != NO_FENCES and mistake != NO_FENCE_BEHIND:
        cuda.threadfence()


@cuda.jit
def lock(out, locks, x, mistake):
    i = cuda.grid(1)
    own = i % 2 if mistake == OTHER_ELEMENT else 0
    while cuda.atomic.cas(locks, own, 0, 1) != 0:
        pass
    fence_behind(mistake)
    out[0] += x[i]
    fence_before(mistake)
    if mistake == PLAIN_STORE:
        locks[own] = 0
    else:
        cuda.atomic.exch(locks, own, 0)
    if mistake == OUTSIDE:
        out[0] += 1


@cuda.jit
def shared_lock(out, x, mistake):
    held, total = cuda.shared.array(1, int32), cuda.shared.array(1, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if t == 0:
        held[0] = 0
        total[0] = 0
    if mistake != NO_BARRIER:
        cuda.syncthreads()
    while cuda.atomic.cas(held, 0, 0, 1) != 0:
        pass
    fence_behind(mistake)
    total[0] += x[i]
    fence_before(mistake)
    cuda.atomic.exch(held, 0, 0)
    cuda.syncthreads()
    if t == 0:
        cuda.atomic.add(out, 0, total[0])


@cuda.jit
def ticket(out, counts, x, mistake):
    i = cuda.grid(1)
    mine = cuda.atomic.add(counts, 0, 1)
    while cuda.atomic.add(counts, 1, 0) < mine and mistake != NO_WAIT:
        pass
    fence_behind(mistake)
    out[0] += x[i]
    fence_before(mistake)
    cuda.atomic.add(counts, 1, 1)


@cuda.jit
def flag(out, data, flags, mistake):
    i = cuda.grid(1)
    if i == 0:
        cuda.atomic.exch(flags, 1, 1)
        data[0] = 7
        fence_before(mistake)
        if mistake == PLAIN_STORE:
            flags[0] = 1
        else:
            cuda.atomic.exch(flags, 0, 1)
        out[0] = 7
    else:
        k = 1 if mistake == OTHER_ELEMENT else 0
        seen = 0
        while seen == 0:
            if mistake == PLAIN_READ:
                seen = flags[k]
            elif mistake == NO_WAIT:
                cuda.atomic.add(flags, k, 0)
                seen = 1
            else:
                seen = cuda.atomic.add(flags, k, 0)
        fence_behind(mistake)
        out[i] = data[0]


@cuda.jit
def relay(out, data, flags, mistake):
    i = cuda.grid(1)
    if i == 0:
        data[0] = 7
        cuda.threadfence()
        cuda.atomic.exch(flags, 0, 1)
        out[0] = 7
    else:  # each waits for the one before it alone, and hears of thread 0 by all of them
        while cuda.atomic.cas(flags, i - 1, 1, 1) == 0:
            pass
        fence_behind(mistake)
        out[i] = data[0]
        fence_before(mistake)
        cuda.atomic.max(flags, i, 1)


@cuda.jit
def last_block(out, parts, done, mistake):
    is_last = cuda.shared.array(1, int32)
    t, b, n = cuda.threadIdx.x, cuda.blockIdx.x, cuda.gridDim.x
    parts[b, t] = b + 1
    if mistake != ONE_FENCES and mistake != OTHER_ELEMENT:
        fence_before(mistake)
    if mistake != NO_BARRIER:
        cuda.syncthreads()
    if t == 0:
        before = 0
        if mistake == OTHER_ELEMENT:  # counts first, and tells where nobody looks
            before = cuda.atomic.add(done, 0, 1)
        if mistake != FENCED_BEFORE_BARRIER:
            fence_before(mistake)
        if mistake == OTHER_ELEMENT:
            cuda.atomic.add(done, 1 + b, 1)
        else:
            before = cuda.atomic.add(done, 0, 1)
        is_last[0] = before == n - 1 or mistake == NO_WAIT
    cuda.syncthreads()
    if is_last[0]:
        fence_behind(mistake)
        total = float32(0)
        for k in range(n):
            total += parts[k, t]
        out[t] = total


@cuda.jit
def queue(out, head, x, mistake):
    i = cuda.grid(1)
    k = cuda.atomic.add(head, 0, 1)
    cuda.threadfence()
    out[k] = 1 + (out[k - 1] if mistake == NEIGHBOUR and k > 0 else 0)
    cuda.threadfence()
    cuda.atomic.add(x, i, 1)


@cuda.jit
def counted(out, counts, x, mistake):
    i = cuda.grid(1)
    cuda.atomic.add(counts, i, 1)
    cuda.threadfence()
    if mistake == NONE:
        cuda.atomic.add(out, 0, x[i])
    else:
        out[0] += x[i]  # what orders two threads is an element that both change
    cuda.threadfence()
    cuda.atomic.add(counts, i, 1)


@cuda.jit
def made_once(out, table, state, mistake):
    i = cuda.grid(1)
    ready = state[0] if mistake == PLAIN_READ else cuda.atomic.add(state, 0, 0)
    if ready == 0:
        while cuda.atomic.cas(state, 1, 0, 1) != 0:
            pass
        cuda.threadfence()
        if cuda.atomic.add(state, 0, 0) == 0:
            table[0] = 7
            fence_before(mistake)
            cuda.atomic.exch(state, 0, 1)
        cuda.threadfence()
        cuda.atomic.exch(state, 1, 0)
    fence_behind(mistake)
    out[i] = table[0]


@cuda.jit
def how_many(out, mistake):
    count = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        count[0] = 0
    if mistake != NO_BARRIER:
        cuda.syncthreads()
    cuda.atomic.add(count, 0, 1)
    if mistake != PLAIN_READ:
        cuda.syncthreads()
    out[cuda.grid(1)] = count[0]


@cuda.jit
def warp_tells(out, data, flags, mistake):
    """The lanes of the first warp write, lane 0 tells; the second warp waits."""
    t = cuda.threadIdx.x
    if t < 32:
        data[t] = t
    if mistake != NO_BARRIER:
        cuda.syncwarp()
    if t == 0:
        fence_before(mistake)
        cuda.atomic.exch(flags, 0, 1)
    if t >= 32:
        while cuda.atomic.add(flags, 0, 0) == 0:
            pass
        fence_behind(mistake)
        out[t - 32] = data[t - 32]


@cuda.jit
def changed_again(out, data, flags, mistake):
    """Block 0 tells at `flags[0]`, which threads of block 1, who know of each other but not of
    block 0, see and change. A plain store among them hides from thread 3 what block 0 has told.
    """
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if b == 0 and t == 0:
        data[0] = 7
        fence_before(mistake)
        cuda.atomic.add(flags, 0, 1)
    if b == 1:
        if t < 2:
            while cuda.atomic.add(flags, 0, 0) == 0:
                pass
        elif t == 2:
            while cuda.atomic.add(flags, 1, 0) < 2:
                pass
            cuda.threadfence_block()
            if mistake == PLAIN_STORE:
                flags[0] = 2
            else:
                cuda.atomic.exch(flags, 0, 2)
        else:
            while cuda.atomic.add(flags, 1, 0) < 3:
                pass
            cuda.threadfence_block()
            cuda.atomic.add(flags, 0, 0)
            fence_behind(mistake)
            out[0] = data[0]
        cuda.threadfence_block()
        cuda.atomic.add(flags, 1, 1)


@dataclass(frozen=True)
class Pattern:
    """A kernel, and which of its mistakes are any between blocks and between threads of a block.

    Attributes:
        args: without the mistake's number.
        between, within: mistakes that are races between blocks of one thread (and of more),
            and between the threads of one block; None: the pattern is not for that.
        also_right: numbers of further ways to do it right.
        threads: of a block that is alone.
    """

    kernel: Any
    args: Callable[[int], list[Any]]
    reference: Callable[..., Any]
    between: tuple[int, ...] | None
    within: tuple[int, ...] | None
    also_right: tuple[int, ...] = ()
    threads: int = 4

    def right(self) -> list[tuple[int, int, int]]:
        """Mistake that is none, grid, block."""
        return [(n, *launch) for n in (NONE, *self.also_right) for _, launch in self._launches()]

    def wrong(self) -> list[tuple[int, int, int]]:
        return [(n, *launch) for wrong, launch in self._launches() for n in wrong]

    def _launches(self) -> list[tuple[tuple[int, ...], tuple[int, int]]]:
        launches = []
        if self.between is not None:
            launches.append((self.between, (4, 1 if self.within is not None else 4)))
        if self.within is not None:
            launches.append((self.within, (1, self.threads)))
        return launches


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def counts(n: int) -> Any:
    return np.zeros(n, np.int32)


FENCES = (NO_FENCES, NO_FENCE_BEFORE, NO_FENCE_BEHIND)
OF_BLOCK = (FENCE_OF_BLOCK, FENCE_OF_BLOCK_BEHIND, FENCE_OF_BLOCK_BEFORE)
X = np.arange(1, 5, dtype=np.float32)

PATTERNS = [
    Pattern(lock, lambda n: [zeros(1), counts(2), X], lambda out, locks, x, _: (x.sum(), None),
            (*FENCES, *OF_BLOCK, PLAIN_STORE, OTHER_ELEMENT, OUTSIDE),
            (*FENCES, PLAIN_STORE, OTHER_ELEMENT, OUTSIDE)),
    Pattern(shared_lock, lambda n: [zeros(1), X], lambda out, x, _: x.sum(),
            None, (*FENCES, NO_BARRIER), also_right=OF_BLOCK),
    Pattern(ticket, lambda n: [zeros(1), counts(2), X], lambda out, counts, x, _: (x.sum(), None),
            (*FENCES, *OF_BLOCK), (*FENCES,)),
    Pattern(flag, lambda n: [zeros(4), zeros(1), counts(2)],
            lambda out, data, flags, _: (7, None, None),
            (*FENCES, *OF_BLOCK, PLAIN_STORE, PLAIN_READ, OTHER_ELEMENT, NO_WAIT),
            (*FENCES, PLAIN_STORE, PLAIN_READ, OTHER_ELEMENT, NO_WAIT)),
    Pattern(relay, lambda n: [zeros(4), zeros(1), counts(4)],
            lambda out, data, flags, _: (7, None, None),
            (NO_FENCES, NO_FENCE_BEHIND, FENCE_OF_BLOCK, FENCE_OF_BLOCK_BEHIND),
            (NO_FENCES, NO_FENCE_BEHIND),
            also_right=(NO_FENCE_BEFORE, FENCE_OF_BLOCK_BEFORE)),  # the one behind is before, too
    Pattern(last_block, lambda n: [zeros(4), zeros(4, 4), counts(8)],
            lambda out, parts, done, _: (10, None, None),
            (*FENCES, *OF_BLOCK, NO_BARRIER, OTHER_ELEMENT, NO_WAIT), None,
            also_right=(ONE_FENCES, FENCED_BEFORE_BARRIER)),
    Pattern(queue, lambda n: [zeros(4), counts(1), counts(4)],
            lambda out, head, x, _: (1, None, None), (NEIGHBOUR,), (NEIGHBOUR,)),
    Pattern(counted, lambda n: [zeros(1), counts(4), X], lambda out, counts, x, _: (x.sum(), None),
            (OUTSIDE,), (OUTSIDE,)),
    Pattern(made_once, lambda n: [zeros(4), zeros(1), counts(2)],
            lambda out, table, state, _: (7, None, None),
            (*FENCES, *OF_BLOCK, PLAIN_READ), (*FENCES, PLAIN_READ)),
    Pattern(how_many, lambda n: [zeros(4)], lambda out, _: 4, None, (NO_BARRIER, PLAIN_READ)),
    Pattern(warp_tells, lambda n: [zeros(32), zeros(32), counts(1)],
            lambda out, data, flags, _: (np.arange(32), None, None),
            None, (*FENCES, NO_BARRIER), also_right=OF_BLOCK, threads=64),
    Pattern(changed_again, lambda n: [zeros(1), zeros(1), counts(2)],
            lambda out, data, flags, _: (7, None, None), (*FENCES, *OF_BLOCK, PLAIN_STORE), None),
]  # fmt: skip
