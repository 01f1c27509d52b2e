"""What an operation of one's own is made of.

An operation is a subclass of `DeviceOp` with the method `steps(ctx)`, a generator. It enqueues work
in its context, yields each `Prerequisite`, something slow that has to be done first, and returns
the operation's value, which may still be on its way: what uses it comes behind on the stream.
Whoever runs the operation takes the steps: a blocking call on its own thread, an event loop by
running each prerequisite on a worker thread. So an operation never blocks in its steps.

The subclass says nothing of running once, streams, awaiting or cancelling. An error that the steps
raise is the await's; a prerequisite's error is raised at its `yield`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from numbasync.backend.protocols import Prerequisite as Prerequisite
from numbasync.ops.context import Context as Context
from numbasync.ops.elsewhere import join, where_it_belongs
from numbasync.ops.home import Home as Home
from numbasync.ops.home import first_home as first_home
from numbasync.ops.op import DeviceOp as DeviceOp
from numbasync.ops.op import Steps as Steps
from numbasync.ops.operands import check_op, common_stream, suppress_unused_warnings
from numbasync.ops.run import describe as describe
from numbasync.tensors.copies import HostArray as HostArray
from numbasync.tensors.copies import check_here, order
from numbasync.tensors.copies import copy as copy
from numbasync.tensors.copies import download as download
from numbasync.tensors.copies import upload_any as upload
from numbasync.tensors.tensor import Tensor

__all__ = [  # and the annotations Home, HostArray and Steps
    "Context", "DeviceOp", "Prerequisite", "access", "copy", "describe", "download", "enqueue",
    "first_home", "upload",
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
    takes `ctx.stream.number` or `ctx.stream.numba`. It gives the address of each tensor's first
    element, of those that are read first.

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
        ...         pass  # library.sum(address, x.size, stream=ctx.stream.number)
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
