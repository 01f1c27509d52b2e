"""Operations: lazy, once, composable, and clear about mistakes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    AlreadySubmittedError,
    OperationError,
    ReentrancyError,
)
from numbasync.testing import counters, settle
from tests.common import add_one, saxpy, used


def test_an_operation_runs_once(device: na.Device) -> None:
    op = na.zeros(4)
    op.sync()
    with pytest.raises(AlreadySubmittedError, match=r"zeros\(\(4,\)\) was already.*\n.*share"):
        op.sync()
    with pytest.raises(AlreadySubmittedError):
        op.map(lambda t: t)
    with pytest.raises(AlreadySubmittedError):
        na.spawn(op)


def test_a_part_of_another_operation_cannot_be_run(device: na.Device) -> None:
    part = na.zeros(4)
    whole = part.map(lambda t: t.shape)
    with pytest.raises(AlreadySubmittedError):
        part.sync()
    assert whole.sync() == (4,)


def test_a_dropped_operation_that_never_ran_is_named(device: na.Device) -> None:
    before = counters()
    pipeline = na.zeros(4).then(lambda t: add_one(t)).map(lambda r: r.z).inspect(id).dup()
    with pytest.warns(RuntimeWarning, match=r"zeros\(\(4,\)\)\.then.* was never awaited"):
        del pipeline
        gc.collect()
    did = counters() - before
    assert (did.allocations, did.launches, did.compiles) == (0, 0, 0)


def test_then_gives_one_stream_to_all(device: na.Device, stream: na.Stream) -> None:
    streams: list[na.Stream] = []

    def note(ctx: na.Context, value: Any) -> na.DeviceOp[Any]:
        streams.append(ctx.stream)
        return na.value(value)

    na.zeros(3).then_with_context(note).then(lambda t: na.dup(t)).then_with_context(note).sync_on(
        stream
    )
    assert streams == [stream, stream]


def test_map_and_inspect_run_when_enqueued(device: na.Device, stream: na.Stream, gate: Any) -> None:
    seen: list[Any] = []
    gate.close()
    value = na.zeros(3).inspect(seen.append).map(lambda t: ("made", t)).async_on(stream)
    assert value[0] == "made" and value[1] is seen[0]
    assert not stream.query()
    gate.open()
    stream.synchronize()


def test_defer_builds_when_it_runs(device: na.Device) -> None:
    built: list[int] = []

    def build() -> na.DeviceOp[na.Tensor]:
        built.append(1)
        return na.zeros(3)

    op = na.defer(build)
    assert built == []
    assert op.sync().shape == (3,)
    assert built == [1]


def test_with_context_has_stream_device_and_memory(device: na.Device, stream: na.Stream) -> None:
    def build(ctx: na.Context) -> tuple[Any, ...]:
        storage = ctx.alloc(1000)
        ctx.retain(object())
        return ctx.stream, ctx.device, ctx.pool, storage.nbytes >= 1000

    assert na.with_context(build).sync_on(stream) == (stream, device, device.pool, True)
    made = na.with_context(lambda ctx: na.full(2, ctx.device.ordinal)).sync_on(stream)
    assert made.to_host().sync().tolist() == [device.ordinal] * 2


def test_a_closure_without_an_operation_is_told_so(device: na.Device) -> None:
    with pytest.raises(OperationError, match=r"must be an operation, not int.*\n.*na\.value"):
        na.zeros(3).then(lambda t: 3).sync()  # type: ignore[arg-type, return-value]
    with pytest.raises(OperationError, match="argument 1 of zip"):
        na.zip(na.shared(1), 2)  # type: ignore[call-overload]


def test_first_last_and_output(device: na.Device) -> None:
    z = na.zeros(4).sync()
    assert na.zip(na.value(1), na.value(2), na.value(3)).first().sync() == 1
    assert na.zip(na.value(1), na.value(2), na.value(3)).last().sync() == 3
    assert add_one(z).output().sync() is z
    assert add_one(z.partition(2)).output().unpartition().sync() is z
    with pytest.raises(OperationError, match="only the result of a launch"):
        na.value(3).output().sync()
    with pytest.raises(OperationError, match=r"no to_host\(\)"):
        na.value(3).to_host().sync()
    with pytest.raises(OperationError, match="not a tuple"):
        na.value(3).first().sync()


def test_tensor_methods_on_operations(device: na.Device) -> None:
    host = na.arange(12).reshape(3, 4).to_host().sync()
    np.testing.assert_array_equal(host, np.arange(12, dtype=np.float32).reshape(3, 4))
    assert na.zeros((4, 6)).partition((2, 3)).sync().grid == (2, 2)
    assert na.ones(3).dup().to_host().sync().tolist() == [1, 1, 1]
    assert isinstance(na.zeros(3).shared_tensor().sync(), na.SharedTensor)


# --- shared and unzip ---


async def test_shared_in_a_diamond(device: na.Device) -> None:
    runs: list[int] = []
    top = na.full(4, 3).inspect(lambda _: runs.append(1)).shared()
    left = saxpy(na.zeros(4), 1.0, top).output()
    right = saxpy(na.zeros(4), 2.0, top).output()
    both = await na.zip(left.to_host(), right.to_host())
    assert [b.tolist() for b in both] == [[3] * 4, [6] * 4]
    assert runs == [1]


async def test_a_holder_elsewhere_waits_for_the_producer(
    device: na.Device, stream: na.Stream, gate: Any
) -> None:
    add_one(na.zeros(4)).sync()
    other = device.new_stream()
    op = na.full(4, 7).shared()
    gate.close()
    producer = na.spawn(op, stream)
    consumer = na.spawn(op.then(lambda t: t.to_host()), other)
    await settle(device)
    assert not producer.done() and not consumer.done()
    gate.open()
    assert (await consumer).tolist() == [7] * 4
    await producer


async def test_a_holder_fails_with_its_producer(
    device: na.Device, stream: na.Stream, gate: Any
) -> None:
    target = np.zeros(4, np.float32)
    source = await na.ones(4)
    shared = na.memcpy(target, source).shared()
    gate.close()
    producer = na.spawn(shared, stream)
    holder = na.spawn(shared.map(lambda array: array[:2]), device.new_stream())
    await settle(device)
    assert not holder.done()
    target.flags.writeable = False  # so that the copy fails when the device is done
    gate.open()
    for future in (holder, producer):
        with pytest.raises(ValueError, match="read-only"):
            await future


def test_unzip_needs_to_know_how_many(device: na.Device) -> None:
    op = na.value(1).map(lambda x: (x, x + 1))
    with pytest.raises(OperationError, match=r"unzip\(n\)"):
        op.unzip()
    a, b = op.unzip(2)
    assert (b.sync(), a.sync()) == (2, 1)
    three: na.DeviceOp[Any] = na.value((1, 2, 3)).map(lambda t: t)
    only, wrong = three.unzip(2)
    for half in (only, wrong):
        with pytest.raises(OperationError, match="3 values, but unzip expected 2"):
            half.sync()


# --- the execution lock ---


def test_then_unchecked_permits_it(device: na.Device) -> None:
    outer = na.value(2).then_unchecked(lambda x: na.value(x * na.value(21).sync()))
    assert outer.sync() == 42
    with pytest.raises(ReentrancyError):
        na.value(2).then_unchecked(
            lambda x: na.value(x)
        ).then(lambda x: na.value(na.value(x).sync())).sync()  # fmt: skip


# --- what fails, fails early and leaves nothing ---


def test_memory_comes_back(device: na.Device) -> None:
    start = used(device)
    z = na.zeros(100_000).sync()
    assert used(device) >= start + 400_000
    view = z[10:20]
    del z
    assert used(device) >= start + 400_000, "a view holds the storage"
    del view
    assert used(device) == start
