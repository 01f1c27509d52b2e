"""The backend interface: the operations of a device, and nothing about their implementation.

The packages above call these protocols only. A backend decides how to represent array handles,
compiled kernels and memory; the packages above pass these objects on unexamined. Code outside
`numbasync.backend` never asks which backend is in use: it asks the backend to do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from numbasync.backend.array_protocols import Export as Export
from numbasync.backend.array_protocols import Foreign as Foreign
from numbasync.backend.collectives import Call as Call
from numbasync.backend.collectives import Library as Library
from numbasync.backend.collectives import Rank as Rank
from numbasync.backend.commands import Command as Command
from numbasync.backend.commands import Graph as Graph
from numbasync.backend.counters import Counters as Counters
from numbasync.backend.counters import counters as counters
from numbasync.backend.device_facts import CompletionPath as CompletionPath
from numbasync.backend.device_facts import Dim3 as Dim3
from numbasync.backend.device_facts import Limits as Limits
from numbasync.backend.device_facts import MemoryStats as MemoryStats
from numbasync.backend.device_facts import Peaks as Peaks
from numbasync.backend.executables import VECTOR_BYTES as VECTOR_BYTES
from numbasync.backend.executables import Array as Array
from numbasync.backend.executables import ArrayKey as ArrayKey
from numbasync.backend.executables import Coarsener as Coarsener
from numbasync.backend.executables import Coarsening as Coarsening
from numbasync.backend.executables import Executable as Executable
from numbasync.backend.executables import NamedTupleKey as NamedTupleKey
from numbasync.backend.executables import Work as Work
from numbasync.backend.formulas import Formula as Formula
from numbasync.backend.kernel_checks import ArgumentAccess as ArgumentAccess
from numbasync.backend.kernel_checks import Checks as Checks
from numbasync.backend.kernel_checks import ThreadOrder as ThreadOrder
from numbasync.backend.kernel_checks import Writers as Writers
from numbasync.backend.pools import Memory as Memory
from numbasync.backend.pools import Pool as Pool
from numbasync.backend.queues import Queue as Queue
from numbasync.backend.waiting import Event as Event
from numbasync.backend.waiting import Prerequisite as Prerequisite
from numbasync.backend.waiting import Waker as Waker

__all__ = [
    "GENERATED",
    "MAY_ALLOCATE",
    "THREADS_MAY_RETURN",
    "VECTOR_BYTES",
    "ArgumentAccess",
    "Array",
    "ArrayKey",
    "Call",
    "Checks",
    "Coarsener",
    "Coarsening",
    "Command",
    "CompletionPath",
    "Counters",
    "Device",
    "Dim3",
    "Event",
    "Executable",
    "Export",
    "Foreign",
    "ForeignStream",
    "Formula",
    "Graph",
    "Library",
    "Limits",
    "Memory",
    "MemoryStats",
    "NamedTupleKey",
    "Peaks",
    "Pool",
    "Prerequisite",
    "Queue",
    "Rank",
    "Stream",
    "ThreadOrder",
    "Waker",
    "Work",
    "Writers",
    "counters",
]  # fmt: skip

# The file name of kernels that numbasync generates around a user's body. Their only barrier
# comes after the body, when every thread has finished its tile.
GENERATED = "<numbasync tiles>"
# An attribute of a dispatcher: the processor's code has barriers that do not wait for threads that
# have returned, as on a GPU.
THREADS_MAY_RETURN = "_numbasync_threads_may_return"
# Of one that allocates arrays, also where Numba's setting does not say so.
MAY_ALLOCATE = "_numbasync_may_allocate"


class Stream(Protocol):
    """An ordered queue of work on one device."""

    @property
    def device(self) -> object:
        """The `Device` that created the stream."""
        ...

    @property
    def native(self) -> Any:
        """The driver library's own stream object; None where there is none."""
        ...

    @property
    def handle_number(self) -> int:
        """The driver's handle; 0 where there is none."""
        ...

    @property
    def records(self) -> Any:
        """Launches prepared for this stream, by their `Work`, and `record_of(work)`, which adds
        one; None where launches are not prepared.
        """
        ...

    def numba_stream(self) -> Any:
        """A Numba stream object that enqueues on this stream.

        Raises:
            DeviceMismatchError: Numba has no streams of this device.
        """
        ...

    def open(self) -> Queue:
        """A queue for one submission. Several may be open; their work runs in call order."""
        ...

    def launch(self, work: Work, args: list[Any], queue: Any) -> Queue | None:
        """`Queue.launch` by the fast path. The caller holds the device's `submit_lock`, and does
        not use `args` again.

        Args:
            queue: the submission's queue; None if the submission has no queue yet.

        Returns:
            The submission's queue; None if none of its work can fail.
        """
        ...

    def fill(self, dst: Array, value: np.generic, queue: Any) -> Queue | None:
        """`Queue.fill` of a contiguous array by the fast path; see `launch`."""
        ...

    def upload(self, dst: Array, block: Any, queue: Any) -> Queue | None:
        """`Queue.upload` of the start of a `host_block` into a contiguous array; see `launch`."""
        ...

    def download(self, block: Any, src: Array, queue: Any) -> Queue | None:
        """`Queue.download` of a contiguous array into the start of a `host_block`; see `launch`."""
        ...

    def copy_peer(self, dst: Array, src: Array, source: Any, queue: Any) -> Queue | None:
        """`Queue.copy_peer` by the fast path; see `launch`."""
        ...

    def replay(self, graph: Any, queue: Any) -> Queue | None:
        """`Queue.replay` by the fast path; see `launch`."""
        ...

    def write(self, sequence: int) -> None:
        """Signal: `completed()` reaches `sequence` when the stream has passed this point."""
        ...

    def completed(self) -> int:
        """The latest sequence number that the stream has passed. Never blocks."""
        ...

    def fault(self) -> BaseException | None:
        """The error that stops this stream for good, or None. May call the driver."""
        ...

    def verified_sequence(self) -> int:
        """The latest sequence number known to be passed without a fault. Makes no driver call."""
        ...

    def wake(self, sequence: int, waker: Waker) -> bool:
        """Notify `waker` behind `sequence`. False if the notification may come late or never."""
        ...

    def record(self, event: Any) -> None: ...
    def wait(self, event: Any) -> bool | None:
        """Order work enqueued from now on after the event's latest record, on any device.

        Returns:
            True: the event must not be recorded again, because the stream looks at it later.
        """
        ...

    def query(self) -> bool: ...
    def spin_poll(self) -> bool:
        """`query`, repeated for some microseconds; False where a short wait does not help."""
        ...

    def passed_ns(self) -> int | None:
        """The time of `perf_counter_ns`, if all work is known to be done; None: only an event can
        tell. Makes no driver call.
        """
        ...

    def synchronize(self) -> None:
        """Block until all work that is enqueued now is done."""
        ...

    def hold(self) -> Callable[[], None]:
        """Enqueue a gate that stays closed until the returned function is called."""
        ...


