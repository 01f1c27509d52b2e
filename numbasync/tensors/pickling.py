"""Pickling of tensors, and the types that refuse to be pickled.

A tensor is pickled as its elements, which are downloaded, and is restored on the receiver's current
device. From protocol 5 on NumPy passes the elements out of band, if the pickler asks for that.
"""

from __future__ import annotations

import copyreg
from typing import Any

from numbasync.device.device import Device, default_device
from numbasync.device.event import Event
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import Stream
from numbasync.ops.future import DeviceFuture
from numbasync.ops.pickling import unpicklable
from numbasync.tensors.copies import HostArray
from numbasync.tensors.create import from_host, meta
from numbasync.tensors.tensor import Tensor


def _reduced(tensor: Tensor) -> tuple[Any, ...]:
    """The pickled form of a tensor; blocks the thread until the elements are on the host.

    Raises:
        MovedError: the tensor was moved.
        ReentrancyError: this thread is enqueuing an operation, or a graph.
    """
    if tensor.device is None:
        return _meta, (tensor.shape, tensor.dtype)
    # On a stream of its own, the copy waits for the work on this tensor only: an event loop, which
    # sends results, is not held up by other kernels.
    return _uploaded, (tensor.to_host().sync_on(tensor.device.new_stream()),)


def _uploaded(array: HostArray) -> Tensor:
    return from_host(array).sync_on(default_device().new_stream())


def _meta(shape: tuple[int, ...], dtype: Any) -> Tensor:
    return meta(shape, dtype).sync()


copyreg.pickle(Tensor, _reduced)
unpicklable(DeviceFuture, "Await it, and pickle its value; or pickle the operation, unrun.")
unpicklable(Stream, "Operations choose a stream where they run: leave it out of what you pickle.")
unpicklable(Event, "Await it, and pickle what it stands for.")
unpicklable(Device, "Pickle its kind and ordinal: na.devices(kind)[ordinal].")
unpicklable(MemoryPool, "Make one where it is used: device.new_pool().")
