"""What a device that checks kernels needs to know: what a launch may write, and in which order
threads are to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

ThreadOrder: TypeAlias = Literal["forward", "reverse", "shuffled"]


@dataclass(frozen=True, slots=True)
class Checks:
    """How kernels are checked.

    Attributes:
        order: of blocks, and of the threads of a block between two meetings.
        seed: of a shuffled order.
        watches: whether accesses are checked, too.
    """

    order: ThreadOrder = "forward"
    seed: int = 0
    watches: bool = True


class Right(NamedTuple):
    """What a launch may do with one array argument.

    Attributes:
        writable: it is an output.
        tile: extents of the part that one block may write; () for all of it.
        axes: CUDA axis of each axis of the array, as long as `tile`.
    """

    writable: bool
    tile: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
