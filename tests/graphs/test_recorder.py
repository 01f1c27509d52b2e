"""What graphs keep beside their work: locks, sources, orders of many nodes. The CPU device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.backend.protocols import Command
from numbasync.device.storage import Storage
from numbasync.graphs.recording import Order, Step
from numbasync.tensors.pinned import sharing
from numbasync.testing import gate
from tests.common import add_one, saxpy


def held(lock: Any) -> bool:
    """Whether this thread keeps others out of `lock`."""
    found = list[bool]()

    def look() -> None:
        free = lock.acquire(blocking=False)
        if free:
            lock.release()
        found.append(not free)

    other = threading.Thread(target=look)
    other.start()
    other.join()
    return found[0]


def test_a_graph_takes_its_place_at_unleased_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = na.devices("cpu")[0]
    stand, seen = Storage.attach_graph, list[tuple[bool, bool]]()

    def watched(self: Storage, standing: Any) -> None:
        seen.append((held(device.submit_lock), held(sharing)))
        stand(self, standing)

    monkeypatch.setattr(Storage, "attach_graph", watched)
    with na.use_device(device):
        z, locked = na.zeros(8).sync(), na.pinned(8)
        graph = na.zip(add_one(z), na.memcpy(locked, z)).graph()
        graph.set_args(0, z)
        graph.recapture(na.zip(add_one(z), na.memcpy(locked, z)))
    assert seen == [(True, True)] * 6


def test_a_quick_launch_excludes_devices_from_shared_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = na.devices("cpu")[0]
    with na.use_device(device):
        z, locked, stream = na.zeros(8).sync(), na.pinned(8), device.new_stream()
        graph = na.zip(add_one(z), na.memcpy(locked, z)).graph_on(stream)
        plain = add_one(z).graph_on(stream)
        kind, seen = type(stream.backend), list[bool]()
        replay = kind.replay

        def watched(self: Any, graph: Any, queue: Any) -> Any:
            seen.append(held(sharing))
            return replay(self, graph, queue)

        monkeypatch.setattr(kind, "replay", watched)
        for one in (graph, plain):
            for _ in range(2):
                one.launch().sync()
    assert seen == [True, False], "the first launches took leases, and were not quick"


def test_changed_arguments_leave_no_sources_behind() -> None:
    with na.use_device(na.devices("cpu")[0]):
        arrays = [np.full(8, i, np.float32) for i in range(4)]
        tensors = [na.as_tensor(array) for array in arrays]
        z, other = na.zeros(8).sync(), na.as_tensor(np.ones(8, np.float32))
        graph = na.zip(saxpy(z, 1.0, tensors[0]), saxpy(z, 1.0, other)).graph()
        for i in range(1, 4):
            graph.set_args(0, z, 1.0, tensors[i])
            assert graph._recorded.sources == (tensors[i].source, other.source)
        graph.launch().sync()
        assert z.to_host().sync().tolist() == [4] * 8


def test_many_branches_that_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after all of them is found by one look at each."""
    looks, order = 0, Order()
    all_before = Order._all

    def counted(self: Order, last: Any) -> int:
        nonlocal looks
        looks += len(last)
        return all_before(self, last)

    monkeypatch.setattr(Order, "_all", counted)
    nothing = frozenset[Storage]()
    for i in range(1000):
        order.add(Step(command(()), nothing, nothing))
        assert order.after((i,), nothing, nothing) == (i,)
    looks = 0
    assert order.after(tuple(range(1000)), nothing, nothing) == tuple(range(1000))
    assert looks <= 2000
    order.add(Step(command((3, 7)), nothing, nothing))
    assert order.after((3, 1000, 9, 7), nothing, nothing) == (1000, 9)


def command(after: tuple[int, ...]) -> Command:
    return Command("fill", (), "fill", after)


def test_the_seed_draws_the_order_of_many_commands() -> None:
    """Of 5,000 beside each other, and 5,000 in a row: by as many looks, or it would not end."""
    device = na.devices("cpu")[0]
    with na.use_device(device):
        graph = na.fill(na.ones(8).sync(), 1).graph()
        beside = [command(()) for _ in range(5000)]
        row = [command((i,)) for i in range(4999, 9999)]
        backend: Any = device.backend.graph(graph._backend.commands)
        backend._commands = (*beside, *row)
        drawn = backend._drawn(lambda n: n - 1)
    assert sorted(drawn) == list(range(10000))
    assert drawn[:3] == [4999, 5000, 5001], "the last that is ready, which frees the next"


def test_an_interrupted_quick_launch_is_awaited_by_followers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = na.devices("cpu")[0]
    with na.use_device(device):
        z, stream, other = na.zeros(8).sync(), device.new_stream(), device.new_stream()
        graph = add_one(z).graph_on(stream)
        graph.launch().sync()
        kind = type(stream.backend)
        replay = kind.replay

        def interrupted(self: Any, graph: Any, queue: Any) -> Any:
            replay(self, graph, queue)
            raise KeyboardInterrupt

        with gate(stream) as shut:
            with monkeypatch.context() as m:
                m.setattr(kind, "replay", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    graph.launch().async_on(stream)
            na.fill(z, 10).async_on(other)
            assert not other.query(), "it writes what the launch is yet to use"
            shut.open()
        device.synchronize()
        assert z.to_host().sync().tolist() == [10] * 8
