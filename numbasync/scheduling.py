"""Policies: which stream does the next operation go to?

A policy sees a source of streams and nothing else: no device, no operation, no queue.
"""

from __future__ import annotations

import itertools
from typing import Protocol

from numbasync.errors import CallerError
from numbasync.stream import Stream


class StreamSource(Protocol):
    """What a policy needs of a device."""

    def new_stream(self) -> Stream: ...


class SchedulingPolicy(Protocol):
    """Picks a stream.

    Work on one stream runs in submission order; work on two streams has no order but the
    one that shared tensors ask for. A policy neither submits nor waits.
    """

    def next_stream(self) -> Stream: ...


def _count(n: int, policy: str) -> int:
    if n < 1:
        raise CallerError(f"{policy} of {n} streams can run nothing; write n=1 or more.")
    return n


class StreamPoolRoundRobin:
    """`n` streams of `device`, in turn: independent operations overlap."""

    def __init__(self, device: StreamSource, n: int = 4) -> None:
        self.streams = tuple(device.new_stream() for _ in range(_count(n, "a round robin")))
        # next() on itertools.cycle is one C call, so it needs no lock under the GIL.
        self._turn = itertools.cycle(self.streams)

    def next_stream(self) -> Stream:
        return next(self._turn)

    def __repr__(self) -> str:
        return f"<StreamPoolRoundRobin of {len(self.streams)} streams>"


class SingleStream:
    """One stream of `device`: everything runs in submission order."""

    def __init__(self, device: StreamSource) -> None:
        self.stream = device.new_stream()

    def next_stream(self) -> Stream:
        return self.stream

    def __repr__(self) -> str:
        return f"<SingleStream {self.stream!r}>"


class LeastPending:
    """Of `n` streams of `device`, the one with the fewest submissions in flight.

    Better than taking turns when some operations run much longer than others.
    """

    def __init__(self, device: StreamSource, n: int = 4) -> None:
        self.streams = tuple(device.new_stream() for _ in range(_count(n, "a pool")))

    def next_stream(self) -> Stream:
        return min(self.streams, key=lambda stream: stream.pending)

    def __repr__(self) -> str:
        return f"<LeastPending of {len(self.streams)} streams>"
