"""One GPU: its limits, memory, streams and kernels, and how long a wait polls (`spin_seconds`)."""

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

from numbasync.backend.borrowed import Borrowed
from numbasync.backend.cuda import (
    array_exchange,
    host_callback,
    kernels,
    launch_records,
    nccl,
)
from numbasync.backend.cuda.array_exchange import Bridges, CudaExport, CudaForeign
from numbasync.backend.cuda.arrays import CudaArray, HostArray
from numbasync.backend.cuda.completion_words import (
    CompletionCounters,
    CounterCompletion,
    EventCompletion,
)
from numbasync.backend.cuda.copy_kernels import Copiers, CopyCompilation
from numbasync.backend.cuda.driver import (
    cu,
    driver_version,
    enter,
    fail,
    has_cub,
    load_cupti,
    name_of,
)
from numbasync.backend.cuda.event import CudaEvent
from numbasync.backend.cuda.formula_kernels import FormulaCompilation, FormulaKernels
from numbasync.backend.cuda.graph import ATTEMPTS, INVALIDATED, CaptureStreams, ExecutableGraph
from numbasync.backend.cuda.kernels import CudaExecutable
from numbasync.backend.cuda.memory import CudaMemory, CudaPool
from numbasync.backend.cuda.peers import Peers
from numbasync.backend.cuda.pinned_memory import HostMemory, PinnedPool
from numbasync.backend.cuda.pitched_copies import copies_rows
from numbasync.backend.cuda.resources import peaks_of
from numbasync.backend.cuda.stream import CudaStream
from numbasync.backend.cuda.stream_exchange import ForeignCudaEvent, ForeignCudaStream
from numbasync.backend.cuda.tensor_maps import CudaTensorMap, TensorMaps
from numbasync.backend.cuda.waits import SpareEvents, is_captured
from numbasync.backend.device_facts import TensorCores
from numbasync.backend.protocols import (
    Checks,
    Coarsening,
    Command,
    CompletionPath,
    Formula,
    Limits,
    Peaks,
    Work,
)
from numbasync.compilers import ONLY_MLIR
from numbasync.errors import CallerError
from numbasync.memo import Memo
from numbasync.native import core

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


def _limits(p: Any, capability: tuple[int, int]) -> Limits:
    tensor_cores: TensorCores = "warps" if capability >= (8, 0) else "none"
    if capability == (9, 0):  # no other capability has `wgmma`
        tensor_cores = "warpgroups"
    if ONLY_MLIR:  # which has no code for their operations
        tensor_cores = "none"
    return Limits(
        p.max_threads_per_block,
        (p.max_block_dim_x, p.max_block_dim_y, p.max_block_dim_z),
        (p.max_grid_dim_x, p.max_grid_dim_y, p.max_grid_dim_z),
        p.max_shared_memory_per_block,
        p.max_shared_memory_per_block_optin,
        p.warp_size,
        p.multiprocessor_count,
        loads_in_flight=16,
        tensor_cores=tensor_cores,
        max_cluster=8 if p.cluster_launch else 1,
    )


# Results of a call that is refused while a stream is being captured.
CAPTURING = (INVALIDATED, int(cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED))


