"""What a test leaves behind: device memory, work in flight, another pool (`--strict-leaks`).

Operations that were never run say so themselves, by a warning, which then is an error.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass, field

from numbasync import helpers
from numbasync.device import Device, devices
from numbasync.errors import DeviceLostError, DriverError
from numbasync.memory import MemoryPool

# As pytest's option `filterwarnings`; the second, since a warning in a finaliser that is an error
# is only told as another warning.
FILTERS = (
    "error:(?s).*was never awaited. it has not run:RuntimeWarning",
    "error:(?s).*work of async_on failed, and nobody:RuntimeWarning",
    "error:(?s).*(was never awaited|of async_on failed):pytest.PytestUnraisableExceptionWarning",
)


@dataclass(slots=True)
class Before:
    """What there was when a test began, on the devices that were in use; the others are left alone:
    a look would start them.
    """

    pools: dict[Device, tuple[MemoryPool, int]] = field(default_factory=dict)
    waiting: dict[Device, int] = field(default_factory=dict)

    @staticmethod
    def now() -> Before:
        _settle()
        return Before(
            {d: (d.pool, d.pool.stats().used_current) for d in _in_use()},
            {d: d.in_flight.ops for d in _in_use()},
        )

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
            pool, before = self.pools.get(device, (device.pool, 0))
            waiting = device.in_flight.ops - self.waiting.get(device, 0)
            if waiting > 0:
                found.append(f"{device.label}: {waiting} operations in flight, behind a shut gate")
            if device.pool is not pool:
                found.append(f"{device.label}: device.pool is another one, {device.pool!r}")
                continue
            more = pool.stats().used_current - before
            if more > 0:
                found.append(f"{device.label}: {more:,} bytes of device memory")
        return found


def _in_use() -> list[Device]:
    return [d for d in devices() if d.has_pool and d.lost is None]


def _settle() -> None:
    helpers.settle()  # they hold what they have copied a moment longer than anyone waits
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
