"""The shadow memory of a checked launch: its state, and a record of accesses for each element. See
`rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from numbasync.backend.cpu.races import rules
from numbasync.backend.protocols import ArgumentAccess, Checks, Dim3, Writers

# Larger arrays are checked for forbidden writes, but not for races.
MOST_ELEMENTS = 1 << 24

Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class ShadowMemory:
    """The state of one launch, in the layout of `rules`.

    Args:
        slab_bytes: size of the memory of a block.
        dynamic: offset of the dynamic shared memory in the block's memory.
        shared: offset and size of each static shared array.
        args: the launch's arguments: objects whose `array` is a NumPy array, or values.
        argument_access: the permitted accesses, one for each of `args`; or none at all.
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
    ) -> None:
        blocks, threads = grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2]
        self.grid, self.block = grid, block
        self.state: Int64s = np.zeros(rules.WORDS, np.int64)
        self._arrays: list[np.ndarray[Any, Any]] = []  # whose addresses are in the state
        # Untouched memory costs nothing: the system provides zeroed pages on first access.
        self.state[rules.THREADS] = threads
        self.state[rules.WATCHES] = checks.watches
        self.state[[rules.WX, rules.WY]] = block[:2]
        self.state[[rules.GX, rules.GY]] = grid[:2]
        self._put(rules.THREAD_ORDER, turns(checks, threads))
        self._put(rules.BLOCK_ORDER, turns(checks, blocks))
        ranges = [bound for at, nbytes in shared for bound in (at, at + nbytes)]
        self._put(rules.RANGES, np.array(ranges, np.int64))
        self.state[rules.N_RANGES] = len(shared)
        self.state[rules.DYNAMIC] = dynamic
        self.state[rules.SLAB_BYTES] = slab_bytes
        self._put(rules.STAMPS, np.zeros(slab_bytes, np.int64))
        self._put(rules.SLAB_CELLS, np.zeros(slab_bytes * rules.CELL_WORDS, np.int64))
        self._put(rules.ATOMIC_TIMES, np.zeros(blocks, np.int64))
        words = self._put(rules.REGIONS, np.zeros(len(args) * rules.REGION_WORDS, np.int64))
        self._regions = words.reshape(-1, rules.REGION_WORDS)
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
        last = [c[:: rules.CELL_WORDS].copy() for c in self._cells]
        return Writers(self.grid, self.block, [c if c.size else None for c in last])

    def _put(self, word: int, values: Int64s) -> Int64s:
        self._arrays.append(values)
        self.state[word] = values.ctypes.data
        return values

    def _region(self, array: np.ndarray[Any, Any], right: ArgumentAccess) -> None:
        if array.size == 0:
            self._cells.append(np.zeros(0, np.int64))
            return
        n = int(self.state[rules.N_REGIONS])
        self.state[rules.N_REGIONS] = n + 1
        words = self._regions[n]
        lo, hi = np.lib.array_utils.byte_bounds(array)
        words[: rules.CELLS] = lo, hi, array.itemsize, right.writable
        extent = lo, hi, array.itemsize
        if extent not in self._seen:  # arguments with the same memory share their cells
            elements = (hi - lo) // array.itemsize
            small = elements <= MOST_ELEMENTS
            cells = np.zeros(elements * rules.CELL_WORDS if small else 0, np.int64)
            self._seen[extent] = cells
        cells = self._seen[extent]
        self._cells.append(cells)
        words[rules.CELLS] = cells.ctypes.data if cells.size else 0
        if not right.tile or array.ndim > rules.MOST_AXES or min(array.strides) < 0:
            return
        axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        for k, axis in enumerate(axes):
            offset = rules.AXES_FROM + 3 * k
            words[offset : offset + 3] = array.strides[axis], right.tile[axis], right.axes[axis]


def turns(checks: Checks, count: int) -> Int64s:
    """The order in which `count` threads or blocks run, as an array of their numbers."""
    if checks.order == "shuffled":
        return np.random.default_rng([checks.seed, count]).permutation(count).astype(np.int64)
    numbers = np.arange(count, dtype=np.int64)
    return numbers[::-1].copy() if checks.order == "reverse" else numbers
