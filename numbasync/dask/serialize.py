"""Tensors as Dask sends, spills and counts them.

Family `dask`: a header, and the elements as one frame in host memory; on the CPU device that frame
is the tensor's own memory. Family `cuda`: the elements as one frame in device memory, which UCX
sends without a copy through the host. A received tensor is on the receiver's current device. From
host memory its elements are copied into the device's pool, so that the pool's limit counts them.
"""

from __future__ import annotations

import copyreg
from typing import Any

import numpy as np
from dask.array.dispatch import concatenate_lookup
from dask.sizeof import sizeof
from distributed.protocol import pickle
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from numbasync.device.device import default_device
from numbasync.device.stream import Stream
from numbasync.extending import access
from numbasync.ops.constructors import with_context
from numbasync.ops.context import Context
from numbasync.tensors.create import from_host, meta
from numbasync.tensors.import_array import as_tensor
from numbasync.tensors.join import concatenate
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor

Header = dict[str, Any]
ON_HOST = (1, 3)  # DLPack's devices: pageable and page-locked memory
OBJECT_BYTES = 1000  # of a tensor's own object, roughly


def _header(tensor: Tensor) -> Header:
    return {
        "shape": tensor.shape, "dtype": pickle.dumps(tensor.dtype), "meta": tensor.device is None,
    }  # fmt: skip


def _shape_and_dtype(header: Header) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return tuple(header["shape"]), pickle.loads(header["dtype"])


def _bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, of one axis; of a copy, if the tensor is not contiguous."""
    if not tensor.is_contiguous and tensor.device is not None:
        tensor = tensor.dup().sync_on(tensor.device.new_stream())
    return tensor.reshape(tensor.size).reinterpret(np.uint8)


def _is_on_host(data: Tensor) -> bool:
    return data.__dlpack_device__()[0] in ON_HOST


# --- frames in host memory -----------------------------------------------------------------


@dask_serialize.register(Tensor)
def dask_dumps(tensor: Tensor) -> tuple[Header, list[Any]]:
    """A tensor's header and frame; blocks until the work on the tensor is done.

    Raises:
        MovedError: the tensor was moved.
    """
    device = tensor.device
    if device is None or not tensor.size:
        return _header(tensor), []
    data = _bytes(tensor)
    if _is_on_host(data):
        return _header(tensor), [np.from_dlpack(data).data]
    # On a stream of its own the copy waits for nothing but the work on this tensor.
    return _header(tensor), [data.to_host().sync_on(device.new_stream()).data]


@dask_deserialize.register(Tensor)
def dask_loads(header: Header, frames: list[Any]) -> Tensor:
    """The tensor of `dask_dumps`, on the current device. Does not wait for the device: later work
    on the tensor is ordered after the upload.
    """
    shape, dtype = _shape_and_dtype(header)
    if header["meta"]:
        return meta(shape, dtype).sync()
    data = np.frombuffer(frames[0], np.uint8) if frames else np.empty(0, np.uint8)
    elements = data.view(dtype).reshape(shape)
    return from_host(elements).async_on(default_device().new_stream())


def _settle(data: Tensor, stream: Stream) -> None:
    """Block until a tensor is written: a frame is sent without regard to streams."""

    def follow(ctx: Context) -> None:
        with access(ctx, reads=[data]):
            pass

    with_context(follow).sync_on(stream)


# --- frames in device memory ---------------------------------------------------------------


@cuda_serialize.register(Tensor)
def cuda_dumps(tensor: Tensor) -> tuple[Header, list[Any]]:
    """A tensor's header and its memory on the device, once the work on the tensor is done.

    Raises:
        NotImplementedError: the tensor is not in GPU memory, or has records; Dask then takes the
            next family.
    """
    if tensor.device is None or not tensor.size:
        raise NotImplementedError("a tensor without memory")
    if tensor.dtype.names is not None:
        raise NotImplementedError("a tensor of records")
    data = _bytes(tensor)
    if _is_on_host(data):
        raise NotImplementedError("a tensor in host memory")
    _settle(data, tensor.device.new_stream())
    return _header(tensor), [data]


@cuda_deserialize.register(Tensor)
def cuda_loads(header: Header, frames: list[Any]) -> Tensor:
    """The tensor of `cuda_dumps`, in the memory that the frame was received into."""
    shape, dtype = _shape_and_dtype(header)
    return as_tensor(frames[0]).reinterpret(dtype).reshape(shape)


# --- how much memory a value has -----------------------------------------------------------


@sizeof.register(Tensor)
def _size(tensor: Tensor) -> int:
    return OBJECT_BYTES + (0 if tensor.device is None else tensor.nbytes)


@sizeof.register((SharedTensor, Partition))
def _size_of_holder(holder: Any) -> int:
    return OBJECT_BYTES + _size(holder.tensor)


# --- chunks of Dask arrays ------------------------------------------------------------------


@concatenate_lookup.register(Tensor)
def _concatenated(tensors: Any, axis: int = 0) -> Tensor:
    return concatenate(list(tensors), axis).sync()


# --- processes that have not imported this -------------------------------------------------


def _restored_class(name: str) -> Any:
    return {"Tensor": Tensor}[name]


def _reduced_class(kind: type) -> Any:
    """Dask sends a tensor's class with it. Unpickling the class imports this module, so that every
    process that receives a tensor can restore it. All other classes are pickled by their names.
    """
    return (_restored_class, ("Tensor",)) if kind is Tensor else kind.__qualname__


copyreg.pickle(type(Tensor), _reduced_class)
