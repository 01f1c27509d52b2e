"""Changes of a launch's value on the host, and tensor maps that are made again: as in Python."""

from __future__ import annotations

import sys
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.errors import AlreadySubmittedError, MovedError, OperationError, ReentrancyError
from tests.common import add_one, saxpy
from tests.native.null_device import launches

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


def test_the_value_is_the_changed_one(null: na.Device, on: bool) -> None:
    stream, (z, x) = null.new_stream(), [na.zeros(8).sync() for _ in range(2)]
    saxpy(z, 1.0, x).sync_on(stream)
    for run in ("sync_on", "async_on"):
        assert getattr(saxpy(z, 1.0, x).first(), run)(stream) is z
        assert getattr(saxpy(z, 1.0, x).last(), run)(stream) is x
        assert getattr(saxpy(z, 2.5, x).map(lambda r: r[1]), run)(stream) == 2.5
        seen: list[Any] = []
        given = getattr(saxpy(z, 1.0, x).inspect(seen.append), run)(stream)
        assert seen[0] is given and given[0] is z
        assert getattr(saxpy(z, 1.0, x).map(lambda r: r[2]), run)(stream) is x
        given = getattr(saxpy(z, 1.0, x).inspect(lambda r: r[2]), run)(stream)
        assert type(given) is type(seen[0]) and given[0] is z
    op = saxpy(z, 1.0, x).first()
    assert repr(op) == "<DeviceOp saxpy(z, a, x).first(), not run>"
    op.async_on(stream)
    assert z.storage.writer.name == "saxpy(z, a, x).first()"
    with pytest.raises(AlreadySubmittedError):
        op.sync_on(stream)
    stream.synchronize()


async def test_an_await_gives_it_too(null: na.Device, on: bool) -> None:
    z = await na.zeros(8)
    await add_one(z)
    assert await add_one(z).first() is z
    assert await na.spawn(add_one(z).map(lambda r: 7)) == 7


