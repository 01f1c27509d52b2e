"""`numbasync bench copy`: uploads and downloads, large and small, pageable and page-locked; and
what the device computes in place of an upload.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, awaited
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync.device.device import Device

LARGE = 1 << 24  # float32 elements: 64 MiB
SMALL = 1024  # 4 KiB
ROWS = 1024  # as columns: 4 MiB
LARGE_CALLS, SMALL_CALLS, MADE_CALLS = 2, 200, 10
FROM_HOST = "numbasync: await from_host, new tensor"
MEMCPY = "numbasync: await memcpy into a tensor"
TRIP = "numbasync: await from_host, await to_host"
TORCH_TRIP = "PyTorch: to, cpu"
CUPY_NEW, CUPY_SET = "CuPy: asarray + synchronize", "CuPy: set + synchronize"
METHOD = (
    "{what} of float32, waited for; NumPy arrays in pageable memory except where the name says "
    "page-locked. {calls} calls a round."
)
LARGE_TARGETS = (
    Target("64 MiB pageable to a new tensor / CuPy's asarray", FROM_HOST, CUPY_NEW, 0.6, 0.4),
    Target("64 MiB pageable into a tensor / CuPy's set", MEMCPY, CUPY_SET, 0.6, 0.4),
)
MADE = "A million float32 elements as a new tensor, awaited. {calls} calls a round."
UPLOADED, ARANGE = "numbasync: from_host", "numbasync: arange"
MADE_TARGETS = (Target("arange / from_host of 4 MiB", ARANGE, UPLOADED, 1.0, 0.5),)
SMALL_TARGETS = (Target("round trip of 4 KiB / PyTorch's to, cpu", TRIP, TORCH_TRIP, 1.2, 1.0),)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    return [
        await table(
            device, rounds, "copy", "copies of 64 MiB", _large(device), calls=LARGE_CALLS,
            method=METHOD, base=CUPY_NEW, targets=LARGE_TARGETS,
        ),
        await table(
            device, rounds, "trip", "round trip of 4 KiB", _small(device), calls=SMALL_CALLS,
            method=METHOD, base=TRIP, targets=SMALL_TARGETS,
        ),
        await table(
            device, rounds, "made", "a million elements", _made(device), calls=MADE_CALLS,
            method=MADE, base=UPLOADED, targets=MADE_TARGETS,
        ),
    ]  # fmt: skip


def numbers(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The elements that are copied."""
    return np.random.default_rng(1).random(count, np.float32)


def _case(
    name: str, call: Callable[[], Awaitable[Any]], read: Callable[[Any], Awaitable[Any]],
    expected: Any,
) -> Case:  # fmt: skip
    async def check() -> None:
        np.testing.assert_array_equal(np.asarray(await read(await call())), expected)

    return Case(name, awaited(call), check)


async def _itself(array: Any) -> Any:
    return array


async def _on_host(tensor: na.Tensor) -> Any:
    return await tensor.to_host()


def _large(device: Device) -> list[Case]:
    stream = device.new_stream()
    a = numbers(LARGE)
    locked = na.pinned(LARGE)
    locked[:] = a
    out, locked_out = np.zeros_like(a), na.pinned(LARGE)
    source = na.from_host(a).sync_on(stream)
    # Each case has a target of its own, without the right answer of another case in it.
    first, second = (na.zeros(LARGE).sync_on(stream) for _ in range(2))

    def case(name: str, make: Callable[[], Any], read: Callable[[Any], Awaitable[Any]]) -> Case:
        async def call() -> Any:
            return await make().schedule(stream)

        return _case(name, call, read, a)

    return [
        case(FROM_HOST, lambda: na.from_host(a), _on_host),
        case(MEMCPY, lambda: na.memcpy(first, a), _on_host),
        case(f"{MEMCPY}, page-locked", lambda: na.memcpy(second, locked), _on_host),
        case("numbasync: await to_host, new array", source.to_host, _itself),
        case("numbasync: await memcpy into an array", lambda: na.memcpy(out, source), _itself),
        case(
            "numbasync: await memcpy into an array, page-locked",
            lambda: na.memcpy(locked_out, source), _itself,
        ),
    ]  # fmt: skip


def _small(device: Device) -> list[Case]:
    stream = device.new_stream()
    a = numbers(SMALL)

    async def in_two_steps() -> Any:
        tensor = await na.from_host(a)
        return await tensor.to_host()

    async def chained() -> Any:
        return await na.from_host(a).then(lambda t: t.to_host()).schedule(stream)

    async def blocking() -> Any:
        return na.from_host(a).sync_on(stream).to_host().sync_on(stream)

    return [
        _case(TRIP, in_two_steps, _itself, a),
        _case("numbasync: await from_host.then(to_host)", chained, _itself, a),
        _case("numbasync: from_host.sync_on, to_host.sync_on", blocking, _itself, a),
    ]


def _made(device: Device) -> list[Case]:
    stream, n = device.new_stream(), ROWS * ROWS
    a = np.arange(n, dtype=np.float32)
    uniform = np.random.Generator(np.random.Philox(1)).random(n, np.float32)

    def case(name: str, make: Callable[[], Any], expected: Any) -> Case:
        async def call() -> Any:
            return await make().schedule(stream)

        return _case(name, call, _on_host, expected)

    async def normal() -> Any:
        return await na.randn(n, seed=1).schedule(stream)

    async def check_normal() -> None:
        values = await (await normal()).to_host()
        np.testing.assert_allclose((values.mean(), values.std()), (0, 1), atol=10 / ROWS)

    return [
        case(UPLOADED, lambda: na.from_host(a), a),
        case(ARANGE, lambda: na.arange(n), a),
        case("numbasync: linspace", lambda: na.linspace(0, n - 1, n), a),
        case("numbasync: eye", lambda: na.eye(ROWS), np.eye(ROWS, dtype=np.float32)),
        case("numbasync: rand", lambda: na.rand(n, 1), uniform),
        Case("numbasync: randn", awaited(normal), check_normal),
    ]
