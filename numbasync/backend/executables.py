"""Compiled kernels, and their launches without arguments, as every subpackage sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from numbasync.backend.device_facts import Dim3
from numbasync.backend.kernel_checks import ArgumentAccess
from numbasync.native import known


class ArrayKey(NamedTuple):
    """The part of a compiled kernel's key that stands for an array. It never holds extents."""

    # NumPy's array-protocol string, such as "<f4"; of a structure, the np.dtype itself.
    dtype: str | np.dtype[Any]
    ndim: int
    order: str  # "C", "F" or "A", as in Numba's array types


class NamedTupleKey(NamedTuple):
    """The part of a compiled kernel's key that stands for a named tuple with arrays in it."""

    cls: type
    members: tuple[Any, ...]


# The handle of one array in device memory, in the form that the device's launches and copies
# take. `Device.array` creates it once for each tensor, which keeps it; only the backend looks
# inside.
Array: TypeAlias = Any


Language: TypeAlias = Literal["ptx", "sass"]


@dataclass(frozen=True, slots=True)
class Resources:
    """The needs of a compiled kernel on a GPU, and how many of its blocks one multiprocessor runs
    at the same time.

    Attributes:
        registers: 32-bit registers a thread.
        local_bytes: local memory a thread, in device memory: spilled registers and local arrays.
        static_shared_bytes: shared memory a block whose size is known when compiling.
        constant_bytes: constant memory of the kernel.
        blocks_per_multiprocessor: active blocks, as the driver computes them.
        threads_per_multiprocessor: the most threads that can be active.
        block_limits: for each resource, the active blocks for which that resource alone suffices.
        flops: floating-point operations by type, along the path through the compiled code that has
            the most; a loop's body counts once.
        flops_are_least: a thread may execute more: the code has loops that repeat, or calls
            functions that were compiled elsewhere.
    """

    registers: int
    local_bytes: int
    static_shared_bytes: int
    constant_bytes: int
    blocks_per_multiprocessor: int
    threads_per_multiprocessor: int
    block_limits: Mapping[str, int]
    flops: Mapping[str, int]
    flops_are_least: bool


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

    def launch_in_clusters(self, cluster: Dim3) -> None:
        """From now on, launches of this kernel have clusters of so many blocks."""
        ...

    @property
    def argument_types(self) -> Sequence[object]:
        """Numba's type of each argument, in the order of the compiled kernel's arguments."""
        ...

    def resources(self, block: Dim3, shared_bytes: int) -> Resources | None:
        """The needs of a launch with such blocks; None on a device without multiprocessors."""
        ...

    def assembly(self, language: Language) -> str:
        """The compiled code as text.

        Raises:
            DeviceMismatchError: the device has no code in this language.
            MissingExtraError: the disassembler is not installed, or is too old for the device.
        """
        ...


@known
@dataclass(slots=True, eq=False)
class Work:
    """A launch without its arguments. Equal launches share one object, so that a backend can
    cache what it has prepared for it.

    Attributes:
        argument_access: the permitted accesses of each argument, for a device that checks.
        constants: arguments behind those of the call, the same at every launch.
        prepared: what the backend has prepared for it; only the backend sets it.
    """

    executable: Executable
    grid: Dim3
    block: Dim3
    shared_bytes: int
    argument_access: tuple[ArgumentAccess | None, ...] = ()
    constants: tuple[int, ...] = ()
    prepared: Any = None


VECTOR_BYTES = 16  # the widest load of one thread; the alignment that it requires


@dataclass(frozen=True, slots=True)
class Coarsening:
    """The positions that each thread of a coarsened kernel computes.

    Attributes:
        elements: positions a thread.
        rank: the number of coordinates for which the kernel asks `cuda.grid`.
        axis: the CUDA axis along which a thread has several positions.
        block: threads of a block along the axis, if the positions of a thread are so far apart; 0
            if they are neighbours, which requires that every array starts at a multiple of
            `VECTOR_BYTES`.
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
