"""The collectives of a group of processes, as operations of each process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from numbasync.arguments import as_whole, shown, with_type
from numbasync.backend.protocols import Call, Library, Rank
from numbasync.collective.communicator import Channel, Communicator, WorkOnDevice
from numbasync.collective.exchange import GroupKey
from numbasync.collective.reductions import check_reduction
from numbasync.device.device import Device
from numbasync.errors import (
    CallerError,
    DeviceMismatchError,
    DTypeError,
    NotAGraphNodeError,
    NumbasyncError,
    OutOfDeviceMemoryError,
    ShapeError,
)
from numbasync.extending import (
    ArraySpec,
    Home,
    HostArray,
    contiguous,
    copy,
    download,
    note_site,
    upload,
)
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.tensors.tensor import Tensor
from numbasync.threads import call


async def connect(
    key: GroupKey, rank: int, device: Device | None = None, timeout: float = 30.0
) -> Communicator:
    """`Communicator(key, rank, device, timeout)`, without blocking the event loop.

    Examples:
        >>> key = na.collective.new_key(2)
        >>> connecting = (na.collective.connect(key, rank) for rank in range(2))  # one a process
        >>> first, second = await asyncio.gather(*connecting)
        >>> first.rank, second.rank, first.size
        (0, 1, 2)
        >>> first.close(), second.close()
        (None, None)
    """
    make = partial(Communicator, key, rank, device, timeout)
    return await asyncio.wrap_future(call(make, f"connecting rank {shown(rank)} of a group"))


class ByLibrary(NamedTuple):
    """How a library of collectives does it; see `GroupOp`."""

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]
    call: Callable[[Rank, Any, Any, Any], Call]
    op: str | None = None  # the reduction, if it is one


class GroupOp(DeviceOp[Any]):
    """An operation that starts one collective, and waits for the other ranks.

    Args:
        tensor: the tensor that this rank sends; None: it sends nothing.
        call: called on the channel's thread with the elements; returns an array, or None.
        by_library: the shape and dtype of the result, or None, and the call of a library's rank,
            with the backend's stream and the handles of both tensors.

    Raises:
        DeviceMismatchError: the tensor, or when it runs the stream, is not on the channel's device.
    """

    unordered = True  # other operations go on while this one waits for other processes

    def __init__(
        self,
        channel: Channel,
        name: str,
        tensor: Tensor | None,
        call: Callable[[Any], HostArray | None],
        by_library: ByLibrary,
    ) -> None:
        note_site(self, 2)
        home = channel.device
        if tensor is not None and tensor.device not in (None, home):
            raise DeviceMismatchError(
                f"{name} of {tensor!r}, but the communicator is of {home.label}.\n"
                f"Copy it there first: await na.to_device(t, comm.device)"
            )
        self._channel = channel
        self._by_library = by_library
        self._name = name
        self._tensor = tensor
        self._call = call

    @property
    def home(self) -> Home:
        return self._channel.device

    def steps(self, ctx: Context) -> Steps[Any]:
        if ctx.records:
            raise NotAGraphNodeError(f"{self} waits for other processes, which no replay can do.")
        channel = self._channel
        if ctx.device is not channel.device:
            home, here = channel.device.label, ctx.device.label
            raise DeviceMismatchError(
                f"{self} goes to {here}, but the communicator is of {home}.\n"
                f"Name no stream, and it runs on {home}. Behind or inside another operation, which "
                f"runs on {here}, await that one first."
            )
        if not channel.is_connected:
            yield channel.later(channel.connect)
        library = channel.by_library
        if library is not None and library[0].takes(self._by_library.dtype, self._by_library.op):
            return (yield from self._on_device(ctx, *library))
        elements, copied = None, None
        if self._tensor is not None:
            elements = yield from download(ctx, self._tensor)
            copied = ctx.device.backend.new_event(timing=False)
            ctx.stream.backend.record(copied)

        def call() -> HostArray | None:
            if copied is not None:
                copied.synchronize()
            return self._call(elements)

        need = channel.later(call)
        yield need
        array = need.value
        if array is None:
            return None
        tensor = Tensor.allocate(ctx, array.shape, array.dtype)
        yield from upload(ctx, tensor, array)
        return tensor

    def _on_device(self, ctx: Context, library: Library, rank: Rank) -> Steps[Tensor | None]:
        if self._channel.failure is not None:
            raise self._channel.failure
        tensor, shape = self._tensor, self._by_library.shape
        if tensor is not None and (not tensor.is_contiguous or tensor.source is not None):
            # A copy is ordered after the work of the library whose array it is.
            packed = Tensor.allocate(ctx, tensor.shape, tensor.dtype)
            yield from copy(ctx, packed, tensor)
            tensor = packed
        result = None if shape is None else Tensor.allocate(ctx, shape, self._by_library.dtype)
        send = result if tensor is None else tensor
        recv = tensor if result is None else result
        if send is None or recv is None or not send.size:
            return result
        stream, work = ctx.stream.backend, WorkOnDevice(rank)
        done = ctx.device.backend.new_event(timing=False)
        with ctx.device.submit_lock:
            if tensor is not None:
                ctx.read(tensor.storage, tensor)
            if self._channel.failure is not None:  # while this thread waited for the lock
                raise self._channel.failure
            self._channel.watch(work)  # also the call, which may wait for the other ranks
            try:
                prepared = self._by_library.call(rank, stream, send.handle, recv.handle)
                library.make((prepared,), rank)
                stream.record(done)
            except BaseException as error:
                work.has_failed = True
                if not isinstance(error, NumbasyncError):
                    raise
                if self._channel.failure in (None, error):
                    self._channel.failure = error  # a second call would wait for the lost rank
                    raise
                raise self._channel.failure from error
            work.done = done
        ctx.submission.on_complete(partial(self._channel.check, work))
        return result

    def _describe(self) -> str:
        return self._name


def all_reduce(tensor: Tensor, op: str, comm: Communicator) -> DeviceOp[Tensor]:
    check_reduction(op, tensor.dtype)
    group = comm.group
    by_library = ByLibrary(
        tensor.shape, tensor.dtype, lambda rank, stream, a, b: rank.all_reduce(stream, a, b, op), op
    )
    return GroupOp(group, "all_reduce", tensor, lambda own: group.all_reduced(own, op), by_library)


def reduce_scatter(tensor: Tensor, op: str, comm: Communicator) -> DeviceOp[Tensor]:
    check_reduction(op, tensor.dtype)
    rows, group = rows_of(tensor, comm.size), comm.group
    mine = slice(comm.rank * rows, (comm.rank + 1) * rows)
    by_library = ByLibrary(
        (rows, *tensor.shape[1:]),
        tensor.dtype,
        lambda rank, stream, a, b: rank.reduce_scatter(stream, a, b, op),
        op,
    )
    return GroupOp(
        group,
        "reduce_scatter",
        tensor,
        lambda own: group.all_reduced(own, op)[mine],
        by_library,
    )


def all_gather(tensor: Tensor, comm: Communicator) -> DeviceOp[Tensor]:
    check_rows(tensor)
    by_library = ByLibrary(
        (comm.size * tensor.shape[0], *tensor.shape[1:]),
        tensor.dtype,
        lambda rank, stream, a, b: rank.all_gather(stream, a, b),
    )
    group = comm.group
    return GroupOp(group, "all_gather", tensor, group.all_gathered, by_library)


def broadcast(tensor: Tensor, root: int, comm: Communicator) -> DeviceOp[Tensor]:
    check_rank(root, comm.size, "root of broadcast")
    like, group = ArraySpec(tensor.shape, tensor.dtype), comm.group
    by_library = ByLibrary(
        tensor.shape, tensor.dtype, lambda rank, stream, a, b: rank.broadcast(stream, a, b, root)
    )
    return GroupOp(
        group,
        "broadcast",
        tensor if comm.rank == root else None,
        lambda own: group.sent("broadcast", own, root, like),
        by_library,
    )


def send(tensor: Tensor, to: int, comm: Communicator) -> DeviceOp[None]:
    """Send a tensor to another process, which receives it by `recv`.

    Raises:
        CallerError: there is no such rank, or it is this one; `comm` is no communicator.
        DTypeError: `tensor` is no tensor.
        As `all_reduce`, when awaited.

    Examples:
        >>> key = na.collective.new_key(2)
        >>> connecting = (na.collective.connect(key, rank) for rank in range(2))  # one a process
        >>> first, second = await asyncio.gather(*connecting)
        >>> sent = na.spawn(na.collective.send(await na.arange(3), to=1, comm=first))
        >>> t = await na.collective.recv(3, source=0, comm=second)
        >>> await t.to_host()
        array([0., 1., 2.], dtype=float32)
        >>> first.close(), second.close()
        (None, None)
    """
    checked(tensor, "send", comm)
    channel = comm.channel(comm.rank, check_other(to, comm, "to of send"))
    like = ArraySpec(tensor.shape, tensor.dtype)

    def call(own: HostArray) -> None:
        channel.sent("send", own, 0, like)

    by_library = ByLibrary(None, tensor.dtype, lambda rank, stream, a, _: rank.send(stream, a, 1))
    return GroupOp(channel, "send", tensor, call, by_library)


def recv(
    shape: int | Sequence[int], source: int, comm: Communicator, dtype: Any = np.float32
) -> DeviceOp[Tensor]:
    """Receive a tensor that another process sends.

    Args:
        shape, dtype: those of the tensor that is sent.
        source: the rank of the other process.

    Raises:
        ShapeError, DTypeError: a tensor cannot have that shape or dtype.
        OutOfDeviceMemoryError: the device has less memory than that.
        As `send`.

    Examples:
        >>> key = na.collective.new_key(2)
        >>> connecting = (na.collective.connect(key, rank) for rank in range(2))  # one a process
        >>> first, second = await asyncio.gather(*connecting)
        >>> sent = na.spawn(na.collective.send(await na.ones((2, 2)), to=1, comm=first))
        >>> t = await na.collective.recv((2, 2), source=0, comm=second)
        >>> t.shape
        (2, 2)
        >>> first.close(), second.close()
        (None, None)
    """
    check_comm(comm, "recv")
    source = check_other(source, comm, "source of recv")
    like, home = contiguous(shape, dtype), comm.device
    if like.nbytes > home.backend.total_memory:
        raise OutOfDeviceMemoryError(
            f"recv of shape {shown(like.shape)} and {like.dtype}: {like.nbytes:,} bytes do not fit "
            f"on {home.label}, which has {home.backend.total_memory:,}. Send it in smaller pieces."
        )
    channel = comm.channel(source, comm.rank)
    by_library = ByLibrary(
        like.shape, like.dtype, lambda rank, stream, _, b: rank.recv(stream, b, 0)
    )
    return GroupOp(channel, "recv", None, lambda _: channel.sent("send", None, 0, like), by_library)


def rows_of(tensor: Tensor, ranks: int) -> int:
    """The rows that each rank keeps of a reduced tensor.

    Raises:
        ShapeError: the first axis cannot be cut into equal parts.
    """
    if not tensor.shape or tensor.shape[0] % ranks:
        raise ShapeError(
            f"reduce_scatter cuts the first axis of {tensor.shape} into {ranks} equal parts, which "
            "is not possible: pad it."
        )
    return tensor.shape[0] // ranks


def check_rows(tensor: Tensor) -> None:
    """
    Raises:
        ShapeError: the tensor has no axis.
    """
    if not tensor.shape:
        raise ShapeError(
            f"all_gather of {tensor!r} joins along the first axis, which a scalar has not."
        )


def check_rank(rank: Any, ranks: int, what: str) -> int:
    """
    Args:
        what: the argument and the function, as in `root of broadcast`.

    Raises:
        CallerError: no such rank.
    """
    number = as_whole(rank)
    if number is None or number not in range(ranks):
        raise CallerError(
            f"{what} is no rank: there are ranks 0 to {ranks - 1}, and not {shown(rank, 40)}."
        )
    return number


def check_other(rank: Any, comm: Communicator, what: str) -> int:
    number = check_rank(rank, comm.size, what)
    if number == comm.rank:
        raise CallerError(f"{what}: rank {number} is this process itself.")
    return number


def check_comm(comm: Any, what: str) -> None:
    """
    Raises:
        CallerError: the argument is no communicator.
    """
    if not isinstance(comm, Communicator):
        raise CallerError(
            f"comm of {what} is no communicator, but {with_type(comm)}: write "
            "comm = await na.collective.connect(key, rank)."
        )


def checked(tensor: Any, what: str, comm: Any) -> Tensor:
    """
    Raises:
        DTypeError, CallerError: the argument is no tensor, or the other one no communicator.
    """
    check_comm(comm, what)
    if isinstance(tensor, Tensor):
        return tensor
    raise DTypeError(f"{what} takes a tensor, not {with_type(tensor)}.")
