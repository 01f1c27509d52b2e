"""Recording: the work that an operation would enqueue, kept as commands for a graph.

The operation runs as usual, with its closures and prerequisites, in a context that enqueues
nothing. So kernels are compiled and modules loaded before the device captures anything, a failure
changes nothing, and none of numbasync's own events, signals or frees can get into a graph. What no
graph can have, such as a callback on the host, the recorded context refuses here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar, cast

import numpy as np

from numbasync.backend import protocols
from numbasync.backend.commands import Call
from numbasync.backend.protocols import Command, Prerequisite
from numbasync.device.callsite import CallSite, call_site
from numbasync.device.storage import MemoryPool, Storage
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.errors import NotAGraphNodeError
from numbasync.graphs.recording import Order, Recorded, Step
from numbasync.ops import submission_queue
from numbasync.ops.context import Context, allocated
from numbasync.ops.enqueue import run_steps
from numbasync.ops.op import DeviceOp
from numbasync.ops.operands import suppress_unused_warnings
from numbasync.ops.protocols import Operation
from numbasync.ops.reentrancy import exclusive
from numbasync.ops.run import resolve_stream
from numbasync.ops.try_enqueue import Enqueueable

T = TypeVar("T")

_CALLED: dict[Call, str] = {
    "launch": "kernel", "upload": "upload", "download": "download", "copy": "copy", "fill": "fill",
    "generate": "generate",
}  # fmt: skip


@dataclass
class Branch:
    """A position in a recording: the branch's next command starts after the commands `last`."""

    last: tuple[int, ...] = ()


class Recorder:
    """One recording.

    Attributes:
        stream: the default stream of the graph.
        allocates: whether operations may allocate memory, which the graph then owns. Temporaries
            of copies between layouts are always allowed.
    """

    def __init__(self, stream: Stream, allocates: bool) -> None:
        self.stream = stream
        self.allocates = allocates
        self.keep_alive: list[object] = []
        self.dependencies: list[Submission] = []
        self.forgotten: list[Callable[[], None]] = []  # called if the recording is discarded
        self.nbytes = 0
        self._memory: Stream | None = None
        self._steps: list[Step] = []
        self._names: dict[Storage, str] = {}
        self._order = Order(names=self._names)
        self._reads: set[Storage] = set()  # accesses of the next command
        self._writes: set[Storage] = set()
        self._sources: dict[int, protocols.Foreign] = {}
        self.proxy = _Proxy(stream)

    def record(self, op: Operation[T], branch: Branch, site: CallSite | None) -> _Steps[T]:
        """Steps that record all of `op`, or nothing of it if it fails."""
        ctx = Recording(self, branch, op.label, site)
        lists: list[list[Any]] = [self._steps, self.keep_alive, self.dependencies]
        forgotten, self.forgotten = self.forgotten, []
        counts, nbytes, last = [len(items) for items in lists], self.nbytes, branch.last
        try:
            return (yield from op.steps(ctx))
        except BaseException:
            for items, count in zip(lists, counts, strict=True):
                del items[count:]
            self._order = Order(names=self._names)
            for step in self._steps:
                self._order.add(step)
            self.nbytes, branch.last = nbytes, last
            self.forget()
            raise
        finally:
            self.forgotten = forgotten + self.forgotten
            self._reads, self._writes, self._sources = set(), set(), {}

    def forget(self) -> None:
        """Call the `if_forgotten` callbacks: the recorded commands will never run."""
        calls, self.forgotten = self.forgotten, []
        for call in calls:
            call()

    def lease(self, storage: Storage, writes: bool, name: object = None) -> None:
        """Note that the next command reads or writes `storage`, of the tensor `name`."""
        if name is not None:
            self._names[storage] = str(name)
        (self._writes if writes else self._reads).add(storage)

    def add(self, branch: Branch, call: Call, operands: tuple[Any, ...]) -> None:
        """Append a command, with the accesses noted for it by `lease`."""
        reads, writes = frozenset(self._reads), frozenset(self._writes)
        sources = tuple(self._sources.values())
        self._reads, self._writes, self._sources = set(), set(), {}
        after = self._order.after(branch.last, reads, writes)
        command = Command(call, operands, _CALLED[call], after)
        self._append(Step(command, reads, writes, sources=sources))
        branch.last = (len(self._steps) - 1,)

    def _append(self, step: Step) -> None:
        self._steps.append(step)
        self._order.add(step)

    def name(self, name: str, origin: object) -> None:
        """Set the name and the origin of the latest command."""
        step = self._steps[-1]
        old = step.command
        command = Command(old.call, old.operands, name, old.after)
        self._steps[-1] = Step(command, step.reads, step.writes, origin, step.sources)

    def inline(self, branch: Branch, other: Recorded) -> None:
        """Append all commands of another recording, in its own order."""
        first, ends = len(self._steps), set[int]()
        for step in other.steps:
            old = step.command
            last = [first + i for i in old.after] or branch.last
            after = self._order.after(last, step.reads, step.writes)
            ends = (ends - set(after)) | {len(self._steps)}
            command = Command(old.call, old.operands, old.name, after)
            self._append(replace(step, command=command))
        if other.steps:
            branch.last = tuple(sorted(ends))
        self._names.update(other.names)
        self.keep_alive += other.keep_alive
        self.dependencies += other.dependencies

    def allocate(self, pool: MemoryPool, nbytes: int) -> Storage:
        """Allocate memory that the graph owns, and that the next command writes."""
        self.nbytes += nbytes
        if self._memory is None:  # not a user's stream, which may be blocked by a gate
            self._memory = self.stream.device.new_stream()
        storage = allocated(self.stream.device, pool, nbytes, self._memory)
        self.keep_alive.append(storage)
        self.lease(storage, writes=True)
        return storage

    def add_source(self, source: protocols.Foreign) -> None:
        """Note that the next command uses another library's array."""
        self._sources[id(source)] = source

    def finish(self) -> Recorded:
        """The recording. Waits until its memory may be used on any stream."""
        if self._memory is not None:
            self._memory.wait_until_idle()
        used = set[Storage]().union(*(s.reads | s.writes for s in self._steps))
        return Recorded(
            tuple(self._steps), tuple(self.keep_alive), tuple(self.dependencies), self.nbytes,
            {storage: name for storage, name in self._names.items() if storage in used},
        )  # fmt: skip


