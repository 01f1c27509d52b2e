"""The shadow memory of a checked launch: its state, and a record of accesses for each element. See
`words`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from numbasync.backend.cpu.races import words
from numbasync.backend.protocols import ArgumentAccess, Checks, Dim3, Writers

# Larger arrays are checked for forbidden writes, but not for races.
MOST_ELEMENTS = 1 << 24

Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class ShadowMemory:
    """The state of one launch, in the layout of `words`.

    Args:
        slab_bytes: size of the memory of a block.
        dynamic: offset of the dynamic shared memory in the block's memory.
        shared: offset and size of each static shared array.
        args: the launch's arguments: objects whose `array` is a NumPy array, or values.
        argument_access: the permitted accesses, one for each of `args`; or none at all.
        has_fences: whether the kernel has any, so that what threads tell each other is kept.
    """

    def __init__(
        self,
        checks: Checks,
        grid: Dim3,
        block: Dim3,
        slab_bytes: int,
        dynamic: int,
        shared: Sequence[tuple[int, int]],
        args: Sequence[Any],
        argument_access: Sequence[ArgumentAccess | None],
        has_fences: bool,
    ) -> None:
        blocks, threads = grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2]
        self.grid, self.block = grid, block
        self.state: Int64s = np.zeros(words.WORDS, np.int64)
        self._arrays: list[np.ndarray[Any, Any]] = []  # whose addresses are in the state
        # Untouched memory costs nothing: the system provides zeroed pages on first access.
        self.state[words.THREADS] = threads
        self.state[words.WATCHES] = checks.watches
        self.state[[words.WX, words.WY]] = block[:2]
        self.state[[words.GX, words.GY]] = grid[:2]
        self._put(words.THREAD_ORDER, turns(checks, threads))
        self._put(words.BLOCK_ORDER, turns(checks, blocks))
        ranges = [bound for at, nbytes in shared for bound in (at, at + nbytes)]
        self._put(words.RANGES, np.array(ranges, np.int64))
        self.state[words.N_RANGES] = len(shared)
        self.state[words.DYNAMIC] = dynamic
        self.state[words.SLAB_BYTES] = slab_bytes
        self._put(words.STAMPS, np.zeros(slab_bytes, np.int64))
        self._put(words.SLAB_CELLS, np.zeros(slab_bytes * words.CELL_WORDS, np.int64))
        self._put(words.OF_THREADS, np.zeros(threads * words.THREAD_WORDS, np.int64))
        clocks = words.MOST_CLOCKS if has_fences else 0
        self._put(words.CLOCKS, np.zeros(clocks * words.CLOCK_WORDS, np.int64))
        self._put(words.STACK, np.zeros(2 * clocks + 1, np.int64))
        regions = self._put(words.REGIONS, np.zeros(len(args) * words.REGION_WORDS, np.int64))
        self._regions = regions.reshape(-1, words.REGION_WORDS)
        self._seen: dict[tuple[int, int, int], Int64s] = {}
        self._cells: list[Int64s] = []
        for argument, right in zip(args, argument_access, strict=False):
            array = getattr(argument, "array", None)
            if isinstance(array, np.ndarray) and right is not None:
                self._region(array, right)

    @property
    def address(self) -> int:
        return int(self.state.ctypes.data)

    def place(self, thread: int) -> tuple[int, ...]:
        """The block and thread indices of a thread of the launch, from its number."""
        (gx, gy, _), (wx, wy, wz) = self.grid, self.block
        b, t = divmod(thread, wx * wy * wz)
        return (b % gx, b // gx % gy, b // gx // gy, t % wx, t // wx % wy, t // wx // wy)

    def writers(self) -> Writers:
        """The last writer of each array element, after the launch."""
        last = [_last_writer(c.reshape(-1, words.CELL_WORDS)) for c in self._cells]
        return Writers(self.grid, self.block, [c if c.size else None for c in last])

    def _put(self, word: int, values: Int64s) -> Int64s:
        self._arrays.append(values)
        self.state[word] = values.ctypes.data
        return values

    def _region(self, array: np.ndarray[Any, Any], right: ArgumentAccess) -> None:
        if array.size == 0:
            self._cells.append(np.zeros(0, np.int64))
            return
        n = int(self.state[words.N_REGIONS])
        self.state[words.N_REGIONS] = n + 1
        region = self._regions[n]
        lo, hi = np.lib.array_utils.byte_bounds(array)
        region[: words.CELLS] = lo, hi, array.itemsize, right.writable
        extent = lo, hi, array.itemsize
        if extent not in self._seen:  # arguments with the same memory share their cells
            elements = (hi - lo) // array.itemsize
            small = elements <= MOST_ELEMENTS
            cells = np.zeros(elements * words.CELL_WORDS if small else 0, np.int64)
            self._seen[extent] = cells
        cells = self._seen[extent]
        self._cells.append(cells)
        region[words.CELLS] = cells.ctypes.data if cells.size else 0
        if not right.tile or array.ndim > words.MOST_AXES or min(array.strides) < 0:
            return
        axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        for k, axis in enumerate(axes):
            offset = words.AXES_FROM + 3 * k
            region[offset : offset + 3] = array.strides[axis], right.tile[axis], right.axes[axis]


def _last_writer(cells: Int64s) -> Int64s:
    """The number and one of the thread that changed each element last; 0: none did."""
    write, atomic = words.LAST_WRITE, words.LAST_ATOMIC
    is_atomic = cells[:, atomic + 1] > cells[:, write + 1]
    return np.where(is_atomic, cells[:, atomic], cells[:, write])


def turns(checks: Checks, count: int) -> Int64s:
    """The order in which `count` threads or blocks run, as an array of their numbers."""
    if checks.order == "shuffled":
        return np.random.default_rng([checks.seed, count]).permutation(count).astype(np.int64)
    numbers = np.arange(count, dtype=np.int64)
    return numbers[::-1].copy() if checks.order == "reverse" else numbers
