"""What a test leaves behind: device memory, work in flight, streams, graphs' leases, another pool
(`--strict-leaks`).

Operations that were never run say so themselves, by a warning, which then is an error.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass

from numbasync.device import copy_threads
from numbasync.device.device import Device, devices
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import Stream
from numbasync.errors import DeviceLostError, DriverError
from numbasync.graphs.buffer_leases import leases

# As pytest's option `filterwarnings`; the second, since a warning in a finaliser that is an error
# is only told as another warning.
FILTERS = (
    "error:(?s).*was never awaited. it has not run:RuntimeWarning",
    "error:(?s).*work of async_on failed, and nobody:RuntimeWarning",
    "error:(?s).*(was never awaited|of async_on failed):pytest.PytestUnraisableExceptionWarning",
)


@dataclass(frozen=True, slots=True)
class _Use:
    """What is in use of a device."""

    pool: MemoryPool
    nbytes: int = 0
    waiting: int = 0
    streams: frozenset[int] = frozenset()  # their numbers: to hold them is for others

    @staticmethod
    def of(device: Device) -> _Use:
        pool, waiting = device.pool, device.in_flight.ops
        streams = frozenset(stream.number for stream in device.streams)
        return _Use(pool, pool.stats().used_current, waiting, streams)


class Before:
    """What there was when a test began, on the devices that were in use; the others are left alone:
    a look would start them.
    """

    def __init__(self) -> None:
        _settle()
        self._uses = {device: _Use.of(device) for device in _in_use()}
        self._leases = leases()

    def left(self) -> list[str]:
        """What is there now that was not, in words."""
        _settle()
        if not self._more():
            return []
        # Tracebacks and closures hold what they saw until a collection.
        gc.collect()
        _settle()
        return self._more()

    def _more(self) -> list[str]:
        found: list[str] = []
        for device in _in_use():
            now, before = _Use.of(device), self._uses.get(device, _Use(device.pool))
            if now.waiting > before.waiting:
                waiting = now.waiting - before.waiting
                found.append(f"{device.label}: {waiting} operations in flight, behind a shut gate")
            if now.pool is not before.pool:
                found.append(f"{device.label}: device.pool is another one, {now.pool!r}")
            elif now.nbytes > before.nbytes:
                more = now.nbytes - before.nbytes
                found.append(f"{device.label}: {more:,} bytes of device memory")
            found += [
                f"{device.label}: {stream!r}"
                for stream in device.streams
                if stream.number not in before.streams and not _is_of(device.policy, stream)
            ]
        more = leases() - self._leases
        if more > 0:
            found.append(f"leases of {more} buffers, which stand for the launches of a graph")
        return found


def _is_of(policy: object, stream: Stream) -> bool:
    """Whether it is the policy's, which makes them when it is first asked for one."""
    some = (policy, getattr(policy, "stream", None), *getattr(policy, "streams", ()))
    return any(one is stream for one in some)


def _in_use() -> list[Device]:
    return [d for d in devices() if d.has_pool and d.lost is None]


def _settle() -> None:
    copy_threads.settle()  # they hold what they have copied a moment longer than anyone waits
    for device in _in_use():
        # What is broken is told by whoever uses it.
        with suppress(DeviceLostError, DriverError):
            device.backend.quiesce()
            device.reclaim()


def report(left: list[str]) -> str:
    """The message of a test that left something behind."""
    lines = "".join(f"\n  {line}" for line in left)
    return (
        f"the test has left behind (--strict-leaks):{lines}\n"
        "Something holds it still: a module's global, a cache, a fixture of a wider scope, a gate "
        "that was not opened."
    )
