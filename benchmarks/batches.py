"""`numbasync bench batch`: command batches beside eager calls and others' fused kernels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from benchmarks import peer_registry, report
from benchmarks.measure import Case, drained
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync.device.device import Device

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
    "in the timed part. Recording is part of every call of a batch."
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
    Target("record, execute, read / raw round trip", TRIP, RAW_TRIP, 2.0, 1.5),
    Target("replay as a graph / raw round trip", REPLAY, RAW_TRIP, 1.5, 1.2),
)


def _sizes(device: Device) -> tuple[int, int]:
    """The elements, and the rows of a softmax."""
    own = peer_registry.has_own_processor(device)
    return (LARGE, ROWS) if own else (LARGE_CPU, ROWS_CPU)


async def host(device: Device, rounds: int) -> list[report.Record]:
    n, _ = _sizes(device)
    return [
        await table(
            device, rounds, "batch_host", f"relu, scale, add of {n:,} float32 of the host",
            _host(device, n), calls=HOST_CALLS, method=METHOD, base=HOST, targets=HOST_TARGETS,
        )
    ]  # fmt: skip


async def chain(device: Device, rounds: int) -> list[report.Record]:
    n, _ = _sizes(device)
    return [
        await table(
            device, rounds, "batch_chain", f"relu, scale, add of {n:,} float32 of the device",
            _chain(device, n), calls=CALLS, method=METHOD, base=CHAIN, targets=CHAIN_TARGETS,
        )
    ]  # fmt: skip


async def reduce(device: Device, rounds: int) -> list[report.Record]:
    n, rows = _sizes(device)
    return [
        await table(
            device, rounds, "batch_reduce",
            f"sums of {n:,} float32; softmax of {rows:,} x {COLUMNS:,}",
            _reduce(device, n, rows), calls=CALLS, method=METHOD, base=SUM, targets=REDUCE_TARGETS,
        )
    ]  # fmt: skip


async def tall(device: Device, rounds: int) -> list[report.Record]:
    n, _ = _sizes(device)
    return [
        await table(
            device, rounds, "batch_tall", f"tall matrices of {n:,} float32", _tall(device, n),
            calls=CALLS, method=METHOD, base=TALL, targets=TALL_TARGETS,
        )
    ]  # fmt: skip


async def small(device: Device, rounds: int) -> list[report.Record]:
    return [
        await table(
            device, rounds, "batch_small", f"a batch of {SMALL:,} float32", _small(device),
            calls=SMALL_CALLS, method=METHOD, base=TRIP, targets=SMALL_TARGETS,
        )
    ]  # fmt: skip


def numbers(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Elements of both signs."""
    return np.random.default_rng(1).random(count, np.float32) - np.float32(0.5)


def expected(x: Any) -> Any:
    """relu, scale, add by NumPy."""
    return np.maximum(x, 0) * np.float32(2) + x


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

    def run_batch(fuse: bool) -> Any:
        batch = na.CommandBatch(device, fuse=fuse)
        x = batch.upload(a)
        y = batch.add(batch.scale(batch.relu(x), 2.0), x)
        batch.op().sync_on(stream)
        return batch.read_op(y).sync_on(stream)

    def eager() -> Any:
        def run(kernel: na.Launcher, *args: Any) -> Any:
            op = na.empty(n).then(lambda y: kernel(y.partition(256), *args))
            return op.output().unpartition().to_host().sync_on(stream)

        two = run(scale, run(relu, a), np.float32(2))
        return run(add, two, a)

    def case(name: str, call: Callable[[], Any]) -> Case:
        return Case(name, drained(call), _check(call, expected(a)))

    return [
        case(HOST, lambda: run_batch(True)),
        case("numbasync: batch, not fused", lambda: run_batch(False)),
        case("numbasync: three launches with host arrays", eager),
    ]


def _check(call: Callable[[], Any], right: Any) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        np.testing.assert_array_equal(call(), right)

    return check


# --- tensors of the device ---


def _resident(
    device: Device, name: str, record: Callable[..., Any], tensors: list[na.Tensor],
    check_result: Callable[[Any], None],
) -> Case:  # fmt: skip
    stream = device.new_stream()

    def recorded() -> tuple[na.CommandBatch, Any]:
        batch = na.CommandBatch(device)
        return batch, record(batch, *map(batch.use, tensors))

    def call() -> None:
        batch, _ = recorded()
        batch.op().async_on(stream)

    async def check() -> None:
        batch, y = recorded()
        await batch.op().schedule(stream)
        np.testing.assert_equal(batch.kernels_launched, 1, "the operations are not fused")
        check_result(await batch.read_op(y).schedule(stream))

    return Case(name, drained(call, stream.synchronize), check)


