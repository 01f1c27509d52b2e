"""Streams and events of other libraries on the same GPU, by their handles.

Work of both libraries on such a stream runs in the order in which it was enqueued. This module
never destroys a handle. While another library captures the stream for its own graph, numbasync
enqueues no work on the stream and does not query it: either would become part of the graph, or
end the capture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuda.core import Stream as CoreStream

from numbasync.backend.cuda.driver import NOT_READY, cu, enter, fail
from numbasync.backend.cuda.event import CudaEvent
from numbasync.backend.cuda.stream import CudaStream
from numbasync.backend.cuda.waits import is_captured
from numbasync.backend.protocols import Waker
from numbasync.errors import CallerError, DeviceMismatchError, StateError

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu

LEGACY = int(cu.CU_STREAM_LEGACY)
PER_THREAD = int(cu.CU_STREAM_PER_THREAD)


def identity_of(number: int) -> int | None:
    """The stream's unique number in the process, which later streams with the same handle do not
    share; None for the legacy default stream, which each GPU has.

    Raises:
        CallerError: `number` is the per-thread default stream.
        StateError: another library captures the stream; a query of its identity would end the
            capture.
    """
    if number in (0, LEGACY):
        return None
    if number == PER_THREAD:
        raise CallerError(
            f"{number:#x} is the per-thread default stream, which is another stream on each "
            "thread, and work here is "
            "waited for on any thread: make a stream, cupy.cuda.Stream() say, or use one of "
            "device.new_stream()."
        )
    handle = cu.CUstream(number)
    if is_captured(handle):
        raise _captured(number)
    result, identity = cu.cuStreamGetId(handle)
    if result:
        fail(result, "cuStreamGetId")
    return int(identity)


def ordinal_of(number: int) -> int:
    """The ordinal of the GPU that a stream belongs to. Not for default streams.

    Raises:
        DeviceMismatchError: the stream's context is not the primary one of its GPU.
    """
    result, context = cu.cuStreamGetCtx(cu.CUstream(number))
    if result:
        fail(result, "cuStreamGetCtx")
    (result,) = cu.cuCtxPushCurrent(context)
    if result:
        fail(result, "cuCtxPushCurrent")
    result, device = cu.cuCtxGetDevice()
    popped, _ = cu.cuCtxPopCurrent()
    if result or popped:
        fail(result or popped, "cuCtxGetDevice")
    result, primary = cu.cuDevicePrimaryCtxRetain(device)
    if result:
        fail(result, "cuDevicePrimaryCtxRetain")
    (result,) = cu.cuDevicePrimaryCtxRelease(device)
    if result:
        fail(result, "cuDevicePrimaryCtxRelease")
    if int(primary) != int(context):
        raise DeviceMismatchError(
            f"the stream {number:#x} is of another context than the primary one of "
            f"cuda:{int(device)}, in which kernels and memory are: make it without cuCtxCreate, "
            "and not of a green context."
        )
    return int(device)


def _captured(number: int) -> StateError:
    return StateError(
        f"another library captures the stream {number:#x} for a graph of its own, and work of "
        "numbasync cannot become part of that. End the capture first, or use another stream."
    )


class ForeignCudaStream(CudaStream):
    """Another library's stream. The handle is valid while the stream's owner is kept alive."""

    def __init__(self, device: Gpu, number: int) -> None:
        # A default stream belongs to the current context.
        enter(device)
        self._begin(device, CoreStream.from_handle(number), cu.CUstream(number))

    def is_captured(self) -> bool:
        enter(self.device)
        return is_captured(self.handle)

    def check_not_captured(self) -> None:
        if self.is_captured():
            raise _captured(self.handle_number)

    def write(self, sequence: int) -> None:
        self.check_not_captured()
        super().write(sequence)

    def record(self, event: CudaEvent) -> None:
        self.check_not_captured()
        super().record(event)

    def wait(self, event: Any) -> None:
        self.check_not_captured()
        super().wait(event)

    def put_behind(self, other: int) -> None:
        self.check_not_captured()
        super().put_behind(other)

    def hold(self) -> Callable[[], None]:
        self.check_not_captured()
        return super().hold()

    def wake(self, sequence: int, waker: Waker) -> bool:
        # The notification runs behind later work of the other library, so it may be late.
        if not self.is_captured():
            super().wake(sequence, waker)
        return False

    def synchronize(self) -> None:
        self.check_not_captured()
        super().synchronize()

    def passed_ns(self) -> None:
        return None

    def spin_poll(self) -> bool:
        return not self.is_captured() and super().spin_poll()

    def _query(self) -> int:
        return NOT_READY if self.is_captured() else super()._query()

    def drop(self) -> None:
        self.dropped = True  # the driver is not queried about the stream any more
        self.device.dropped.append(self)

    def release(self) -> None:
        """Return the stream's counters to the device for reuse."""
        self.verified_sequence()  # returns the counters of notifications
        word = self._completion.release(self._last)
        if word is not None:
            self.device.words.give(word)


class ForeignCudaEvent(CudaEvent):
    """Another library's event."""

    def __init__(self, device: Gpu, number: int) -> None:
        self._device = device
        self.handle = cu.CUevent(number)

    def query(self) -> bool:
        enter(self._device)
        (result,) = cu.cuEventQuery(self.handle)
        if result and int(result) != NOT_READY:
            fail(result, "cuEventQuery")
        return not result
