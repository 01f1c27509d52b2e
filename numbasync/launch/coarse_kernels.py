"""The coarsened variants of one kernel, and when a call uses one.

A call uses one if the kernel is plain (see `coarsening`), its arrays are in C order, and coarsening
leaves enough threads to fill the device. A thread computes neighbouring positions where every array
starts at a multiple of 16 bytes, so that the thread loads 16 bytes at a time. Elsewhere its
positions are a block's width apart, since threads side by side must access elements side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from numbasync.backend.protocols import ArrayKey, Coarsener, Coarsening, Limits
from numbasync.errors import LauncherError
from numbasync.launch.coarsening import NotPlainError, PlainKernel, plain_kernel
from numbasync.launch.grid import Geometry
from numbasync.launch.variants import Kernel

ELEMENTS = (1, 2, 4, 8, 16)
LOAD_BYTES = 16  # the widest load of one thread; the alignment that it requires
MOST_POSITIONS = 2**31  # positions are computed with 32 bits


@dataclass(frozen=True, slots=True)
class CoarseLaunch:
    """A launch of a coarsened kernel.

    Attributes:
        kernel: the coarsened kernel, which takes `positions` as one argument more.
        elements: positions a thread.
        geometry: blocks and threads of the launch.
        positions: along x, as the plain kernel would have threads.
    """

    kernel: Kernel
    elements: int
    geometry: Geometry
    positions: int


class CoarseKernels:
    """The coarsened variants of one kernel.

    Attributes:
        requested: positions a thread, as the launcher was told; None: chosen by call.
    """

    def __init__(self, dispatcher: Any, requested: int | None, may_alias: bool) -> None:
        self.requested = requested
        self._dispatcher = dispatcher
        self._may_alias = may_alias
        self._kernels: dict[Coarsening, Kernel] = {}
        self._failures: dict[Kernel, str] = {}

    def check(self, name: str) -> None:
        """Refuse positions a thread that this kernel cannot have.

        Raises:
            LauncherError: no such number, or the kernel is not plain.
        """
        if self.requested is not None and self.requested not in ELEMENTS:
            raise LauncherError(
                f"kernel {name}: elements= is 1, 2, 4, 8 or 16 positions a thread, or None for the "
                f"launcher's choice; not {self.requested!r:.60}."
            )
        if self.requested is None or self.requested == 1:
            return
        if isinstance(self._plain, NotPlainError):
            raise LauncherError(
                f"kernel {name}: elements={self.requested}, but {self._plain}, so that a thread "
                "computes one position.\nLeave elements= out, or write a plain kernel: it asks for "
                "cuda.grid, compares it with an extent, and computes without loops."
            )

    @cached_property
    def _plain(self) -> PlainKernel | NotPlainError:
        if self._may_alias:
            return NotPlainError("its arguments may alias")
        try:
            return plain_kernel(self._dispatcher)
        except NotPlainError as error:
            return error

    def choose(
        self,
        keys: Sequence[Any],
        aligned: bool,
        geometry: Geometry,
        limits: Limits,
        coarsener: Coarsener | None,
    ) -> CoarseLaunch:
        """The coarsened launch of a call.

        Args:
            keys: each argument's part of a compiled kernel's key.
            aligned: every array starts at a multiple of `LOAD_BYTES`.
            geometry: blocks and threads of the plain launch.
            coarsener: of the device.

        Raises:
            NotPlainError: the call must have, or is better off with, one position a thread.
        """
        if coarsener is None:
            raise NotPlainError("threads of this device gain nothing")
        if self.requested == 1:
            raise NotPlainError("the launcher says elements=1")
        size = _widest(keys)  # before the kernel's code is read, which takes longer
        grid, block = geometry.grid, geometry.block
        threads = geometry.threads * grid[0] * grid[1] * grid[2]
        full = limits.multiprocessors * limits.threads_per_multiprocessor
        if self.requested is None and threads < 2 * full:
            raise NotPlainError(f"{threads:,} threads are too few to share")
        plain = self._plain
        if isinstance(plain, NotPlainError):
            raise plain
        if any(n > 1 for n in (*grid[plain.rank :], *block[plain.rank :])):
            raise NotPlainError("threads along another axis compute the same positions")
        neighbours = aligned and plain.rank == 1 and 2 * size <= LOAD_BYTES
        elements = self.requested or (min(4, LOAD_BYTES // size) if neighbours else 4)
        blocks = -(-grid[0] // elements)
        if self.requested is None and threads < elements * full:
            raise NotPlainError(
                f"{threads:,} threads, {elements} positions each, leave parts of the device idle"
            )
        if blocks * elements * block[0] >= MOST_POSITIONS:
            raise NotPlainError(f"there are {MOST_POSITIONS:,} positions or more along x")
        coarsening = Coarsening(elements, plain.rank, 0 if neighbours else block[0], plain.guard)
        kernel = self._kernels.get(coarsening)
        if kernel is None:  # if two threads create one, both use the first
            new = Kernel(coarsener(self._dispatcher, coarsening))
            kernel = self._kernels.setdefault(coarsening, new)
        if kernel in self._failures:
            raise NotPlainError(self._failures[kernel])
        coarse = Geometry((blocks, *grid[1:]), block)
        return CoarseLaunch(kernel, elements, coarse, grid[0] * block[0])

    def refuse(self, launch: CoarseLaunch, why: str) -> None:
        """Use the plain kernel from now on, since the coarsened one cannot be compiled."""
        self._failures[launch.kernel] = why


def _widest(keys: Sequence[Any]) -> int:
    """The size of the widest element of the arrays, in bytes."""
    sizes = []
    for key in keys:
        if isinstance(key, ArrayKey):
            if not isinstance(key.dtype, str):
                raise NotPlainError("an argument is an array of structures")
            if key.order != "C":
                raise NotPlainError("an argument is no array in C order")
            sizes.append(np.dtype(key.dtype).itemsize)
        elif isinstance(key, tuple):
            raise NotPlainError("an argument is a tuple")
    if not sizes:
        raise NotPlainError("no argument is an array")
    return max(sizes)
