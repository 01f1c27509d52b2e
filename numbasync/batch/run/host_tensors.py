"""Small arrays in host memory: tensors that kernels access there, and their users."""

from __future__ import annotations

from typing import Any

from numbasync.device import access
from numbasync.device.device import Device
from numbasync.device.storage import HostMapped, Storage
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.tensor import Tensor


def reached(device: Device, block: Any, kind: ArraySpec) -> Tensor:
    """A tensor in page-locked memory of the host."""
    backend = device.backend
    storage = Storage(HostMapped(backend), backend.host_memory(block))
    return Tensor.of(device, storage, kind)


def is_used(tensor: Tensor) -> bool:
    """Whether the device may still read or write the tensor. The caller holds the device's
    `submit_lock`.
    """
    for user in access.users(tensor.storage):
        if not user.done:
            if user.sequence:
                user.stream.advance()
            if not user.done:
                return True
    return False
