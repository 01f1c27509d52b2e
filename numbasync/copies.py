"""Copies between tensors and the host, of any layout: what is enqueued for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from numbasync.context import Context
from numbasync.once import Steps

if TYPE_CHECKING:
    from numbasync.tensor import Tensor

HostArray: TypeAlias = np.ndarray[Any, Any]


def stage(ctx: Context, array: HostArray) -> HostArray:
    """The elements in memory that the device copies from without blocking, retained."""
    buffer = ctx.device.backend.host_buffer(array.nbytes)
    staged: HostArray = buffer[: array.nbytes].view(array.dtype).reshape(array.shape)
    staged[...] = array
    ctx.retain(staged)
    return staged


def order(ctx: Context, *tensors: Tensor) -> None:
    """Start what is enqueued from now on after what other libraries have enqueued for those of
    `tensors` that are theirs. Not while leasing: it is their code, which may wait.
    """
    for tensor in tensors:
        # One of another device is refused when it is leased.
        if tensor.source is not None and tensor.device is ctx.device:
            tensor.source.order(ctx.stream.backend)


def upload(ctx: Context, dst: Tensor, array: HostArray) -> None:
    """Enqueue a copy of host elements, as they are now, into a contiguous tensor."""
    if dst.size:
        staged = stage(ctx, array)
        order(ctx, dst)
        with ctx.device.leasing:
            ctx.write(dst.storage)
            ctx.queue.upload(dst.handle, staged)


def copy(ctx: Context, dst: Tensor, src: Tensor) -> Steps[None]:
    """Enqueue an element by element copy between tensors of one shape; converts."""
    if dst.size == 0:
        return
    need = ctx.device.backend.copy_needs(dst.key, src.key)
    if need is not None:
        yield need
    if src.storage.meets(dst.storage) and not src.same_elements(dst):
        # They may overlap, and elements are copied in no order: through a copy.
        packed = type(src).allocate(ctx, src.shape, src.dtype)
        yield from copy(ctx, packed, src)
        src = packed
    order(ctx, dst, src)
    with ctx.device.leasing:
        ctx.read(src.storage)
        ctx.write(dst.storage)
        ctx.queue.copy(dst.handle, src.handle)


def upload_any(ctx: Context, dst: Tensor, array: HostArray) -> Steps[None]:
    """`upload` into a tensor of any layout."""
    if dst.is_contiguous:
        upload(ctx, dst, array)
        return
    packed = type(dst).allocate(ctx, dst.shape, dst.dtype)
    upload(ctx, packed, array)
    yield from copy(ctx, dst, packed)


def fill(ctx: Context, dst: Tensor, value: np.generic) -> Steps[None]:
    """Enqueue setting every element to `value`, which has the tensor's dtype."""
    if dst.size == 0:
        return
    if dst.is_contiguous:
        order(ctx, dst)
        with ctx.device.leasing:
            ctx.write(dst.storage)
            ctx.queue.fill(dst.handle, value)
        return
    one = type(dst).allocate(ctx, (), dst.dtype)
    upload(ctx, one, np.asarray(value))
    # One element, seen in the destination's shape: strides of 0.
    yield from copy(ctx, dst, one.spread(dst.shape))


def download(ctx: Context, src: Tensor, out: HostArray | None = None) -> Steps[HostArray]:
    """Enqueue a copy to the host; the array, filled once the submission is done.

    Without `out`, the array is made of the memory that the device copies to.
    """
    if src.size == 0:
        return np.empty(src.shape, src.dtype) if out is None else out
    if not src.is_contiguous:
        packed = type(src).allocate(ctx, src.shape, src.dtype)
        yield from copy(ctx, packed, src)
        src = packed
    buffer = ctx.device.backend.host_buffer(src.nbytes)
    staged: HostArray = buffer[: src.nbytes].view(src.dtype).reshape(src.shape)
    ctx.retain(staged)
    order(ctx, src)
    with ctx.device.leasing:
        ctx.read(src.storage)
        ctx.queue.download(staged, src.handle)
    if out is None:
        return staged
    target = out
    ctx.submission.afterwards(lambda: np.copyto(target, staged))
    return out
