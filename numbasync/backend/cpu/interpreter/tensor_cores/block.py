"""What the tiles and barriers of a cluster's blocks are, while a kernel runs as Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbasync.backend.cpu.interpreter.scheduler import Thread, Threads
from numbasync.backend.cpu.interpreter.tensor_cores.accesses import Accesses
from numbasync.backend.cpu.interpreter.tensor_cores.order import Clocks, Order
from numbasync.backend.cpu.interpreter.tensor_cores.shared_tiles import SharedTile
from numbasync.tensor_cores.tiles import Tile


class SharedBarriers:
    """Barriers of a shared layout, as a kernel names them."""

    __slots__ = ("count", "name", "offset")

    def __init__(self, name: str, offset: int, count: int) -> None:
        self.name, self.offset, self.count = name, offset, count


class Cluster:
    """Blocks that run together.

    Attributes:
        blocks: by their ranks.
        threads: of all blocks.
        clocks: what the threads know of one another.
        waiting: threads that have come to `cluster_sync`.
    """

    def __init__(self, blocks: int, threads: int) -> None:
        """
        Args:
            threads: of a block.
        """
        self.blocks: list[TensorCoreBlock] = []
        self.threads = blocks * threads
        self.clocks = Clocks(self.threads)
        self.waiting: list[Thread] = []


class TensorCoreBlock:
    """The state of one block, which becomes the next of its cluster.

    Attributes:
        threads: of the block.
        cluster, rank: where it belongs.
        order: what they know of one another.
        accesses: its dynamic shared memory, and who reads and writes it.
        barriers: those that are initialised, by their addresses.
        parts: barriers of `part_sync`, by their numbers.
        copying, storing: each thread's copies that are not waited for, by its number.
        groups: each warpgroup's groups of `wgmma` that are not done, by its number.
        written: by a thread and a place, the step and the number of its last write to plain arrays.
        write_columns: of what is known of that, by the thread.
    """

    def __init__(
        self, dynamic: np.ndarray[Any, np.dtype[np.uint8]], threads: Threads, cluster: Cluster
    ) -> None:
        self.threads = threads
        self.cluster, self.rank = cluster, len(cluster.blocks)
        cluster.blocks.append(self)
        count = threads.count
        self.order = Order(cluster.clocks, self.rank * count, count)
        dynamic[:] = 0xFF  # the block before has left it
        self.accesses = Accesses(dynamic, self.order, count)
        # Of the classes that the modules of the operations have for them.
        self.barriers: dict[int, Any] = {}
        self.parts: dict[int, Any] = {}
        self.copying: dict[int, Any] = {}
        self.storing: dict[int, Any] = {}
        self.groups: dict[int, list[Any]] = {}
        self.written: dict[Any, tuple[int, int]] = {}
        self.write_columns: dict[int, int] = {}
        self._fenced: list[int] = []
        self._declared: dict[tuple[str, int], SharedTile | SharedBarriers] = {}

    def declared(self, array: Any) -> SharedTile | SharedBarriers:
        """The tile or the barriers that an array of the shared layout is."""
        key = array.name, array.offset
        if key not in self._declared:
            declared = array.declared
            self._declared[key] = (
                SharedTile(*key, declared)
                if isinstance(declared, Tile)
                else SharedBarriers(*key, declared.count)
            )
        return self._declared[key]

    def new_fenced_columns(self) -> int:
        """The first of two new columns: events, and those that asynchronous reads know of."""
        column = self.order.columns(2)
        self._fenced.append(column)
        return column

    def fence(self, number: int) -> None:
        """Asynchronous reads are to know what the thread knows."""
        self.order.steps[number] += 1
        if self._fenced:
            known, columns = self.order.known[number], np.array(self._fenced)
            known[columns + 1] = np.maximum(known[columns + 1], known[columns])

    def end(self) -> None:
        """The block's threads have returned: its stores read their tiles.

        Raises:
            DataRaceError: copies go on that write to the block's memory.
        """
        for storing in self.storing.values():
            storing.finish()
        for barrier in self.barriers.values():
            barrier.check_end()
