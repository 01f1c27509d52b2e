"""Parts of an operation that run on another stream, of another device: each has a submission of its
own there, and the operation is done when all of its parts are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from numbasync.device.device import next_stream_of
from numbasync.device.stream import Stream
from numbasync.errors import DeviceLostError, NotAGraphNodeError
from numbasync.ops.backpressure import Admission
from numbasync.ops.context import Context
from numbasync.ops.home import check_home, device_at
from numbasync.ops.protocols import Operation
from numbasync.ops.shared_run import Steps

T = TypeVar("T")


def on_stream(
    ctx: Context, stream: Stream, name: str, steps: Callable[[Context], Steps[T]]
) -> Steps[tuple[Context, T]]:
    """Run `steps` on `stream`, as a part of the operation of `ctx`. Nothing of `ctx` waits for the
    part until the caller calls `join`.

    Returns:
        The context of the part, which has ended; and the value.

    Raises:
        NotAGraphNodeError: the operation is being recorded for a graph.

    Examples:
        >>> from numbasync.extending import DeviceOp, enqueue, join, next_stream_of, on_stream
        >>> class OnEach(DeviceOp):
        ...     def __init__(self, devices):
        ...         self.devices = devices
        ...     def steps(self, ctx):
        ...         parts, made = [], []
        ...         for device in self.devices:
        ...             stream = next_stream_of(device)
        ...             ones = lambda part: enqueue(part, na.ones(3))
        ...             part, value = yield from on_stream(ctx, stream, "ones", ones)
        ...             parts.append(part)
        ...             made.append(value)
        ...         for part in parts:  # none of them waits for another one
        ...             join(ctx, part)
        ...         return made
        >>> [t.device.label for t in await OnEach(na.devices("cpu")[:2])]
        ['cpu:0', 'cpu:1']
    """
    if ctx.records:
        raise NotAGraphNodeError(
            f"{name} runs on {stream.device.label}; a graph of {ctx.device.label} holds work of "
            "that device only.\nCopy between devices before the launch of the graph, or behind it; "
            "capture a graph for each device."
        )
    stream.check_open()
    part = Context(stream, stream.device.pool, name, ctx.submission.site, ctx)
    if stream.device.is_limited:
        part.admission = Admission(stream.device)
    part.suspend()  # the steps may pause, and then only they hold the part
    try:
        if part.admission is not None:
            yield from part.room()
            part.admission.admit(part.submission)
        value = yield from steps(part)
    except GeneratorExit:
        part.withdraw()
        raise
    except DeviceLostError as fault:
        stream.device.lose(fault, part.submission)
        part.close()
        raise stream.device.lost or fault from None
    except BaseException:
        part.close()
        raise
    part.close()
    return part, value


def where_it_belongs(ctx: Context, op: Operation[T], parts: list[Context]) -> Steps[T]:
    """The steps of `op`: on a stream of its home, if that is of another device, else in `ctx`.

    Args:
        parts: gets the context of such a part, which the caller joins.
    """
    home = op.home
    if device_at(home) in (None, ctx.device) or op.stream is not None:
        return (yield from op.steps(ctx))
    check_home(home, type(op).__name__)
    stream = home if isinstance(home, Stream) else next_stream_of(home)  # type: ignore[arg-type]
    part, value = yield from on_stream(ctx, stream, op.label, op.steps)
    parts.append(part)
    return value


def join(ctx: Context, part: Context) -> None:
    """Order the work that `ctx` enqueues from now on after `part`; it fails if the part fails.

    Examples:
        >>> from numbasync.extending import DeviceOp, enqueue, join, next_stream_of, on_stream
        >>> class Beside(DeviceOp):
        ...     def steps(self, ctx):
        ...         stream, zeros = next_stream_of(ctx.device), na.zeros(3)
        ...         steps = lambda part: enqueue(part, zeros)
        ...         part, z = yield from on_stream(ctx, stream, "zeros", steps)
        ...         one = yield from enqueue(ctx, na.ones(3))  # at the same time
        ...         join(ctx, part)
        ...         return one, z
        >>> [t.shape for t in await Beside()]
        [(3,), (3,)]
    """
    ctx.depend(part.submission)