class ForeignStream(Stream, Protocol):
    """A stream created by another library, which may capture it for its own graph."""

    def is_captured(self) -> bool: ...
    def check_not_captured(self) -> None:
        """
        Raises:
            StateError: the stream is being captured.
        """
        ...

    def drop(self) -> None:
        """Release the stream: no holder is left, and numbasync has nothing in flight on it.
        Finalisers call this method, perhaps inside any lock, so it acquires none.
        """
        ...


class Device(Protocol):
    """One device of a backend. There is one object per device and process."""

    @property
    def kind(self) -> str: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def compute_capability(self) -> tuple[int, int]: ...
    @property
    def total_memory(self) -> int: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def peaks(self) -> Peaks: ...
    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the device's software: the driver, and the CUDA that it supports."""
        ...

    @property
    def completion(self) -> CompletionPath: ...
    @property
    def locks_pages(self) -> bool:
        """Whether `host_buffer` is memory that other devices copy from and to without blocking."""
        ...

    def cupti(self) -> Any | None:
        """The module `cupti.cupti`, which tells what ran on the device; None where it is not
        installed, or can tell nothing of such devices. Raises what it raises where it finds no
        library.
        """
        ...

    @property
    def has_cub(self) -> bool:
        """Whether `cuda.compute` is installed, and calls CUB on this device. Raises CallerError
        where `NUMBASYNC_CUB` is neither 0, without it, nor 1.
        """
        ...

    @property
    def is_host(self) -> bool:
        """Whether the device's memory is the host's: `Queue.call` gives functions NumPy arrays."""
        ...

    @property
    def counts_steps(self) -> bool:
        """Whether times of events are numbers of steps, drawn by a seed, and not of a clock."""
        ...

    @property
    def spin_seconds(self) -> float:
        """How long an event loop polls this device's completion counters before it sleeps."""
        ...

    def new_stream(self, priority: int) -> Stream: ...
    def foreign_stream(self, number: int) -> ForeignStream:
        """Another library's stream of this device, by its handle. The caller keeps it alive."""
        ...

    def new_event(self, timing: bool) -> Event: ...
    def foreign_event(self, number: int) -> Event:
        """Another library's event, by its handle. The caller keeps the event alive."""
        ...

    def is_captured(self, number: int) -> bool:
        """Whether another library captures its stream of that handle for a graph."""
        ...

    def launch_at(self, number: int, work: Work, args: list[Any]) -> bool:
        """Launch on another library's stream of that handle, and on no account anything else there,
        which may be captured. False, with nothing done: the work needs more than its launch.
        """
        ...

    def new_pool(self) -> Pool: ...

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Uninitialised host bytes that this device copies from and to without blocking.

        Raises:
            OutOfDeviceMemoryError: there is no room for so many, or their pages cannot be locked.
        """
        ...

    def host_block(self, nbytes: int) -> Any:
        """A recycled block of such bytes, as an object with a buffer; None if there is none. The
        block is recycled again when neither it nor an array on it has a holder.
        """
        ...

    def host_arrays(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[Any], tuple[Array, np.ndarray[Any, Any]]]:
        """A function from a `host_block` of at most `SMALL_BLOCK` bytes to a one-axis handle that
        kernels read and write in place, and a NumPy array, which need not hold the block.
        """
        ...

    def host_memory(self, block: Any) -> Memory:
        """A `host_block`, or bytes of a `host_buffer`, as memory for kernels; keeps it alive."""
        ...

    def array(
        self,
        memory: Any,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> Array:
        """The handle of an array `offset` bytes into `memory`; strides in bytes."""
        ...

    def tensor_map(self, array: Array, box: tuple[int, ...], swizzle: int) -> Array:
        """The handle of a tensor map: kernels copy boxes of the array by it. Blocks shortly.

        Args:
            box: extents of a box, one for each axis.
            swizzle: bytes of a row of the box that are permuted in shared memory, or 0.
        """
        ...

    def foreign(self, obj: object) -> Foreign | None:
        """The memory that another library's array exports; None if it is not this device's.

        Raises:
            OperationError: the library refuses to export the array.
            DTypeError, ShapeError: no tensor can have such elements, or such a layout.
        """
        ...

    def lend(self, array: Array, memory: Any, keep: object) -> Export:
        """Export `array`, which lies in `memory`, to other libraries. Its users hold `keep`."""
        ...

    def scalar_key(self, value: object) -> Hashable:
        """The part of a compiled kernel's key that stands for a host value.

        Raises:
            DTypeError: kernels of this device cannot take such a value.
        """
        ...

    def compile(self, dispatcher: Any, keys: tuple[Hashable, ...]) -> Executable:
        """Compile a Numba dispatcher for these arguments. Blocks; any thread may call.

        Args:
            dispatcher: the result of `numba.cuda.jit`.
            keys: for each parameter an `ArrayKey`, the result of `scalar_key`, or Numba's literal
                type of an integer that the kernel is compiled for.

        Raises:
            KernelCompileError: Numba refused the kernel; Numba's error is the cause.
            UnsupportedKernelError: this device lacks a construct that the kernel uses.
        """
        ...

    @property
    def coarsener(self) -> Coarsener | None:
        """Compiles kernels of several positions a thread; None where a thread gains nothing."""
        ...

    def reaches(self, array: Array) -> bool:
        """Whether uploads and downloads need no contiguous copy of this array."""
        ...

    def copy_needs(self, dst: Array, src: Array) -> Prerequisite | None:
        """The prerequisite of `Stream.copy` between such arrays, or None."""
        ...

    def generate_needs(self, dst: Array, formula: Formula) -> Prerequisite | None:
        """The prerequisite of `Queue.generate` of such an array, or None."""

    def graph(self, commands: Sequence[Command]) -> Graph:
        """Make a graph. Each command starts after the earlier commands that it names."""
        ...

    def synchronize(self) -> None: ...

    def warm_up(self) -> None:
        """Wait for the compilations of the backend's own. Launches and allocates nothing."""
        ...

    def quiesce(self) -> None:
        """Block until no stream can advance by itself: each is idle, or waits for a gate."""
        ...

    def seeded(self, seed: int) -> AbstractContextManager[object]:
        """Inside the block, `seed` decides which stream advances, if the device supports it."""
        ...

    def checked(self, checks: Checks) -> AbstractContextManager[object]:
        """Inside the block, check the accesses of kernels, if the device supports it."""
        ...

    def can_access(self, other: Any) -> bool: ...

    @property
    def collectives(self) -> Library | None:
        """The library of collectives of this and other devices; None where there is none."""
        ...

    def copies_from(self, other: Any) -> bool:
        """Whether queues of this device can `copy_peer` from arrays of the device `other`. The
        first call for a device may enable direct access, and block shortly.
        """
        ...
