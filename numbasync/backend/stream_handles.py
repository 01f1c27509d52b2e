"""Reads the CUDA driver's handles from streams and events of other libraries."""

from __future__ import annotations

from typing import Any, NamedTuple

from numbasync.arguments import shown
from numbasync.errors import OperationError


class Handle(NamedTuple):
    """The driver's handle of a stream or an event.

    Attributes:
        number: the address, or the driver's number of a default stream; 0 for an event that its
            library has not created yet.
        ordinal: the GPU that the library reports for it; None if it reports none.
    """

    number: int
    ordinal: int | None


def stream_handle(value: object) -> Handle | None:
    """The handle of a stream of Numba, CuPy, PyTorch, cuda.core, or of any object with
    `__cuda_stream__`; None if `value` is not a stream.

    Raises:
        OperationError: `__cuda_stream__` of the object does not return (0, handle).
    """
    if isinstance(value, type):
        return None
    protocol = getattr(value, "__cuda_stream__", None)
    if protocol is None:
        number = getattr(value, "cuda_stream", None)  # PyTorch, before it had the protocol
        return Handle(number, _ordinal(value)) if isinstance(number, int) else None
    pair: Any = protocol() if callable(protocol) else protocol
    try:
        version, number = (int(part) for part in pair)
    except (TypeError, ValueError):
        version = number = -1
    if version != 0:
        raise OperationError(
            f"__cuda_stream__ of {type(value).__name__} gives {shown(pair)}, and not (0, handle)."
        )
    return Handle(number, _ordinal(value))


def event_handle(value: object) -> Handle | None:
    """The handle of an event of Numba, CuPy, PyTorch or cuda.core; None for any other value."""
    if isinstance(value, type):
        return None
    number: Any = getattr(value, "cuda_event", None)  # PyTorch
    if number is None:
        number = getattr(value, "handle", None)  # Numba, cuda.core
        if type(number).__name__ != "CUevent":
            # CuPy. Its streams have `ptr` and `done`, too, but also `wait_event`.
            number = getattr(value, "ptr", None)
            is_event = isinstance(number, int) and hasattr(type(value), "done")
            if not is_event or hasattr(type(value), "wait_event"):
                return None
    return Handle(int(number), _ordinal(getattr(value, "device", value)))


def _ordinal(value: object) -> int | None:
    """The ordinal, under the names used by PyTorch's streams, by CuPy's and cuda.core's devices,
    and by PyTorch's devices.
    """
    for name in ("device_index", "device_id", "index"):
        number = getattr(value, name, None)
        if type(number) is int:
            return number if number >= 0 else None  # -1: CuPy's default stream
    return None
