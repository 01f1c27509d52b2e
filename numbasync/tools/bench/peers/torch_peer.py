"""The same by PyTorch: its own kernel for z += 2 x, its pool, its copies."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.tools.bench.copying import LARGE, SMALL, numbers
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

    async def right() -> None:
        with inside:
            z.zero_()
            launch()
            stream.synchronize()
        check(z.cpu().numpy())

    return [Case("PyTorch: add_(alpha=)", timed(launch, stream.synchronize, inside), right)]


def of_alloc(ordinal: int) -> list[Case]:
    """From PyTorch's pool of the current stream."""
    torch, stream, inside = on(ordinal)

    def empty() -> None:
        torch.empty(N, device="cuda")

    async def right() -> None:
        with inside:
            assert tuple(torch.empty(N, device="cuda").shape) == (N,)  # a right answer

    return [Case("PyTorch: empty", timed(empty, stream.synchronize, inside), right)]


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
        found = host.to("cuda")
        stream.synchronize()
        return found

    def into(target: Any, array: Any, **how: bool) -> Callable[[], Any]:
        def call() -> Any:
            target.copy_(array, **how)
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
    """There and back."""
    torch, stream, inside = on(ordinal)
    a = numbers(SMALL)
    host = torch.from_numpy(a)

    def trip() -> Any:
        return host.to("cuda").cpu()

    return [_copy(stream, inside, "PyTorch: to, cpu", trip, a)]


def on(ordinal: int) -> tuple[Any, Any, Any]:
    """PyTorch, a stream (its own are non-blocking), and what makes that the current one."""
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("this PyTorch finds no CUDA device")
    torch.cuda.set_device(ordinal)
    stream = torch.cuda.Stream()
    return torch, stream, torch.cuda.stream(stream)


def _copy(stream: Any, inside: Any, name: str, call: Callable[[], Any], wanted: Any) -> Case:
    async def right() -> None:
        with inside:
            found = call().cpu().numpy()
        np.testing.assert_array_equal(found, wanted)

    return Case(name, timed(call, stream.synchronize, inside), right)
