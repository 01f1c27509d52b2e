"""The settings of a device that checks kernels: what a launch may write, and the order in which
threads run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from numbasync.backend.device_facts import Dim3

ThreadOrder: TypeAlias = Literal["forward", "reverse", "shuffled"]
"""The orders of blocks and threads in which `checked` runs kernels.

Examples:
    >>> from typing import get_args
    >>> get_args(na.testing.ThreadOrder)
    ('forward', 'reverse', 'shuffled')
"""


class Writers(NamedTuple):
    """The last writer of each array element, in one launch.

    Attributes:
        grid, block: of the launch.
        last: for each array argument, in order, one number per element, from the array's lowest
            address on: the number of the thread that changed the element last, plus 1; 0 if no
            thread did. None for an array too large to be instrumented.
    """

    grid: Dim3
    block: Dim3
    last: list[np.ndarray[Any, np.dtype[np.int64]] | None]


@dataclass(frozen=True, slots=True)
class Checks:
    """How kernels are checked.

    Attributes:
        order: of blocks, and of the threads of a block within a barrier region.
        seed: of a shuffled order.
        watches: whether accesses are checked, too.
        writers: receives the writers of each launch that was checked to its end; or None.
    """

    order: ThreadOrder = "forward"
    seed: int = 0
    watches: bool = True
    writers: list[Writers] | None = None


class ArgumentAccess(NamedTuple):
    """The permitted accesses of a launch to one array argument.

    Attributes:
        writable: the argument is an output.
        tile: extents of the part that one block may write; () for the whole array.
        axes: the CUDA axis of each axis of the array; of the same length as `tile`.
    """

    writable: bool
    tile: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
