"""Compiling kernels: ahead, once for all threads that need it, and again after a failure."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    KernelCompileError,
    StateError,
)
from numbasync.launch import variants as kernels
from numbasync.testing import counters
from tests.common import add_one, fresh, host


@na.launcher
@cuda.jit
def tiles(z: na.Tile):
    z[0] = 1


def test_threads_making_tiled_kernels_share_one(device: na.Device) -> None:
    planner = tiles.planner
    bound = tiles.bind((na.zeros(8).sync().partition(4),))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: planner.variant(bound, device.backend)[0], range(8)))
    assert len(set(map(id, found))) == 1


def test_compile_needs_no_memory_and_serves_every_size(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def scale(z: na.KernelOutput, a, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = a * x[i]

    before, compiled = counters(), na.compile_count()
    scale.compile(na.meta(4).partition(2), 2.0, na.meta(4)).sync()
    assert na.compile_count() - compiled == 1
    assert (counters() - before).allocations == 0
    assert (counters() - before).launches == 0
    for n in (5, 500):
        scale(na.zeros(n).partition(32), 3.0, np.ones(n, np.float32)).sync()
    assert na.compile_count() - compiled == 1
    scale(na.zeros(5, np.float64).partition(32), 3.0, np.ones(5, np.float32)).sync()
    scale(na.zeros(5).partition(32), 3, np.ones(5, np.float32)).sync()
    assert na.compile_count() - compiled == 3


def test_meta_tensors_cannot_be_launched(device: na.Device) -> None:
    with pytest.raises(StateError, match="compile"):
        add_one(na.meta(4)).sync()


def test_a_kernel_that_does_not_compile_says_why(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def wrong(z: na.KernelOutput):
        z[0] = cuda.no_such_thing(3)

    for _ in range(2):
        with pytest.raises((KernelCompileError, NotImplementedError), match="kernel wrong"):
            wrong[1, 1](na.zeros(1)).sync()
    assert na.ones(2).to_host().sync().tolist() == [1, 1]


def test_eight_threads_compile_one_variant_once(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, compile_, ask = fresh(), type(device.backend).compile, kernels.Kernel.compilation
    asked, compiled = threading.Semaphore(0), []

    def asking(self: kernels.Kernel, *args: Any) -> kernels.Compilation:
        found = ask(self, *args)
        asked.release()
        return found

    def slow(self: Any, dispatcher: Any, keys: Any) -> Any:
        compiled.append(keys)
        for _ in range(8):  # nobody finds it compiled: all eight have asked before it is
            assert asked.acquire(timeout=300)
        return compile_(self, dispatcher, keys)

    monkeypatch.setattr(kernels.Kernel, "compilation", asking)
    monkeypatch.setattr(type(device.backend), "compile", slow)
    tensors = [na.zeros(100 + i).sync() for i in range(8)]

    def launch(tensor: na.Tensor) -> None:
        with na.use_device(device):
            kernel(tensor.partition(32)).sync()

    before = na.compile_count()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(launch, tensors))
    assert len(compiled) == 1 and na.compile_count() - before == 1
    assert all((host(t) == 1).all() for t in tensors)


def test_a_failed_compile_does_not_poison_the_key(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, z = fresh(), na.zeros(8).sync()

    def fail(*args: Any) -> Any:
        raise KernelCompileError("planted")

    before, compiled = counters(), na.compile_count()
    with monkeypatch.context() as patch:
        patch.setattr(type(device.backend), "compile", fail)
        for _ in range(2):
            with pytest.raises(KernelCompileError, match="planted"):
                kernel(z.partition(4)).sync()
    assert (counters() - before).launches == 0 and na.compile_count() == compiled
    kernel(z.partition(4)).sync()
    kernel(z.partition(4)).sync()
    assert na.compile_count() - compiled == 1
    assert host(z).tolist() == [2] * 8
