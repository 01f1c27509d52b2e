"""The seam: what a device must be able to do, and nothing about how.

Stages above call these protocols only. A backend decides what an array handle, a
compiled kernel or a piece of memory is; the stages above carry them around as they
came. No stage outside `numbasync.backend` asks which backend it talks to: it asks the
backend to do the thing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from numbasync.backend.array_protocols import Export as Export
from numbasync.backend.array_protocols import Foreign as Foreign
from numbasync.backend.commands import Command as Command
from numbasync.backend.counters import Counters as Counters
from numbasync.backend.counters import counters as counters
from numbasync.backend.device_facts import CompletionPath as CompletionPath
from numbasync.backend.device_facts import Dim3 as Dim3
from numbasync.backend.device_facts import Limits as Limits
from numbasync.backend.device_facts import MemoryStats as MemoryStats
from numbasync.backend.executables import Array as Array
from numbasync.backend.executables import ArrayKey as ArrayKey
from numbasync.backend.executables import Executable as Executable
from numbasync.backend.executables import Work as Work
from numbasync.backend.kernel_checks import ArgumentAccess as ArgumentAccess
from numbasync.backend.kernel_checks import Checks as Checks
from numbasync.backend.kernel_checks import Writers as Writers
from numbasync.backend.pools import Memory as Memory
from numbasync.backend.pools import Pool as Pool

# File name of kernels that numbasync writes around a user's body. The one barrier in them is
# behind the body, where every thread is done with its tile.
GENERATED = "<numbasync tiles>"
# The attribute in which such a kernel, or the module of one, has its source.
SOURCE_ATTR = "__numbasync_source__"


class Prerequisite(Protocol):
    """Something slow that must be done once before work can be enqueued."""

    def run(self) -> None:
        """Do it, or wait until another thread has. Blocks; any thread may call it."""
        ...


class Waker(Protocol):
    """Wakes one event loop. `notify` may be called on any thread and never blocks."""

    @property
    def eventfd(self) -> int:
        """Descriptor that native code may write eight bytes to, or -1 if there is none."""
        ...

    def notify(self) -> None: ...


class Event(Protocol):
    """A mark in a stream."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def notify(self, call: Callable[[], None]) -> None:
        """Call once the latest mark is passed, on any thread. For devices whose events can."""
        ...

    def elapsed_ms(self, later: Any) -> float:
        """Device milliseconds from this mark to `later`; both recorded, with timing."""
        ...


class Queue(Protocol):
    """Where one submission's work goes. What fails in it fails this submission only.

    The caller keeps every operand alive until the stream has passed the next sequence
    number that is written behind the work.
    """

    def launch(self, work: Work, args: Sequence[Any]) -> None:
        """Run a kernel.

        Args:
            args: array handles of this device, and host scalars.
        """
        ...

    def upload(self, dst: Any, src: np.ndarray[Any, Any]) -> None:
        """Copy a C-contiguous host array into a device array that `Device.reaches`."""
        ...

    def download(self, dst: np.ndarray[Any, Any], src: Any) -> None:
        """Copy a device array that `Device.reaches` into a C-contiguous host array."""
        ...

    def copy(self, dst: Any, src: Any) -> None:
        """Element by element, between any layouts; converts as NumPy's unsafe casting does."""
        ...

    def fill(self, dst: Any, value: np.generic) -> None:
        """Set every element; `value` has the array's dtype."""
        ...

    def replay(self, graph: Any) -> None:
        """Run the commands of a graph of this device."""
        ...

    def failure(self) -> BaseException | None:
        """Why the work of this queue failed, or None; known once the stream has passed it."""
        ...


class Graph(Protocol):
    """Commands made ready to be run again and again, by one call.

    What it refers to is kept alive by whoever holds it. Its methods, and its replays, come one
    after the other: the caller sees to that.
    """

    @property
    def commands(self) -> Sequence[Command]:
        """What it runs."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """How many nodes of each kind the device has made of it."""
        ...

    def change(self, position: int, command: Command) -> None:
        """Replace a launch by another one; replays that are enqueued already are as they were.

        Raises:
            GraphUpdateError: the device cannot; nothing has changed.
        """
        ...

    def replace(self, commands: Sequence[Command]) -> None:
        """Replace all commands by others of the same kinds and order.

        Raises:
            GraphUpdateError: the device cannot; nothing has changed.
        """
        ...


class Stream(Protocol):
    """An ordered queue of work on one device."""

    @property
    def device(self) -> object:
        """The `Device` that made it."""
        ...

    @property
    def native(self) -> Any:
        """The driver library's own stream object; None where there is none."""
        ...

    @property
    def handle_number(self) -> int:
        """The driver's handle; 0 where there is none."""
        ...

    def numba_stream(self) -> Any:
        """A stream of Numba's own, which enqueues here.

        Raises:
            DeviceMismatchError: Numba has no streams of this device.
        """
        ...

    def open(self) -> Queue:
        """A queue for one submission. Several may be open; their work mixes in call order."""
        ...

    def launch(self, work: Work, args: list[Any], queue: Any) -> Queue | None:
        """`Queue.launch`, the quickest way. The caller holds the device's `submit_lock`, and lets
        go of `args`.

        Args:
            queue: the submission's queue; None if it has none yet.

        Returns:
            The submission's queue; None if nothing of it can fail.
        """
        ...

    def fill(self, dst: Array, value: np.generic, queue: Any) -> Queue | None:
        """`Queue.fill` of a contiguous array, the quickest way; see `launch`."""
        ...

    def upload(self, dst: Array, block: Any, queue: Any) -> Queue | None:
        """`Queue.upload` of the beginning of a `host_block` into a contiguous array; as there."""
        ...

    def download(self, block: Any, src: Array, queue: Any) -> Queue | None:
        """`Queue.download` of a contiguous array into the beginning of a `host_block`."""
        ...

    def replay(self, graph: Any, queue: Any) -> Queue | None:
        """`Queue.replay`, the quickest way; see `launch`."""
        ...

    def write(self, sequence: int) -> None:
        """Mark this point: `completed()` reaches `sequence` when the stream has passed it."""
        ...

    def completed(self) -> int:
        """Latest sequence number that the stream has passed. Never blocks."""
        ...

    def fault(self) -> BaseException | None:
        """Why this stream will never pass another point, or None. May call the driver."""
        ...

    def verified_sequence(self) -> int:
        """Latest sequence number that is known to have been passed well, with no fault until
        then. Never calls the driver.
        """
        ...

    def wake(self, sequence: int, waker: Waker) -> bool:
        """Ring once the stream has passed `sequence`. False if it may ring late or never."""
        ...

    def record(self, event: Any) -> None: ...
    def wait(self, event: Any) -> None:
        """Work enqueued from now on starts after the event's latest mark, on any device."""
        ...

    def query(self) -> bool: ...
    def spin_poll(self) -> bool:
        """`query`, repeated for some microseconds; False, if to wait a little is of no use."""
        ...

    def synchronize(self) -> None:
        """Block until everything that is enqueued now is done."""
        ...

    def hold(self) -> Callable[[], None]:
        """Enqueue a gate that stays shut until the returned function is called."""
        ...


