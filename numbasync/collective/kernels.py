"""The kernels that reduce parts on one device: an output is combined with an input, in place."""

from __future__ import annotations

from typing import Any

from numbasync.kernel_names import cuda
from numbasync.launch.launcher import Launcher, launcher
from numbasync.launch.parameters import KernelInput, KernelOutput


@launcher
@cuda.jit
def add_to(z: KernelOutput, x: KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.size:
        z[i] += x[i]


@launcher
@cuda.jit
def multiply_to(z: KernelOutput, x: KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.size:
        z[i] *= x[i]


@launcher
@cuda.jit
def minimum_to(z: KernelOutput, x: KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.size and (x[i] < z[i] or x[i] != x[i]):  # NaN, as of `np.minimum`
        z[i] = x[i]


@launcher
@cuda.jit
def maximum_to(z: KernelOutput, x: KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.size and (x[i] > z[i] or x[i] != x[i]):
        z[i] = x[i]


@launcher
@cuda.jit
def divide_by(z: KernelOutput, count: int) -> None:
    i = cuda.grid(1)
    if i < z.size:
        z[i] /= count


COMBINE: dict[str, Launcher[Any, Any]] = {
    "sum": add_to,
    "prod": multiply_to,
    "min": minimum_to,
    "max": maximum_to,
    "avg": add_to,
}
