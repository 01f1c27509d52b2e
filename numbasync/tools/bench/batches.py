"""`numbasync bench batch`: command batches beside eager calls and others' fused kernels."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from numbasync.device.device import Device
from numbasync.tools.bench import peer_registry, report
from numbasync.tools.bench.measure import Case
from numbasync.tools.bench.targets import Target

LARGE = 1 << 28  # float32 elements on a GPU: 1 GiB
LARGE_CPU = 1 << 16
ROWS, COLUMNS = 65_536, 4_096
ROWS_CPU = 64
SMALL = 1024
HOST_CALLS, CALLS, SMALL_CALLS = 1, 20, 100

HOST = "numbasync: batch of relu, scale, add"
NUMBA_HOST = "Numba: three calls with host arrays"
ONE, TEN = "numbasync: batch of one operation", "numbasync: batch of ten operations"
CHAIN = "numbasync: batch of relu, scale, add"
TORCH_CHAIN = "PyTorch: torch.compile of relu, scale, add"
CUPY_CHAIN = "CuPy: fuse of relu, scale, add"
SUM, TORCH_DOT = "numbasync: batch of sum(a * b + c)", "PyTorch: dot"
SOFTMAX = "numbasync: batch of softmax"
TORCH_SOFTMAX, COMPILED_SOFTMAX = "PyTorch: softmax", "PyTorch: torch.compile of softmax"
TALL, NARROW = "numbasync: batch of sums of 64 columns", "numbasync: batch of sums of rows of 16"
SHARES = "numbasync: batch of softmax of rows of 64"
TORCH_TALL, COMPILED_TALL = "PyTorch: sum of 64 columns", "PyTorch: torch.compile of it, columns"
TORCH_NARROW, COMPILED_NARROW = "PyTorch: sum of rows of 16", "PyTorch: torch.compile of it, rows"
TORCH_SHARES = "PyTorch: softmax of rows of 64"
COMPILED_SHARES = "PyTorch: torch.compile of it, softmax"
TRIP = "numbasync: record, execute, read"
TWO_STEPS = "numbasync: record, execute, then read"
REPLAY = "numbasync: replay of a batch as a graph, new upload"
RAW_TRIP = "cuda.bindings: two copies and a packed launch"

METHOD = (
    "{what}. {calls} calls a round, one stream, with the wait for the device behind the last one "
    "in the timed part. The cases take turns; medians and quartiles of {rounds} rounds after one "
    "that does not count; garbage collection off. Recording is part of every call of a batch."
)
HOST_TARGETS = (
    Target("batch end to end / three Numba calls", HOST, NUMBA_HOST, 1 / 3, 1 / 5),
)  # fmt: skip
CHAIN_TARGETS = (
    Target("batch of three / torch.compile", CHAIN, TORCH_CHAIN, 1 / 0.97, 0.99),
    Target("batch of three / cupy.fuse", CHAIN, CUPY_CHAIN, 1 / 1.5, 0.6),
    Target("ten operations / one operation", TEN, ONE, 1.05, 1.02),
)
# Three arrays are read where dot reads two.
REDUCE_TARGETS = (
    Target("sum(a * b + c) / dot, for 1.5 times the bytes", SUM, TORCH_DOT, 1.5 / 0.95, 1.5),
    Target("softmax / PyTorch", SOFTMAX, TORCH_SOFTMAX, 1 / 1.4, 1 / 1.5),
    Target("softmax / torch.compile", SOFTMAX, COMPILED_SOFTMAX, 1 / 1.1, 1 / 1.2),
)
TALL_TARGETS = (
    Target("sums of 64 columns / torch.compile", TALL, COMPILED_TALL, 1.1, 0.9),
    Target("sums of rows of 16 / torch.compile", NARROW, COMPILED_NARROW, 1.1, 0.9),
    Target("softmax of rows of 64 / torch.compile", SHARES, COMPILED_SHARES, 1.1, 0.9),
)
SMALL_TARGETS = (
    Target("record, execute, read / raw round trip", TRIP, RAW_TRIP, 3.0, 2.0),
    Target("replay as a graph / raw round trip", REPLAY, RAW_TRIP, 1.5, 1.2),
)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """What is reported."""
    own = peer_registry.has_own_processor(device)
    n, rows = (LARGE, ROWS) if own else (LARGE_CPU, ROWS_CPU)
    return [
        await peer_registry.table(
            METHOD,
            device, rounds, f"relu, scale, add of {n:,} float32 of the host", "batch_host",
            _host(device, n), HOST_CALLS, HOST, HOST_TARGETS,
        ),
        await peer_registry.table(
            METHOD,
            device, rounds, f"relu, scale, add of {n:,} float32 of the device", "batch_chain",
            _chain(device, n), CALLS, CHAIN, CHAIN_TARGETS,
        ),
        await peer_registry.table(
            METHOD,
            device, rounds, f"sums of {n:,} float32; softmax of {rows:,} x {COLUMNS:,}",
            "batch_reduce", _reduce(device, n, rows), CALLS, SUM, REDUCE_TARGETS,
        ),
        await peer_registry.table(
            METHOD,
            device, rounds, f"tall matrices of {n:,} float32", "batch_tall", _tall(device, n),
            CALLS, TALL, TALL_TARGETS,
        ),
        await peer_registry.table(
            METHOD,
            device, rounds, f"a batch of {SMALL:,} float32", "batch_small", _small(device),
            SMALL_CALLS, TRIP, SMALL_TARGETS,
        ),
    ]  # fmt: skip


def numbers(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What is computed with: both signs."""
    return np.random.default_rng(1).random(count, np.float32) - np.float32(0.5)


