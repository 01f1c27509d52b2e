"""Kernels with declared signatures, compiled before they are called."""

from __future__ import annotations

from typing import Any

from numbasync.launch.launcher import Launcher
from numbasync.layout import Layout
from numbasync.ops.op import DeviceOp
from numbasync.tensors.tensor import Tensor


def compilations(launcher: Launcher[Any]) -> list[DeviceOp[None]]:
    """The operations that compile a kernel for each of its declared signatures; none for a kernel
    without. The compiler is imported, which takes long.
    """
    from numbasync.backend.declared_signatures import examples

    return [
        launcher.compile(*(_described(value) for value in values))
        for values in examples(launcher.kernel)
        if len(values) == len(launcher.parameters)
    ]


def _described(value: Any) -> Any:
    """A number as it is; a tensor without memory for a dtype, a number of axes and an order."""
    if not isinstance(value, tuple):
        return value
    dtype, ndim, order = value
    # Two elements along each axis: with one, every order would be contiguous.
    gap = 2 if order == "A" else 1
    strides = [gap * dtype.itemsize * 2**axis for axis in range(ndim)]
    return Tensor(
        None, None, Layout(0, (2,) * ndim, tuple(strides if order == "F" else strides[::-1])), dtype
    )
