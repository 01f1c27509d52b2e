"""What an operation of one's own is made of.

An operation is a subclass of `DeviceOp` with the method `steps(ctx)`, a generator. It enqueues work
in its context, yields each `Prerequisite`, something slow that has to be done first, and returns
the operation's value, which may still be on its way: what uses it comes behind on the stream.
Whoever runs the operation takes the steps: a blocking call on its own thread, an event loop by
running each prerequisite on a worker thread. So an operation never blocks in its steps.

The subclass says nothing of running once, streams, awaiting or cancelling. An error that the steps
raise is the await's; a prerequisite's error is raised at its `yield`.

Batches, collectives, tuning, the tools for tests and Dask's workers are written with these names
and those of `numbasync`, and so may be what a program adds to them.

An operation that runs often may have a fast path besides its steps: `try_enqueue` enqueues all of
it by one call, or nothing, where something would have to be waited for. Under the device's
`submit_lock` it looks whether other streams use the memory, enqueues, and then records what the
work reads and writes, which is what later work waits for:

Examples:
    >>> from numbasync.extending import DeviceOp, Submission, download, enqueue, note_site
    >>> from numbasync.extending import is_large, is_used_elsewhere, is_written_elsewhere
    >>> from numbasync.extending import record_read, record_write
    >>> class Fetch(DeviceOp):
    ...     has_fast_path = True
    ...
    ...     def __init__(self, tensor, clear=False):
    ...         note_site(self)
    ...         self.tensor, self.clear = tensor, clear
    ...
    ...     home = property(lambda self: self.tensor.device)
    ...
    ...     def steps(self, ctx):
    ...         array = yield from download(ctx, self.tensor)
    ...         if self.clear:
    ...             yield from enqueue(ctx, na.fill(self.tensor, 0))
    ...         return array
    ...
    ...     def try_enqueue(self, submission: Submission, pool):
    ...         t, stream = self.tensor, submission.stream
    ...         backend, storage = stream.device.backend, t.storage
    ...         block = None if is_large(t) else backend.host_block(t.nbytes)
    ...         if block is None or not t.is_contiguous:
    ...             return False
    ...         is_taken = is_used_elsewhere if self.clear else is_written_elsewhere
    ...         with stream.device.submit_lock:
    ...             if is_taken(storage, stream) or storage.fast_path_device is not backend:
    ...                 return False
    ...             submission.keep_alive += (storage, block)
    ...             queue = stream.backend.download(block, t.handle, submission.queue)
    ...             submission.queue = queue
    ...             record_read(storage, submission)
    ...             if self.clear:
    ...                 zero = t.dtype.type(0)
    ...                 submission.queue = stream.backend.fill(t.handle, zero, queue)
    ...                 record_write(storage, submission)
    ...         self.array = np.ndarray(t.shape, t.dtype, block)
    ...         return True
    ...
    ...     def result(self):
    ...         return self.array
    >>> x = await na.ones(3)
    >>> await Fetch(x, clear=True), await Fetch(x)
    (array([1., 1., 1.], dtype=float32), array([0., 0., 0.], dtype=float32))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from numbasync.backend.protocols import Prerequisite as Prerequisite
from numbasync.device.access import is_used_elsewhere as is_used_elsewhere
from numbasync.device.access import is_written_elsewhere as is_written_elsewhere
from numbasync.device.access import record_read as record_read
from numbasync.device.access import record_write as record_write
from numbasync.device.device import check_device as check_device
from numbasync.device.device import chosen_device as chosen_device
from numbasync.device.device import next_stream_of as next_stream_of
from numbasync.device.storage import Storage as Storage
from numbasync.device.stream import AnyStream as AnyStream
from numbasync.device.stream import as_stream as as_stream
from numbasync.device.submission import Submission as Submission
from numbasync.ops.consume import note_site as note_site
from numbasync.ops.context import Context as Context
from numbasync.ops.elsewhere import join as join
from numbasync.ops.elsewhere import on_stream as on_stream
from numbasync.ops.elsewhere import where_it_belongs
from numbasync.ops.home import Home as Home
from numbasync.ops.home import first_home as first_home
from numbasync.ops.op import DeviceOp as DeviceOp
from numbasync.ops.op import Steps as Steps
from numbasync.ops.operands import check_op as check_op
from numbasync.ops.operands import common_stream, suppress_unused_warnings
from numbasync.ops.pickling import unpicklable as unpicklable
from numbasync.ops.prerequisites import attempt as attempt
from numbasync.ops.prerequisites import on_worker as on_worker
from numbasync.ops.reentrancy import unlocked as unlocked
from numbasync.ops.run import describe as describe
from numbasync.ops.run import enqueue_on as enqueue_on
from numbasync.ops.timed import Timed as Timed
from numbasync.ops.unfilled import check_filled as check_filled
from numbasync.ops.unfilled import is_filled as is_filled
from numbasync.tensors.array_spec import ArraySpec as ArraySpec
from numbasync.tensors.array_spec import contiguous as contiguous
from numbasync.tensors.copies import HostArray as HostArray
from numbasync.tensors.copies import check_here, order
from numbasync.tensors.copies import copy as copy
from numbasync.tensors.copies import download as download
from numbasync.tensors.copies import fill as fill
from numbasync.tensors.copies import upload_any as upload
from numbasync.tensors.host_arrays import host_array as host_array
from numbasync.tensors.host_mapped import host_mapped as host_mapped
from numbasync.tensors.host_mapped import is_host_mapped as is_host_mapped
from numbasync.tensors.host_mapped import is_in_use as is_in_use
from numbasync.tensors.staging import is_large as is_large
from numbasync.tensors.staging import staged_bytes as staged_bytes
from numbasync.tensors.tensor import Tensor

__all__ = [  # and the annotations AnyStream, Home, HostArray and Steps
    "ArraySpec", "Context", "DeviceOp", "Prerequisite", "Storage", "Submission", "Timed",
    "access", "as_stream", "attempt", "check_device", "check_filled", "check_op",
    "chosen_device", "contiguous", "copy", "describe", "download", "enqueue", "enqueue_on",
    "fill", "first_home", "host_array", "host_mapped", "is_filled", "is_host_mapped",
    "is_in_use", "is_large", "is_used_elsewhere", "is_written_elsewhere", "join",
    "next_stream_of", "note_site", "on_stream", "on_worker", "record_read", "record_write",
    "staged_bytes", "unlocked", "unpicklable", "upload",
]  # fmt: skip

T = TypeVar("T")


def enqueue(ctx: Context, op: DeviceOp[T]) -> Steps[T]:
    """Run an operation as a part of the one whose context this is.

    It goes onto the context's stream; if its tensors are another device's, onto a stream there, and
    what the context enqueues later waits for it. What it had enqueued before an error runs.

    Args:
        op: it has not run. It may not name another stream in its brackets.

    Returns:
        Steps that give its value: write `value = yield from enqueue(ctx, op)`.

    Raises:
        OperationError: `op` is no operation, or names another stream.
        AlreadySubmittedError: it was run before, or is part of another one.

    Examples:
        >>> from numbasync.extending import Context, DeviceOp, Steps, enqueue
        >>> class Twice(DeviceOp[tuple[na.Tensor, na.Tensor]]):
        ...     def __init__(self, n):
        ...         self.n = n
        ...     def steps(self, ctx: Context) -> Steps[tuple[na.Tensor, na.Tensor]]:
        ...         first = yield from enqueue(ctx, na.ones(self.n))
        ...         return first, (yield from enqueue(ctx, first.dup()))
        >>> first, second = await Twice(3)
        >>> await second.to_host()
        array([1., 1., 1.], dtype=float32)
    """
    part = check_op(op, f"a part of {ctx.submission.name}")
    if part.stream is not None:
        with suppress_unused_warnings((part,)):
            common_stream((part,), ctx.asked)
    part.consume()
    parts: list[Context] = []
    value: T = yield from where_it_belongs(ctx, part, parts)
    for other in parts:
        join(ctx, other)
    return value


@contextmanager
def access(
    ctx: Context, reads: Sequence[Tensor] = (), writes: Sequence[Tensor] = ()
) -> Iterator[tuple[int, ...]]:
    """A block that enqueues work of its own on the context's stream, as by a library's call that
    takes `ctx.stream`, the handle `ctx.stream.__cuda_stream__()[1]`, or `ctx.stream.numba`. It
    gives the address of each tensor's first element, of those that are read first.

    The work comes behind the last writers of all these tensors, and behind the readers of those
    that it writes, on whatever stream they are; later work comes behind it, and their memory is
    kept until the device has passed it. The block may not wait, or run operations.

    Args:
        reads: tensors of the context's device that the work reads.
        writes: those that it writes, or reads and writes.

    Raises:
        DeviceMismatchError: a tensor is of another device.
        AccessConflictError: with strict ordering, another stream uses one of them.

    Examples:
        >>> from numbasync.extending import access
        >>> x = await na.ones(3)
        >>> def by_a_library(ctx):
        ...     with access(ctx, reads=[x]) as (address,):
        ...         pass  # library.sum(address, x.size, stream=ctx.stream)
        ...     return address % 4
        >>> await na.with_context(by_a_library)
        0
    """
    check_here(ctx, *reads, *writes)
    order(ctx, *reads, *writes)
    # Held until the work is enqueued: another thread's, which the records send behind it, would
    # else come before it.
    with ctx.device.submit_lock:
        for tensor in reads:
            ctx.read(tensor.storage, tensor)
        for tensor in writes:
            ctx.write(tensor.storage, tensor)
        ctx.touch()
        yield tuple(tensor.address for tensor in (*reads, *writes))