def wanted(x: Any) -> Any:
    """relu, scale, add by NumPy."""
    return np.maximum(x, 0) * np.float32(2) + x


def case(
    name: str, call: Callable[[], Any], drain: Callable[[], object],
    check: Callable[[], Awaitable[None]],
) -> Case:  # fmt: skip
    async def run(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        drain()
        return time.perf_counter() - began

    return Case(name, run, check)


# --- arrays of the host ---


@na.launcher
@cuda.jit
def relu(y: na.KernelOutput, x: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] = max(x[i], np.float32(0))


@na.launcher
@cuda.jit
def scale(y: na.KernelOutput, x: na.KernelInput, factor: Any) -> None:
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] = x[i] * factor


@na.launcher
@cuda.jit
def add(y: na.KernelOutput, a: na.KernelInput, b: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] = a[i] + b[i]


def _host(device: Device, n: int) -> list[Case]:
    stream = device.new_stream()
    a = numbers(n)

    def batch(fuse: bool) -> Any:
        b = na.CommandBatch(device, fuse=fuse)
        x = b.upload(a)
        y = b.add(b.scale(b.relu(x), 2.0), x)
        b.op().sync_on(stream)
        return b.read_op(y).sync_on(stream)

    def eager() -> Any:
        def run(kernel: na.Launcher, *args: Any) -> Any:
            op = na.empty(n).then(lambda y: kernel(y.partition(256), *args))
            return op.output().unpartition().to_host().sync_on(stream)

        two = run(scale, run(relu, a), np.float32(2))
        return run(add, two, a)

    def right(name: str, call: Callable[[], Any]) -> Case:
        async def check() -> None:
            np.testing.assert_array_equal(call(), wanted(a))

        return case(name, call, lambda: None, check)

    return [
        right(HOST, lambda: batch(True)),
        right("numbasync: batch, not fused", lambda: batch(False)),
        right("numbasync: three launches with host arrays", eager),
    ]


# --- tensors of the device ---


def _resident(
    device: Device, name: str, record: Callable[..., Any], tensors: list[na.Tensor],
    right: Callable[[Any], None],
) -> Case:  # fmt: skip
    stream = device.new_stream()

    def recorded() -> tuple[na.CommandBatch, Any]:
        b = na.CommandBatch(device)
        return b, record(b, *map(b.use, tensors))

    def call() -> None:
        b, _y = recorded()
        b.op().async_on(stream)

    async def check() -> None:
        b, y = recorded()
        await b.op().schedule(stream)
        assert b.kernels_launched == 1  # or it is not what the row says
        right(await b.read_op(y).schedule(stream))

    return case(name, call, stream.synchronize, check)


