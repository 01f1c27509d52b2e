"""Copies between tensors and the host, of any layout: what is enqueued for them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from numbasync.errors import OutOfDeviceMemoryError
from numbasync.ops.context import Context
from numbasync.ops.shared_run import Steps
from numbasync.tensors.parallel_copy import copying
from numbasync.tensors.pinned import direct, sharing
from numbasync.tensors.staging import HostStaging, StagedCopyBack, Staging, held, is_large, read

if TYPE_CHECKING:
    from numbasync.tensors.tensor import Tensor

HostArray: TypeAlias = np.ndarray[Any, Any]


def stage(ctx: Context, array: HostArray) -> HostArray:
    """The elements in memory that the device copies from without blocking, retained."""
    staged: HostArray = ctx.host_buffer(array.nbytes).view(array.dtype).reshape(array.shape)
    if is_large(array):
        copying(staged, array).run()
    else:
        staged[...] = array
    return staged


def order(ctx: Context, *tensors: Tensor) -> None:
    """Start what is enqueued from now on after what other libraries have enqueued for those of
    `tensors` that are theirs. Not while leasing: it is their code, which may wait.
    """
    for tensor in tensors:
        # One of another device is refused when it is leased.
        if tensor.source is not None and tensor.device is ctx.device:
            ctx.order(tensor.source)


def upload(ctx: Context, dst: Tensor, array: HostArray) -> None:
    """Enqueue a copy of host elements into a tensor that uploads reach: as they are now, or,
    of page-locked memory, as they are when the copy runs.
    """
    if dst.size:
        locked = direct(array)
        source = stage(ctx, array) if locked is None else array
        order(ctx, dst)
        with ctx.device.submit_lock, nullcontext() if locked is None else sharing:
            if locked is not None:
                ctx.read(locked, "a pinned array")
            ctx.write(dst.storage, dst)
            ctx.queue.upload(dst.handle, source)


def upload_new(ctx: Context, dst: Tensor, array: HostArray) -> Steps[None]:
    """`upload` into a new, contiguous tensor, which nobody else has."""
    if not is_large(array) or direct(array) is not None or ctx.records:
        upload(ctx, dst, array)
    else:
        yield from read(ctx, Staging(ctx, dst.storage, array).reading)


def upload_at_once(ctx: Context, dst: Tensor, array: HostArray) -> Steps[None]:
    """`upload` of a large array by one copy of the device: all of it is staged first."""
    staged: HostArray = ctx.host_buffer(array.nbytes).view(array.dtype).reshape(array.shape)
    yield from read(ctx, HostStaging(copying(staged, array)))
    order(ctx, dst)
    with ctx.device.submit_lock:
        ctx.write(dst.storage, dst)
        ctx.queue.upload(dst.handle, staged)


def copy(ctx: Context, dst: Tensor, src: Tensor) -> Steps[None]:
    """Enqueue an element by element copy between tensors of one shape; converts."""
    if dst.size == 0:
        return
    need = ctx.device.backend.copy_needs(dst.handle, src.handle)
    if need is not None:
        yield need
    if src.storage.overlaps(dst.storage) and not src.same_elements(dst):
        # They may overlap, and elements are copied in no order: through a copy.
        yield from ctx.room(src.nbytes)
        packed = type(src).allocate(ctx, src.shape, src.dtype, scratch=True)
        yield from copy(ctx, packed, src)
        src = packed
    order(ctx, dst, src)
    with ctx.device.submit_lock:
        ctx.read(src.storage, src)
        ctx.write(dst.storage, dst)
        ctx.queue.copy(dst.handle, src.handle)


def upload_any(ctx: Context, dst: Tensor, array: HostArray) -> Steps[None]:
    """`upload` into a tensor of any layout."""
    if dst.size == 0:
        return
    large = is_large(array) and direct(array) is None and not ctx.records
    reached = ctx.device.backend.reaches(dst.handle)
    if reached and not (large and dst.is_contiguous):
        if direct(array) is None:
            yield from ctx.room(dst.nbytes)
        if large:  # rows at a pitch
            yield from upload_at_once(ctx, dst, array)
        else:
            upload(ctx, dst, array)
        return
    # Of a tensor that others use no part may be written before the rest can be; but in new
    # memory a large array can be on its way while it is still being staged.
    yield from ctx.room(dst.nbytes + held(ctx.device, array.nbytes))
    try:
        packed = type(dst).allocate(ctx, dst.shape, dst.dtype, scratch=True)
    except OutOfDeviceMemoryError:
        if not reached:
            raise
        yield from upload_at_once(ctx, dst, array)
        return
    yield from upload_new(ctx, packed, array)
    yield from copy(ctx, dst, packed)


def fill(ctx: Context, dst: Tensor, value: np.generic) -> Steps[None]:
    """Enqueue setting every element to `value`, which has the tensor's dtype."""
    if dst.size == 0:
        return
    if dst.is_contiguous:
        order(ctx, dst)
        with ctx.device.submit_lock:
            ctx.write(dst.storage, dst)
            ctx.queue.fill(dst.handle, value)
        return
    one = type(dst).allocate(ctx, (), dst.dtype, scratch=True)
    upload(ctx, one, np.asarray(value))
    # One element, seen in the destination's shape: strides of 0.
    yield from copy(ctx, dst, one.spread(dst.shape))


def download(ctx: Context, src: Tensor, out: HostArray | None = None) -> Steps[HostArray]:
    """Enqueue a copy to the host; the array, filled once the submission is done.

    Without `out`, the array is made of the memory that the device copies to.
    """
    if src.size == 0:
        return np.empty(src.shape, src.dtype) if out is None else out
    if not ctx.device.backend.reaches(src.handle):
        yield from ctx.room(src.nbytes)
        packed = type(src).allocate(ctx, src.shape, src.dtype, scratch=True)
        yield from copy(ctx, packed, src)
        src = packed
    order(ctx, src)
    locked = direct(out)
    if locked is not None and out is not None:
        with ctx.device.submit_lock, sharing:
            ctx.read(src.storage, src)
            ctx.write(locked, "a pinned array")
            ctx.queue.download(out, src.handle)
        return out
    yield from ctx.room(src.nbytes)
    staged: HostArray = ctx.host_buffer(src.nbytes).view(src.dtype).reshape(src.shape)
    with ctx.device.submit_lock:
        ctx.read(src.storage, src)
        ctx.queue.download(staged, src.handle)
    if out is None:
        return staged
    target = out
    if not is_large(target):
        ctx.submission.on_complete(lambda: np.copyto(target, staged))
        return out
    # A part of an operation never is awaited itself: others may wait for it, too.
    landing = StagedCopyBack(target, staged, ctx.awaited)
    ctx.landings += (landing,)
    ctx.submission.on_complete(landing.settle)
    return out
