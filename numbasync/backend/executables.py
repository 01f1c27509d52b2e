"""Compiled kernels, and their launches without arguments, as every room sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from numbasync.backend.device_facts import Dim3
from numbasync.backend.kernel_checks import ArgumentAccess


class ArrayKey(NamedTuple):
    """The part of a compiled kernel's key that stands for an array. It never holds extents."""

    # NumPy's array-protocol string, such as "<f4"; of a structure, the np.dtype itself.
    dtype: str | np.dtype[Any]
    ndim: int
    order: str  # "C", "F" or "A", as in Numba's array types


# The handle of one array in device memory, in the form that the device's launches and copies
# take. `Device.array` creates it once for each tensor, which keeps it; only the backend looks
# inside.
Array: TypeAlias = Any


class Executable(Protocol):
    """A kernel compiled for one device and one list of argument types."""

    @property
    def max_threads_per_block(self) -> int: ...
    @property
    def static_shared_bytes(self) -> int:
        """Bytes of shared memory of a block that the code itself takes."""
        ...

    @property
    def from_disk(self) -> bool:
        """Whether the kernel was loaded from a disk cache instead of compiled."""
        ...

    @property
    def engine(self) -> str:
        """The engine that runs the kernel, "compiled" or "interpreted"; "" where there is only
        one.
        """
        ...

    @property
    def why(self) -> str:
        """The setting that asks for an interpreted kernel, or ""."""
        ...

    def suggested_threads(self) -> int:
        """Threads per block that keep the device busy, at most `max_threads_per_block`."""
        ...

    def allow_large_shared(self) -> None:
        """Let launches of this kernel take shared memory up to `Limits.max_dynamic_shared_bytes`.
        Called before the first launch that takes more than `Limits.max_shared_bytes`.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A launch without its arguments. Equal launches share one object, so that a backend can
    cache what it has prepared for it.

    Attributes:
        argument_access: the permitted accesses of each argument, for a device that checks.
        constants: arguments behind those of the call, the same at every launch.
    """

    executable: Executable
    grid: Dim3
    block: Dim3
    shared_bytes: int
    argument_access: tuple[ArgumentAccess | None, ...] = ()
    constants: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Coarsening:
    """The positions that each thread of a coarsened kernel computes.

    Attributes:
        elements: positions a thread.
        rank: the number of coordinates for which the kernel asks `cuda.grid`.
        axis: the CUDA axis along which a thread has several positions.
        block: threads of a block along the axis, if the positions of a thread are so far apart; 0
            if they are neighbours, which requires that every array starts at a multiple of 16
            bytes.
        guard: a function of the kernel's parameters that says whether a position has work; None:
            every position has. Only a hint: the kernel keeps its own test.
    """

    elements: int
    rank: int
    axis: int = 0
    block: int = 0
    guard: Any = field(default=None, compare=False)


class Coarsener(Protocol):
    """The part of a backend that compiles kernels of several positions a thread."""

    def __call__(self, dispatcher: Any, coarsening: Coarsening) -> Any:
        """A dispatcher of the coarsened kernel. It takes one argument more: the number of positions
        along the axis, an int64, which its threads do not exceed. Every array is in C order, and
        no array that is written overlaps another.
        """
        ...
