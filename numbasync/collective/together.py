"""The quick way of a collective of several devices: the calls of their library, where no stream has
to wait for another one's work first.

It is what `LocalOp` does by contexts, one inside the other: a submission on each device, and the
first one's done when all are. Nothing is asked that the tensors do not say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from numbasync.backend.protocols import Call, Library, Rank
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import Stream
from numbasync.errors import OutOfDeviceMemoryError
from numbasync.extending import (
    ArraySpec,
    Submission,
    is_used_elsewhere,
    is_written_elsewhere,
    record_read,
    record_write,
)
from numbasync.native import compiled, core, known, new_lock
from numbasync.ops.context import Context
from numbasync.ops.op import Steps
from numbasync.tensors.tensor import Tensor

T = TypeVar("T")
Prepare = Callable[[Rank, Any, Any, Any], Call]  # a rank's call: stream, and handles of from and to

# Held by the one thread that calls the library: two groups with devices in common, which threads
# start in different orders, would wait for one another on the devices.
calling = new_lock()
if core is not None:
    core.know_collectives(calling)


@known
class Group:
    """The devices of a collective, as their library knows them.

    Attributes:
        ranks: one for each device.
        streams: of the quick way, one for each device but the first, whose stream is the
            operation's. A library runs one collective of a group at a time.
        in_order: the devices in the order in which their locks are taken.
    """

    __slots__ = ("in_order", "library", "ranks", "streams")

    def __init__(self, library: Library, devices: Sequence[Device]) -> None:
        self.library = library
        self.ranks = library.ranks([device.backend for device in devices])
        self.in_order = sorted(devices, key=lambda d: (d.kind, d.ordinal))
        self.streams: list[Stream] = [device.new_stream() for device in devices[1:]]
        for stream in self.streams:
            stream.is_internal = stream.is_kept = True


@known
class CollectivePlan:
    """A collective of tensors of one kind, one on each of its devices.

    Attributes:
        name: of its submissions.
        spec: of each result.
        by_copies: the steps that give the result on the device of a context, of the parts and its
            number, without a library.
        prepare: the call of a library.
        op: the reduction, if it is one.
        has_library: whether the devices may have a library.
        group: of the library that runs it; None until there is one, or for ever.
        record: the core's record of the library's calls, if it makes them.
    """

    __slots__ = (
        "_choice", "_nbytes", "by_copies", "devices", "group", "has_library", "name", "op",
        "prepare", "record", "spec",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        devices: tuple[Device, ...],
        nbytes: int,
        spec: ArraySpec,
        by_copies: Callable[[Sequence[Tensor], int, Context], Steps[Tensor]],
        prepare: Prepare,
        op: str | None,
        choice: Any,
    ) -> None:
        self.name = name
        self.devices = devices
        self.spec = spec
        self.by_copies = by_copies
        self.prepare = prepare
        self.op = op
        self.has_library = devices[0].backend.collectives is not None
        self.group: Group | None = None
        self.record: Any = None
        self._choice = choice
        self._nbytes = min(nbytes, spec.nbytes)  # what a library counts of each rank

    def suits(self, library: Library) -> bool:
        """Whether a library can run it."""
        return bool(self._nbytes) and library.takes(self.spec.dtype, self.op)

    def use(self, group: Group) -> None:
        """Let a group's library run it from now on."""
        self.record = group.library.record(
            self.name, group.ranks, self.spec.dtype, self._nbytes, self._choice
        )
        self.group = group


@compiled
def enqueue_together(
    plan: CollectivePlan,
    parts: Sequence[Tensor],
    out: Sequence[Tensor] | None,
    submission: Submission,
    pool: MemoryPool | None,
) -> tuple[Tensor, ...] | None:
    """Enqueue all of a collective that has a group, the first device's part in `submission`, and
    let that wait for the others.

    Args:
        parts: a tensor a device.
        out: the tensors of the results; None: new ones.

    Returns:
        The results; None, with nothing done, if something must be waited for first.
    """
    group = plan.group
    if group is None:
        return None
    others = [Submission(stream, plan.name, submission.site) for stream in group.streams]
    for device, other in zip(plan.devices[1:], others, strict=True):
        if device.lost is not None or device.is_limited or other.stream.is_broken:
            return None
    every = [submission, *others]
    return under_locks(group.in_order, partial(_enqueued, plan, parts, out, every, pool))


