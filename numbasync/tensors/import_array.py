"""Arrays of other libraries as tensors: no copy, no work, and the right record of use.

A library lends an array by DLPack or by `__cuda_array_interface__`. Which device it is on, the
devices are asked. The tensor keeps the array; the storage, which views and later loans of the
same memory share, keeps the memory while the device uses it.
"""

from __future__ import annotations

from typing import Any

from numbasync import layout
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

    The array is kept alive. What is enqueued here for the tensor starts after what its library
    had enqueued on its current stream, both when `as_tensor` was called and when the work is
    enqueued. The other way round, await the work before the library uses the array again.

    Args:
        x: what has `__dlpack__` (CuPy, PyTorch, JAX ...) or `__cuda_array_interface__` (Numba),
            of any layout; a NumPy array or a buffer such as `memoryview`, which are the CPU
            device's; or a tensor, which comes back as it is.
        device: where it must lie. Default: where it lies; host memory is the default device's,
            if that is a CPU device.

    Raises:
        OperationError: it is no such array, or its library does not lend it.
        DeviceMismatchError: it lies somewhere else.
        DTypeError, ShapeError: no tensor can have such elements, or such a layout.
        CallerError: `device` is no device.
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
    at = place(x)
    if at is None:
        x = _numbers(x)
        at = place(x)
        assert at is not None  # it is an array of NumPy's
    return _adopted(x, at, device)


def from_dlpack(x: Any) -> Tensor:
    """`as_tensor` of an array that has `__dlpack__`.

    Raises:
        As `as_tensor`.
    """
    if not isinstance(x, Tensor) and not hasattr(x, "__dlpack__"):
        raise OperationError(
            f"{array_protocols.name_of(x)} has no __dlpack__; na.as_tensor also takes what has "
            "__cuda_array_interface__."
        )
    return as_tensor(x)


# --- used where arguments are sorted ----------------------------------------------------


def argument(x: Any) -> Tensor | HostArray | None:
    """Another library's array as a kernel takes it where it is; None if it is none.

    What lies in the host's memory is a NumPy array until `in_place` is told the device.
    """
    at = place(x)
    if at is None:
        return None
    if at[0] not in array_protocols.HOST:
        return _adopted(x, at, None)
    try:
        array = array_protocols.numpy_of(array_protocols.read_dlpack(x))
    except OperationError:
        if is_arrow(x):
            return None  # to be copied: a column of Arrow has more types than DLPack
        raise
    if is_arrow(x):
        array.flags.writeable = False  # as Arrow has it, which not every release of it says
    return array


def in_place(array: HostArray, device: Device) -> Tensor | HostArray:
    """A tensor in the array's memory if the device can use that, else the array."""
    found = device.backend.foreign(array)
    return array if found is None else _tensor(found, device)


# --- how ---------------------------------------------------------------------------------


def _numbers(x: Any) -> HostArray:
    """The numbers of what lends nothing, in the same memory."""
    try:
        found = column(x, copy=False)
    except ValueError as error:
        raise OperationError(
            f"{array_protocols.name_of(x)} becomes no tensor without a copy: {error}\n"
            "Upload it: t = await na.from_host(x)"
        ) from error
    if found is None:
        raise OperationError(_instead(x))
    layout.check_dtype(found.dtype, records=True)
    return found


def _adopted(x: Any, at: tuple[int, int], device: Device | None) -> Tensor:
    for candidate in _candidates(at, device):
        found = candidate.backend.foreign(x)
        if found is not None:
            return _tensor(found, candidate)
    wish = device or default_device()
    name, where = array_protocols.name_of(x), array_protocols.where(at)
    if at[0] in array_protocols.HOST:
        remedy = "Upload it: t = await na.from_host(x)"
    else:
        remedy = "Use the device that it is on, if na.devices() has it, or copy it to the host."
    raise DeviceMismatchError(
        f"{name} lies {where}, which {wish.label} cannot use in place.\n{remedy}"
    )


def _candidates(at: tuple[int, int], device: Device | None) -> list[Device]:
    if device is not None:
        return [device]
    first = default_device()
    if at[0] in array_protocols.HOST:  # several devices could have it, so none but the default may
        return [first]
    return [first, *(d for d in devices() if d is not first)]


def _tensor(found: protocols.Foreign, device: Device) -> Tensor:
    export = found.export
    storage = address_map.storage_of(device.backend, found.memory)
    offset = export.low + export.offset - storage.memory.address
    at = Layout(offset, export.shape, export.strides)
    return Tensor(device, storage, at, export.dtype, found)


def _instead(x: Any) -> str:
    if isinstance(x, SharedTensor):
        return f"{x!r} is a tensor already; as_tensor would let others write to it."
    name = f"{type(x).__name__} ({x!r:.60})"
    return (
        "as_tensor takes an array with __dlpack__ or __cuda_array_interface__, or a buffer, not "
        f"{name}.\n"
        "To make a tensor of numbers: t = await na.from_host(x)"
    )