class CudaDevice:
    """A GPU, through its primary context, which Numba and most libraries use too."""

    kind = "cuda"
    # The event loop polls this long for a kernel of which nothing is known, and then sleeps. To
    # wake a sleeping loop costs 15 to 110 us; polling costs processor time.
    spin_seconds = 300e-6
    counts_steps = False
    locks_pages = True
    is_host = False

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.core = CoreDevice(ordinal)
        self.name = str(self.core.name)
        major, minor = self.core.compute_capability
        self.compute_capability = (int(major), int(minor))
        self.total_memory = _total_memory(ordinal)
        self.limits = _limits(self.core.properties, self.compute_capability)
        self.has_memory_pools = bool(self.core.properties.memory_pools_supported)
        self.words = CompletionCounters()
        self.copiers = Copiers(self)
        self.formulas = FormulaKernels(self)
        self.bridges = Bridges(self)
        self.events = SpareEvents(self)
        # Records of launches on streams of other libraries, by work and handle.
        self.launches_elsewhere = Memo[tuple[Work, int], Any](launch_records.MOST)
        self.peers = Peers(self)
        self.capture_streams = CaptureStreams(self)
        self.capturing = threading.RLock()  # held while a graph is being made
        self._pinned = PinnedPool(self)
        self.host_block = self._pinned.reuse
        self._tensor_maps = TensorMaps(self)
        self._streams: weakref.WeakSet[CudaStream] = weakref.WeakSet()
        self.dropped: list[ForeignCudaStream] = []
        self._lock = threading.RLock()
        self._completion: CompletionPath | None = None
        launch_records.connect()

    def cupti(self) -> Any | None:
        return load_cupti()

    @property
    def has_cub(self) -> bool:
        return has_cub()

    @property
    def versions(self) -> dict[str, str]:
        result, number = cu.cuDriverGetVersion()
        supports = "unknown" if result else f"{number // 1000}.{number % 1000 // 10}"
        calls = "compiled" if core is not None and core.is_on() else "by cuda.bindings"
        return {
            "driver": driver_version(), "driver supports CUDA": supports, "driver calls": calls
        }  # fmt: skip

    @property
    def peaks(self) -> Peaks:
        return peaks_of(self.core.properties, self.compute_capability)

    @property
    def completion(self) -> CompletionPath:
        """Words or events: NUMBASYNC_COMPLETION=word|event decides; unset, words if they work."""
        with self._lock:
            if self._completion is None:
                self._completion = self._choose_completion()
            return self._completion

    def _choose_completion(self) -> CompletionPath:
        requested = os.environ.get("NUMBASYNC_COMPLETION", "auto").strip().lower() or "auto"
        if requested not in ("auto", "word", "event"):
            raise CallerError(f"NUMBASYNC_COMPLETION={requested!r}: write auto, word or event.")
        if requested == "event":
            return CompletionPath("event", "NUMBASYNC_COMPLETION=event asks for it")
        enter(self)
        stream = self.core.create_stream()
        word = self.words.take()
        (result,) = cu.cuStreamWriteValue32(stream.handle, word.device_address, 1, 0)
        if result:
            if requested == "word":
                fail(result, "cuStreamWriteValue32")
            return CompletionPath("event", f"cuStreamWriteValue32 says {name_of(result)}")
        stream.sync()
        if word.read() != 1:
            return CompletionPath("event", "a word written by the device was not seen here")
        return CompletionPath("word", "cuStreamWriteValue32 works on this device")

    def completion_signals(self, handle: Any) -> CounterCompletion | EventCompletion:
        """The object by which a stream of this device signals the points that it has passed."""
        if self.completion.name == "word":
            return CounterCompletion(handle, self.words.take())
        return EventCompletion(handle)

    @cached_property
    def context(self) -> Any:
        """The primary context, retained until the process ends."""
        result, context = cu.cuDevicePrimaryCtxRetain(cu.CUdevice(self.ordinal))
        if result:
            fail(result, "cuDevicePrimaryCtxRetain")
        return context

    # --- factories ---

    @cached_property
    def idle_stream(self) -> Any:
        """A stream for freeing memory, at once: what little runs on it is waited for where it is
        enqueued.
        """
        enter(self)
        self._idle = self.core.create_stream()
        return self._idle.handle

    @cached_property
    def stream_behind_default(self) -> Any:
        """A stream that waits for the legacy default stream, for freeing memory that another
        library has used. The legacy default stream itself would need a current context.
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

    def is_captured(self, number: int) -> bool:
        enter(self)
        return is_captured(cu.CUstream(number))

    def launch_at(self, number: int, work: Work, args: list[Any]) -> bool:
        return launch_records.launch_at(self, self.launches_elsewhere, number, work, args)

    def new_pool(self) -> CudaPool:
        _ = self.idle_stream, self.stream_behind_default  # created now, not by a finaliser
        return CudaPool(self)

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        block = self._pinned.take(nbytes)
        return np.ndarray((len(block),), np.uint8, block)

    def host_arrays(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[Any], tuple[CudaArray, np.ndarray[Any, Any]]]:
        count, known_arrays = (
            math.prod(shape),
            Memo[int, tuple[CudaArray, np.ndarray[Any, Any]]](MOST_KNOWN),
        )

        def arrays(block: Any) -> tuple[CudaArray, np.ndarray[Any, Any]]:
            address = block.address
            pair = known_arrays.get(address)
            if pair is None:  # addresses recur, since the slabs of blocks are never freed
                nbytes = count * dtype.itemsize
                buffer: Any = (ctypes.c_char * nbytes).from_address(address)
                view = np.ndarray(shape, dtype, buffer)
                handle = CudaArray(address, (count,), (dtype.itemsize,), dtype)
                pair = known_arrays[address] = handle, view
            return pair

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
        cls = HostArray if type(memory) is HostMemory else CudaArray
        return cls(memory.address + offset, shape, strides, dtype)

    def tensor_map(self, array: CudaArray, box: tuple[int, ...], swizzle: int) -> CudaTensorMap:
        return self._tensor_maps.encode(array, box, swizzle)

    def foreign(self, obj: object) -> CudaForeign | Borrowed | None:
        return array_exchange.find(self, obj)

    def lend(self, array: CudaArray, memory: CudaMemory, keep: object) -> CudaExport:
        return CudaExport(self, array, memory, keep)

    def scalar_key(self, value: object) -> Hashable:
        key: Hashable = kernels.scalar_type(value)
        return key

    def compile(self, dispatcher: Any, keys: tuple[Hashable, ...]) -> CudaExecutable:
        return kernels.compile_kernel(self, dispatcher, keys)

    def coarsener(self, dispatcher: Any, coarsening: Coarsening) -> Any:
        from numbasync.backend.cuda.coarsening import coarsened  # of numba-cuda's lowering

        return coarsened(dispatcher, coarsening)

    def reaches(self, array: CudaArray) -> bool:
        return array.rows.height > 0

    def copy_needs(self, dst: CudaArray, src: CudaArray) -> CopyCompilation | None:
        return None if copies_rows(dst, src) else self.copiers.needs(dst.key(), src.key())

    def generate_needs(self, dst: CudaArray, formula: Formula) -> FormulaCompilation | None:
        return self.formulas.needs(dst, formula)

    def graph(self, commands: Sequence[Command]) -> ExecutableGraph:
        return ExecutableGraph(self, commands)

    def synchronize(self) -> None:
        enter(self)
        result = cu.CUresult.CUDA_SUCCESS
        # The driver refuses to wait for a device on which a stream is being captured, and
        # invalidates the capture; beside the instantiation of a graph it was seen to crash. Who
        # waits holds the lock: what is known to be in flight was waited for before, so that a
        # capture is not held up for long. Another library's captures end soon.
        for _ in range(ATTEMPTS):
            with self.capturing:
                (result,) = cu.cuCtxSynchronize()
            if int(result) not in CAPTURING:
                break
        if result:
            fail(result, "cuCtxSynchronize")

    def warm_up(self) -> None:
        host_callback.ready()

    def quiesce(self) -> None:
        # The driver does not report that a stream waits for a gate. A stream that has not
        # advanced for QUIET_SECONDS is assumed to wait. Used by tests only.
        before: list[tuple[int, bool]] = []
        since = time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            now = [(s.completed(), s.query()) for s in self._streams if not s.dropped]
            if now != before:
                before, since = now, time.monotonic()
            if all(idle for _, idle in now):
                return

    def seeded(self, seed: int) -> AbstractContextManager[object]:
        """No effect: a GPU schedules its streams itself."""
        return nullcontext()

    def checked(self, checks: Checks) -> AbstractContextManager[object]:
        """No effect: compute-sanitizer checks kernels on GPUs."""
        return nullcontext()

    def can_access(self, other: Any) -> bool:
        if not isinstance(other, CudaDevice):
            return False
        return bool(self.core.can_access_peer(other.core))

    @property
    def collectives(self) -> nccl.Nccl | None:
        return nccl.library()

    def copies_from(self, other: Any) -> bool:
        if not isinstance(other, CudaDevice):
            return False
        self.peers.enable(other)
        return True
