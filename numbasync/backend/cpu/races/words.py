"""The layout of a checked launch's memory, in 64-bit integers, for Python and compiled code.

The address of the launch's state is in word `STATE` of the block's memory.
"""

from __future__ import annotations

STATE = 12  # word of the block's memory

# Words of the state. Those that Python fills in:
(
    THREADS, WX, WY, GX, GY, THREAD_ORDER, BLOCK_ORDER, REGIONS, N_REGIONS, RANGES, N_RANGES,
    DYNAMIC, SLAB_BYTES, STAMPS, SLAB_CELLS, OF_THREADS, CLOCKS, STACK, WATCHES,
) = range(19)  # fmt: skip
# and those that compiled code maintains:
(
    TIME, BEGUN, BARRIER, WARP, BLOCK, OTHER, OTHER_SITE, OTHER_DID, SOME, ALL, N_CLOCKS, SEARCH,
    IS_NEWS, IS_NEWS_FOR_WARPS, WAITING, WAITS_AT, WAITS_WHILE, TURNS,
) = range(19, 37)  # fmt: skip
WORDS = 37

# The words of an array argument: addresses, item size, whether it is writable, cells, and its
# axes, longest stride first, each as stride, extent of a tile (0: none), CUDA axis.
LO, HI, ITEM, WRITABLE, CELLS, AXES_FROM = range(6)
MOST_AXES = 4
REGION_WORDS = AXES_FROM + 3 * MOST_AXES

# The words of a cell: five records of accesses, of three words each (the thread's number and one,
# the time, the site), and what atomic operations have told about others (`order`).
LAST_WRITE, LAST_READ, READ_BEFORE, LAST_ATOMIC, ATOMIC_BEFORE = range(0, 15, 3)
TOLD, TOLD_IN_BLOCK, TOLD_BY = range(15, 18)
CELL_WORDS = 18

# The words of a thread of the block that runs: clocks, and times (`order`).
KNOWS, TELLS, TELLS_BLOCK, SEES, SEES_BLOCK = range(5)
WROTE, FENCED = 5, 6
THREAD_WORDS = 7

# The words of a clock (`order`).
OF, UNTIL, WARP_UNTIL, BLOCK_UNTIL, LATEST, LEFT, RIGHT, FOUND_BY = range(8)
CLOCK_WORDS = 8
# With more clocks than these, accesses that no barrier orders are not judged any more.
MOST_CLOCKS = 1 << 21

# A quiet write does not change the value; an attempt is a compare-and-swap that fails.
READ, WRITE, QUIET, ATOMIC, ATTEMPT = range(5)
FENCE, FENCE_BLOCK, MEET, MEET_WARP, BEGIN = range(5, 10)  # events that are no access
WARP_SIZE = 32
# So often does a thread look in vain at one element before it is taken to wait for ever.
MOST_TURNS = 1 << 21
