"""Numba, CuPy, PyTorch and cuda.core, by what the tests do with their streams and events."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from tests.common import add_one, compiled, copy_to

SIZE = 1024
SECONDS = 60


@na.launcher
@cuda.jit
def twice(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = 2 * z[i]


@dataclass
class Library:
    """One of them, by what the tests do with it."""

    stream: Callable[[], Any]
    default: Callable[[], Any]
    ones: Callable[[], Any]
    host: Callable[[Any], np.ndarray]
    add_one: Callable[[Any, Any], None]  # to an array, on a stream
    on: Callable[[Any], AbstractContextManager[Any]]  # its current stream
    event: Callable[[bool], Any]  # with timing
    record: Callable[[Any, Any], None]  # an event, on a stream
    wait: Callable[[Any, Any], None]  # a stream for an event
    passed: Callable[[Any], bool]


def numba_library(device: na.Device) -> Library:
    cuda.select_device(device.ordinal)

    def add(x: Any, stream: Any) -> None:
        add_one.kernel[4, 256, stream](x)

    def ones() -> Any:
        x = cuda.to_device(np.ones(SIZE, np.float32))
        cuda.synchronize()  # the copy from memory that is not page-locked may be under way
        return x

    return Library(
        cuda.stream, cuda.default_stream, ones,
        lambda x: x.copy_to_host(), add, lambda s: nullcontext(),
        lambda timing: cuda.event(timing=timing), lambda e, s: e.record(s),
        lambda s, e: e.wait(s), lambda e: e.query(),
    )  # fmt: skip


def core_library(device: na.Device) -> Library:
    """cuda.core has streams and events, and no arrays: Numba's kernels on its streams."""
    core = pytest.importorskip("cuda.core")
    gpu = core.Device(device.ordinal)
    gpu.set_current()
    numba = numba_library(device)
    return Library(
        gpu.create_stream, lambda: core.LEGACY_DEFAULT_STREAM, numba.ones, numba.host,
        numba.add_one, numba.on,
        lambda timing: gpu.create_event(core.EventOptions(timing_enabled=timing)),
        lambda e, s: s.record(e), lambda s, e: s.wait(e), lambda e: e.is_done,
    )  # fmt: skip


def cupy_library(device: na.Device) -> Library:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    cupy.cuda.Device(device.ordinal).use()

    def add(x: Any, stream: Any) -> None:
        with stream:
            x += 1

    def ones() -> Any:
        x = cupy.ones(SIZE, cupy.float32)
        cupy.cuda.get_current_stream().synchronize()  # it is used on other streams
        return x

    return Library(
        cupy.cuda.Stream, lambda: cupy.cuda.Stream.null, ones, cupy.asnumpy, add, lambda s: s,
        lambda timing: cupy.cuda.Event(disable_timing=not timing), lambda e, s: e.record(s),
        lambda s, e: s.wait_event(e), lambda e: e.done,
    )  # fmt: skip


def torch_library(device: na.Device) -> Library:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA")
    torch.cuda.set_device(device.ordinal)

    def add(x: Any, stream: Any) -> None:
        with torch.cuda.stream(stream):
            x += 1

    def ones() -> Any:
        x = torch.ones(SIZE, device="cuda")
        torch.cuda.current_stream().synchronize()  # it is used on other streams
        return x

    return Library(
        torch.cuda.Stream, torch.cuda.default_stream, ones,
        lambda x: x.cpu().numpy(), add, torch.cuda.stream,
        lambda timing: torch.cuda.Event(enable_timing=timing), lambda e, s: e.record(s),
        lambda s, e: s.wait_event(e), lambda e: e.query(),
    )  # fmt: skip


LIBRARIES = {
    "numba": numba_library, "cupy": cupy_library, "torch": torch_library, "cuda.core": core_library,
}  # fmt: skip


class Other:
    """An object with the protocol, and nothing else."""

    def __init__(self, stream: Any) -> None:
        self._number = na.Stream.of(stream).backend.handle_number

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._number


def loaded(name: str, device: na.Device) -> Library:
    """One of them, with everything loaded that a test does while a gate is shut."""
    found = LIBRARIES[name](device)
    compiled()
    x, s = found.ones(), found.stream()
    found.add_one(x, s)
    t = na.as_tensor(x)
    for op in (twice(t), add_one(t), copy_to(na.zeros(SIZE), t)):
        op.sync_on(s)
    assert (found.host(x) == 5).all()
    spare = [device.new_stream() for _ in range(4)]  # to make one may wait for a shut gate
    device.synchronize()
    del spare
    gc.collect()
    return found
