"""Process-wide counters of work on all devices."""

from __future__ import annotations

from dataclasses import dataclass, fields

from numbasync.native import known


@known
@dataclass(slots=True)
class Counters:
    """Numbers of operations on all devices since the process began.

    An increment is one load and one store with no call between them. CPython with a global
    interpreter lock does not interrupt that; a free-threaded build would need atomics.

    Examples:
        >>> before = na.testing.counters()
        >>> t = await na.from_host(np.ones(3))
        >>> after = na.testing.counters()
        >>> after.copies - before.copies, after.allocations - before.allocations
        (1, 1)
    """

    allocations: int = 0
    launches: int = 0
    compiles: int = 0
    copies: int = 0
    callbacks: int = 0
    replays: int = 0

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    def copy(self) -> Counters:
        return Counters(*(getattr(self, f.name) for f in fields(self)))


counters = Counters()
