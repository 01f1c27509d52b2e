"""PyTorch: its own kernel for z += 2 x, its pool, its copies."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

import numbasync as na
from benchmarks import interop
from benchmarks.copying import LARGE, SMALL, TORCH_TRIP, numbers
from benchmarks.measure import Case, timed
from benchmarks.work import N, check


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


def of_interop(ordinal: int) -> list[Case]:
    """PyTorch's tensors in numbasync's launches, and its own sum."""
    torch, _, inside = on(ordinal)
    ours = na.default_device().new_stream()
    x, y = (torch.from_numpy(a).cuda() for a in interop.numbers())
    z = torch.empty_like(x)
    own = na.zeros(interop.SIZE).sync_on(ours)
    tx, ty, tz = (na.as_tensor(t) for t in (x, y, z))
    torch.cuda.synchronize()
    add, add_there = interop.add, interop.add_there

    def case(name: str, call: Callable[[], object], within: Any = None, out: Any = z) -> Case:
        def result() -> Any:
            return out.cpu().numpy() if out is z else out.to_host().sync_on(ours)

        return interop.case(name, call, drain, result, within)

    def drain() -> None:
        torch.cuda.synchronize()
        ours.synchronize()  # whose launches would else be retired in the time of the next case

    class Behind:
        """While it is current, PyTorch's stream has work for longer than a round."""

        def __enter__(self) -> None:
            inside.__enter__()
            torch.cuda._sleep(50_000_000)  # cycles

        def __exit__(self, *error: object) -> None:
            inside.__exit__(*error)

    return [
        case(interop.TORCH, lambda: add(z, x, y).async_on(ours)),
        case(interop.TORCH_EVENT, lambda: add(z, x, y).async_on(ours), Behind()),
        case(interop.TORCH_INPUTS, lambda: add(own, tx, ty).async_on(ours), out=own),
        case(interop.TORCH_ONCE, lambda: add(tz, tx, ty).async_on(ours)),
        case(interop.TORCH_CALLER, lambda: add_there(z, x, y).async_on(), inside),
        case(interop.TORCH_ADD, lambda: torch.add(x, y, out=z), inside),
    ]


def of_reading(ordinal: int) -> list[Case]:
    """One of PyTorch's tensors."""
    torch, _, _ = on(ordinal)
    x, _ = interop.numbers()
    tensor = torch.from_numpy(x).cuda()
    torch.cuda.synchronize()
    return [interop.reading("PyTorch's tensor", tensor, x)]


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
