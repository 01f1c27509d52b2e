"""The launch that runs on a worker thread: its extents, the block and the CUDA thread that run at
the moment, and the block's shared memory.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from numbasync.backend.cpu.interpreter.places import Index3, Place
from numbasync.backend.cpu.interpreter.scheduler import Threads
from numbasync.backend.cpu.interpreter.tensor_cores.block import TensorCoreBlock
from numbasync.backend.cpu.interpreter.tensor_cores.plain_arrays import PlainArray


class BlockState:
    """A launch that runs on one worker thread.

    Attributes:
        arrays: the block's shared arrays, by the places that create them.
        dynamic: its dynamic shared memory.
        threads: the threads of the block, if they wait for one another.
        tensor_cores: what tiles and barriers of the block are, if the kernel uses operations of
            `numbasync.tensor_cores`.
    """

    def __init__(self, grid: Index3, block_extent: Index3, shared_bytes: int) -> None:
        self.grid_extent, self.block_extent = grid, block_extent
        self.block = self.thread = Index3(0, 0, 0)
        self.arrays: dict[tuple[Place, Any, np.dtype[Any]], Any] = {}
        self.dynamic = unwritten(shared_bytes)
        self.static_bytes = 0
        self.threads: Threads | None = None
        self.tensor_cores: TensorCoreBlock | None = None

    def enter(self) -> None:
        """Make this the calling thread's state, until `leave`."""
        _current.state = self

    def plain(self, name: str, array: Any, offset: int) -> Any:
        """An array of a shared layout."""
        if self.tensor_cores is None or array.dtype.names is not None:
            return with_fields(array)

        return PlainArray.of(array, self.tensor_cores, name, offset)

    def declared(self, array: Any) -> Any:
        """The tile or the barriers of a shared layout's array."""
        assert self.tensor_cores is not None  # the kernel uses operations of `tensor_cores`
        return self.tensor_cores.declared(array)


_current = threading.local()


def leave() -> None:
    del _current.state


def current() -> BlockState:
    """The state that the calling thread has entered."""
    state: BlockState = _current.state
    return state


def with_fields(array: Any) -> Any:
    """An array whose structured elements have their fields as attributes, as in Numba."""
    is_structured = isinstance(array, np.ndarray) and array.dtype.names is not None
    return array.view(np.recarray) if is_structured else array


def unwritten(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory that nobody has written: NaN, or -1."""
    return np.full(nbytes, 0xFF, np.uint8)
