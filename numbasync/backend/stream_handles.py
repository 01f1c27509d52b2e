"""Streams and events of other libraries, by the handle that the CUDA driver knows them by."""

from __future__ import annotations

from typing import Any, NamedTuple

from numbasync.errors import OperationError


class Handle(NamedTuple):
    """What the driver calls a stream or an event.

    Attributes:
        number: its address, or the driver's number of a default stream; 0 of an event that its
            library has not made yet.
        ordinal: the GPU that its library says it is of; None if it does not say.
    """

    number: int
    ordinal: int | None


def stream_handle(value: object) -> Handle | None:
    """The handle of a stream of Numba, CuPy, PyTorch, cuda.core, or of any object with
    `__cuda_stream__`; None if `value` is no stream.

    Raises:
        OperationError: its `__cuda_stream__` does not give (0, handle).
    """
    if isinstance(value, type):
        return None
    protocol = getattr(value, "__cuda_stream__", None)
    if protocol is None:
        number = getattr(value, "cuda_stream", None)  # of PyTorch, before it had the protocol
        return Handle(number, _ordinal(value)) if isinstance(number, int) else None
    given: Any = protocol() if callable(protocol) else protocol
    try:
        version, number = (int(part) for part in given)
    except (TypeError, ValueError):
        version = number = -1
    if version != 0:
        raise OperationError(
            f"__cuda_stream__ of {type(value).__name__} gives {given!r:.60}, and not (0, handle)."
        )
    return Handle(number, _ordinal(value))


def event_handle(value: object) -> Handle | None:
    """The handle of an event of Numba, CuPy, PyTorch or cuda.core; None if `value` is no event."""
    if isinstance(value, type):
        return None
    number: Any = getattr(value, "cuda_event", None)  # PyTorch
    if number is None:
        number = getattr(value, "handle", None)  # Numba, cuda.core
        if type(number).__name__ != "CUevent":
            # CuPy, whose streams have both, too.
            number = getattr(value, "ptr", None)
            is_event = isinstance(number, int) and hasattr(type(value), "done")
            if not is_event or hasattr(type(value), "wait_event"):
                return None
    return Handle(int(number), _ordinal(getattr(value, "device", value)))


def _ordinal(value: object) -> int | None:
    """As PyTorch's streams, CuPy's and cuda.core's devices, and PyTorch's devices say it."""
    for name in ("device_index", "device_id", "index"):
        number = getattr(value, name, None)
        if type(number) is int:
            return number if number >= 0 else None  # -1: of CuPy's default stream
    return None
