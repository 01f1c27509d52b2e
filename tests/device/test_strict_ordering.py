"""What must hold of ordering: strict refuses exactly what auto orders, and says what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import numbasync as na
from numbasync.errors import AccessConflictError, CallerError
from numbasync.testing import Gate, settle
from tests.common import add_one, compiled, copy_to, saxpy

Make = Callable[[na.Tensor, na.Tensor, na.Tensor], na.DeviceOp[Any]]

# What one stream does with z, and then another; a and b are two more tensors.
CONFLICTS: dict[str, tuple[Make, Make]] = {
    "write, write": (lambda z, a, b: na.fill(z, 1), lambda z, a, b: add_one(z)),
    "write, read": (lambda z, a, b: add_one(z), lambda z, a, b: copy_to(a, z)),
    "write, copy": (lambda z, a, b: na.fill(z, 1), lambda z, a, b: na.memcpy(a, z)),
    "write, download": (lambda z, a, b: add_one(z), lambda z, a, b: z.to_host()),
    "write, duplicate": (lambda z, a, b: add_one(z), lambda z, a, b: z.dup()),
    "read, write": (lambda z, a, b: copy_to(a, z), lambda z, a, b: na.fill(z, 2)),
    "download, write": (lambda z, a, b: z.to_host(), lambda z, a, b: add_one(z)),
    "write of a view, read": (lambda z, a, b: na.fill(z[:4], 1), lambda z, a, b: copy_to(a, z)),
    "read of a view, write": (lambda z, a, b: z[:4].to_host(), lambda z, a, b: add_one(z)),
    "later in the operation": (
        lambda z, a, b: na.zip(add_one(a), add_one(z)),
        lambda z, a, b: na.zip(add_one(b), na.value(0), add_one(z)),
    ),
}
NO_CONFLICTS: dict[str, tuple[Make, Make]] = {
    "read, read": (lambda z, a, b: copy_to(a, z), lambda z, a, b: copy_to(b, z)),
    "download, download": (lambda z, a, b: z.to_host(), lambda z, a, b: z.to_host()),
    "other tensors": (lambda z, a, b: saxpy(z, 1.0, a), lambda z, a, b: add_one(b)),
    "a new tensor": (lambda z, a, b: add_one(z), lambda z, a, b: na.zeros(8)),
    "nothing": (lambda z, a, b: add_one(z), lambda z, a, b: na.value(0)),
}


@pytest.mark.parametrize("pair", [*CONFLICTS, *NO_CONFLICTS])
async def test_strict_refuses_exactly_what_auto_orders(
    device: na.Device, stream: na.Stream, gate: Gate, pair: str
) -> None:
    first, second = {**CONFLICTS, **NO_CONFLICTS}[pair]
    other = device.new_stream()
    z, a, b = (na.ones(8).sync() for _ in range(3))
    values = first(z, a, b).async_on(stream), second(z, a, b).async_on(stream)
    await stream.done()
    del values

    gate.close()
    values = first(z, a, b).async_on(stream), second(z, a, b).async_on(other)
    await settle(device)
    waits = not other.query()
    gate.open()
    device.synchronize()
    del values

    refused = False
    gate.close()
    with na.ordering("strict"):
        first(z, a, b).async_on(stream)
        try:
            second(z, a, b).async_on(other)
        except AccessConflictError:
            refused = True
    assert waits == refused == (pair in CONFLICTS)
    gate.open()
    device.synchronize()


@pytest.mark.parametrize("order", ["one stream", "awaited", "an event", "a shared operation"])
async def test_strict_takes_what_the_program_has_ordered(
    device: na.Device, stream: na.Stream, gate: Gate, order: str
) -> None:
    z = await na.zeros(8)
    await add_one(z)
    await z.to_host()
    other = stream if order == "one stream" else device.new_stream()
    event = device.new_event(timing=False)
    if order != "awaited":
        gate.close()
    with na.ordering("strict"):
        op = add_one(z).output().shared()
        op.async_on(stream)
        if order == "awaited":
            await stream.done()
        elif order == "an event":
            event.record(stream)
            event.wait(other)
        if order == "a shared operation":
            op.then(lambda t: add_one(t)).async_on(other)
        else:
            add_one(z).async_on(other)
    gate.open()
    await other.done()
    assert (await z.to_host()).tolist() == [3] * 8


def test_a_conflict_names_operations_streams_and_tensor(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other = device.new_stream()
    z, out = na.zeros((2, 4)).sync(), na.zeros((2, 4)).sync()
    na.memcpy(out, z).sync()
    na.fill(z, 3).sync()
    gate.close()
    with na.ordering("strict"):
        na.fill(z, 3).async_on(stream)
        with pytest.raises(AccessConflictError) as caught:
            na.memcpy(out, z).async_on(other)
    said = str(caught.value)
    names = [repr(s).partition(",")[0] for s in (stream, other)]
    assert names[0] != names[1]
    assert f"memcpy((2, 4), float32) on {names[1]}" in said
    assert f"fill((2, 4), 3.0) on {names[0]}" in said
    assert f"both use {z!r}, and at least one writes it" in said
    assert "set_ordering" in said
    gate.open()
    stream.synchronize()
    assert (out.to_host().sync() == 0).all(), "what was refused was not done"


def test_ordering_is_set_by_process_or_block(device: na.Device) -> None:
    compiled()
    na.set_ordering("strict")
    try:
        stream, other = device.new_stream(), device.new_stream()
        z = na.zeros(8).sync()
        held = Gate(stream)
        with held:
            add_one(z).async_on(stream)
            with pytest.raises(AccessConflictError):
                add_one(z).async_on(other)
            with na.ordering("auto"):
                add_one(z).async_on(other)
        stream.synchronize()
        other.synchronize()
    finally:
        na.set_ordering("auto")
    assert z.to_host().sync().tolist() == [2] * 8
    with pytest.raises(CallerError, match="no ordering 'loose'"):
        na.set_ordering("loose")  # type: ignore[arg-type]
