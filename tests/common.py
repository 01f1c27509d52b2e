"""Kernels that many tests launch."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na


def full(*values: Any) -> Any:
    """Values of a parametrised test that only `--tier all` runs: a case more, for which another
    kernel is compiled, which takes seconds on the CPU device and little time on a GPU.
    """
    return pytest.param(*values, marks=pytest.mark.full)


def mostly_full(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Values of a parametrised test, of which all but the ones `kept` are `full`."""
    chosen = list(values)
    assert all(value in chosen for value in kept), "there is no such value"
    return [value if value in kept else full(value) for value in chosen]


@na.launcher
@cuda.jit
def saxpy(z: na.KernelOutput, a, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


@na.launcher
@cuda.jit
def saxpy2d(z: na.KernelOutput, a, x: na.KernelInput):
    i, j = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = a * x[i, j] + z[i, j]


@na.launcher
@cuda.jit
def add_one(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = z[i] + 1


@na.launcher
@cuda.jit
def copy_to(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i]


@na.launcher
@cuda.jit
def visit(counts: na.KernelOutput):
    """Add one to the element of every thread that lies inside."""
    i = cuda.grid(1)
    if i < counts.shape[0]:
        cuda.atomic.add(counts, i, 1)


@na.launcher
@cuda.jit
def visit_tile(t: na.Tile):
    """Add one to every element of the block's tile, of one axis."""
    i = cuda.threadIdx.x
    if i < t.shape[0]:
        cuda.atomic.add(t, i, 1)


@na.launcher
@cuda.jit
def visit_striding(counts: na.KernelOutput):
    """Add one to every element, with however many blocks."""
    for i in range(cuda.grid(1), counts.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(counts, i, 1)


def fresh() -> na.Launcher:
    """A kernel that adds one and has not been compiled."""

    @na.launcher
    @cuda.jit
    def kernel(z: na.KernelOutput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] += 1

    return kernel


def put(array: np.ndarray) -> na.Tensor:
    return na.from_host(array).sync()


def host(tensor: Any) -> np.ndarray:
    """The elements of a tensor, or of an operation that makes one."""
    return tensor.to_host().sync()


def elements(tensor: na.Tensor) -> Any:
    """The elements of a tensor as lists."""
    return host(tensor).tolist()


def scaled_plus_one(x: na.Tensor, factor: float = 2.0) -> na.DeviceOp[na.Tensor]:
    """Factor * x + 1"""
    return na.ones(x.shape).then(lambda z: saxpy(z, factor, x)).output()


def used(device: na.Device) -> int:
    """Bytes in use, once what earlier tests left to the collector and the device is gone."""
    gc.collect()
    device.backend.quiesce()
    return device.memory_stats().used_current


async def waited(awaitable: Any) -> Any:
    """An awaitable as a coroutine, for those who take no other."""
    return await awaitable


def compiled() -> None:
    """Compile what a gated test launches: loading a module may wait for a held stream."""
    z = na.zeros(8).sync()
    add_one(z).sync()
    copy_to(z, na.ones(8)).sync()
    saxpy(z, 1.0, na.ones(8)).sync()
    na.fill(z, 1).sync()
    z.to_host().sync()


def only_fast_path(patch: pytest.MonkeyPatch, *ways: tuple[type, str]) -> None:
    """Let fail what is enqueued step by step, by methods of classes."""

    def steps(self: Any, *_: object) -> Any:
        raise AssertionError(f"{self} was not enqueued at once")
        yield

    gc.collect()  # what a GPU's compiler has thrown away holds frames, and their memory
    for kind, name in ways:
        patch.setattr(kind, name, steps)


def replace_method(patch: pytest.MonkeyPatch, owner: Any, name: str, function: Any) -> None:
    """Let one object of a class with slots have another method: `function`, without `self`."""
    original = getattr(type(owner), name)

    def method(self: Any, *args: Any) -> Any:
        return function(*args) if self is owner else original(self, *args)

    patch.setattr(type(owner), name, method)


@contextmanager
def heard_ctrl_c() -> Iterator[None]:
    """Programs started inside the block hear ^C: a shell that has started these tests in the
    background has them ignore it, and their children with them.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