def test_an_error_of_the_change_comes_after_launching(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    before = len(launches())

    def fails(_: Any) -> None:
        raise KeyError("k")

    async def never(_: Any) -> None: ...

    with pytest.raises(KeyError):
        add_one(z).map(fails).async_on(stream)
    with pytest.raises(ReentrancyError):
        add_one(z).map(lambda _: add_one(z).sync_on(stream)).async_on(stream)
    with pytest.raises(OperationError):
        add_one(z).map(partial(never)).async_on(stream)  # type: ignore[unused-coroutine]
    assert len(launches()) == before + 3
    assert z.storage.writer.sequence, "the device may be at it"
    stream.synchronize()


def test_a_change_that_ran_before_calls_no_python(null: na.Device) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    for _ in range(2):
        add_one(z).first().async_on(stream)
    op, called = add_one(z).first(), list[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        op.async_on(stream)
    finally:
        sys.setprofile(before)
    assert called == []
    stream.synchronize()


def test_each_change_has_the_name_of_its_own(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()

    def look(_: object) -> None: ...

    def changed(value: Any) -> Any:
        return value

    def names() -> list[str]:
        made = [
            add_one(z).map(changed), add_one(z).inspect(look), add_one(z).first(),
            add_one(z).last(), add_one(z).map(partial(changed)), add_one(z).inspect(changed),
        ]  # fmt: skip
        for op in made:
            op.async_on(stream)
        return [s.name for s in list(stream._in_flight)[-len(made) :]]

    expected = [
        "add_one(z).map(changed)", "add_one(z).inspect(look)", "add_one(z).first()",
        "add_one(z).last()",
        "add_one(z).map(partial)", "add_one(z).inspect(changed)",
    ]  # fmt: skip
    assert [names(), names()] == [expected] * 2
    changed.__name__ = "renamed"
    assert names()[0] == "add_one(z).map(renamed)"
    stream.synchronize()


def test_a_tensor_map_is_remade_as_in_python(cpu: na.Device, on: bool) -> None:
    t = na.zeros((64, 64), np.float16).sync()
    first = na.tensor_map(t, (16, 64))
    handle = first.mapped.handle
    holders = t.storage.holders
    again = na.tensor_map(t, (16, 64))
    assert type(again) is type(first) and type(again.mapped) is type(first.mapped)
    assert again.tensor is t and again.mapped.own_handle is handle
    for name in ("box", "swizzle", "shape", "dtype", "device"):
        assert getattr(again, name) == getattr(first, name)
    for name in ("box", "swizzle", "shape", "strides", "source", "spec", "key", "fingerprint"):
        assert getattr(again.mapped, name) == getattr(first.mapped, name)
    assert again.mapped.storage is t.storage and t.storage.holders == holders + 1
    del again
    assert t.storage.holders == holders
    for other in (na.tensor_map(t, (8, 64)), na.tensor_map(t[:32], (16, 64)),
                  na.tensor_map(t, (16, 32), 64), na.tensor_map(t, [16, 64])):  # fmt: skip
        assert other.mapped.own_handle is None
    moved = t.take()
    with pytest.raises(MovedError):
        _ = na.tensor_map(t, (16, 64)).mapped.handle
    assert na.tensor_map(moved, (16, 64)).mapped.own_handle is handle


def test_a_change_is_built_as_python_builds_it(null: na.Device, on: bool) -> None:
    z = na.zeros(8).sync()

    def change(result: Any) -> int:
        return 3

    async def never(result: Any) -> int:
        return 3

    def change_at_once(launch: Any) -> Any:
        return launch.map(change)

    launch, stream = add_one(z), null.new_stream()
    op: Any = change_at_once(launch)
    assert type(op).__name__ == "Map" and repr(op) == "<DeviceOp add_one(z).map(change), not run>"
    made = [getattr(op, name) for name in ("_change", "_first", "_keep", "_label", "_links")]
    assert made == [change, launch, False, None, 1]
    assert (op._site, op.element, op._unused) == (launch._site, None, True)
    assert (op.has_fast_path, op.stream, launch._unused) == (launch.has_fast_path, None, False)
    with pytest.raises(AlreadySubmittedError):
        launch.map(change)
    assert op.sync_on(stream) == 3
    named: Any = add_one[1, 8, stream](z).map(change)
    assert named.stream is stream and named.sync() == 3
    twice: Any = add_one(z).map(change).map(lambda n: n + 1)
    assert twice._links == 2 and twice.sync_on(stream) == 4
    for wrong in (8, never):
        with pytest.raises(OperationError):
            add_one(z).map(wrong)  # type: ignore[arg-type]
    assert add_one(z).map(len).sync_on(stream) == 1, "any callable"
    with pytest.warns(RuntimeWarning, match="was never awaited"):
        change_at_once(add_one(z))


def test_a_view_is_made_as_python_makes_it(null: na.Device, on: bool) -> None:
    t = na.zeros((4, 6)).sync()
    assert t.fingerprint  # not the view's
    holders = t.storage.holders
    view, part, other = t.T, t[1:3], t.reinterpret(np.int32)
    assert t.storage.holders == holders + 3
    assert (view.shape, view.strides, part.shape, part.strides) == (
        (6, 4),
        (4, 24),
        (2, 6),
        (24, 4),
    )
    assert (view.dtype, other.dtype) == (np.float32, np.int32)
    for one in (view, part, other):
        assert type(one) is na.Tensor and one.storage is t.storage and one.device is t.device
        assert (one.source, one.spec, one.own_handle, one._former) == (None,) * 4
        assert one.fingerprint >= 0 and one.fingerprint != t.fingerprint
    assert part.storage_id == t.storage_id
    del view, part, other, one
    assert t.storage.holders == holders
    moved = t.take()
    with pytest.raises(MovedError):
        _ = t.T
    assert moved.T.shape == (6, 4)
