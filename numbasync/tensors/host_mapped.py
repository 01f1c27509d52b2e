"""Tensors in page-locked memory of the host, which kernels read and write in place: for arrays so
small that a copy takes longer.
"""

from __future__ import annotations

from typing import Any

from numbasync.device import access
from numbasync.device.device import Device
from numbasync.device.storage import HostMapped, Storage
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.tensor import Tensor


def host_mapped(device: Device, block: Any, spec: ArraySpec) -> Tensor:
    """A tensor in page-locked memory of the host, which kernels of `device` access there.

    The host may read or write the memory while `is_in_use(tensor)` is False. No fast path of an
    operation takes such a tensor.

    Args:
        block: page-locked bytes, at least `spec.nbytes`: of `ctx.host_buffer`, or of `na.pinned`.
            The tensor keeps them alive.

    Examples:
        >>> from numbasync.extending import contiguous, host_mapped, is_host_mapped, is_in_use
        >>> def mapped(ctx):
        ...     spec = contiguous(3, np.float32)
        ...     block = ctx.host_buffer(spec.nbytes)
        ...     block.view(np.float32)[...] = 5
        ...     return host_mapped(ctx.device, block, spec)
        >>> t = await na.with_context(mapped)
        >>> await t[0].item()
        5.0
        >>> with t.device.submit_lock:
        ...     is_host_mapped(t), is_in_use(t)
        (True, False)
    """
    backend = device.backend
    storage = Storage(HostMapped(backend), backend.host_memory(block))
    return Tensor.of(device, storage, spec)


def is_host_mapped(tensor: Tensor) -> bool:
    """Whether `host_mapped` has made the tensor, or the one that it is a view of.

    Examples:
        >>> from numbasync.extending import is_host_mapped
        >>> is_host_mapped(await na.zeros(3))
        False
    """
    return isinstance(tensor.storage.pool, HostMapped)


def is_in_use(tensor: Tensor) -> bool:
    """Whether the device may still read or write the tensor's memory. The caller holds the device's
    `submit_lock`, without which other threads may enqueue work on it at any time.

    Examples:
        >>> from numbasync.extending import is_in_use
        >>> t = await na.zeros(3)
        >>> with t.device.submit_lock:
        ...     is_in_use(t)
        False
    """
    for user in access.users(tensor.storage):
        if not user.done:
            if user.sequence:
                user.stream.advance()
            if not user.done:
                return True
    return False
