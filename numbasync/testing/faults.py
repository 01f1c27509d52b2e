"""Fault injection: failures of a driver, a device or a kernel, at a chosen call.

A fault is injected where the device would cause it, below all error handling of numbasync, and
works alike on every kind of device. The injection is undone at the end of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, get_args

from numbasync.arguments import check_whole, is_one_of, shown
from numbasync.backend.protocols import Graph, Pool, Queue, Stream, Work
from numbasync.device.device import Device
from numbasync.errors import (
    CallerError,
    DeviceLostError,
    DriverError,
    KernelError,
    OutOfDeviceMemoryError,
)
from numbasync.extending import check_device

Fault: TypeAlias = Literal["allocation", "kernel", "device", "completion", "query"]
"""The kinds of faults that `inject` injects.

Examples:
    >>> from typing import get_args
    >>> get_args(na.testing.Fault)
    ('allocation', 'kernel', 'device', 'completion', 'query')
"""


class Injected:
    """A fault that happens at a chosen call.

    Attributes:
        fault: the kind of fault.
        calls: the number of relevant calls so far.
        happened: whether the fault has happened.

    Examples:
        >>> with na.testing.inject(na.default_device(), "allocation", after=1) as injected:
        ...     t = await na.zeros(3)
        >>> injected.fault, injected.calls, injected.happened
        ('allocation', 1, False)
    """

    def __init__(self, device: Device, fault: Fault, after: int) -> None:
        self.device = check_device(device, "inject")
        self.fault = fault
        self.calls = 0
        self.happened = False
        self.lost: DeviceLostError | None = None
        self._after = check_whole(after, "after, how many calls go well before,", 0)

    def now(self) -> bool:
        """Count a call. Returns whether this call fails."""
        self.calls += 1
        if self.calls == self._after + 1:
            self.happened = True
            return True
        return False

    def __repr__(self) -> str:
        state = "has happened" if self.happened else f"{self.calls} of {self._after} calls so far"
        return f"<injected {self.fault} fault of {self.device.label}, {state}>"


class _Queue:
    """A submission's queue whose launches may fail."""

    def __init__(self, queue: Queue, injected: Injected) -> None:
        self._queue = queue
        self._injected = injected
        self._error: KernelError | None = None

    def launch(self, work: Work, args: list[Any]) -> None:
        self._begin(lambda: self._queue.launch(work, args))

    def replay(self, graph: Graph) -> None:
        self._begin(lambda: self._queue.replay(graph))

    def _begin(self, work: Callable[[], None]) -> None:
        injected = self._injected
        if self._error is not None or injected.lost is not None:
            return  # as on the device, where no work runs behind a fault
        if not injected.now():
            work()
        elif injected.fault == "kernel":
            self._error = KernelError("a kernel raised an injected fault")
        else:
            # Memory of a lost device is freed, so on a real GPU all its uses must be over.
            injected.device.backend.quiesce()
            injected.lost = DeviceLostError("an injected fault has broken the device's context.")

    def failure(self) -> BaseException | None:
        return self._error or self._queue.failure()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


@contextmanager
def inject(device: Device, fault: Fault, after: int = 0) -> Iterator[Injected]:
    """Inside the block, inject one fault on `device`: the first `after` calls succeed, the next
    call fails, later calls succeed again.

    | fault | counts | effect |
    |---|---|---|
    | `"allocation"` | requests to the device's current pool | OutOfDeviceMemoryError |
    | `"kernel"` | launches | kernel or graph does not run; its operation fails: KernelError |
    | `"device"` | launches | no work runs any more; all operations fail with DeviceLostError |
    | `"completion"` | signals behind submissions | the signal is never seen |
    | `"query"` | polls of the streams' positions | the poll raises DriverError |

    At the end of the block a lost device works again, with new streams; a GPU was never really
    broken. A device can have one injected fault at a time.

    Raises:
        CallerError: there is no such fault, or `after` is negative.

    Examples:
        >>> device = na.default_device()
        >>> with na.testing.inject(device, "allocation"):
        ...     await na.zeros(3)
        Traceback (most recent call last):
            ...
        numbasync.errors.OutOfDeviceMemoryError: 12 bytes: an injected fault.
        >>> (await na.zeros(3)).shape  # the next call succeeds
        (3,)
    """
    if not is_one_of(fault, get_args(Fault)):
        kinds = ", ".join(repr(k) for k in get_args(Fault))
        raise CallerError(f"there is no fault {shown(fault)} to inject; write one of {kinds}.")
    injected = Injected(device, fault, after)
    with _INJECTORS[fault](injected):
        yield injected


