"""What a device that checks kernels needs to know: what a launch may write, and in which order
threads are to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from numbasync.backend.device_facts import Dim3

ThreadOrder: TypeAlias = Literal["forward", "reverse", "shuffled"]


class Writers(NamedTuple):
    """Who wrote what, in one launch.

    Attributes:
        grid, block: of the launch.
        last: for each array argument, in order, the number of the thread that changed an element
            last, and 1 more; 0 for nobody. One element after the other, from the array's lowest
            address on. None for one too large to be watched.
    """

    grid: Dim3
    block: Dim3
    last: list[np.ndarray[Any, np.dtype[np.int64]] | None]


@dataclass(frozen=True, slots=True)
class Checks:
    """How kernels are checked.

    Attributes:
        order: of blocks, and of the threads of a block between two meetings.
        seed: of a shuffled order.
        watches: whether accesses are checked, too.
        writers: is given the writers of each launch that was watched to its end; or None.
    """

    order: ThreadOrder = "forward"
    seed: int = 0
    watches: bool = True
    writers: list[Writers] | None = None


class ArgumentAccess(NamedTuple):
    """What a launch may do with one array argument.

    Attributes:
        writable: it is an output.
        tile: extents of the part that one block may write; () for all of it.
        axes: CUDA axis of each axis of the array, as long as `tile`.
    """

    writable: bool
    tile: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
