"""The work that copies enqueue: between tensors and to or from host arrays, of any layout.

The functions take the `Context` of the operation that runs. Functions that return `Steps` are
generators, which yield the prerequisites that the operation waits for before it goes on.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from numbasync.errors import OutOfDeviceMemoryError
from numbasync.ops.context import Context
from numbasync.ops.shared_run import Steps
from numbasync.ops.unfilled import check_filled
from numbasync.tensors.parallel_copy import copying
from numbasync.tensors.pinned import direct, sharing
from numbasync.tensors.staging import (
    HostStaging,
    StagedCopyBack,
    Staging,
    is_large,
    read,
    staged_bytes,
)

if TYPE_CHECKING:
    from numbasync.tensors.array import DeviceArray

HostArray: TypeAlias = np.ndarray[Any, Any]


def stage(ctx: Context, array: HostArray) -> HostArray:
    """A copy of the elements in page-locked memory, which the submission keeps alive."""
    staged: HostArray = ctx.host_buffer(array.nbytes).view(array.dtype).reshape(array.shape)
    if is_large(array):
        copying(staged, array).run()
    else:
        staged[...] = array
    return staged


def order(ctx: Context, *tensors: DeviceArray) -> None:
    """Order the work enqueued from now on after the work that other libraries have enqueued for
    those of `tensors` that they lend.

    The caller must not hold `submit_lock`: this calls the other library's code, which may wait.
    """
    for tensor in tensors:
        # A tensor of another device is refused when its access is recorded.
        if tensor.source is not None and tensor.device is ctx.device:
            ctx.order(tensor.source)


def check_here(ctx: Context, *tensors: DeviceArray) -> None:
    """Refuse tensors of another device before the backend, which knows its own arrays only.

    Raises:
        DeviceMismatchError: a tensor is of another device than the context.
    """
    for tensor in tensors:
        storage = tensor.storage
        if storage.pool.device not in (None, ctx.device.backend):
            ctx.read(storage, tensor)


def written(ctx: Context, dst: DeviceArray, is_new: bool) -> None:
    """Record a write of `dst`, or only keep it alive, if no other operation knows its memory."""
    if is_new:
        ctx.retain(dst.storage)
    else:
        ctx.write(dst.storage, dst)


def upload(ctx: Context, dst: DeviceArray, array: HostArray) -> None:
    """Enqueue a copy of host elements into a tensor that the device's uploads can write directly.

    The elements are read now; those of page-locked memory (`na.pinned`) when the copy runs.
    """
    if dst.size:
        pinned_storage = direct(array)
        if pinned_storage is None and not ctx.records:
            check_filled(array, ctx.submission)
        source = stage(ctx, array) if pinned_storage is None else array
        order(ctx, dst)
        with ctx.device.submit_lock, nullcontext() if pinned_storage is None else sharing:
            if pinned_storage is not None:
                ctx.read(pinned_storage, "a pinned array")
            ctx.write(dst.storage, dst)
            ctx.queue.upload(dst.handle, source)
            ctx.submission.copied += dst.nbytes


def upload_new(ctx: Context, dst: DeviceArray, array: HostArray) -> Steps[None]:
    """`upload` into a new, contiguous tensor, which no other operation uses yet."""
    if not is_large(array) or direct(array) is not None or ctx.records:
        upload(ctx, dst, array)
    else:
        check_filled(array, ctx.submission)
        yield from read(ctx, Staging(ctx, dst.storage, array).reading)


def upload_at_once(ctx: Context, dst: DeviceArray, array: HostArray) -> Steps[None]:
    """`upload` of a large array by one device copy: the whole array is staged first."""
    check_filled(array, ctx.submission)
    staged: HostArray = ctx.host_buffer(array.nbytes).view(array.dtype).reshape(array.shape)
    yield from read(ctx, HostStaging(copying(staged, array)))
    order(ctx, dst)
    with ctx.device.submit_lock:
        ctx.write(dst.storage, dst)
        ctx.queue.upload(dst.handle, staged)
        ctx.submission.copied += dst.nbytes


def copy(ctx: Context, dst: DeviceArray, src: DeviceArray, is_new: bool = False) -> Steps[None]:
    """Enqueue an element-wise copy between tensors of equal shape; dtypes are converted.

    Args:
        is_new: `dst` is in memory that no other operation knows yet, so no access is recorded.

    Examples:
        >>> from numbasync.extending import DeviceOp, copy, enqueue
        >>> class Reversed(DeviceOp):
        ...     def __init__(self, x):
        ...         self.x = x
        ...     def steps(self, ctx):
        ...         z = yield from enqueue(ctx, na.empty_like(self.x))
        ...         yield from copy(ctx, z, self.x[::-1])
        ...         return z
        >>> z = await Reversed(await na.arange(3))
        >>> await z.to_host()
        array([2., 1., 0.], dtype=float32)
    """
    if dst.size == 0:
        return
    check_here(ctx, src, dst)
    prerequisite = ctx.device.backend.copy_needs(dst.handle, src.handle)
    if prerequisite is not None:
        yield prerequisite
    if src.storage.overlaps(dst.storage) and not src.same_elements(dst):
        # The views may overlap, and elements are copied in no order: copy through a temporary.
        yield from ctx.room(src.nbytes)
        packed = type(src).allocate(ctx, src.shape, src.dtype, scratch=True)
        yield from copy(ctx, packed, src)
        src = packed
    order(ctx, dst, src)
    with ctx.device.submit_lock:
        ctx.read(src.storage, src)
        written(ctx, dst, is_new)
        ctx.queue.copy(dst.handle, src.handle)
        ctx.submission.copied += dst.nbytes


def upload_any(
    ctx: Context, dst: DeviceArray, array: HostArray, is_new: bool = False
) -> Steps[None]:
    """Enqueue a copy of a NumPy array into a tensor of the same shape and dtype, of any layout. The
    array may not change until the operation is done.

    Args:
        is_new: `dst` is contiguous, and in memory that no other operation knows yet.

    Examples:
        >>> from numbasync.extending import DeviceOp, upload
        >>> class Put(DeviceOp):
        ...     def __init__(self, z, array):
        ...         self.z, self.array = z, array
        ...     def steps(self, ctx):
        ...         yield from upload(ctx, self.z, self.array)
        ...         return self.z
        >>> z = await na.zeros(4)
        >>> _ = await Put(z[::2], np.ones(2, np.float32))
        >>> await z.to_host()
        array([1., 0., 1., 0.], dtype=float32)
    """
    if dst.size == 0:
        return
    if is_new:
        yield from upload_new(ctx, dst, array)
        return
    check_here(ctx, dst)
    large = is_large(array) and direct(array) is None and not ctx.records
    reached = ctx.device.backend.reaches(dst.handle)
    if reached and not (large and dst.is_contiguous):
        if direct(array) is None:
            yield from ctx.room(dst.nbytes)
        if large:  # the destination has pitched rows
            yield from upload_at_once(ctx, dst, array)
        else:
            upload(ctx, dst, array)
        return
    # No part of a tensor in use may be written before all of it may. A new temporary has no other
    # users, so its upload overlaps with the staging of a large array.
    yield from ctx.room(dst.nbytes + staged_bytes(ctx.device, array.nbytes))
    try:
        packed = type(dst).allocate(ctx, dst.shape, dst.dtype, scratch=True)
    except OutOfDeviceMemoryError:
        if not reached:
            raise
        yield from upload_at_once(ctx, dst, array)
        return
    yield from upload_new(ctx, packed, array)
    yield from copy(ctx, dst, packed)


def fill(ctx: Context, dst: DeviceArray, value: np.generic) -> Steps[None]:
    """Enqueue work that sets every element to `value`, a scalar of the tensor's dtype.

    Examples:
        >>> from numbasync.extending import DeviceOp, enqueue, fill
        >>> class Sevens(DeviceOp):
        ...     def steps(self, ctx):
        ...         z = yield from enqueue(ctx, na.empty(3))
        ...         yield from fill(ctx, z, np.float32(7))
        ...         return z
        >>> z = await Sevens()
        >>> await z.to_host()
        array([7., 7., 7.], dtype=float32)
    """
    if dst.size == 0:
        return
    if dst.is_contiguous:
        order(ctx, dst)
        with ctx.device.submit_lock:
            ctx.write(dst.storage, dst)
            ctx.queue.fill(dst.handle, value)
        return
    scalar = type(dst).allocate(ctx, (), dst.dtype, scratch=True)
    upload(ctx, scalar, np.asarray(value))
    # Broadcast one element to the destination's shape, with strides of 0.
    yield from copy(ctx, dst, scalar.spread(dst.shape))


def download(ctx: Context, src: DeviceArray, out: HostArray | None = None) -> Steps[HostArray]:
    """Enqueue a copy to the host. The returned array is filled once the submission is done.

    Without `out`, the returned array is a view of the page-locked memory that the device writes.

    Examples:
        >>> from numbasync.extending import DeviceOp, download
        >>> class Both(DeviceOp):
        ...     def __init__(self, x, y):
        ...         self.x, self.y = x, y
        ...     def steps(self, ctx):
        ...         first = yield from download(ctx, self.x)
        ...         return first, (yield from download(ctx, self.y))
        >>> x, y = await Both(await na.zeros(2), await na.ones(1))
        >>> x, y
        (array([0., 0.], dtype=float32), array([1.], dtype=float32))
    """
    if src.size == 0:
        return np.empty(src.shape, src.dtype) if out is None else out
    check_here(ctx, src)
    if not ctx.device.backend.reaches(src.handle):
        yield from ctx.room(src.nbytes)
        packed = type(src).allocate(ctx, src.shape, src.dtype, scratch=True)
        yield from copy(ctx, packed, src)
        src = packed
    order(ctx, src)
    pinned_storage = direct(out)
    if pinned_storage is not None and out is not None:
        with ctx.device.submit_lock, sharing:
            ctx.read(src.storage, src)
            ctx.write(pinned_storage, "a pinned array")
            ctx.queue.download(out, src.handle)
            ctx.submission.copied += src.nbytes
        return out
    yield from ctx.room(src.nbytes)
    staged: HostArray = ctx.host_buffer(src.nbytes).view(src.dtype).reshape(src.shape)
    with ctx.device.submit_lock:
        ctx.read(src.storage, src)
        ctx.queue.download(staged, src.handle)
        ctx.submission.copied += src.nbytes
    if out is None:
        return staged
    if not is_large(out):
        ctx.submission.on_complete(partial(np.copyto, out, staged))
        return out
    # A child context is never awaited itself: other operations may wait for it, too.
    copy_back = StagedCopyBack(out, staged, ctx.awaited)
    ctx.copy_backs += (copy_back,)
    ctx.submission.on_complete(copy_back.settle)
    return out
