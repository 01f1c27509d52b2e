"""The plugin's fixtures: a device, with streams, policies, gates, seeds and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

import pytest

from numbasync.backend.protocols import ThreadOrder
from numbasync.device.device import Device, use_device
from numbasync.device.policies import SchedulingPolicy, StreamPoolRoundRobin
from numbasync.device.stream import Stream
from numbasync.testing import Gate, checked
from numbasync.testing import gate as make_gate
from numbasync.testing.plugin import needs
from numbasync.testing.plugin.options import of
from numbasync.testing.timing.benchmark_kernel import Benchmarks, KernelBenchmark, Replay


class Place(NamedTuple):
    """A kind of device, whether all devices of that kind share one memory, and the order of
    threads in which kernels are checked there, or None.
    """

    kind: str
    one_memory: bool
    order: ThreadOrder | None = None
    seed: int = 0

    def __str__(self) -> str:
        if self.order is None:
            return self.kind
        number = str(self.seed) if self.order == "shuffled" else ""
        return f"{self.kind}-{self.order}{number}"


def places(kind: str, one_memory: bool, races: int) -> list[Place]:
    """The places that a test runs in: one, or as many orders of threads as `races`."""
    place = Place(kind, one_memory)
    if not races:
        return [place]
    orders = [place._replace(order="forward"), place._replace(order="reverse")]
    orders += [place._replace(order="shuffled", seed=seed) for seed in range(max(0, races - 2))]
    return orders[:races]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The device under test, current for the test; one test for each kind of `--device`."""
    place: Place = request.param
    backend_device = needs.device_of(place.kind, place.one_memory)
    checking = (
        nullcontext() if place.order is None else checked(backend_device, place.order, place.seed)
    )
    with use_device(backend_device) as chosen, checking:
        yield chosen


@pytest.fixture
def stream(device: Device) -> Stream:
    """A stream of the device that no other code uses."""
    return device.new_stream()


@pytest.fixture
def policy(device: Device) -> SchedulingPolicy:
    """A round robin over four streams of the device that no other code uses."""
    return StreamPoolRoundRobin(device, 4)


@pytest.fixture
def gate(stream: Stream) -> Iterator[Gate]:
    """An open gate on the `stream` fixture; opened again at the end of the test."""
    held = make_gate(stream)
    yield held
    held.open()


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> range:
    """Seeds for `numbasync.testing.seeded`, as many as `--numbasync-seeds` says, and the same in
    every session, so that a failure can be repeated.
    """
    return range(of(request.config).seeds)


measured = pytest.StashKey[Benchmarks]()
clock_of = pytest.StashKey[Replay]()


@pytest.fixture
def benchmark_kernel(request: pytest.FixtureRequest, device: Device) -> KernelBenchmark:
    """Measures operations on the device; see `KernelBenchmark`. `--kernel-benchmarks=FILE` stores
    the results, and so does pytest-benchmark in a test that uses its `benchmark`.
    """
    results = request.config.stash[measured]
    clock = request.node.stash.get(clock_of, None)
    benchmark = None if clock is None else request.getfixturevalue("benchmark")
    return KernelBenchmark(request.node.nodeid, results, clock or Replay(), benchmark)
