"""PyTorch's matrix products (cuBLAS) and attention (cuDNN), beside the ready kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import ready_calls, ready_kernels
from benchmarks.measure import Case, prepared
from benchmarks.peers.torch_peer import on
from benchmarks.peers.torch_plain import timed_by_events
from benchmarks.ready_kernels import Attention, Product


def of_products(ordinal: int) -> list[Case]:
    """`matmul` into an array."""
    return [_product(ordinal, product) for product in ready_kernels.PRODUCTS]


def of_attention(ordinal: int) -> list[Case]:
    """`scaled_dot_product_attention`, as PyTorch chooses."""
    return [_attention(ordinal, attention) for attention in ready_kernels.ATTENTION]


def of_ready_calls(ordinal: int) -> list[Case]:
    """`torch.nn.functional.linear`."""
    return [_call(ordinal, dtype) for dtype in ready_calls.DTYPES]


def _call(ordinal: int, dtype: str) -> Case:
    torch, stream, inside = on(ordinal)
    a, b = ready_calls.operands()
    kind = getattr(torch, dtype)
    with inside:
        left, right = (torch.from_numpy(x).to("cuda").to(kind) for x in (a, b))
        bias = torch.ones(len(a), dtype=kind, device="cuda")
    stream.synchronize()
    linear = torch.nn.functional.linear

    def call() -> Any:
        with inside, torch.inference_mode():
            return linear(left, right, bias)

    async def check() -> None:
        got = call().float().cpu().numpy()
        np.testing.assert_array_equal(got, a @ b.T + 1)

    # Entering the stream and the mode is no part of a program's call.
    def run(calls: int) -> Callable[[], None]:
        def submit() -> None:
            with inside, torch.inference_mode():
                for _ in range(calls):
                    linear(left, right, bias)

        return submit

    timing = prepared(run, stream.synchronize)
    return Case(f"PyTorch: {ready_calls.name(dtype)}", timing, check)


def _product(ordinal: int, product: Product) -> Case:
    torch, stream, inside = on(ordinal)
    a, b = product.operands()
    with inside:
        left, right = (
            torch.from_numpy(x).to("cuda").to(getattr(torch, product.dtype)) for x in (a, b)
        )
        if product.transposed:
            right = right.T.contiguous().T
        integers = product.dtype == "int8"
        dtype = torch.int32 if integers else left.dtype
        out = torch.zeros(product.m, product.n, dtype=dtype, device="cuda")
    stream.synchronize()

    def multiply() -> None:
        torch.backends.cuda.matmul.allow_tf32 = product.precision == "tf32"
        (torch._int_mm if integers else torch.matmul)(left, right, out=out)

    call = _repeated(torch, stream, inside, multiply, product.launches)

    async def check() -> None:
        with inside:
            multiply()
            exact = [x.float().cpu().numpy() for x in (out, left, right)]
        product.check(*exact)

    run = timed_by_events(torch, stream, inside, call, product.launches)
    return Case(f"PyTorch: {product.name}", run, check)


def _repeated(
    torch: Any, stream: Any, inside: Any, call: Callable[[], object], launches: int
) -> Callable[[], object]:
    """`call`, or a graph of so many calls."""
    if launches == 1:
        return call
    with inside:
        call()  # what it allocates once is not of the graph
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(launches):
            call()
    replay: Callable[[], object] = graph.replay
    return replay


def _attention(ordinal: int, attention: Attention) -> Case:
    torch, stream, inside = on(ordinal)
    arrays = attention.operands()
    with inside:
        q, k, v = (torch.from_numpy(x).to("cuda").unsqueeze(0) for x in arrays)
    stream.synchronize()

    def attend() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=attention.causal)

    async def check() -> None:
        with inside:
            got = attend()[0].cpu().numpy()
        attention.check(got, *arrays)

    call = _repeated(torch, stream, inside, attend, attention.launches)
    run = timed_by_events(torch, stream, inside, call, attention.launches)
    return Case(f"PyTorch: {attention.name}", run, check)
