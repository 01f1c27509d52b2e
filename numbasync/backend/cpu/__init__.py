"""The embedded device: the host's memory, streams run by worker threads, compiled kernels.

There is always at least one, so a program that has no GPU has a device all the same, and a
test of a kernel runs where the programmer is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numbasync.backend import numba_cuda_arrays

if TYPE_CHECKING:
    from numbasync.backend.cpu.runtime.device import CpuDevice

numba_cuda_arrays.load()  # before the modules of this package


def find(count: int) -> tuple[CpuDevice, ...]:
    """`count` virtual devices, which share nothing but the processor."""
    from numbasync.backend.cpu.runtime.device import CpuDevice

    return tuple(CpuDevice(ordinal) for ordinal in range(count))


__all__ = ["find"]
