"""Finds leaks of a test (`--strict-leaks`): device memory, work in flight, streams, access records
of graphs, a changed pool.

Operations that were never run emit a warning of their own, which the option turns into an error.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from numbasync.device.copy_threads import settle as settle_copies
from numbasync.device.device import Device, devices
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import Stream
from numbasync.errors import DeviceLostError, DriverError
from numbasync.graphs.buffer_leases import leases

# Values of pytest's option `filterwarnings`. The last is needed since an error raised in a
# finaliser is only reported as another warning.
FILTERS = (
    "error:(?s).*was never awaited. it has not run:RuntimeWarning",
    "error:(?s).*work of async_on failed, and nobody:RuntimeWarning",
    "error:(?s).*(was never awaited|of async_on failed):pytest.PytestUnraisableExceptionWarning",
)
MOST_LOOKS = 100  # a thread that enqueues for ever is a leak, too


@dataclass(frozen=True, slots=True)
class _Use:
    """The resources of a device that are in use."""

    pool: MemoryPool
    nbytes: int = 0
    waiting: int = 0
    streams: frozenset[int] = frozenset()  # numbers, since this record must not hold the streams

    @staticmethod
    def of(device: Device) -> _Use:
        pool, waiting = device.pool, device.in_flight.ops
        streams = frozenset(stream.number for stream in device.streams)
        return _Use(pool, pool.stats().used_current, waiting, streams)


class Before:
    """The resources in use when a test began, on the devices in use. Other devices are not
    examined, since that would start them. `pools` are those before the test's fixtures: a fixture
    that gives a device a pool of its own puts back the one of before.
    """

    def __init__(self, pools: Mapping[Device, MemoryPool]) -> None:
        _settle()
        self._pools = pools
        self._uses = {device: _Use.of(device) for device in _in_use()}
        self._leases = leases()

    def left(self) -> list[str]:
        """Descriptions of the resources that are in use now, and were not at the beginning."""
        _settle()
        if not self._more():
            return []
        # Tracebacks and closures may hold objects until a collection.
        gc.collect()
        _settle()
        return self._more()

    def _more(self) -> list[str]:
        reports: list[str] = []
        for device in _in_use():
            now, before = _Use.of(device), self._uses.get(device, _Use(device.pool))
            if now.waiting > before.waiting:
                waiting = now.waiting - before.waiting
                reports.append(
                    f"{device.label}: {waiting} operations in flight, behind a shut gate"
                )
            if now.pool is not before.pool and now.pool is self._pools.get(device):
                pass  # put back by the fixture whose pool the test had; its bytes went with it
            elif now.pool is not before.pool:
                reports.append(f"{device.label}: device.pool is another one, {now.pool!r}")
            elif now.nbytes > before.nbytes:
                more = now.nbytes - before.nbytes
                reports.append(f"{device.label}: {more:,} bytes of device memory")
            reports += [
                f"{device.label}: {stream!r}"
                for stream in device.streams
                if stream.number not in before.streams
                and not _is_of(device.policy, stream)
                and not stream.is_kept
            ]
        more = leases() - self._leases
        if more > 0:
            reports.append(f"leases of {more} buffers, which stand for the launches of a graph")
        return reports


def _is_of(policy: object, stream: Stream) -> bool:
    """Whether `stream` is the policy's. A policy creates its streams on first use."""
    streams = (policy, getattr(policy, "stream", None), *getattr(policy, "streams", ()))
    return any(candidate is stream for candidate in streams)


def pools() -> dict[Device, MemoryPool]:
    """The pools of the devices in use."""
    return {device: device.pool for device in _in_use()}


def _in_use() -> list[Device]:
    return [d for d in devices() if d.has_pool and d.lost is None]


def _settle() -> None:
    """Wait for all work but that behind shut gates, also what a look at it enqueues: the signal of
    work without an awaiter, and what a dropped operation had left half-enqueued.
    """
    settle_copies()  # copy threads hold their arrays a moment longer than their waiters
    before: list[int] | None = None
    for _ in range(MOST_LOOKS):
        now = _look()
        if now == before:
            return
        before = now


def _look() -> list[int]:
    """Wait until the devices do not advance; the operations that are in flight on each then."""
    used = _in_use()
    for device in used:
        # The users of a broken device report its error.
        with suppress(DeviceLostError, DriverError):
            device.backend.quiesce()
            device.reclaim()
    return [device.in_flight.ops for device in used]


def report(left: list[str]) -> str:
    """The message of a test that left something behind."""
    lines = "".join(f"\n  {line}" for line in left)
    return (
        f"the test has left behind (--strict-leaks):{lines}\n"
        "Something holds it still: a module's global, a cache, a fixture of a wider scope, a gate "
        "that was not opened."
    )
