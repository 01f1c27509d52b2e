"""Arrays of other libraries as tensors, without a copy and with the right access record.

A library exports an array by DLPack or by `__cuda_array_interface__`. The devices are asked in turn
whether the array lies on them. The tensor keeps the array alive; the storage, which views and later
imports of the same memory share, keeps the memory alive while the device uses it.
"""

from __future__ import annotations

from typing import Any

from numbasync import dtypes
from numbasync.arguments import with_type
from numbasync.backend import array_protocols, protocols
from numbasync.device import address_map
from numbasync.device.device import Device, chosen_device, default_device, devices
from numbasync.errors import DeviceMismatchError, OperationError
from numbasync.layout import Layout
from numbasync.tensors.copies import HostArray
from numbasync.tensors.host_arrays import column, is_arrow, place, plain
from numbasync.tensors.tensor import SharedTensor, Tensor


def as_tensor(x: Any, device: Device | None = None) -> Tensor:
    """A tensor in the memory of another library's array. No copy; nothing is enqueued.

    The array is kept alive. Work that is enqueued here for the tensor starts after the work that
    the array's library had enqueued on its current stream, both when `as_tensor` was called and
    when the work is enqueued. In the other direction the caller must await the work here before
    the library uses the array again.

    Args:
        x: an array with `__dlpack__` (CuPy, PyTorch, JAX ...) or `__cuda_array_interface__`
            (Numba), of any layout; a NumPy array or a buffer such as `memoryview`, which belong to
            the CPU device; or a tensor, which is returned as it is.
        device: the device that must hold the array. Default: the device that holds it; host memory
            belongs to the default device, if that is a CPU device.

    Raises:
        OperationError: `x` is no such array, or its library does not export it.
        DeviceMismatchError: the array lies on another device.
        DTypeError, ShapeError: a tensor cannot have such elements, or such a layout.
        CallerError: `device` is no device.

    Examples:
        >>> numbers = np.arange(4, dtype=np.float32)
        >>> t = na.as_tensor(numbers)  # the same memory
        >>> _ = await na.fill(t[:2], 9)
        >>> numbers
        array([9., 9., 2., 3.], dtype=float32)
    """
    if device is not None:
        chosen_device(device, "as_tensor")
    x = plain(x)
    if isinstance(x, Tensor):
        if device is not None and x.device is not device:
            raise DeviceMismatchError(
                f"{x!r} is not on {device.label}, and as_tensor copies nothing."
            )
        return x
    dl_device = place(x)
    if dl_device is None:
        x = _numbers(x)
        dl_device = place(x)
        assert dl_device is not None  # it is a NumPy array now
    return _adopted(x, dl_device, device)


def from_dlpack(x: Any) -> Tensor:
    """`as_tensor` for an array that has `__dlpack__`.

    Raises:
        As `as_tensor`.

    Examples:
        >>> t = na.from_dlpack(np.arange(3))
        >>> t.shape, t.dtype.name
        ((3,), 'int64')
    """
    if not isinstance(x, Tensor) and not hasattr(x, "__dlpack__"):
        raise OperationError(
            f"{array_protocols.name_of(x)} has no __dlpack__; na.as_tensor also takes what has "
            "__cuda_array_interface__."
        )
    return as_tensor(x)


# --- used where arguments are classified ------------------------------------------------


def argument(x: Any) -> Tensor | HostArray | None:
    """Another library's array as a kernel argument in place; None if `x` is no such array.

    An array in host memory is a NumPy array until `in_place` resolves it for a device.
    """
    dl_device = place(x)
    if dl_device is None:
        return None
    if dl_device[0] not in array_protocols.HOST:
        return _adopted(x, dl_device, None)
    try:
        array = array_protocols.numpy_of(array_protocols.read_dlpack(x))
    except OperationError:
        if is_arrow(x):
            return None  # to be copied: an Arrow column has more types than DLPack
        raise
    if is_arrow(x):
        array.flags.writeable = False  # Arrow data is read-only, which not every release reports
    return array


def in_place(array: HostArray, device: Device) -> Tensor | HostArray:
    """A tensor in the array's memory if the device can use that memory, else the array."""
    foreign = device.backend.foreign(array)
    return array if foreign is None else _tensor(foreign, device)


# --- details -----------------------------------------------------------------------------


def _numbers(x: Any) -> HostArray:
    """The numbers of an object without an export protocol, as an array in the same memory."""
    if isinstance(x, SharedTensor):
        raise OperationError(_instead(x))
    try:
        array = column(x, copy=False)
    except ValueError as error:
        raise OperationError(
            f"{array_protocols.name_of(x)} becomes no tensor without a copy: {error}\n"
            "Upload it: t = await na.from_host(x)"
        ) from error
    if array is None:
        raise OperationError(_instead(x))
    dtypes.check_dtype(array.dtype, records=True)
    return array


def _adopted(x: Any, dl_device: tuple[int, int], device: Device | None) -> Tensor:
    for candidate in _candidates(dl_device, device):
        foreign = candidate.backend.foreign(x)
        if foreign is not None:
            return _tensor(foreign, candidate)
    requested = device or default_device()
    name, where = array_protocols.name_of(x), array_protocols.where(dl_device)
    if dl_device[0] in array_protocols.HOST:
        remedy = "Upload it: t = await na.from_host(x)"
    else:
        remedy = "Use the device that it is on, if na.devices() has it, or copy it to the host."
    raise DeviceMismatchError(
        f"{name} lies {where}, which {requested.label} cannot use in place.\n{remedy}"
    )


def _candidates(dl_device: tuple[int, int], device: Device | None) -> list[Device]:
    if device is not None:
        return [device]
    first = default_device()
    if (
        dl_device[0] in array_protocols.HOST
    ):  # several devices could use it: only the default one may
        return [first]
    return [first, *(d for d in devices() if d is not first)]


def _tensor(foreign: protocols.Foreign, device: Device) -> Tensor:
    export = foreign.export
    storage = address_map.storage_of(device.backend, foreign.memory)
    offset = export.low + export.offset - storage.memory.address
    strided = Layout(offset, export.shape, export.strides)
    return Tensor(device, storage, strided, export.dtype, foreign)


def _instead(x: Any) -> str:
    if isinstance(x, SharedTensor):
        return f"{x!r} is a tensor already; as_tensor would let others write to it."
    name = f"{with_type(x)}"
    return (
        "as_tensor takes an array with __dlpack__ or __cuda_array_interface__, or a buffer, not "
        f"{name}.\n"
        "To make a tensor of numbers: t = await na.from_host(x)"
    )