def _chain(device: Device, n: int) -> list[Case]:
    a = numbers(n)
    x = na.from_host(a).sync_on(device.new_stream())

    def ten(b: na.CommandBatch, x: Any) -> Any:
        y = x
        for k in range(5):
            y = b.relu(y) * (1.0 + k / 8)
        return y

    def ten_expected(a: Any) -> Any:
        for k in range(5):
            a = np.maximum(a, 0) * np.float32(1.0 + k / 8)
        return a

    def chain(name: str, record: Callable[..., Any], answer: Callable[[Any], Any]) -> Case:
        def check(y: Any) -> None:
            np.testing.assert_array_equal(y, answer(a))

        return _resident(device, name, record, [x], check)

    return [
        chain(CHAIN, lambda b, x: b.relu(x) * 2 + x, expected),
        chain(ONE, lambda b, x: b.relu(x), lambda a: np.maximum(a, 0)),
        chain(TEN, ten, ten_expected),
    ]


def check_shares(rows: Any) -> None:
    """Raise unless the first rows of a softmax each add up to 1."""
    np.testing.assert_allclose(rows[:64].sum(axis=1), 1, rtol=1e-5)


def _reduce(device: Device, n: int, rows: int) -> list[Case]:
    a = numbers(n)
    stream = device.new_stream()
    x = na.from_host(a).sync_on(stream)
    m = na.from_host(numbers(rows * COLUMNS).reshape(rows, COLUMNS)).sync_on(stream)
    total = float(np.sum(np.square(a, dtype=np.float32) + a, dtype=np.float64))

    def check_sum(y: Any) -> None:
        bound = n * 2.0**-53 * n + 2.0**-23 * abs(total)
        np.testing.assert_allclose(float(y), total, rtol=0, atol=bound)

    y, z = x.dup().sync_on(stream), x.dup().sync_on(stream)
    return [
        _resident(device, SUM, lambda b, a, c, d: b.sum(a * c + d), [x, y, z], check_sum),
        _resident(device, SOFTMAX, lambda b, m: b.softmax(m), [m], check_shares),
        _resident(device, "numbasync: batch of layer_norm", lambda b, m: b.layer_norm(m), [m],
                  lambda rows: np.testing.assert_allclose(rows[:64].mean(axis=1), 0, atol=1e-5)),
    ]  # fmt: skip


def _tall(device: Device, n: int) -> list[Case]:
    a = numbers(n)
    wide, narrow = a.reshape(-1, 64), a.reshape(-1, 16)
    x = na.from_host(a).sync_on(device.new_stream())
    m = x.reshape(*wide.shape)

    def check_columns(sums: Any) -> None:
        right = wide.sum(axis=0, dtype=np.float64)
        np.testing.assert_allclose(sums, right, rtol=1e-6, atol=1e-6 * np.abs(right).max())

    def check_rows(sums: Any) -> None:
        np.testing.assert_allclose(sums, narrow.sum(axis=1), rtol=1e-5, atol=1e-5)

    return [
        _resident(device, TALL, lambda b, m: b.sum(m, 0), [m], check_columns),
        _resident(device, NARROW, lambda b, m: b.sum(m, 1), [x.reshape(*narrow.shape)], check_rows),
        _resident(device, SHARES, lambda b, m: b.softmax(m), [m], check_shares),
    ]


# --- few elements ---


def _small(device: Device) -> list[Case]:
    stream = device.new_stream()
    a = numbers(SMALL)

    def recorded() -> tuple[na.CommandBatch, Any]:
        batch = na.CommandBatch(device)
        x = batch.upload(a)
        return batch, batch.add(batch.scale(batch.relu(x), 2.0), x)

    def trip() -> Any:
        batch, y = recorded()
        return batch.compute_op(y).sync_on(stream)

    def two_steps() -> Any:
        batch, y = recorded()
        batch.op().async_on(stream)
        return batch.read_op(y).sync_on(stream)

    captured = na.CommandBatch(device)
    x = captured.upload(a)
    y = captured.add(captured.scale(captured.relu(x), 2.0), x)
    graph = captured.graph(stream)

    def replay() -> Any:
        return graph.replay_sync({x: a})[y]

    def record() -> Any:
        return recorded()[0].plan()

    right = expected(a)
    return [
        Case(TRIP, drained(trip), _check(trip, right)),
        Case(TWO_STEPS, drained(two_steps), _check(two_steps, right)),
        Case(REPLAY, drained(replay), _check(replay, right)),
        Case("numbasync: record only", drained(record), _check(trip, right)),
    ]
