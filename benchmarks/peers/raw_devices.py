"""Copies between two GPUs by the driver, called through `cuda.bindings` alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.devices import RAW_COPY, RAW_MOVE, RAW_QUEUED
from benchmarks.measure import Case, drained, timed
from benchmarks.peers import driver

ENABLED_ALREADY = 704


def of_peer(ordinal: int, other: int, nbytes: int) -> list[Case]:
    """A copy from one GPU to the other, and a wait behind it."""
    pair = _Pair(ordinal, other, nbytes)
    return [
        Case(RAW_COPY, timed(pair.copy, pair.drain), pair.check),
        Case(RAW_QUEUED, drained(pair.enqueue, pair.drain), pair.check),
    ]


def of_move(ordinal: int, other: int, nbytes: int) -> list[Case]:
    """The same behind an event of the source's stream, and an event behind it."""
    pair = _Pair(ordinal, other, nbytes)
    return [Case(RAW_MOVE, timed(pair.move, pair.drain), pair.check)]


class _Pair:
    """Memory and a stream on each of two GPUs. Calls leave the second one's context current."""

    def __init__(self, ordinal: int, other: int, nbytes: int) -> None:
        self.near, self.far, self.nbytes = driver.of(ordinal), driver.of(other), nbytes
        self.cu = cu = self.near.cu
        self.enter(self.near)
        self.source = self.near.ok(cu.cuMemAlloc(nbytes))
        self.stream = self.near.stream()
        self.event = self.near.ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self.near.ok(cu.cuMemsetD8(self.source, 7, nbytes))
        self.enter(self.far)
        (result,) = cu.cuCtxEnablePeerAccess(self.near.context, 0)
        if result and int(result) != ENABLED_ALREADY:
            raise RuntimeError(f"the driver says {result!r}")
        self.target = self.far.ok(cu.cuMemAlloc(nbytes))
        self.far.ok(cu.cuMemsetD8(self.target, 0, nbytes))
        self.copying = self.far.stream()
        self.copied = self.far.ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def enter(self, which: Any) -> None:
        which.ok(self.cu.cuCtxSetCurrent(which.context))

    def enqueue(self) -> None:
        self.far.ok(
            self.cu.cuMemcpyPeerAsync(
                self.target, self.far.context, self.source, self.near.context, self.nbytes,
                self.copying,
            )
        )  # fmt: skip

    def copy(self) -> None:
        self.enqueue()
        self.far.synchronize(self.copying)

    def move(self) -> None:
        self.near.ok(self.cu.cuEventRecord(self.event, self.stream))
        self.far.ok(self.cu.cuStreamWaitEvent(self.copying, self.event, 0))
        self.copy()
        self.far.ok(self.cu.cuEventRecord(self.copied, self.copying))
        self.near.ok(self.cu.cuStreamWaitEvent(self.stream, self.copied, 0))

    def drain(self) -> None:
        self.far.synchronize(self.copying)

    async def check(self) -> None:
        self.enter(self.far)
        self.move()
        elements = np.zeros(self.nbytes, np.uint8)
        self.far.ok(self.cu.cuMemcpyDtoH(elements.ctypes.data, self.target, self.nbytes))
        if not (elements == 7).all():
            raise RuntimeError("the copy has other bytes than its source")