def _chain(device: Device, n: int) -> list[Case]:
    a = numbers(n)
    x = na.from_host(a).sync_on(device.new_stream())

    def ten(b: na.CommandBatch, x: Any) -> Any:
        y = x
        for k in range(5):
            y = b.relu(y) * (1.0 + k / 8)
        return y

    def ten_wanted(a: Any) -> Any:
        for k in range(5):
            a = np.maximum(a, 0) * np.float32(1.0 + k / 8)
        return a

    def chain(name: str, record: Callable[..., Any], want: Callable[[Any], Any]) -> Case:
        def right(found: Any) -> None:
            np.testing.assert_array_equal(found, want(a))

        return _resident(device, name, record, [x], right)

    return [
        chain(CHAIN, lambda b, x: b.relu(x) * 2 + x, wanted),
        chain(ONE, lambda b, x: b.relu(x), lambda a: np.maximum(a, 0)),
        chain(TEN, ten, ten_wanted),
    ]


def are_shares(found: Any) -> None:
    """A softmax of rows, of which the first ones are looked at."""
    np.testing.assert_allclose(found[:64].sum(axis=1), 1, rtol=1e-5)


def _reduce(device: Device, n: int, rows: int) -> list[Case]:
    a = numbers(n)
    stream = device.new_stream()
    x = na.from_host(a).sync_on(stream)
    m = na.from_host(numbers(rows * COLUMNS).reshape(rows, COLUMNS)).sync_on(stream)
    total = float(np.sum(np.square(a, dtype=np.float32) + a, dtype=np.float64))

    def near(found: Any) -> None:
        bound = n * 2.0**-53 * n + 2.0**-23 * abs(total)
        assert abs(float(found) - total) <= bound  # a wrong answer ends the run

    y, z = x.dup().sync_on(stream), x.dup().sync_on(stream)
    return [
        _resident(device, SUM, lambda b, a, c, d: b.sum(a * c + d), [x, y, z], near),
        _resident(device, SOFTMAX, lambda b, m: b.softmax(m), [m], are_shares),
        _resident(device, "numbasync: batch of layer_norm", lambda b, m: b.layer_norm(m), [m],
                  lambda found: np.testing.assert_allclose(found[:64].mean(axis=1), 0, atol=1e-5)),
    ]  # fmt: skip


def _tall(device: Device, n: int) -> list[Case]:
    a = numbers(n)
    wide, narrow = a.reshape(-1, 64), a.reshape(-1, 16)
    x = na.from_host(a).sync_on(device.new_stream())
    m = x.reshape(*wide.shape)

    def columns(found: Any) -> None:
        want = wide.sum(axis=0, dtype=np.float64)
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())

    def rows(found: Any) -> None:
        np.testing.assert_allclose(found, narrow.sum(axis=1), rtol=1e-5, atol=1e-5)

    return [
        _resident(device, TALL, lambda b, m: b.sum(m, 0), [m], columns),
        _resident(device, NARROW, lambda b, m: b.sum(m, 1), [x.reshape(*narrow.shape)], rows),
        _resident(device, SHARES, lambda b, m: b.softmax(m), [m], are_shares),
    ]


# --- few elements ---


def _small(device: Device) -> list[Case]:
    stream = device.new_stream()
    a = numbers(SMALL)

    def recorded() -> tuple[na.CommandBatch, Any]:
        b = na.CommandBatch(device)
        x = b.upload(a)
        return b, b.add(b.scale(b.relu(x), 2.0), x)

    def trip() -> Any:
        b, y = recorded()
        return b.compute_op(y).sync_on(stream)

    def two_steps() -> Any:
        b, y = recorded()
        b.op().async_on(stream)
        return b.read_op(y).sync_on(stream)

    def right(call: Callable[[], Any]) -> Callable[[], Awaitable[None]]:
        async def check() -> None:
            np.testing.assert_array_equal(call(), wanted(a))

        return check

    again = na.CommandBatch(device)
    x = again.upload(a)
    y = again.add(again.scale(again.relu(x), 2.0), x)
    graph = again.graph(stream)

    def replay() -> Any:
        return graph.replay_sync({x: a})[y]

    def record() -> Any:
        return recorded()[0].plan()

    return [
        case(TRIP, trip, lambda: None, right(trip)),
        case(TWO_STEPS, two_steps, lambda: None, right(two_steps)),
        case(REPLAY, replay, lambda: None, right(replay)),
        case("numbasync: record only", record, lambda: None, right(trip)),
    ]
