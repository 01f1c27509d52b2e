"""PyTorch: its own kernel for z += 2 x, its pool, its copies."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.tools.bench.copying import LARGE, SMALL, TORCH_TRIP, numbers
from numbasync.tools.bench.measure import Case, timed
from numbasync.tools.bench.work import N, check


def of_launch(ordinal: int) -> list[Case]:
    """`add_`, which is eager: one launch of a kernel that is compiled already."""
    torch, stream, inside = on(ordinal)
    with inside:
        z, x = torch.zeros(N, device="cuda"), torch.ones(N, device="cuda")
    stream.synchronize()

    def launch() -> None:
        z.add_(x, alpha=2.0)

    async def check_row() -> None:
        with inside:
            z.zero_()
            launch()
            stream.synchronize()
        check(z.cpu().numpy())

    return [Case("PyTorch: add_(alpha=)", timed(launch, stream.synchronize, inside), check_row)]


def of_alloc(ordinal: int) -> list[Case]:
    """New arrays, from PyTorch's pool of the current stream."""
    torch, stream, inside = on(ordinal)

    def empty() -> None:
        torch.empty(N, device="cuda")

    async def check_shape() -> None:
        with inside:
            assert tuple(torch.empty(N, device="cuda").shape) == (N,)

    return [Case("PyTorch: empty", timed(empty, stream.synchronize, inside), check_shape)]


def of_copy(ordinal: int) -> list[Case]:
    """Uploads and downloads, waited for."""
    torch, stream, inside = on(ordinal)
    a = numbers(LARGE)
    host = torch.from_numpy(a)
    locked = host.pin_memory()
    with inside:
        source = host.to("cuda")
        first, second = torch.zeros_like(source), torch.zeros_like(source)
    stream.synchronize()

    def new() -> Any:
        tensor = host.to("cuda")
        stream.synchronize()
        return tensor

    def into(target: Any, array: Any, **options: bool) -> Callable[[], Any]:
        def call() -> Any:
            target.copy_(array, **options)
            stream.synchronize()
            return target

        return call

    def back() -> Any:
        return source.cpu()

    return [
        _copy(stream, inside, "PyTorch: to, new tensor", new, a),
        _copy(stream, inside, "PyTorch: copy_", into(first, host), a),
        _copy(
            stream, inside, "PyTorch: copy_, page-locked",
            into(second, locked, non_blocking=True), a,
        ),
        _copy(stream, inside, "PyTorch: cpu, new tensor", back, a),
    ]  # fmt: skip


def of_trip(ordinal: int) -> list[Case]:
    """An upload and the download of the result."""
    torch, stream, inside = on(ordinal)
    a = numbers(SMALL)
    host = torch.from_numpy(a)

    def trip() -> Any:
        return host.to("cuda").cpu()

    return [_copy(stream, inside, TORCH_TRIP, trip, a)]


def on(ordinal: int) -> tuple[Any, Any, Any]:
    """PyTorch, a new stream (which is non-blocking), and a context in which it is current."""
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("this PyTorch finds no CUDA device")
    torch.cuda.set_device(ordinal)
    stream = torch.cuda.Stream()
    return torch, stream, torch.cuda.stream(stream)


def _copy(stream: Any, inside: Any, name: str, call: Callable[[], Any], expected: Any) -> Case:
    async def check_copy() -> None:
        with inside:
            copy = call().cpu().numpy()
        np.testing.assert_array_equal(copy, expected)

    return Case(name, timed(call, stream.synchronize, inside), check_copy)
