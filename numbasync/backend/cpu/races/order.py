"""Which accesses are known to be over when a thread goes on: by barriers, and by atomic operations
with fences. After the memory model of PTX, without fences that order nothing but themselves:

- A barrier tells every thread of the block, or of the warp, what each of them knows.
- A fence makes ready for telling what the thread knows, its own accesses included. The thread's
  next atomic operations tell that at their element: fences of the device to all, those of the
  block (`threadfence_block`) to the block.
- An atomic operation sees what has been told at its element, by an unbroken row of atomic
  operations. With the fence behind it the thread knows that. A plain store ends the row.
- What a thread has made ready, or seen, is its block's after a barrier, so that one thread may
  write, another fence, and a third one tell.

What is known is a clock: accesses of one thread, of its warp and of its block, each until a time;
and all that two earlier clocks say. Threads run one after the other, so what a clock says is not
later than the clock: the search for an access leaves out clocks from before it.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.extending import intrinsic

from numbasync.backend.cpu.library.options import OPTIONS, UNWRAPPED, types
from numbasync.backend.cpu.races import words

F = njit(**OPTIONS, **UNWRAPPED)


def element_of(dtype: Any) -> tuple[Any, Any]:
    """Functions that load and store element `i` of the elements of one type at an address."""

    @intrinsic
    def load(tyctx: Any, address: Any, i: Any):  # type: ignore[no-untyped-def]
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.inttoptr(args[0], context.get_data_type(dtype).as_pointer())
            return context.unpack_value(builder, dtype, builder.gep(base, [args[1]]))

        return dtype(types.int64, types.int64), codegen

    @intrinsic
    def store(tyctx: Any, address: Any, i: Any, value: Any):  # type: ignore[no-untyped-def]
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.inttoptr(args[0], context.get_data_type(dtype).as_pointer())
            context.pack_value(builder, dtype, args[2], builder.gep(base, [args[1]]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, dtype), codegen

    return load, store


get, put = element_of(types.int64)


@F
def of_thread(s, me):  # type: ignore[no-untyped-def]
    """The words of a thread of the block that runs, from its number in the launch."""
    return get(s, words.OF_THREADS) + 8 * words.THREAD_WORDS * (me % get(s, words.THREADS))


# --- clocks ---


@F
def _clock(s, of, latest, left, right):  # type: ignore[no-untyped-def]
    """A new clock; 0 if there are too many."""
    n = get(s, words.N_CLOCKS)
    if n >= words.MOST_CLOCKS:
        return 0
    put(s, words.N_CLOCKS, n + 1)
    clock = get(s, words.CLOCKS) + 8 * words.CLOCK_WORDS * n
    put(clock, words.OF, of)
    put(clock, words.LATEST, latest)
    put(clock, words.LEFT, left)
    put(clock, words.RIGHT, right)
    return clock


@F
def _both(s, a, b):  # type: ignore[no-untyped-def]
    """A clock that says what `a` and `b` say; 0 says nothing."""
    if b == 0 or a == b:
        return a
    if a == 0 or get(b, words.LEFT) == a or get(b, words.RIGHT) == a:
        return b
    if get(a, words.LEFT) == b or get(a, words.RIGHT) == b:
        return a
    return _clock(s, -1, max(get(a, words.LATEST), get(b, words.LATEST)), a, b)


@F
def _says(s, clock, other, then):  # type: ignore[no-untyped-def]
    """Whether a clock says that the access of the thread `other` at the time `then` is over."""
    if clock == 0:
        return False
    n = get(s, words.THREADS)
    search = get(s, words.SEARCH) + 1
    put(s, words.SEARCH, search)
    stack, left = get(s, words.STACK), 1
    put(stack, 0, clock)
    while left:
        left -= 1
        each = get(stack, left)
        if get(each, words.LATEST) < then or get(each, words.FOUND_BY) == search:
            continue
        put(each, words.FOUND_BY, search)
        of = get(each, words.OF)
        if of == other and then <= get(each, words.UNTIL):
            return True
        if of >= 0 and of // n == other // n:
            if then <= get(each, words.BLOCK_UNTIL):
                return True
            same_warp = of % n // words.WARP_SIZE == other % n // words.WARP_SIZE
            if same_warp and then <= get(each, words.WARP_UNTIL):
                return True
        for part in (words.LEFT, words.RIGHT):
            if get(each, part):
                put(stack, left, get(each, part))
                left += 1
    return False


@F
def is_over(s, me, other, then):  # type: ignore[no-untyped-def]
    """Whether the thread `me` knows that an access of another thread is over."""
    n = get(s, words.THREADS)
    if other // n == me // n:
        if then <= get(s, words.BARRIER):
            return True
        same_warp = other % n // words.WARP_SIZE == me % n // words.WARP_SIZE
        if same_warp and then <= get(s, words.WARP):
            return True
    return get(s, words.N_CLOCKS) >= words.MOST_CLOCKS or _says(
        s, get(of_thread(s, me), words.KNOWS), other, then
    )


# --- events ---


@F
def begin(s, block):  # type: ignore[no-untyped-def]
    """A block begins, which knows nothing of others."""
    now = get(s, words.TIME) + 1
    for word in (words.TIME, words.BEGUN, words.BARRIER, words.WARP):
        put(s, word, now)
    put(s, words.BLOCK, block)
    for t in range(get(s, words.THREADS)):
        mine = get(s, words.OF_THREADS) + 8 * words.THREAD_WORDS * t
        for word in range(words.THREAD_WORDS):
            put(mine, word, 0)


@F
def fence(s, me, is_wide):  # type: ignore[no-untyped-def]
    """A thread passes a fence: of the device, if `is_wide`, or else of the block."""
    mine, now = of_thread(s, me), get(s, words.TIME)
    known = _both(s, get(mine, words.KNOWS), get(mine, words.SEES_BLOCK))
    put(mine, words.SEES_BLOCK, 0)
    if is_wide:
        known = _both(s, known, get(mine, words.SEES))
        put(mine, words.SEES, 0)
    put(mine, words.KNOWS, known)
    clock = _clock(s, me, now, known, 0)
    if clock:
        put(clock, words.UNTIL, now)
        put(clock, words.WARP_UNTIL, get(s, words.WARP))
        put(clock, words.BLOCK_UNTIL, get(s, words.BARRIER))
    put(mine, words.TELLS_BLOCK, clock)
    if is_wide:
        put(mine, words.TELLS, clock)
        put(mine, words.FENCED, now)
    put(s, words.IS_NEWS, 1)
    put(s, words.IS_NEWS_FOR_WARPS, 1)


@F
def atomic(s, cell, me, changes):  # type: ignore[no-untyped-def]
    """A thread sees what was told at an element, and if it `changes` that, tells there."""
    mine, by = of_thread(s, me), get(s, words.BLOCK) + 1
    told, told_in_block = get(cell, words.TOLD), get(cell, words.TOLD_IN_BLOCK)
    if get(cell, words.TOLD_BY) != by:
        told_in_block = 0
    if told or told_in_block:
        put(mine, words.SEES, _both(s, get(mine, words.SEES), told))
        put(mine, words.SEES_BLOCK, _both(s, get(mine, words.SEES_BLOCK), told_in_block))
        put(s, words.IS_NEWS, 1)
        put(s, words.IS_NEWS_FOR_WARPS, 1)
    if changes:
        put(cell, words.TOLD, _both(s, told, get(mine, words.TELLS)))
        put(cell, words.TOLD_IN_BLOCK, _both(s, told_in_block, get(mine, words.TELLS_BLOCK)))
        put(cell, words.TOLD_BY, by)


@F
def stored(cell):  # type: ignore[no-untyped-def]
    """A plain store at an element: those who see it see nothing that was told there."""
    put(cell, words.TOLD, 0)
    put(cell, words.TOLD_IN_BLOCK, 0)


@F
def _share(s, first, end):  # type: ignore[no-untyped-def]
    """What one of the threads from `first` to `end` knows, has made ready or seen, all have."""
    for word in (words.KNOWS, words.TELLS, words.TELLS_BLOCK, words.SEES, words.SEES_BLOCK):
        everything = types.int64(0)
        for t in range(first, end):
            everything = _both(s, everything, get(of_thread(s, t), word))
        for t in range(first, end):
            put(of_thread(s, t), word, everything)


@F
def _tell_as_one(s, before):  # type: ignore[no-untyped-def]
    """Where every thread that wrote has fenced that, one clock for the block in place of one a
    thread: without it each search would go through all of them. `before` is the time of the last
    barrier. Reads before a barrier are over behind it, without a fence.
    """
    fenced = 0
    for t in range(get(s, words.THREADS)):
        mine = of_thread(s, t)
        if get(mine, words.WROTE) > get(mine, words.FENCED):
            return
        fenced += 1 if get(mine, words.FENCED) > before else 0
    if fenced < 2:
        return
    now = get(s, words.BARRIER)
    clock = _clock(
        s, get(s, words.BLOCK) * get(s, words.THREADS), now, get(of_thread(s, 0), words.KNOWS), 0
    )
    if clock:
        put(clock, words.BLOCK_UNTIL, now)
    for t in range(get(s, words.THREADS)):
        put(of_thread(s, t), words.TELLS, clock)


@F
def meet(s, is_whole):  # type: ignore[no-untyped-def]
    """The block meets at a barrier (`is_whole`), or each of its warps does."""
    now, before, n = get(s, words.TIME) + 1, get(s, words.BARRIER), get(s, words.THREADS)
    put(s, words.TIME, now)
    put(s, words.WARP, now)
    if is_whole:
        put(s, words.BARRIER, now)
        if get(s, words.IS_NEWS):
            for t in range(n):  # within the block all of that is over now
                put(of_thread(s, t), words.TELLS_BLOCK, 0)
            _share(s, 0, n)
            _tell_as_one(s, before)
        put(s, words.IS_NEWS, 0)
    elif get(s, words.IS_NEWS_FOR_WARPS):
        for first in range(0, n, words.WARP_SIZE):
            _share(s, first, min(first + words.WARP_SIZE, n))
    put(s, words.IS_NEWS_FOR_WARPS, 0)