_Steps = Generator[Prerequisite, None, T]


# --- the context of recorded operations --------------------------------------------------


class Recording(Context):
    """A context that records work instead of enqueuing it."""

    records = True

    def __init__(
        self, recorder: Recorder, branch: Branch, name: str, site: CallSite | None,
        parent: Context | None = None,
    ) -> None:  # fmt: skip
        super().__init__(recorder.proxy, recorder.stream.device.pool, name, site, parent)
        self.submission = _Recorded(recorder.proxy, name, site)
        self._recorder = recorder
        self._branch = branch

    @property
    def asked(self) -> Stream:
        return self._recorder.stream

    @property
    def queue(self) -> Any:
        return _Queue(self._recorder, self._branch)

    def try_enqueue(self, op: Enqueueable[Any]) -> bool:
        return False

    def if_forgotten(self, call: Callable[[], None]) -> None:
        self._recorder.forgotten.append(call)

    def order(self, source: protocols.Foreign) -> None:
        self._recorder.add_source(source)

    def launched(self, names: tuple[str, ...], by: object) -> None:
        self._recorder.name(names[-1], by)

    def touch(self) -> None: ...

    def retain(self, thing: object) -> None:
        self._recorder.keep_alive.append(thing)

    def alloc(self, nbytes: int) -> Storage:
        if not self._recorder.allocates:
            raise NotAGraphNodeError(
                f"{self.submission.name} allocates {nbytes:,} bytes, which a graph cannot repeat.\n"
                "Allocate before, t = na.empty(...).sync(), and record what writes to it: a "
                "launch, na.memcpy, na.fill. op.graph_on(stream) allocates once, for the graph."
            )
        return self._recorder.allocate(self.pool, nbytes)

    def scratch(self, nbytes: int) -> Storage:
        return self._recorder.allocate(self.pool, nbytes)

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        buffer = self.device.backend.host_buffer(nbytes)[:nbytes]
        self._recorder.keep_alive.append(buffer)
        return buffer

    def room(self, nbytes: int | None = None) -> Generator[Prerequisite, None, None]:
        yield from ()  # nothing is in flight, so there is always capacity

    def read(self, storage: Storage, name: object = None, *, anywhere: bool = False) -> None:
        if storage.pool.device is not self.device.backend:
            self._check_device(storage, name)
        self._recorder.lease(storage, writes=False, name=name)

    def write(self, storage: Storage, name: object = None) -> None:
        if storage.pool.device is not self.device.backend:
            self._check_device(storage, name)
        self._recorder.lease(storage, writes=True, name=name)

    def after(self, other: Submission | None, shared: object = None) -> None: ...

    def depend(self, other: Submission) -> None:
        if other.done:
            other.raise_error()
        else:
            self._recorder.dependencies.append(other)

    def inline(self, recorded: Recorded) -> None:
        """Append the commands of a graph that is part of the operation."""
        self._recorder.inline(self._branch, recorded)

    def close(self, signal: bool = True) -> Submission:
        self._closed = True
        self.submission.retire(None)
        return self.submission

    def suspend(self) -> None: ...

    def part(self, name: str) -> Context:
        return Recording(self._recorder, self._branch, name, self.submission.site, self)


