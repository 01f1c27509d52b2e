"""Copies between tensors of different devices.

A copy runs on a stream of the destination's device. Events order both sides: the stream waits for
the last writer of the source, and the copy is recorded as a reader of the source, so that a later
write there waits for the copy. Where the two devices cannot copy from one another, the elements
pass through page-locked memory: a download on the source's device, then an upload.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from numbasync.device import access
from numbasync.device.device import Device, in_order, next_stream_of
from numbasync.device.submission import Submission
from numbasync.errors import DeviceMismatchError, NotAGraphNodeError
from numbasync.native import compiled
from numbasync.ops.context import Context
from numbasync.ops.elsewhere import join, on_stream
from numbasync.ops.shared_run import Steps
from numbasync.tensors.copies import HostArray, copy, order, written

if TYPE_CHECKING:
    from numbasync.tensors.array import DeviceArray

T = TypeVar("T")


def check_stream(ctx: Context, device: Device, src: object) -> None:
    """
    Raises:
        DeviceMismatchError: a copy of `src` to `device` is run on a stream of another device.
    """
    if ctx.device is not device:
        raise DeviceMismatchError(
            f"a copy of {src!r} to {device.label} runs on a stream of {device.label}, and "
            f"{ctx.asked!r} is of {ctx.device.label}.\n"
            "Name no stream, and the policy of that device gives one: "
            "await na.to_device(t, device). Behind another operation, await that first."
        )


def check_not_recorded(ctx: Context, src: object) -> None:
    """
    Raises:
        NotAGraphNodeError: a copy of `src`, of another device, is recorded for a graph.
    """
    if ctx.records:
        raise NotAGraphNodeError(
            f"a graph of {ctx.device.label} cannot repeat a copy of {src!r}, which is of another "
            "device.\nCopy before the launch of the graph: await dst.copy_from(src)"
        )


def copy_across(
    ctx: Context, dst: DeviceArray, src: DeviceArray, is_new: bool = False
) -> Steps[None]:
    """Enqueue a copy of `src`, of another device, to `dst` of the context's device; shape and dtype
    are equal.

    Args:
        is_new: `dst` is in memory that no other operation knows yet, so no access is recorded.
    """
    check_not_recorded(ctx, src)
    if dst.size == 0:
        return
    if not dst.is_contiguous:
        yield from ctx.room(dst.nbytes)
        packed = type(dst).allocate(ctx, dst.shape, dst.dtype, scratch=True)
        yield from copy_across(ctx, packed, src, is_new=True)
        yield from copy(ctx, dst, packed, is_new)
        return
    source: Device = src.device  # type: ignore[assignment]  # a tensor of `na.meta` has no elements
    if not ctx.device.backend.copies_from(source.backend):
        yield from _through_host(ctx, dst, src, source, is_new)
        return
    if not src.is_contiguous or src.source is not None:
        # Packed where it lies. Another library's array is ordered with streams of its own device.
        src = yield from _on(ctx, source, f"pack({src.shape})", partial(_pack, src))
    order(ctx, dst)
    first, second = in_order(ctx.device, source)
    with first.submit_lock, second.submit_lock:
        ctx.read(src.storage, src, anywhere=True)
        written(ctx, dst, is_new)
        ctx.queue.copy_peer(dst.handle, src.handle, source.backend)
        ctx.submission.copied += dst.nbytes


@compiled
def try_copy_across(
    submission: Submission, dst: DeviceArray, src: DeviceArray, is_new: bool = False
) -> bool:
    """The fast path of `copy_across`, on a stream of `dst`'s device. False, with nothing enqueued:
    another stream must be waited for, or the arrays are not plain.
    """
    stream = submission.stream
    device, source = stream.device, src.device
    near, far = dst.own_storage, src.own_storage
    if (
        near is None
        or far is None
        or source is None
        or dst.source is not None
        or src.source is not None
        or not (dst.nbytes and dst.is_contiguous and src.is_contiguous)
        or not device.backend.copies_from(source.backend)
    ):
        return False
    first, second = in_order(device, source)
    with first.submit_lock, second.submit_lock:
        # Under the locks, as another thread may attach a graph.
        if (
            near.fast_path_device is not device.backend
            or far.fast_path_device is not source.backend
            or access.is_written_elsewhere(far, stream)
            or (not is_new and access.is_used_elsewhere(near, stream))
        ):
            return False
        submission.keep_alive += (near, far)
        submission.nbytes += dst.nbytes
        submission.copied += dst.nbytes
        submission.queue = stream.backend.copy_peer(
            dst.handle, src.handle, source.backend, submission.queue
        )
        access.record_read(far, submission)
        access.record_write(near, submission)
    return True


def _on(ctx: Context, device: Device, name: str, steps: Callable[[Context], Steps[T]]) -> Steps[T]:
    part, value = yield from on_stream(ctx, next_stream_of(device), name, steps)
    join(ctx, part)
    return value


def _pack(src: DeviceArray, part: Context) -> Steps[DeviceArray]:
    """A contiguous copy on the device of `src`."""
    yield from part.room(src.nbytes)
    packed = type(src).allocate(part, src.shape, src.dtype, scratch=True)
    yield from copy(part, packed, src)
    return packed


def _through_host(
    ctx: Context, dst: DeviceArray, src: DeviceArray, source: Device, is_new: bool
) -> Steps[None]:
    yield from ctx.room(dst.nbytes)
    locks = source if source.backend.locks_pages else ctx.device
    room = locks.backend.host_buffer(dst.nbytes)[: dst.nbytes]
    ctx.submission.nbytes += dst.nbytes
    ctx.retain(room)
    staged: HostArray = room.view(dst.dtype).reshape(dst.shape)
    yield from _on(ctx, source, f"download({src.shape})", partial(_download, src, staged))
    order(ctx, dst)
    with ctx.device.submit_lock:
        written(ctx, dst, is_new)
        ctx.queue.upload(dst.handle, staged)
        ctx.submission.copied += dst.nbytes


def _download(src: DeviceArray, staged: HostArray, part: Context) -> Steps[None]:
    if not part.device.backend.reaches(src.handle):
        src = yield from _pack(src, part)
    order(part, src)
    part.retain(staged)
    with part.device.submit_lock:
        part.read(src.storage, src)
        part.queue.download(staged, src.handle)
        part.submission.copied += src.nbytes
