"""What a timeline is made of. Times are seconds of the host's clock since the trace was opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOperation:
    """An operation, on the host and on its stream.

    Attributes:
        name: of the operation.
        kernels: the names of the kernels that it launched.
        shapes: for each of them the shapes of its arrays, by the names of its parameters; empty
            where they are not known, as of kernels that were generated.
        line: the line of the program that submitted it; empty if it is not known.
        device: the device's label.
        stream: the stream's number.
        sequence: the place on that stream; 0 if nothing was enqueued.
        task: the name of the asyncio task that submitted it; empty outside of tasks.
        thread: the name of the thread that submitted it.
        submitted: when the host began to enqueue it, or to prepare that.
        enqueued: when all of it was enqueued.
        spans: when its stream came to its work, and when it had passed that, None if it had not.
            There are several where the operation paused, for a compilation, say, and one for each
            kernel, copy and fill where CUPTI has recorded them; none of work that the stream has
            not come to.
        is_measured: the spans were measured. Else they are bounds: from the submission, or from the
            last that is known of the stream before, to when it was seen to be passed. A trace marks
            every operation where that takes a small part of the time, or with `exact=True`.
        copied: bytes of the arrays that it copied, to or from the host, another device, or within
            one.
        nbytes: bytes that it allocated, and that it held in page-locked memory for copies.
        waits_for: the work of other streams that its stream waited for, as stream and sequence.
        parent: the place of the operation that it is a part of, in the list; None: of none.
        error: the type of its error; empty without one.

    Examples:
        >>> with na.trace() as t:
        ...     z = await saxpy(na.zeros(3), 2.0, na.ones(3)).first()
        >>> op = t.operations[-1]
        >>> op.kernels[-1], op.device, op.ended >= op.began >= 0
        ('saxpy', 'cpu:0', True)
        >>> op.shapes[-1]
        (('z', (3,)), ('x', (3,)))
    """

    name: str
    kernels: tuple[str, ...]
    shapes: tuple[Shapes, ...]
    line: str
    device: str
    stream: int
    sequence: int
    task: str
    thread: str
    submitted: float
    enqueued: float
    spans: tuple[tuple[float, float | None], ...]
    is_measured: bool
    nbytes: int
    copied: int
    waits_for: tuple[tuple[int, int], ...]
    parent: int | None
    error: str

    @property
    def began(self) -> float | None:
        """When its stream came to it; None if that is not known."""
        return self.spans[0][0] if self.spans else None

    @property
    def ended(self) -> float | None:
        """When its stream had passed it; None if it had not, or if that is not known."""
        return self.spans[-1][1] if self.spans else None

    @property
    def seconds(self) -> float:
        """How long its stream was at it, without the pauses, as far as is known."""
        return sum(b - a for a, b in self.spans if b is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWait:
    """A task that waited for an operation, or a thread that waited for a stream.

    Attributes:
        how: `"await"`, the loop turned meanwhile; `"block"`, the thread did not go on.
        name: of the operation; for a blocked thread, of the last one on the stream.
        stream: the stream's number.
        sequence: the place on that stream.
        task: the name of the task; empty outside of tasks.
        thread: the name of the thread.
        began: when the wait began.
        ready: when the device had passed what was waited for, and what its stream had behind it
            when the wait began, since the signal is behind that; None if that was not measured.
        ended: when the task, or the thread, went on.

    Examples:
        >>> with na.trace() as t:
        ...     _ = na.zeros(3).sync()
        >>> [(wait.how, wait.name) for wait in t.waits]
        [('block', 'zeros((3,))')]
    """

    how: Literal["await", "block"]
    name: str
    stream: int
    sequence: int
    task: str
    thread: str
    began: float
    ready: float | None
    ended: float

    @property
    def wake_seconds(self) -> float | None:
        """From the end of the work to the task that goes on; None if that is not known."""
        return None if self.ready is None else max(0.0, self.ended - max(self.ready, self.began))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSample:
    """What a trace looked at, about a hundred times a second.

    Attributes:
        what: `"memory in use"`, where that changed, or `"loop lag"`.
        where: the device's label; of a loop, the name of its thread.
        at: when.
        value: bytes of the device's pool; seconds that the loop came late to what was due.

    Examples:
        >>> with na.trace() as t:
        ...     z = await na.zeros(1000)
        >>> {sample.where for sample in t.samples if sample.what == "memory in use"}
        {'cpu:0'}
    """

    what: Literal["memory in use", "loop lag"]
    where: str
    at: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCompilation:
    """A kernel that was compiled, or read from disk.

    Attributes:
        kernel: the kernel's name.
        device: the device's label.
        thread: the name of the thread.
        began, ended: when.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def triple(x: na.KernelOutput):
        ...     i = cuda.grid(1)
        ...     if i < x.shape[0]:
        ...         x[i] *= 3
        >>> with na.trace() as t:
        ...     _ = await triple(na.ones(3))
        >>> [c.kernel for c in t.compilations]
        ['triple']
    """

    kernel: str
    device: str
    thread: str
    began: float
    ended: float