class _Recorded(Submission):
    """The submission of a recorded operation, which is never in flight."""

    def on_complete(self, call: object) -> None:
        raise NotAGraphNodeError(
            f"{self.name} writes to an ordinary NumPy array when the device is done, which a graph "
            "cannot repeat.\nCopy into page-locked memory: na.memcpy(na.pinned(shape, dtype), t); "
            "or read the tensor after a launch: await t.to_host()."
        )


class _Queue:
    """A queue that records commands."""

    def __init__(self, recorder: Recorder, branch: Branch) -> None:
        self._recorder = recorder
        self._branch = branch

    def launch(self, work: protocols.Work, args: Sequence[Any]) -> None:
        self._recorder.add(self._branch, "launch", (work, args))

    def upload(self, dst: Any, src: np.ndarray[Any, Any]) -> None:
        self._recorder.add(self._branch, "upload", (dst, src))

    def download(self, dst: np.ndarray[Any, Any], src: Any) -> None:
        self._recorder.add(self._branch, "download", (dst, src))

    def copy(self, dst: Any, src: Any) -> None:
        self._recorder.add(self._branch, "copy", (dst, src))

    def call(self, function: Callable[..., None], arrays: Sequence[Any]) -> None:
        raise NotAGraphNodeError(
            f"external({function.__name__}): a graph cannot repeat what another library's function "
            "does.\nRun it before the graph, or between two of its launches."
        )

    def fill(self, dst: Any, value: np.generic) -> None:
        self._recorder.add(self._branch, "fill", (dst, value))

    def generate(self, dst: Any, formula: protocols.Formula) -> None:
        self._recorder.add(self._branch, "generate", (dst, formula))


class _Nothing:
    """The backend stream of a recording; every enqueuing method is refused."""

    def __init__(self, device: protocols.Device) -> None:
        self.device = device
        self.native = None

    def completed(self) -> int:
        return 0

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"stream.{name}")


class _Proxy(Stream):
    """The stream that closures see during a recording."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream.device, cast(protocols.Stream, _Nothing(stream.device.backend)))
        self._stream = stream

    @property
    def __cuda_stream__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        _refuse("what another library enqueues")

    def __repr__(self) -> str:
        return f"<recording for {self._stream!r}>"


def _refuse(what: str) -> NoReturn:
    raise NotAGraphNodeError(
        f"{what} cannot be recorded: a graph holds launches, copies and fills that are operations."
        "\nUse what the operation gives, or run this outside of the graph."
    )


def recorded_of(op: DeviceOp[T], stream: Stream, allocates: bool) -> tuple[Recorded, T]:
    """The recorded commands of `op`, and its value."""
    with suppress_unused_warnings((op,)):
        resolve_stream(op, op.stream, stream)
    stream.check()
    op.consume()
    exclusive.check()
    submission_queue.drain()
    recorder, site = Recorder(stream, allocates), call_site(2)
    with exclusive.region():
        value = run_steps(recorder.record(op, Branch(), site))
    return recorder.finish(), value
