"""Scheduling policies, which choose the stream of the next operation.

A policy depends on a source of streams and on nothing else: no device, no operation, no queue.
Which policy a device has at first is decided in `device.py`, by `Device.policy`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol, cast

from numbasync.arguments import check_whole, shown
from numbasync.device import stream as streams
from numbasync.device.stream import Stream, check_source
from numbasync.errors import CallerError
from numbasync.native import known

MOST_STREAMS = 1024  # of a policy; a GPU runs 128 kernels at once


class StreamSource(Protocol):
    """The part of a device that a policy needs."""

    def new_stream(self, priority: int = 0) -> Stream: ...


class SchedulingPolicy(Protocol):
    """Picks a stream.

    Work on one stream runs in submission order; work on two streams has no order except the
    order that shared tensors require. A policy neither submits nor waits.

    Examples:
        >>> class Alternating:
        ...     def __init__(self, *streams):
        ...         self.streams = list(streams)
        ...
        ...     def next_stream(self):
        ...         self.streams.append(self.streams.pop(0))
        ...         return self.streams[0]
        >>> device = na.default_device()
        >>> policy = Alternating(device.new_stream(), device.new_stream())
        >>> await na.spawn(na.ones(2).to_host(), policy)
        array([1., 1.], dtype=float32)
    """

    def next_stream(self) -> Stream:
        """The stream for the next operation."""
        ...


def as_policy(value: Any) -> SchedulingPolicy:
    """`value` as a policy; another library's stream is converted.

    Raises:
        CallerError: it is no policy.
    """
    policy = streams.of_another_library(value, None) or value
    if not hasattr(policy, "next_stream") or isinstance(policy, type):
        raise CallerError(
            f"a policy has next_stream(), which {shown(policy)} has not; write "
            "device.policy = na.StreamPoolRoundRobin(device), say."
        )
    return cast("SchedulingPolicy", policy)


def _streams(device: Any, n: int, priority: int = 0) -> tuple[Stream, ...]:
    check_source(device, "a policy")
    count = check_whole(n, "a policy's number of streams, n,", 1, MOST_STREAMS)
    return tuple(device.new_stream(priority) for _ in range(count))


@known
class StreamPoolRoundRobin:
    """`n` streams of `device`, in turn: independent operations overlap.

    Examples:
        >>> policy = na.StreamPoolRoundRobin(na.default_device(), 2)
        >>> first, second, third = (policy.next_stream() for _ in range(3))
        >>> first is second, first is third
        (False, True)
    """

    __slots__ = ("__dict__", "__weakref__", "_turn", "streams")

    def __init__(self, device: StreamSource, n: int = 4) -> None:
        self.streams = _streams(device, n)
        # next() on itertools.cycle is one C call, so it needs no lock under the GIL.
        self._turn = itertools.cycle(self.streams)

    def next_stream(self) -> Stream:
        return next(self._turn)

    def __repr__(self) -> str:
        return f"<StreamPoolRoundRobin of {len(self.streams)} streams>"


class SingleStream:
    """One stream of `device`: everything runs in submission order.

    Examples:
        >>> policy = na.SingleStream(na.default_device())
        >>> policy.next_stream() is policy.next_stream()
        True
    """

    def __init__(self, device: StreamSource) -> None:
        (self.stream,) = _streams(device, 1)

    def next_stream(self) -> Stream:
        return self.stream

    def __repr__(self) -> str:
        return f"<SingleStream {self.stream!r}>"


class LeastPending:
    """Of `n` streams of a device, or of each of several devices, the one with the fewest
    submissions in flight; of equals, one of the device with the fewest.

    Better than round robin when some operations run much longer than others. Over several devices,
    it suits operations that make their own data, or take it from the host: a launch on tensors has
    to go to their device.

    Args:
        device: a device, or a list or a tuple of devices.
        n: streams of each device.

    Examples:
        >>> device = na.default_device()
        >>> policy = na.LeastPending(device, 2)
        >>> futures = [na.spawn(na.full(1, i).item(), policy) for i in range(3)]
        >>> await na.gather(*futures)
        [0.0, 1.0, 2.0]
    """

    def __init__(self, device: StreamSource | Sequence[StreamSource], n: int = 4) -> None:
        devices = device if isinstance(device, list | tuple) else (device,)
        if not devices:
            raise CallerError(
                f"LeastPending({shown(device)}) can run nothing; write na.devices(), say."
            )
        each = [_streams(one, n) for one in devices]
        # One stream of each device first: the first of equals is taken.
        self.streams = tuple(stream for row in zip(*each, strict=True) for stream in row)
        self._devices = len(devices)

    def next_stream(self) -> Stream:
        pending = [stream.pending for stream in self.streams]
        totals = [sum(pending[i :: self._devices]) for i in range(self._devices)]
        ranks = [(count, totals[i % self._devices]) for i, count in enumerate(pending)]
        least: Stream = self.streams[ranks.index(min(ranks))]
        return least

    def __repr__(self) -> str:
        of = f" of {self._devices} devices" if self._devices > 1 else ""
        return f"<LeastPending of {len(self.streams)} streams{of}>"


class Priority:
    """`n` streams of `device` with one priority, in turn.

    Where thread blocks of several streams are ready, the device starts the blocks of the stream
    with the lower priority number first; running blocks are not interrupted. Give urgent work a
    policy of its own: `op.schedule(na.Priority(device, -1))`. A device without priorities treats
    all numbers as equal.

    Examples:
        >>> urgent = na.Priority(na.default_device(), -1)
        >>> await na.ones(2).to_host().schedule(urgent)
        array([1., 1.], dtype=float32)
    """

    def __init__(self, device: StreamSource, priority: int = -1, n: int = 1) -> None:
        self.priority = priority
        self.streams = _streams(device, n, priority)
        self._turn = itertools.cycle(self.streams)

    def next_stream(self) -> Stream:
        return next(self._turn)

    def __repr__(self) -> str:
        return f"<Priority {self.priority} of {len(self.streams)} streams>"
