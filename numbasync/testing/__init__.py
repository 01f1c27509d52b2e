"""Tools for testing kernels and programs: gates, faults, counters, and a pytest plugin.

No function of this package sleeps. A test that needs work in flight holds the stream with a
gate, lets all other work run with `settle`, and then examines the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self, get_args

from numbasync.arguments import as_whole, is_one_of, shown
from numbasync.backend.protocols import Checks
from numbasync.backend.protocols import Counters as Counters
from numbasync.backend.protocols import ThreadOrder as ThreadOrder
from numbasync.backend.protocols import counters as count
from numbasync.device.device import Device
from numbasync.device.reactor import current as current_reactor
from numbasync.device.stream import Stream
from numbasync.errors import CallerError, StateError
from numbasync.extending import as_stream, check_device
from numbasync.testing.check.check import check_kernel as check_kernel
from numbasync.testing.check.failures import BarrierDivergence as BarrierDivergence
from numbasync.testing.check.failures import InputModified as InputModified
from numbasync.testing.check.failures import KernelFailure as KernelFailure
from numbasync.testing.check.failures import KernelMismatch as KernelMismatch
from numbasync.testing.check.failures import KernelRace as KernelRace
from numbasync.testing.check.failures import MisalignedAccess as MisalignedAccess
from numbasync.testing.check.failures import OutOfBounds as OutOfBounds
from numbasync.testing.check.failures import UninitialisedRead as UninitialisedRead
from numbasync.testing.check.races import Difference as Difference
from numbasync.testing.check.races import Race as Race
from numbasync.testing.check.races import find_race as find_race
from numbasync.testing.faults import Fault as Fault
from numbasync.testing.faults import Injected as Injected
from numbasync.testing.faults import inject as inject
from numbasync.testing.timing.benchmark_kernel import KernelSlow as KernelSlow
from numbasync.testing.timing.timing import Paired as Paired
from numbasync.testing.timing.timing import Timing as Timing
from numbasync.testing.timing.timing import device_ms as device_ms
from numbasync.testing.timing.timing import do_bench as do_bench
from numbasync.testing.timing.timing import do_bench_paired as do_bench_paired

__all__ = [
    "BarrierDivergence", "Counters", "Difference", "Fault", "Gate", "Injected", "InputModified",
    "KernelFailure", "KernelMismatch", "KernelRace", "KernelSlow", "MisalignedAccess",
    "OutOfBounds", "Paired", "Race", "ThreadOrder", "Timing", "UninitialisedRead", "check_kernel",
    "checked", "counters", "device_ms", "do_bench", "do_bench_paired", "find_race", "gate",
    "inject", "seeded", "settle",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


class Gate:
    """Holds a stream: work enqueued behind a closed gate waits until the gate opens.

    Use the gate as a context manager, which closes it at the beginning of the block and opens it
    at the end, or call `close` and `open`.

    Launch each kernel once before the gate closes: the driver may wait for the device, and so for
    the gate, before it loads one.

    Examples:
        >>> stream = na.default_device().new_stream()
        >>> gate = na.testing.gate(stream)
        >>> gate.close()
        >>> t = na.ones(2).async_on(stream)
        >>> stream.query()
        False
        >>> gate.open()
        >>> stream is await stream.done()
        True
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = as_stream(stream, "a gate")
        self._release: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        return self._release is None

    def close(self) -> None:
        """Hold work that is enqueued from now on.

        Raises:
            StateError: the gate is closed already.
        """
        if self._release is not None:
            raise StateError("the gate is shut already; open() it first.")
        self._release = self.stream.backend.hold()

    def open(self) -> None:
        """Let the held work run. Opening an open gate has no effect."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        self.close()
        return self

    def __exit__(self, *exc: object) -> None:
        self.open()

    def __repr__(self) -> str:
        return f"<Gate {'open' if self.is_open else 'shut'} on {self.stream!r}>"


def gate(stream: Stream) -> Gate:
    """A gate on `stream`, open until the gate is entered or closed.

    Examples:
        >>> device = na.default_device()
        >>> stream = device.new_stream()
        >>> with na.testing.gate(stream):
        ...     t = na.ones(2).async_on(stream)
        ...     stream.query()  # held
        False
        >>> await t.to_host()
        array([1., 1.], dtype=float32)
    """
    return Gate(stream)


async def settle(device: Device) -> None:
    """Run all work that can run: turn the loop, wait until the device is quiet, turn the loop.

    A task that is not done afterwards waits for a gate, or for an event outside the program.

    Examples:
        >>> device = na.default_device()
        >>> stream = device.new_stream()
        >>> with na.testing.gate(stream):
        ...     t = na.ones(2).async_on(stream)
        ...     waiting = asyncio.ensure_future(stream.done())
        ...     await na.testing.settle(device)
        ...     waiting.done()  # it waits for the gate, and for nothing else
        False
        >>> _ = await waiting
    """
    check_device(device, "settle")
    for _ in range(3):
        await asyncio.sleep(0)
    device.backend.quiesce()
    device.reclaim()
    current_reactor().look()
    for _ in range(4):
        await asyncio.sleep(0)


@contextmanager
def seeded(device: Device, seed: int) -> Iterator[None]:
    """Inside the block, the CPU device has no threads: each poll or wait runs one step of a stream
    that `seed` chooses. Equal programs with equal seeds take equal steps.

    Event times count steps, a millisecond each. Memory is overwritten when it is allocated and
    when it is freed. A GPU schedules its own work, so on a GPU the block has no effect.

    Raises:
        StateError: the device is seeded already.

    Examples:
        >>> device = na.devices("cpu")[0]
        >>> total = await na.zeros(1)
        >>> for seed in range(3):  # three interleavings of the streams
        ...     with na.testing.seeded(device, seed):
        ...         _ = await na.gather(*(saxpy(total, 1.0, na.ones(1)) for _ in range(4)))
        >>> await total.item()
        12.0
    """
    backend = check_device(device, "seeded").backend
    with backend.seeded(_seed("seeded", seed)):
        yield


@contextmanager
def checked(device: Device, order: ThreadOrder = "forward", seed: int = 0) -> Iterator[None]:
    """Inside the block, kernels launched on the CPU device are checked: every access, and the
    order of threads. A checked kernel is compiled separately, runs on one processor, and takes
    some ten times as long. Errors are raised where the operation is awaited:

    - `UninitialisedReadError`: a read of shared or local memory that was not written;
    - `DataRaceError`: two unordered accesses of two threads, one of which changes the element.
      Barriers order the threads of a block, warp barriers those of a warp, and atomic operations
      on one element, with a fence before the one and behind the other, their threads. Arrays of
      more than 16,777,216 elements are not checked;
    - `InputModifiedError`: a write to memory of a `na.KernelInput`;
    - `TileOverrunError`: a write outside the block's tile of a partition;
    - `IndexOverflowError`: a conversion to 32 bits of an index that does not fit;
    - `EndlessWaitError`: a thread that waits in a loop for one that runs only after it.

    Accesses to whole rows, and to fields of records, are not checked. A kernel that runs as
    Python (one that uses `numbasync.tensor_cores`, and any with NUMBASYNC_CPU_ENGINE=interpreted)
    runs in the given order, without other checks. On a GPU the block has no effect;
    `compute-sanitizer` finds some of these errors there.

    Args:
        order: of the blocks, and of the threads of a block within a barrier region.
        seed: of a shuffled order.

    Raises:
        CallerError: `order` is not a `ThreadOrder`.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def add_up(z: na.KernelOutput, x: na.KernelInput):
        ...     z[0] += x[cuda.grid(1)]
        >>> with na.testing.checked(na.default_device()):
        ...     await add_up[1, 4](na.zeros(1), na.ones(4))
        Traceback (most recent call last):
            ...
        numbasync.errors.DataRaceError: kernel add_up, block (0, 0, 0), thread (1, 0, 0): reads an
        element of z (...) that block (0, 0, 0), thread (0, 0, 0) writes as z (...), and nothing
        says which comes first. Synchronise the threads in between, cuda.syncthreads(); or use
        cuda.atomic. ...
    """
    backend = check_device(device, "checked").backend
    if not is_one_of(order, get_args(ThreadOrder)):
        raise CallerError(f"order={shown(order)}: write one of {', '.join(get_args(ThreadOrder))}.")
    with backend.checked(Checks(order, _seed("checked", seed))):
        yield


def _seed(function: str, seed: object) -> int:
    number = as_whole(seed)
    if number is None or number < 0:
        raise CallerError(f"{function}(seed={shown(seed)}): write a whole number of at least 0.")
    return number


def counters() -> Counters:
    """The process's counters now; the difference of two results counts the work in between.

    Examples:
        >>> before = na.testing.counters()
        >>> _ = await saxpy(na.zeros(3), 2.0, na.ones(3))
        >>> (na.testing.counters() - before).launches
        1
    """
    return count.copy()
