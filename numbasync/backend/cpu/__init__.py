"""The embedded device: the host's memory, streams run by worker threads, compiled kernels.

There is always at least one, so a program that has no GPU has a device all the same, and a
test of a kernel runs where the programmer is.
"""

from __future__ import annotations

from numbasync.backend.cpu.runtime.device import CpuDevice


def find(count: int) -> tuple[CpuDevice, ...]:
    """`count` virtual devices, which share nothing but the processor."""
    return tuple(CpuDevice(ordinal) for ordinal in range(count))


__all__ = ["find"]