class ForeignStream(Stream, Protocol):
    """A stream that another library made, and may capture for a graph of its own."""

    def is_captured(self) -> bool: ...
    def check_not_captured(self) -> None:
        """
        Raises:
            StateError: it is.
        """
        ...

    def drop(self) -> None:
        """Nobody holds it any more, nor is anything of ours in flight on it; the handle may go.
        Called by finalisers, which may run inside any lock, so it takes none.
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
    def versions(self) -> Mapping[str, str]:
        """What the device runs on: the driver, and what it supports."""
        ...

    @property
    def completion(self) -> CompletionPath: ...
    @property
    def spin_seconds(self) -> float:
        """How long an event loop should look at this device's words before it sleeps."""
        ...

    def new_stream(self, priority: int) -> Stream: ...
    def foreign_stream(self, number: int) -> ForeignStream:
        """Another library's stream of this device, by its handle, which the caller keeps."""
        ...

    def new_event(self, timing: bool) -> Event: ...
    def foreign_event(self, number: int) -> Event:
        """Another library's event, as there."""
        ...

    def new_pool(self) -> Pool: ...

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Uninitialised host bytes that this device copies from and to without blocking."""
        ...

    def host_block(self, nbytes: int) -> Any:
        """Such bytes, as an object with a buffer, if there are any that were used before; else
        None. They are used again when nothing holds it, nor an array on it.
        """
        ...

    def host_arrays(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[Any], tuple[Array, np.ndarray[Any, Any]]]:
        """What gives for a `host_block` of at most `SMALL_BLOCK` bytes the handle of an array in
        it, on one axis, which kernels read and write there; and the array, which need not hold it.
        """
        ...

    def host_memory(self, block: Any) -> Memory:
        """A `host_block`, or bytes of a `host_buffer`, as memory that kernels reach; kept by it."""
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

    def foreign(self, obj: object) -> Foreign | None:
        """What `obj`, another library's array, exports; None if that is not this device's memory.

        Raises:
            OperationError: its library does not lend it.
            DTypeError, ShapeError: no tensor can have such elements, or such a layout.
        """
        ...

    def lend(self, array: Array, memory: Any, keep: object) -> Export:
        """`array`, which lies in `memory`, for other libraries, who hold `keep` with it."""
        ...

    def scalar_key(self, value: object) -> Hashable:
        """A host value's part of a compiled kernel's key.

        Raises:
            DTypeError: kernels of this device cannot take such a value.
        """
        ...

    def compile(self, dispatcher: Any, keys: tuple[Hashable, ...]) -> Executable:
        """Compile a Numba dispatcher for these arguments. Blocks; any thread may call.

        Args:
            dispatcher: what `numba.cuda.jit` made.
            keys: for each parameter an `ArrayKey`, or what `scalar_key` gave.

        Raises:
            KernelCompileError: Numba refused; its error is the cause.
            UnsupportedKernelError: this device lacks a construct that the kernel uses.
        """
        ...

    def reaches(self, array: Array) -> bool:
        """Whether uploads and downloads of this array need no contiguous copy of it."""
        ...

    def copy_needs(self, dst: Array, src: Array) -> Prerequisite | None:
        """What `Stream.copy` between such arrays needs first; None if it needs nothing."""
        ...

    def graph(self, commands: Sequence[Command]) -> Graph:
        """Make a graph of commands. Each starts after those that it names, which come before it."""
        ...

    def synchronize(self) -> None: ...

    def quiesce(self) -> None:
        """Block until no stream can go on by itself: each is idle, or waits for a gate."""
        ...

    def seeded(self, seed: int) -> AbstractContextManager[object]:
        """Inside the block, let `seed` decide which stream goes on, if the device can."""
        ...

    def checked(self, checks: Checks) -> AbstractContextManager[object]:
        """Inside the block, check what kernels do, if the device can."""
        ...

    def can_access(self, other: Any) -> bool: ...
