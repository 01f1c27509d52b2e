"""Waits of one stream for another one by their handles, by an event.

Whether the other stream is idle is not asked before: on an H100 a query takes 1.6 us, and to record
an event and to wait for it 0.5 to 0.7.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from numbasync.backend.cuda.driver import cu, enter, fail
from numbasync.errors import StateError

if TYPE_CHECKING:
    from numbasync.backend.cuda.event import CudaEvent
    from numbasync.backend.cuda.gpu import Gpu

_IMPLICIT = int(cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
_NOT_CAPTURED = int(cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def is_captured(handle: Any) -> bool:
    """Whether a library captures the stream for a graph. For a default stream, the GPU's context
    must be current.
    """
    result, status = cu.cuStreamIsCapturing(handle)
    if result:
        # During a capture on a blocking stream, the legacy default stream cannot be used.
        return int(result) == _IMPLICIT
    return int(status) != _NOT_CAPTURED


class SpareEvents:
    """Events for waits. A wait is for the point at which its event was recorded last, so an event
    serves again as soon as the wait is enqueued; there are as many as threads that enqueue waits at
    a time, and none is destroyed.

    Attributes:
        numbers: the handles of those that are free now.
    """

    def __init__(self, device: Gpu) -> None:
        self.numbers: list[int] = []
        self._all: list[CudaEvent] = []
        self._device = device
        self._lock = threading.RLock()  # a finaliser may need an event, too

    def new(self) -> int:
        """The handle of one more event."""
        event: CudaEvent = self._device.new_event(timing=False)
        with self._lock:
            self._all.append(event)
        return int(event.handle)

    def take(self) -> int:
        """The handle of an event, which the caller adds to `numbers` again."""
        try:
            return self.numbers.pop()
        except IndexError:
            return self.new()


def put_behind(device: Gpu, handle: int, other: int) -> None:
    """Order later work of the stream `handle` after the present work of the stream `other`.

    Raises:
        StateError: another library captures `other` for a graph.
    """
    if handle == other:
        return
    enter(device)
    if is_captured(cu.CUstream(other)):
        raise StateError(
            f"another library captures its stream {other:#x} for a graph, and work on a stream of "
            "numbasync cannot become part of that.\n"
            'Launch on the captured stream itself: declare the kernel @na.launcher(stream="caller")'
            ", and call kernel(...).async_on(). Or work before the capture."
        )
    event = device.events.take()
    try:
        record(event, other)
        wait(handle, event)
    finally:
        device.events.numbers.append(event)


def record(event: int, handle: int) -> None:
    (result,) = cu.cuEventRecord(cu.CUevent(event), cu.CUstream(handle))
    if result:
        fail(result, "cuEventRecord")


def wait(handle: int, event: int) -> None:
    (result,) = cu.cuStreamWaitEvent(cu.CUstream(handle), cu.CUevent(event), 0)
    if result:
        fail(result, "cuStreamWaitEvent")