# --- where each fault is injected --------------------------------------------------------


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    is_own = name in vars(owner)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


@contextmanager
def _on_streams(
    injected: Injected, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replace a method of all present and later streams of one device."""
    backend = injected.device.backend
    cls = type(injected.device.new_stream().backend)

    def only_here(original: Callable[..., Any]) -> Callable[..., Any]:
        replacement = make(original)

        def method(self: Stream, *args: Any) -> Any:
            return (replacement if self.device is backend else original)(self, *args)

        return method

    with _replaced(cls, name, only_here):
        yield


class _NoSpareBlocks:
    """A backend's pool that reuses nothing: every request is an `allocate`."""

    def __init__(self, blocks: Pool) -> None:
        self._blocks = blocks

    def reuse(self, nbytes: int) -> None:
        """No block is free."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)


@contextmanager
def _allocation(injected: Injected) -> Iterator[None]:
    refused: list[int] = []  # a refused caller retries once, after a collection

    def make(allocate: Callable[..., Any]) -> Callable[..., Any]:
        def allocate_or_refuse(nbytes: int, stream: Stream) -> Any:
            if refused and refused.pop() == nbytes:
                raise OutOfDeviceMemoryError(f"{nbytes:,} bytes: an injected fault.")
            if injected.now():
                refused.append(nbytes)
                raise OutOfDeviceMemoryError(f"{nbytes:,} bytes: an injected fault.")
            return allocate(nbytes, stream)

        return allocate_or_refuse

    pool = injected.device.pool
    blocks = pool._pool
    none_spare: Any = _NoSpareBlocks(blocks)
    pool._pool = none_spare
    try:
        with _replaced(pool, "allocate", make):
            yield
    finally:
        pool._pool = blocks


@contextmanager
def _launches(injected: Injected) -> Iterator[None]:
    def make(open_: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self: _Queue(open_(self), injected)

    def launch_by_queue(self: Stream, work: Work, args: list[Any], queue: Any) -> Any:
        queue = queue or self.open()
        queue.launch(work, args)
        return queue

    def replay_by_queue(self: Stream, graph: Graph, queue: Any) -> Any:
        queue = queue or self.open()
        queue.replay(graph)
        return queue

    with (
        _on_streams(injected, "open", make),
        _on_streams(injected, "launch", lambda _: launch_by_queue),
        _on_streams(injected, "replay", lambda _: replay_by_queue),
    ):
        yield


@contextmanager
def _device(injected: Injected) -> Iterator[None]:
    def write(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, number: None if injected.lost else original(self, number)

    def fault(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self: injected.lost or original(self)

    def unless_lost(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self: not injected.lost and original(self)

    def raising(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Stream) -> Any:
            if injected.lost:
                raise injected.lost
            return original(self)

        return call

    with (
        _launches(injected),
        _on_streams(injected, "write", write),
        _on_streams(injected, "fault", fault),
        _on_streams(injected, "query", unless_lost),
        _on_streams(injected, "spin_poll", raising),
        _on_streams(injected, "synchronize", raising),
    ):
        try:
            yield
        finally:
            if injected.lost is not None:
                injected.device.forget_fault()


@contextmanager
def _completion(injected: Injected) -> Iterator[None]:
    def make(write: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, number: None if injected.now() else write(self, number)

    with _on_streams(injected, "write", make):
        yield


@contextmanager
def _query(injected: Injected) -> Iterator[None]:
    def make(completed: Callable[..., Any]) -> Callable[..., Any]:
        def poll(self: Stream) -> int:
            if injected.now():
                raise DriverError("cuEventQuery", 999, "CUDA_ERROR_UNKNOWN", "an injected fault")
            passed: int = completed(self)
            return passed

        return poll

    with _on_streams(injected, "completed", make):
        yield


_INJECTORS: dict[str, Callable[[Injected], Any]] = {
    "allocation": _allocation,
    "kernel": _launches,
    "device": _device,
    "completion": _completion,
    "query": _query,
}
