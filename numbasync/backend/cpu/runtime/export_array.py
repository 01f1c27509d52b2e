"""Export of host memory to other libraries, by DLPack.

NumPy makes the capsule. A consumer of host memory has no stream that could be ordered behind
numbasync's, so the export waits until the work on the tensor is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync import dtypes
from numbasync.backend import array_protocols

if TYPE_CHECKING:
    from numbasync.backend.cpu.runtime.memory import CpuForeign
    from numbasync.backend.cpu.runtime.streams import CpuStream


class CpuExport:
    """An array of the CPU device as other libraries import it."""

    protocols = frozenset({"__dlpack__", "__dlpack_device__"})
    waits = True

    def __init__(self, array: np.ndarray[Any, Any], keep: object) -> None:
        self._array = array
        self._keep = keep

    def interface(self, after: Sequence[CpuStream], source: CpuForeign | None) -> dict[str, Any]:
        raise NotImplementedError  # not among `protocols`: the interface is for GPU memory

    def dlpack_device(self) -> tuple[int, int]:
        return 1, 0  # host memory, which is device 0 always

    def dlpack(
        self,
        after: Sequence[CpuStream],
        source: CpuForeign | None,
        stream: int | None,
        max_version: tuple[int, int] | None,
        dl_device: tuple[int, int] | None,
        copy: bool | None,
    ) -> object:
        if stream not in (None, -1):
            raise BufferError(f"host memory is in order with no stream: say None, not {stream!r}.")
        for other_stream in after:
            other_stream.synchronize()
        readonly = source is not None and source.export.readonly
        bits = self._array.view(dtypes.bits_of(self._array.dtype))
        array = array_protocols.kept(bits, self._keep, readonly)
        # Arguments that NumPy 2.0 does not know are passed only where the consumer gives them.
        arguments: dict[str, Any] = {
            "max_version": max_version,
            "dl_device": dl_device,
            "copy": copy,
        }
        made = array.__dlpack__(**{k: v for k, v in arguments.items() if v is not None})
        return array_protocols.retype(made, self._array.dtype)
