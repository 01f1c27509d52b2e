"""Copies as operations: of tensors to new ones, and between tensors and host arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.context import Context
from numbasync.copies import HostArray, copy, download, upload_any
from numbasync.op import DeviceOp, Steps

if TYPE_CHECKING:
    from numbasync.tensor import Tensor


class ToHost(DeviceOp[HostArray]):
    """The elements of a tensor as a new NumPy array."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def steps(self, ctx: Context) -> Steps[HostArray]:
        return (yield from download(ctx, self._tensor))

    def _describe(self) -> str:
        return f"to_host({self._tensor.shape})"


class Convert(DeviceOp["Tensor"]):
    """A contiguous copy of a tensor in elements of a type."""

    def __init__(self, tensor: Tensor, dtype: np.dtype[Any]) -> None:
        self._tensor = tensor
        self._dtype = dtype

    def steps(self, ctx: Context) -> Steps[Tensor]:
        yield from ctx.room(self._tensor.size * self._dtype.itemsize)
        made = type(self._tensor).allocate(ctx, self._tensor.shape, self._dtype)
        yield from copy(ctx, made, self._tensor)
        return made

    def _describe(self) -> str:
        return f"convert({self._tensor.shape})"


class Memcpy(DeviceOp[Any]):
    """Elements of one array into another, in place."""

    def __init__(self, dst: Tensor | HostArray, src: Tensor | HostArray) -> None:
        self._dst = dst
        self._src = src

    def steps(self, ctx: Context) -> Steps[Any]:
        dst, src = self._dst, self._src
        if isinstance(src, np.ndarray):
            yield from upload_any(ctx, dst, src)  # type: ignore[arg-type]  # one is a tensor
        elif isinstance(dst, np.ndarray):
            yield from download(ctx, src, dst)
        else:
            yield from copy(ctx, dst, src)
        return dst

    def _describe(self) -> str:
        return f"memcpy({self._dst.shape}, {self._dst.dtype})"
