"""Copies that a memcpy cannot make: between layouts, and between element types."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend.protocols import ArrayKey
from numbasync.dtypes import is_extension
from numbasync.kernel_names import cuda, float32

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu
    from numbasync.backend.cuda.kernels import CudaExecutable

THREADS = 256


class CopyCompilation:
    """The prerequisite of a copy whose kernel is not compiled yet."""

    def __init__(self, copiers: Copiers, dst: ArrayKey, src: ArrayKey) -> None:
        self._copiers = copiers
        self._keys = (dst, src)

    def run(self) -> None:
        self._copiers.compile(*self._keys)


class Copiers:
    """The compiled element-by-element copies of one GPU, by the keys of both arrays."""

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._compiled: dict[tuple[ArrayKey, ArrayKey], CudaExecutable] = {}
        self._lock = threading.Lock()

    def needs(self, dst: ArrayKey, src: ArrayKey) -> CopyCompilation | None:
        """The compilation that the copy needs; None for a memcpy, or a kernel already compiled."""
        if dst.dtype == src.dtype and dst.order == src.order == "C":
            return None
        if (_general(dst), _general(src)) in self._compiled:
            return None
        return CopyCompilation(self, dst, src)

    def compile(self, dst: ArrayKey, src: ArrayKey) -> CudaExecutable:
        """The compiled copy kernel; compiled now if it is new."""
        keys = _general(dst), _general(src)
        with self._lock:
            kernel = self._compiled.get(keys)
            if kernel is None:
                kernel = self._device.compile(cuda.jit(_source(*keys)), keys)
                self._compiled[keys] = kernel
            return kernel


def _general(key: ArrayKey) -> ArrayKey:
    """The key with order "A" unless it is "C": one kernel serves all non-contiguous layouts."""
    return key if key.order == "C" else key._replace(order="A")


def _source(dst: ArrayKey, src: ArrayKey) -> Any:
    """A kernel for these ranks and dtypes: one thread per element, the last axis fastest."""
    ndim = dst.ndim
    indices = [f"k{axis}" for axis in range(ndim)]
    lines = ["def copy(dst, src):", "    i = cuda.grid(1)", "    if i < dst.size:"]
    for axis in reversed(range(ndim)):
        lines.append(f"        k{axis} = i % dst.shape[{axis}]")
        lines.append(f"        i = i // dst.shape[{axis}]")
    subscript = ", ".join(indices) if indices else "()"
    value = f"src[{subscript}]"
    dst_dtype, src_dtype = np.dtype(dst.dtype), np.dtype(src.dtype)
    if src_dtype.kind == "c" and dst_dtype.kind not in "cb":
        value = f"{value}.real"
    if is_extension(dst_dtype) != is_extension(src_dtype):  # between the two, as ml_dtypes converts
        value = f"float32({value})"
    if dst_dtype.kind == "b":
        value = f"{value} != 0"
    lines.append(f"        dst[{subscript}] = {value}")
    names: dict[str, Any] = {"cuda": cuda, "float32": float32}
    exec("\n".join(lines), names)  # noqa: S102 - built from ranks and kinds alone
    return names["copy"]
