"""Compiled kernels, and launches of them without their arguments, as every stage sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from numbasync.backend.device_facts import Dim3
from numbasync.backend.kernel_checks import ArgumentAccess


class ArrayKey(NamedTuple):
    """An array's part of a compiled kernel's key: never its extents."""

    # NumPy's array-protocol string, such as "<f4"; of a structure, the np.dtype itself.
    dtype: str | np.dtype[Any]
    ndim: int
    order: str  # "C", "F" or "A", as in Numba's array types


# One array in device memory, in the form that launches and copies of a device want. Made
# once a tensor by `Device.array` and kept by it; opaque to everyone but its backend.
Array: TypeAlias = Any


class Executable(Protocol):
    """A kernel compiled for one device and one list of argument types."""

    @property
    def max_threads_per_block(self) -> int: ...
    @property
    def from_disk(self) -> bool:
        """Whether it was found in a disk cache instead of compiled."""
        ...

    @property
    def engine(self) -> str:
        """What runs it, on a device that has several ways: "compiled" or "interpreted"; else ""."""
        ...

    @property
    def why(self) -> str:
        """Why it is not compiled, or ""."""
        ...

    def suggested_threads(self) -> int:
        """Threads per block that keep the device busy, at most `max_threads_per_block`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A launch without its arguments. One object for all launches of a kind, so that a backend
    may know again what it has made ready for it.

    Attributes:
        rights: what it may do with each of its arguments, for a device that checks.
    """

    executable: Executable
    grid: Dim3
    block: Dim3
    shared_bytes: int
    argument_access: tuple[ArgumentAccess | None, ...] = ()
