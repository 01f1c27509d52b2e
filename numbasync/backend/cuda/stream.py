"""Streams of a GPU: work in order, and their completion.

How often a short wait asks the driver before it sleeps is `LOOKS` here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.core import StreamOptions

from numbasync.backend.cuda import host_callback
from numbasync.backend.cuda.arrays import CudaArray, OrderedView
from numbasync.backend.cuda.completion_words import CompletionCounter, Gates
from numbasync.backend.cuda.copy_kernels import THREADS
from numbasync.backend.cuda.driver import NOT_READY, cu, enter, error_of, fail
from numbasync.backend.cuda.event import CudaEvent
from numbasync.backend.cuda.fill_patterns import pattern
from numbasync.backend.cuda.kernels import CudaExecutable
from numbasync.backend.cuda.launch_records import MOST, record
from numbasync.backend.cuda.peers import copy_peer
from numbasync.backend.cuda.pitched_copies import copies_rows, copy_rows, download_rows, upload_rows
from numbasync.backend.cuda.waits import put_behind
from numbasync.backend.protocols import Formula, Waker, Work, counters
from numbasync.memo import Memo
from numbasync.native import compiled, core, known

if TYPE_CHECKING:
    from numbasync.backend.cuda.debug_exceptions import Found
    from numbasync.backend.cuda.gpu import Gpu, Replayed


# Queries of a stream that may soon be idle. Each takes about a microsecond, and a small kernel is
# done 5 to 10 us after its launch.
LOOKS = 24


class CudaQueue:
    """Enqueues the work of one submission on its stream."""

    __slots__ = ("_checks", "_device", "_handle", "_stream")
    counted = 1  # added to the counters for each call; 0 where work is captured, not run

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self._device = stream.device
        self._handle = stream.handle
        self._checks: list[Found] | None = None

    def launch(self, work: Work, args: Sequence[Any]) -> None:
        enter(self._device)
        executable: CudaExecutable = work.executable  # type: ignore[assignment]  # of this backend
        if work.constants:
            args = [*args, *work.constants]
        check = executable.launch(self._stream, work.grid, work.block, work.shared_bytes, args)
        if check is not None:
            self._checks = [*(self._checks or ()), check]
        counters.launches += self.counted

    def upload(self, dst: CudaArray, src: np.ndarray[Any, Any]) -> None:
        enter(self._device)
        if dst.rows.height > 1:
            upload_rows(dst, src.ctypes.data, self._handle)
            counters.copies += self.counted
            return
        (result,) = cu.cuMemcpyHtoDAsync(dst.pointer, src.ctypes.data, src.nbytes, self._handle)
        if result:
            fail(result, "cuMemcpyHtoDAsync")
        counters.copies += self.counted

    def download(self, dst: np.ndarray[Any, Any], src: CudaArray) -> None:
        enter(self._device)
        if src.rows.height > 1:
            download_rows(dst.ctypes.data, src, self._handle)
            counters.copies += self.counted
            return
        (result,) = cu.cuMemcpyDtoHAsync(dst.ctypes.data, src.pointer, dst.nbytes, self._handle)
        if result:
            fail(result, "cuMemcpyDtoHAsync")
        counters.copies += self.counted

    def copy(self, dst: CudaArray, src: CudaArray) -> None:
        enter(self._device)
        counters.copies += self.counted
        if dst.dtype == src.dtype and dst.is_contiguous() and src.is_contiguous():
            (result,) = cu.cuMemcpyDtoDAsync(dst.pointer, src.pointer, dst.nbytes, self._handle)
            if result:
                fail(result, "cuMemcpyDtoDAsync")
            return
        if copies_rows(dst, src):
            copy_rows(dst, src, self._handle)
            return
        copier = self._device.copiers.compile(dst.key(), src.key())
        blocks = -(-dst.fields[2] // THREADS)
        copier.launch(self._stream, (blocks, 1, 1), (THREADS, 1, 1), 0, (dst, src))

    def call(self, function: Callable[..., None], arrays: Sequence[CudaArray]) -> None:
        enter(self._device)
        function(*map(OrderedView, arrays))

    def copy_peer(self, dst: CudaArray, src: CudaArray, source: Gpu) -> None:
        enter(self._device)
        copy_peer(dst, self._device, src, source, self._handle)
        counters.copies += self.counted

    def fill(self, dst: CudaArray, value: np.generic) -> None:
        enter(self._device)
        unit, number = pattern(value)
        if unit <= 4:
            call = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}[unit]
            results = [call(dst.pointer, number, dst.nbytes // unit, self._handle)]
        else:
            # The driver's patterns have at most 32 bits: one strided memset for each 32-bit part.
            data, count = value.tobytes(), dst.fields[2]
            results = [
                cu.cuMemsetD2D32Async(
                    cu.CUdeviceptr(dst.address + offset), len(data),
                    int.from_bytes(data[offset : offset + 4], "little"), 1, count, self._handle,
                )
                for offset in range(0, len(data), 4)
            ]  # fmt: skip
        for (result,) in results:
            if result:
                fail(result, "cuMemsetAsync")

    def generate(self, dst: CudaArray, formula: Formula) -> None:
        enter(self._device)
        self._device.formulas.launch(self._stream, dst, formula)

    def replay(self, graph: Replayed) -> None:
        enter(self._device)
        graph.launch(self._handle)
        counters.replays += 1
        if graph.checks:
            self._checks = [*(self._checks or ()), *(c.again(self._stream) for c in graph.checks)]

    @property
    def checks(self) -> Sequence[Found]:
        """The readers of the exceptions that debug kernels raise."""
        return self._checks or ()

    @property
    def may_fail(self) -> bool:
        """Whether the queue has debug kernels, whose exceptions `failure` reads."""
        return self._checks is not None

    def failure(self) -> BaseException | None:
        """An exception raised by a debug kernel of the queue. Errors of the driver concern the
        whole context: see `CudaStream.fault`.
        """
        return next(filter(None, (check() for check in self._checks or ())), None)


@known
class CudaStream:
    """A CUDA stream that does not wait for the legacy default stream."""

    __slots__ = (
        "__weakref__", "_completion", "_gates", "_last", "_notifications",
        "_notifications_lock", "_number", "_verified", "calls", "captures", "device", "handle",
        "native", "records",
    )  # fmt: skip
    dropped = False  # another library's stream, and released

    def __init__(self, device: Gpu, priority: int) -> None:
        enter(device)
        options = StreamOptions(nonblocking=True, priority=priority or None)
        native = device.core.create_stream(options=options)
        self._begin(device, native, native.handle)

    def _begin(self, device: Gpu, native: Any, handle: Any) -> None:
        self.device = device
        self.captures = False  # graphs are captured on the stream
        self.native = native
        self.handle = handle
        self._number = int(handle)
        self._completion = device.completion_signals(handle)
        self.records = Memo[Work, Any](MOST)
        word, device_word = self._completion.addresses
        # The calls of the core; None where events take the place of the counter.
        self.calls = (
            core.DriverStream(self._number, device, word, device_word, self.records)
            if core is not None and word else None
        )  # fmt: skip
        self._last = 0
        # For each notification: the sequence number before it, and the counter that it clears.
        self._notifications: deque[tuple[int, CompletionCounter]] = deque()
        self._notifications_lock = threading.Lock()
        self._verified = 0
        self._gates: Gates | None = None

    @property
    def handle_number(self) -> int:
        return self._number

    def numba_stream(self) -> Any:
        from numbasync.kernel_names import cuda

        enter(self.device)  # Numba requires a current context
        return cuda.external_stream(self._number)

    # --- enqueue ---

    def open(self) -> CudaQueue:
        return CudaQueue(self)

    # The core makes these calls itself, unless a test has replaced one of the methods.

    @compiled
    def launch(self, work: Work, args: list[Any], queue: CudaQueue | None) -> CudaQueue | None:
        queue = queue or CudaQueue(self)
        queue.launch(work, args)
        return queue if queue.may_fail else None

    def record_of(self, work: Work) -> Any:
        """A new record of the core, kept in `records`; None if `work` cannot be launched so."""
        prepared = record(work, self._number)
        if prepared is not None:
            self.records[work] = prepared
        return prepared

    @compiled
    def fill(self, dst: CudaArray, value: np.generic, queue: CudaQueue | None) -> CudaQueue | None:
        self.open().fill(dst, value)  # a fill cannot fail later, so its queue is not kept
        return queue

    @compiled
    def upload(self, dst: CudaArray, block: Any, queue: CudaQueue | None) -> CudaQueue | None:
        self.open().upload(dst, np.ndarray((dst.nbytes,), np.uint8, block))
        return queue

    @compiled
    def download(self, block: Any, src: CudaArray, queue: CudaQueue | None) -> CudaQueue | None:
        self.open().download(np.ndarray((src.nbytes,), np.uint8, block), src)
        return queue

    @compiled
    def copy_peer(
        self, dst: CudaArray, src: CudaArray, source: Gpu, queue: CudaQueue | None
    ) -> CudaQueue | None:
        enter(self.device)
        copy_peer(dst, self.device, src, source, self.handle)
        counters.copies += 1
        return queue

    @compiled
    def replay(self, graph: Replayed, queue: CudaQueue | None) -> CudaQueue | None:
        queue = queue or CudaQueue(self)
        queue.replay(graph)
        return queue if queue.may_fail else None

    @compiled
    def write(self, sequence: int) -> None:
        enter(self.device)
        self._completion.write(sequence)
        self._last = sequence

    def record(self, event: CudaEvent) -> None:
        enter(self.device)
        (result,) = cu.cuEventRecord(event.handle, self.handle)
        if result:
            fail(result, "cuEventRecord")

    def wait(self, event: Any) -> None:
        enter(self.device)
        if not isinstance(event, CudaEvent):
            event.notify(self.hold())  # an event of another kind of device opens a gate here
            return
        (result,) = cu.cuStreamWaitEvent(self.handle, event.handle, 0)
        if result:
            fail(result, "cuStreamWaitEvent")

    @compiled
    def put_behind(self, other: int) -> None:
        """Order later work behind the present work of another library's stream."""
        put_behind(self.device, self._number, other)

    def hold(self) -> Callable[[], None]:
        enter(self.device)
        if self._gates is None:
            self._gates = Gates(self.device.words.take())
        return self._gates.hold(self.handle)

    # --- poll ---

    @compiled
    def completed(self) -> int:
        return self._completion.completed()

    def fault(self) -> BaseException | None:
        # The query releases the interpreter lock, and a computing thread may then keep it for a
        # switch interval; `verified_sequence` avoids that. A query that held the interpreter lock
        # could deadlock: the holder of the driver's lock may wait for the interpreter lock, as
        # other libraries' callbacks do.
        result = self._query()
        if not result or result == NOT_READY:
            return None
        return error_of(cu.CUresult(result), "cuStreamQuery")

    def verified_sequence(self) -> int:
        # The driver runs no host function behind a fault, so a host function that has run proves
        # that all work before it succeeded.
        with self._notifications_lock:
            while True:
                if not self._notifications or self._notifications[0][1].read():
                    break
                number, word = self._notifications.popleft()
                self._verified = max(self._verified, number)
                self.device.words.give(word)
        return self._verified

    @compiled
    def query(self) -> bool:
        result = self._query()
        if result and result != NOT_READY:
            fail(cu.CUresult(result), "cuStreamQuery")
        return not result

    def passed_ns(self) -> None:
        return None

    @compiled
    def spin_poll(self) -> bool:
        return any(self.query() for _ in range(LOOKS))

    def _query(self) -> int:
        return int(cu.cuStreamQuery(self.handle)[0])

    @compiled
    def synchronize(self) -> None:
        enter(self.device)
        (result,) = cu.cuStreamSynchronize(self.handle)
        if result:
            fail(result, "cuStreamSynchronize")

    def wake(self, sequence: int, waker: Waker) -> bool:
        if waker.eventfd < 0:
            return False
        if not host_callback.host_function():
            return False
        enter(self.device)
        word = self.device.words.take()
        word.write(waker.eventfd + 1)
        # The host function runs behind all work enqueued now, perhaps more than `sequence` needs.
        notification = self._last, word
        self._notifications.append(notification)
        if not host_callback.launch(self.handle, word.address):
            with self._notifications_lock:
                self._notifications.remove(notification)
            word.write(0)
            self.device.words.give(word)
            return False  # no notification will come; `fault` finds a fault
        counters.callbacks += 1
        return sequence >= notification[0]
