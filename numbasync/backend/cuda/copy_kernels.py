"""Copies that a memcpy cannot do: between layouts, and from one element type to another."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

from numbasync.backend.protocols import ArrayKey

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu
    from numbasync.backend.cuda.kernels import CudaExecutable

THREADS = 256


class CopyCompilation:
    """A copy that has to be compiled before it can be enqueued."""

    def __init__(self, copiers: Copiers, dst: ArrayKey, src: ArrayKey) -> None:
        self._copiers = copiers
        self._keys = (dst, src)

    def run(self) -> None:
        self._copiers.compile(*self._keys)


class Copiers:
    """Compiled element-by-element copies of one GPU, by the keys of both arrays."""

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._compiled: dict[tuple[ArrayKey, ArrayKey], CudaExecutable] = {}
        self._lock = threading.Lock()

    def needs(self, dst: ArrayKey, src: ArrayKey) -> CopyCompilation | None:
        """What must be compiled first; None for a plain memcpy, or if it is there."""
        if dst.dtype == src.dtype and dst.order == src.order == "C":
            return None
        if (_general(dst), _general(src)) in self._compiled:
            return None
        return CopyCompilation(self, dst, src)

    def compile(self, dst: ArrayKey, src: ArrayKey) -> CudaExecutable:
        """The compiled copy; compiled now if it is new."""
        keys = _general(dst), _general(src)
        with self._lock:
            found = self._compiled.get(keys)
            if found is None:
                found = self._device.compile(cuda.jit(_source(*keys)), keys)
                self._compiled[keys] = found
            return found


def _general(key: ArrayKey) -> ArrayKey:
    """One kernel serves all layouts but the contiguous one."""
    return key if key.order == "C" else key._replace(order="A")


def _source(dst: ArrayKey, src: ArrayKey) -> Any:
    """A kernel for these ranks and kinds: one thread an element, the last axis fastest."""
    ndim = dst.ndim
    places = [f"k{axis}" for axis in range(ndim)]
    lines = ["def copy(dst, src):", "    i = cuda.grid(1)", "    if i < dst.size:"]
    for axis in reversed(range(ndim)):
        lines.append(f"        k{axis} = i % dst.shape[{axis}]")
        lines.append(f"        i = i // dst.shape[{axis}]")
    at = ", ".join(places) if places else "()"
    value = f"src[{at}]"
    to, of = np.dtype(dst.dtype).kind, np.dtype(src.dtype).kind
    if to == "b":
        value = f"{value} != 0"
    elif of == "c" and to != "c":
        value = f"{value}.real"
    lines.append(f"        dst[{at}] = {value}")
    names: dict[str, Any] = {"cuda": cuda}
    exec("\n".join(lines), names)  # noqa: S102 - built from ranks and kinds alone
    return names["copy"]
