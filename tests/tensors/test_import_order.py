"""Arrays of other libraries: kept while in use, and ordered however they come."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import AccessConflictError
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, copy_to, host, saxpy
from tests.lenders import Lent, lend, memory_of, seen


@pytest.fixture(autouse=True)
def compiled(device: na.Device) -> None:
    """What is loaded while a gate is shut may wait for the gate."""
    z = na.zeros(8).sync()
    for t in (z, z[::2]):
        add_one(t).sync()
        na.fill(t, 1).sync()
        t.to_host().sync()
    copy_to(z, na.ones(8)).sync()


# --- kept ----------------------------------------------------------------------------------


async def test_an_array_lives_until_its_use_has_passed(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    out = await na.zeros(8)
    x = lend(device, np.arange(8, dtype=np.float32))
    alive = weakref.ref(memory_of(x))
    gate.close()
    copy_to(out, x).async_on(stream)
    del x
    gc.collect()
    await settle(device)
    assert alive() is not None
    gate.open()
    await stream.done()
    gc.collect()
    assert alive() is None
    assert (await out.to_host()).tolist() == list(range(8))


async def test_an_array_in_host_memory_lives_as_long(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    out = await na.zeros(8)
    copy_to(out, np.ones(8, np.float32)).sync()
    gate.close()
    copy_to(out, Lent(np.full(8, 5, np.float32))).async_on(stream)
    gc.collect()
    trash = [np.full(8, 66, np.float32) for _ in range(100)]
    gate.open()
    await stream.done()
    assert (await out.to_host()).tolist() == [5] * 8
    assert trash


def test_a_tensor_keeps_and_returns_its_array(device: na.Device) -> None:
    x = lend(device, np.ones(4, np.float32))
    alive = weakref.ref(memory_of(x))
    t = na.as_tensor(x)
    view = t[1:]
    storage = weakref.ref(t.storage)
    del x, t
    gc.collect()
    assert alive() is not None and host(view).tolist() == [1] * 3
    del view
    device.reclaim()
    gc.collect()
    assert alive() is None and storage() is None


# --- ordered -------------------------------------------------------------------------------

CASES: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "the same array": lambda x: (x, x),
    "the whole after a part": lambda x: (x[2:6], x),
    "a part after the whole": lambda x: (x, x[2:6]),
    "parts that overlap": lambda x: (x[:5], x[3:]),
    "parts that interleave": lambda x: (x[::2], x[1::2]),
}


@pytest.mark.parametrize("how", ["arguments", "tensors"])
@pytest.mark.parametrize("case", CASES)
async def test_uses_of_one_array_are_ordered_across_streams(
    device: na.Device, stream: na.Stream, gate: Gate, case: str, how: str
) -> None:
    other = device.new_stream()
    x = lend(device, np.zeros(8, np.float32))
    want = np.zeros(8, np.float32)
    (a, b), (c, d) = CASES[case](x), CASES[case](want)
    if how == "tensors":
        a, b = na.as_tensor(a), na.as_tensor(b)
    gate.close()
    na.fill(na.as_tensor(a), 5).async_on(stream)
    add_one(b).async_on(other)
    del a, b
    await settle(device)
    assert not other.query()
    gate.open()
    await other.done()
    c[...] = 5
    d += 1
    await stream.done()
    assert seen(x).tolist() == want.tolist()


@pytest.mark.parametrize("case", CASES)
async def test_a_writer_waits_for_readers_of_overlapping_memory(
    device: na.Device, stream: na.Stream, gate: Gate, case: str
) -> None:
    other = device.new_stream()
    x = lend(device, np.arange(8, dtype=np.float32))
    a, b = (na.as_tensor(part) for part in CASES[case](x))
    want = host(a)
    host(a)
    gate.close()
    values = a.to_host().async_on(stream)
    na.fill(b, 9).async_on(other)
    await settle(device)
    assert not other.query()
    gate.open()
    await other.done()
    await stream.done()
    assert values.tolist() == want.tolist()


async def test_readers_and_halves_are_not_ordered(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other = device.new_stream()
    x = lend(device, np.zeros(8, np.float32))
    y = lend(device, np.ones(8, np.float32))
    out = [await na.zeros(8) for _ in range(2)]
    whole = na.as_tensor(x)  # in use or not, the halves have nothing to do with each other
    gate.close()
    add_one(x[:4]).async_on(stream)
    add_one(x[4:]).async_on(other)
    copy_to(out[0], y).async_on(stream)
    copy_to(out[1], y).async_on(other)
    await other.done()
    assert not stream.query()
    gate.open()
    await stream.done()
    assert (await whole.to_host()).tolist() == [1] * 8


def test_strict_ordering_sees_overlapping_arrays(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other = device.new_stream()
    x = lend(device, np.zeros(8, np.float32))
    gate.close()
    add_one(x[:5]).async_on(stream)
    with na.ordering("strict"):
        with pytest.raises(AccessConflictError):
            add_one(x[4:]).async_on(other)
        add_one(x[5:]).async_on(other)
    gate.open()
    stream.synchronize()
    other.synchronize()
    assert seen(x).tolist() == [1] * 8


def test_the_library_is_asked_for_order_each_time(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (lend(device, np.ones(8, np.float32)) for _ in range(2))
    t, u, own = na.as_tensor(x), na.as_tensor(y), na.zeros(8).sync()
    asked: list[Any] = []
    kind: Any = type(t.source)
    order = kind.order

    def noted(self: Any, backend: Any) -> None:
        asked.append((self.export.low, backend, counters().launches, counters().copies))
        order(self, backend)

    monkeypatch.setattr(kind, "order", noted)
    a, b = (na.as_tensor(each).storage.memory.address for each in (x, y))
    for op, expected in (
        (saxpy(x, 1.0, y), {a, b}),
        (saxpy(own, 1.0, u[:]), {b}),
        (add_one(t.partition(4)), {a}),
        (add_one(na.as_tensor(x).take()[:]), {a}),
        (u.to_host(), {b}),
        (u.dup(), {b}),
        (na.fill(u, 2), {b}),
        (na.fill(u[::2], 2), {b}),
        (na.memcpy(own, u), {b}),
        (na.memcpy(u, own), {b}),
        (na.memcpy(u, np.zeros(8, np.float32)), {b}),
        (add_one(own), set()),
    ):
        asked.clear()
        before = counters()
        op.sync_on(stream)
        assert {low for low, *_ in asked} == expected, op
        assert all(backend is stream.backend for _, backend, *_ in asked)
        assert all(launches == before.launches for _, _, launches, _ in asked)
