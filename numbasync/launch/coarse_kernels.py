"""The coarsened variants of one kernel, and when a call uses one.

A call uses one if the kernel is plain (see `coarsening`), its arrays are in C order, and coarsening
leaves enough threads to fill the device. A thread computes neighbouring positions where every array
starts at a multiple of 16 bytes, so that the thread loads 16 bytes at a time. Elsewhere its
positions are a block's width apart, since threads side by side must access elements side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from numbasync.arguments import shown
from numbasync.backend.protocols import (
    VECTOR_BYTES,
    ArrayKey,
    Coarsener,
    Coarsening,
    Dim3,
    Limits,
)
from numbasync.compilers import ONLY_MLIR, own_kernel
from numbasync.errors import LauncherError
from numbasync.launch.coarsening import NotPlainError, PlainKernel, plain_kernel
from numbasync.launch.grid import Geometry
from numbasync.launch.variants import Kernel

ELEMENTS = (1, 2, 4, 8, 16)
COARSE_THREADS = 256  # a block, where neither the call nor the launcher says how many
# Numba calls a function for each operation on float16, so that loads are not merged: 1, 2, 4, 8
# elements a thread reached 0.46, 0.74, 0.80, 0.34 of PyTorch's rate (add, 256 threads, H200).
MOST_OF = {"<f2": 4}
MOST_POSITIONS = 2**31  # positions are computed with 32 bits


@dataclass(frozen=True, slots=True)
class CoarseLaunch:
    """A launch of a coarsened kernel.

    Attributes:
        kernel: the coarsened kernel, which takes `positions` as one argument more.
        elements: positions a thread.
        geometry: blocks and threads of the launch.
        positions: along the coarsened axis, as the plain kernel would have threads.
        keys: the arguments' parts of the compiled kernel's key, without that of `positions`.
    """

    kernel: Kernel
    elements: int
    geometry: Geometry
    positions: int
    keys: tuple[Any, ...]


class CoarseKernels:
    """The coarsened variants of one kernel.

    Attributes:
        requested: positions a thread, as the launcher's `elements=` says; None: chosen by call.
    """

    def __init__(self, dispatcher: Any, requested: int | None, may_alias: bool) -> None:
        self.requested = requested
        self._dispatcher = dispatcher
        self._may_alias = may_alias
        self._kernels: dict[Coarsening, Kernel] = {}
        # By kernel and types of arguments: the fewest threads a block that fail, and why.
        self._failures: dict[tuple[Kernel, tuple[Any, ...]], tuple[int, str]] = {}

    def __len__(self) -> int:
        """The number of coarsened variants that calls have chosen."""
        return len(self._kernels)

    def share(self, other: CoarseKernels) -> None:
        """Use what `other`, of the same kernel, has compiled or will compile."""
        self._kernels, self._failures = other._kernels, other._failures

    @property
    def threads(self) -> int:
        """Threads a block, where neither the call nor the launcher says how many."""
        bounds = self._dispatcher.targetoptions.get("launch_bounds")
        most = bounds[0] if isinstance(bounds, tuple) else bounds
        return min(COARSE_THREADS, most or COARSE_THREADS)

    def check(self, name: str) -> None:
        """Refuse positions a thread that this kernel cannot have.

        Raises:
            LauncherError: no such number, or the kernel is not plain.
        """
        requested = self.requested
        if requested is not None and (type(requested) is not int or requested not in ELEMENTS):
            raise LauncherError(
                f"kernel {name}: elements= is 1, 2, 4, 8 or 16 positions a thread, or None for the "
                f"launcher's choice; not {shown(self.requested)}."
            )
        if requested is None or requested == 1:
            return
        if isinstance(self._plain, str):
            raise LauncherError(
                f"kernel {name}: elements={self.requested}, but {self._plain}, so that a thread "
                "computes one position.\nLeave elements= out, or write a plain kernel: it asks for "
                "cuda.grid, compares it with an extent, and computes without loops."
            )

    @cached_property
    def _plain(self) -> PlainKernel | str:
        """The kernel's properties, or why it is not plain: as text, since an error that is kept
        and raised again keeps the arguments of each call that it was raised in.
        """
        if self._may_alias:
            return "its arguments may alias"
        if (ONLY_MLIR or self.requested is None) and own_kernel(self._dispatcher) is not None:
            return "numba-cuda-mlir compiles it"  # as it is written
        try:
            return plain_kernel(self._dispatcher)
        except NotPlainError as error:
            return str(error)

    def choose(
        self,
        keys: Sequence[Any],
        aligned: bool,
        geometry: Geometry,
        limits: Limits,
        coarsener: Coarsener,
    ) -> CoarseLaunch:
        """The coarsened launch of a call.

        Args:
            keys: each argument's part of a compiled kernel's key.
            aligned: every array starts at a multiple of `VECTOR_BYTES`.
            geometry: blocks and threads of the plain launch.
            coarsener: of the device.

        Raises:
            NotPlainError: the call must have, or is better off with, one position a thread.
        """
        if self.requested == 1:
            raise NotPlainError("the launcher says elements=1")
        per_load = _elements_per_load(keys)  # before reading the kernel's code, which takes longer
        grid, block = geometry.grid, geometry.block
        threads = geometry.threads * grid[0] * grid[1] * grid[2]
        fewest = _fewest(limits)
        if self.requested is None and threads < 2 * fewest:
            raise NotPlainError(f"{threads:,} threads are too few to share")
        plain = self._plain
        if isinstance(plain, str):
            raise NotPlainError(plain)
        if any(n > 1 for n in (*grid[plain.rank :], *block[plain.rank :])):
            raise NotPlainError("threads along another axis compute the same positions")
        axis = self._axis(plain)
        if any(n > 1 for n in block[:axis]):
            raise NotPlainError(
                f"threads side by side in a block of {block} do not access elements side by side"
            )
        neighbours = aligned and plain.rank == 1
        elements = self.requested or (per_load if neighbours else 4)
        if elements == 1:
            raise NotPlainError(f"one element has {VECTOR_BYTES} bytes, as many as one load")
        if self.requested is None and threads < elements * fewest:
            raise NotPlainError(
                f"{threads:,} threads, {elements} positions each, leave multiprocessors idle"
            )
        blocks = list(grid)
        blocks[axis] = -(-grid[axis] // elements)
        if blocks[axis] * elements * block[axis] >= MOST_POSITIONS:
            raise NotPlainError(f"there are {MOST_POSITIONS:,} positions or more along one axis")
        coarsening = Coarsening(
            elements, plain.rank, axis, 0 if neighbours else block[axis], plain.guard
        )
        kernel = self._kernels.get(coarsening)
        if kernel is None:  # if two threads create one, both use the first
            new = Kernel(coarsener(self._dispatcher, coarsening))
            kernel = self._kernels.setdefault(coarsening, new)
        fewest_failing, why = self._failures.get((kernel, tuple(keys)), (geometry.threads + 1, ""))
        if geometry.threads >= fewest_failing:
            raise NotPlainError(why)
        coarse = Geometry((blocks[0], blocks[1], blocks[2]), block)
        return CoarseLaunch(kernel, elements, coarse, grid[axis] * block[axis], tuple(keys))

    def block(self, limits: Limits, shape: tuple[int, ...]) -> Dim3 | None:
        """The best block of a kernel that asks for several coordinates: a row of threads along the
        axis on which elements lie side by side. None if there is no such axis, or an output of
        this shape is too small.
        """
        is_small = self.requested is None and math.prod(shape) < 2 * _fewest(limits)
        if is_small or len(shape) == 1:  # without reading the kernel's code, which takes long
            return None
        plain = self._plain
        if isinstance(plain, str) or plain.rank == 1 or len(plain.along) != 1:
            return None
        (axis,) = plain.along
        extents = [1, 1, 1]
        extents[axis] = min(self.threads, limits.max_block[axis])
        return extents[0], extents[1], extents[2]

    def _axis(self, plain: PlainKernel) -> int:
        """The axis along which a thread has several positions: the one on which elements lie side
        by side.
        """
        if plain.rank == 1:
            return 0
        if len(plain.along) != 1:
            raise NotPlainError("no one axis of cuda.grid runs along the last axis of all arrays")
        (axis,) = plain.along
        return axis

    def refuse(self, launch: CoarseLaunch, why: str, fewest_threads: int = 0) -> None:
        """Use the plain kernel from now on for arguments of these types and blocks of
        `fewest_threads` or more: the coarsened one cannot be compiled, or not run.
        """
        self._failures[launch.kernel, launch.keys] = fewest_threads, why


def _fewest(limits: Limits) -> int:
    """The threads that fill a device."""
    return limits.multiprocessors * COARSE_THREADS


def _elements_per_load(keys: Sequence[Any]) -> int:
    """The number of neighbouring elements of every array that a thread loads at once."""
    numbers = []
    for key in keys:
        if isinstance(key, ArrayKey):
            if not isinstance(key.dtype, str):
                raise NotPlainError("an argument is an array of structures")
            if key.order != "C":
                raise NotPlainError("an argument is no array in C order")
            numbers.append(MOST_OF.get(key.dtype, VECTOR_BYTES // np.dtype(key.dtype).itemsize))
        elif isinstance(key, tuple):
            raise NotPlainError("an argument is a tuple")
    if not numbers:
        raise NotPlainError("no argument is an array")
    return max(1, min(numbers))
