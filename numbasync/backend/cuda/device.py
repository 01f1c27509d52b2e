"""One GPU."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
from cuda.core import Device as CoreDevice
from cuda.core import StreamOptions

from numbasync.backend.cuda import array_exchange, fast_calls, kernels
from numbasync.backend.cuda.array_exchange import Bridges, CudaExport, CudaForeign
from numbasync.backend.cuda.completion_words import (
    CompletionCounters,
    CounterCompletion,
    EventCompletion,
)
from numbasync.backend.cuda.copy_kernels import Copiers, CopyCompilation
from numbasync.backend.cuda.driver import cu, driver_version, enter, fail, name_of
from numbasync.backend.cuda.graph import CaptureStreams, CudaGraph
from numbasync.backend.cuda.kernels import CudaArray, CudaExecutable, HostArray
from numbasync.backend.cuda.memory import CudaMemory, CudaPool
from numbasync.backend.cuda.pinned_memory import HostMemory, PinnedPool
from numbasync.backend.cuda.pitched_copies import copies_rows
from numbasync.backend.cuda.stream import CudaEvent, CudaStream
from numbasync.backend.cuda.stream_exchange import ForeignCudaEvent, ForeignCudaStream
from numbasync.backend.protocols import Checks, Command, CompletionPath, Limits
from numbasync.errors import CallerError
from numbasync.memo import Memo

QUIET_SECONDS = 0.02
MOST_KNOWN = 256  # arrays in page-locked memory, of one kind


def _total_memory(ordinal: int) -> int:
    result, handle = cu.cuDeviceGet(ordinal)
    if result:
        fail(result, "cuDeviceGet")
    result, total = cu.cuDeviceTotalMem(handle)
    if result:
        fail(result, "cuDeviceTotalMem")
    return int(total)


def _limits(p: Any) -> Limits:
    return Limits(
        p.max_threads_per_block,
        (p.max_block_dim_x, p.max_block_dim_y, p.max_block_dim_z),
        (p.max_grid_dim_x, p.max_grid_dim_y, p.max_grid_dim_z),
        p.max_shared_memory_per_block,
        p.warp_size,
        p.multiprocessor_count,
        loads_in_flight=16,
    )


class CudaDevice:
    """A GPU, by its primary context, which Numba and most libraries use too."""

    kind = "cuda"
    # An awaited kernel that takes longer than this is waited for asleep. Waking a sleeping
    # loop costs about 25 us; looking until then costs the processor.
    spin_seconds = 200e-6

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.core = CoreDevice(ordinal)
        self.name = str(self.core.name)
        major, minor = self.core.compute_capability
        self.compute_capability = (int(major), int(minor))
        self.total_memory = _total_memory(ordinal)
        self.limits = _limits(self.core.properties)
        self.has_memory_pools = bool(self.core.properties.memory_pools_supported)
        self.words = CompletionCounters()
        self.copiers = Copiers(self)
        self.bridges = Bridges(self)
        self.capture_streams = CaptureStreams(self)
        self._pinned = PinnedPool(self)
        self._streams: weakref.WeakSet[CudaStream] = weakref.WeakSet()
        self.dropped: list[ForeignCudaStream] = []
        self._lock = threading.RLock()
        self._completion: CompletionPath | None = None
        fast_calls.begin()

    @property
    def versions(self) -> dict[str, str]:
        result, number = cu.cuDriverGetVersion()
        supports = "unknown" if result else f"{number // 1000}.{number % 1000 // 10}"
        why_not = fast_calls.ready()
        calls = f"by cuda.bindings: {why_not}" if why_not else "compiled"
        return {
            "driver": driver_version(), "driver supports CUDA": supports, "driver calls": calls
        }  # fmt: skip

    @property
    def completion(self) -> CompletionPath:
        """Words or events; NUMBASYNC_COMPLETION=word|event decides, else what works."""
        with self._lock:
            if self._completion is None:
                self._completion = self._choose_completion()
            return self._completion

    def _choose_completion(self) -> CompletionPath:
        wish = os.environ.get("NUMBASYNC_COMPLETION", "auto").strip().lower() or "auto"
        if wish not in ("auto", "word", "event"):
            raise CallerError(f"NUMBASYNC_COMPLETION={wish!r}: write auto, word or event.")
        if wish == "event":
            return CompletionPath("event", "NUMBASYNC_COMPLETION=event asks for it")
        enter(self)
        stream = self.core.create_stream()
        word = self.words.take()
        (result,) = cu.cuStreamWriteValue32(stream.handle, word.device_address, 1, 0)
        if result:
            if wish == "word":
                fail(result, "cuStreamWriteValue32")
            return CompletionPath("event", f"cuStreamWriteValue32 says {name_of(result)}")
        stream.sync()
        if word.read() != 1:
            return CompletionPath("event", "a word written by the device was not seen here")
        return CompletionPath("word", "cuStreamWriteValue32 works on this device")

    def marks(self, handle: Any) -> CounterCompletion | EventCompletion:
        """How a stream of this device tells what it has passed."""
        if self.completion.name == "word":
            return CounterCompletion(handle, self.words.take())
        return EventCompletion(handle)

    # --- what it makes ---

    @cached_property
    def idle_stream(self) -> Any:
        """A stream on which nothing ever runs, for returning memory."""
        enter(self)
        self._idle = self.core.create_stream()
        return self._idle.handle

    @cached_property
    def stream_behind_default(self) -> Any:
        """A stream that waits for the legacy default stream, for returning memory that another
        library has used. That stream itself would need a current context.
        """
        enter(self)
        self._behind = self.core.create_stream(options=StreamOptions(nonblocking=False))
        return self._behind.handle

    def new_stream(self, priority: int) -> CudaStream:
        stream = CudaStream(self, priority)
        self._streams.add(stream)
        return stream

    def foreign_stream(self, number: int) -> ForeignCudaStream:
        while self.dropped:
            self.dropped.pop().release()
        stream = ForeignCudaStream(self, number)
        self._streams.add(stream)
        return stream

    def new_event(self, timing: bool) -> CudaEvent:
        return CudaEvent(self, timing)

    def foreign_event(self, number: int) -> ForeignCudaEvent:
        return ForeignCudaEvent(self, number)

    def new_pool(self) -> CudaPool:
        _ = self.idle_stream, self.stream_behind_default  # made now, so that no finaliser has to
        return CudaPool(self)

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        block = self._pinned.take(nbytes)
        return np.ndarray((len(block),), np.uint8, block)

    def host_block(self, nbytes: int) -> Any:
        return self._pinned.reuse(nbytes)

    def host_arrays(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[Any], tuple[CudaArray, np.ndarray[Any, Any]]]:
        count, known = (
            math.prod(shape),
            Memo[int, tuple[CudaArray, np.ndarray[Any, Any]]](MOST_KNOWN),
        )

        def arrays(block: Any) -> tuple[CudaArray, np.ndarray[Any, Any]]:
            address = ctypes.addressof(block)
            found = known.get(address)
            if found is None:  # blocks come again: their slabs stay
                nbytes = count * dtype.itemsize
                place: Any = (ctypes.c_char * nbytes).from_address(address)
                view = np.ndarray(shape, dtype, place)
                handle = CudaArray(address, (count,), (dtype.itemsize,), dtype)
                found = known[address] = handle, view
            return found

        return arrays

    def host_memory(self, block: Any) -> HostMemory:
        return HostMemory(block)

    def array(
        self,
        memory: CudaMemory,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> CudaArray:
        kind = HostArray if type(memory) is HostMemory else CudaArray
        return kind(memory.address + offset, shape, strides, dtype)

    def foreign(self, obj: object) -> CudaForeign | None:
        return array_exchange.find(self, obj)

    def lend(self, array: CudaArray, memory: CudaMemory, keep: object) -> CudaExport:
        return CudaExport(self, array, memory, keep)

    def scalar_key(self, value: object) -> Hashable:
        found: Hashable = kernels.scalar_type(value)
        return found

    def compile(self, dispatcher: Any, keys: tuple[Hashable, ...]) -> CudaExecutable:
        return kernels.compile_kernel(self, dispatcher, keys)

    def reaches(self, array: CudaArray) -> bool:
        return array.rows.height > 0

    def copy_needs(self, dst: CudaArray, src: CudaArray) -> CopyCompilation | None:
        return None if copies_rows(dst, src) else self.copiers.needs(dst.key(), src.key())

    def graph(self, commands: Sequence[Command]) -> CudaGraph:
        return CudaGraph(self, commands)

    def synchronize(self) -> None:
        enter(self)
        (result,) = cu.cuCtxSynchronize()
        if result:
            fail(result, "cuCtxSynchronize")

    def quiesce(self) -> None:
        # The driver does not say that a stream waits for a gate. What has not moved for a
        # while is taken to wait; used by tests only.
        before: list[tuple[int, bool]] = []
        since = time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            now = [(s.completed(), s.query()) for s in self._streams if not s.dropped]
            if now != before:
                before, since = now, time.monotonic()
            if all(idle for _, idle in now):
                return

    def seeded(self, seed: int) -> AbstractContextManager[object]:
        """Nothing: a GPU decides itself."""
        return nullcontext()

    def checked(self, checks: Checks) -> AbstractContextManager[object]:
        """Nothing: compute-sanitizer does it there."""
        return nullcontext()

    def can_access(self, other: Any) -> bool:
        if not isinstance(other, CudaDevice):
            return False
        return bool(self.core.can_access_peer(other.core))