def under_locks(devices: Sequence[Device], call: Callable[[], T]) -> T:
    """`call()` under the locks of all devices."""
    if not devices:
        return call()
    with devices[0].submit_lock:
        return under_locks(devices[1:], call)


def _enqueued(
    plan: CollectivePlan,
    parts: Sequence[Tensor],
    out: Sequence[Tensor] | None,
    every: list[Submission],
    pool: MemoryPool | None,
) -> tuple[Tensor, ...] | None:
    if not are_free(every, parts, False):
        return None
    results = out
    if results is None:
        results = allocate_all(plan.spec, every, pool)
        if results is None:
            return None
    elif not are_free(every, results, True):
        return None
    # All by the first one, which is committed whatever happens: ^C could leave out the others.
    every[0].keep_alive += [tensor.storage for tensor in (*parts, *results)]
    try:
        streams = [submission.stream.backend for submission in every]
        make_calls(plan, streams, parts, results)
        record_all(every, parts, results)
    except BaseException:  # some may be enqueued; ^C also ends `record_all`, before others' parts
        record_all(every, parts, results)
        raise
    # Under the locks: a wait for another thread's part, which its device's first part then came
    # behind, would be for ever.
    put_first_behind(every)
    return tuple(results)


@compiled
def make_calls(
    plan: CollectivePlan, streams: Sequence[Any], parts: Sequence[Tensor], results: Sequence[Tensor]
) -> None:
    """Make the calls of all ranks, on a stream of each device."""
    group: Any = plan.group
    prepared = [
        plan.prepare(rank, stream, part.handle, result.handle)
        for rank, stream, part, result in zip(group.ranks, streams, parts, results, strict=True)
    ]
    with calling:
        group.library.make(prepared, group.ranks[0])


def are_free(every: list[Submission], tensors: Sequence[Tensor], to_write: bool) -> bool:
    """Whether each submission's work can use its tensor at once."""
    is_busy = is_used_elsewhere if to_write else is_written_elsewhere
    for submission, tensor in zip(every, tensors, strict=True):
        storage, stream = tensor.own_storage, submission.stream
        if (
            storage is None
            or tensor.source is not None
            or storage.fast_path_device is not stream.device.backend
            or is_busy(storage, stream)
        ):
            return False
    return True


def record_all(every: list[Submission], parts: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Record what each submission reads and writes, and commit all but the first. After ^C in the
    midst of it, it can be called again.
    """
    for submission, part, result in zip(every, parts, results, strict=True):
        record_read(part.storage, submission)
        record_write(result.storage, submission)
        submission.keep_alive += (part.storage, result.storage)
    for submission in every[1:]:
        if not submission.stream.has(submission):
            submission.stream.commit(submission, False)


@compiled
def put_first_behind(every: list[Submission]) -> None:
    """Let the first submission end, and fail, with the others, which are committed."""
    first, others = every[0], every[1:]
    # One device after the other, and all waits behind: to switch to another one is what they cost.
    marks = [submission.stream.mark() for submission in reversed(others)]
    for mark in marks:
        first.stream.wait_behind(mark)
    for submission in others:
        first.depends_on(submission)


@compiled
def allocate_all(
    spec: ArraySpec, every: list[Submission], pool: MemoryPool | None
) -> list[Tensor] | None:
    """New tensors; None where a device has no room, until somebody collects garbage."""
    tensors: list[Tensor] = []
    try:
        for submission in every:
            stream = submission.stream
            chosen = pool if pool is not None and not tensors else stream.device.pool
            storage = chosen.allocate(spec.nbytes, stream.backend)
            tensors.append(Tensor.of(stream.device, storage, spec))
    except OutOfDeviceMemoryError:
        return None
    for submission in every:
        submission.nbytes += spec.nbytes
    return tensors
