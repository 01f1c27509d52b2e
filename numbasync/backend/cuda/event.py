"""Events of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cuda.core import EventOptions

from numbasync.backend.cuda.driver import cu, enter, error_of, fail
from numbasync.errors import InternalError, StateError

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu


class CudaEvent:
    """A CUDA event, with or without timing."""

    def __init__(self, device: Gpu, timing: bool) -> None:
        enter(device)
        self._device = device
        self.core = device.core.create_event(EventOptions(timing_enabled=timing))
        self.handle = self.core.handle

    def query(self) -> bool:
        enter(self._device)  # a copy thread may query before it enqueues any work
        return bool(self.core.is_done)

    def synchronize(self) -> None:
        enter(self._device)  # a worker of the CPU device may wait, which has entered none
        (result,) = cu.cuEventSynchronize(self.handle)
        if result:
            fail(result, "cuEventSynchronize")

    def notify(self, call: Callable[[], None]) -> None:
        raise InternalError("a CUDA event cannot call back; the other device waits for it")

    def elapsed_ms(self, later: CudaEvent) -> float:
        if type(self) is type(later) is CudaEvent:
            try:
                return float(later.core - self.core)
            except Exception as error:
                raise StateError(f"elapsed_ms: {error}") from error
        enter(self._device)
        result, ms = cu.cuEventElapsedTime(self.handle, later.handle)
        if result:
            raise StateError(
                "elapsed_ms needs two events with timing that were recorded and have been passed: "
                "make them so in their library, and await both."
            ) from error_of(result, "cuEventElapsedTime")
        return float(ms)
