"""RMM, whose buffers have bytes, and name their stream by `__cuda_array_interface__`."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import numbasync as na
from benchmarks import interop
from benchmarks.measure import Case


def of_interop(ordinal: int) -> list[Case]:
    """RMM's buffers in numbasync's launches."""
    rmm: Any = importlib.import_module("rmm")
    ours = na.default_device().new_stream()
    x, y = (rmm.DeviceBuffer.to_device(a.tobytes()) for a in interop.bytes_of_numbers())
    z = rmm.DeviceBuffer(size=interop.SIZE)
    tensors = [na.as_tensor(buffer) for buffer in (z, x, y)]

    def result() -> Any:
        return np.frombuffer(z.tobytes(), np.uint8)

    return [
        interop.case(
            name, interop.launch(ours, *given), ours.synchronize, result,
            terms=interop.bytes_of_numbers,
        )
        for name, given in ((interop.RMM, (z, x, y)), (interop.RMM_ONCE, tensors))
    ]  # fmt: skip


def of_reading(ordinal: int) -> list[Case]:
    """One of RMM's buffers."""
    rmm: Any = importlib.import_module("rmm")
    x, _ = interop.bytes_of_numbers()
    return [interop.reading("RMM's buffer", rmm.DeviceBuffer.to_device(x.tobytes()), x)]
