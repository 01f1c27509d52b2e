"""Events of the CPU device: points in a stream."""

from __future__ import annotations

from collections.abc import Callable

from numbasync.backend.cpu.runtime.workers import Blocker, state, wait_for
from numbasync.errors import StateError


class CpuEvent:
    """A recorded point in a stream. An event never recorded counts as passed, as in CUDA."""

    def __init__(self) -> None:
        self.reached = Blocker(is_open=True)

    @property
    def time_ns(self) -> int | None:
        """When the recorded point was passed; None: it was not."""
        return self.reached.time_ns

    def query(self) -> bool:
        return self.reached.open

    def synchronize(self) -> None:
        reached = self.reached
        wait_for(lambda: reached.open)

    def notify(self, call: Callable[[], None]) -> None:
        with state:
            if not self.reached.open:
                self.reached.calls.append(call)
                return
        call()

    def elapsed_ms(self, later: CpuEvent) -> float:
        if self.time_ns is None or later.time_ns is None:
            raise StateError(
                "elapsed_ms needs two events that were recorded and have been passed.\n"
                "Await both, or call synchronize() on the later one, first."
            )
        return (later.time_ns - self.time_ns) / 1e6
