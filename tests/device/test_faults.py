"""What goes wrong on a device: who is told, what the message says, and what still works."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    CallerError,
    DeviceLostError,
    DriverError,
    KernelError,
    OutOfDeviceMemoryError,
)
from numbasync.testing import Gate, inject, settle
from tests.common import add_one, fresh, saxpy, used, waited


def line_of(text: str) -> int:
    """The number of the line of this file that holds `text`."""
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if text in line and "line_of" not in line)


# --- messages point to the line that submitted --------------------------------------------


async def test_a_failed_kernel_names_chain_and_line(
    device: na.Device,
) -> None:
    z, x = await na.zeros(4), await na.ones(4)
    with inject(device, "kernel") as fault:
        future = na.spawn(saxpy(z, 2.0, x).then(lambda r: na.value(r.z)))  # here
    with pytest.raises(KernelError) as caught:
        await future
    said = str(caught.value)
    assert "In saxpy(z, a, x).then(<lambda>), which launched saxpy; submitted at" in said
    assert f'test_faults.py", line {line_of("# here")}, in {future_site()}' in said
    assert fault.happened


def future_site() -> str:
    return "test_a_failed_kernel_names_chain_and_line"


async def test_the_line_is_that_of_the_await(device: na.Device) -> None:
    z = await na.zeros(4)
    future = add_one(z).schedule(device.policy)
    with inject(device, "kernel"), pytest.raises(KernelError) as caught:
        await future  # awaited here
    assert f"line {line_of('# awaited here')}, in" in str(caught.value)


def test_the_line_of_a_blocking_form(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(4).sync()
    with inject(device, "kernel"), pytest.raises(KernelError) as caught:
        add_one(z).sync_on(stream)  # blocks here
    assert f"line {line_of('# blocks here')}, in" in str(caught.value)
    with inject(device, "kernel"):
        add_one(z).async_on(stream)  # enqueues here
    with pytest.raises(KernelError) as caught:
        stream.synchronize()
    assert f"line {line_of('# enqueues here')}, in" in str(caught.value)


async def test_dependents_get_the_same_message_once(device: na.Device) -> None:
    op = na.zeros(4).then(lambda z: add_one(z)).output().shared()
    with inject(device, "kernel"):
        futures = [na.spawn(op.then(lambda z: z.to_host())) for _ in range(3)]
    said = []
    for future in futures:
        with pytest.raises(KernelError) as caught:
            await future
        said.append(str(caught.value))
    assert len(set(said)) == 1
    assert said[0].count("submitted at") == 1


async def test_a_late_error_notes_who_submitted_it(
    device: na.Device,
) -> None:
    def broken(_: Any) -> Any:
        raise ValueError("in a closure")

    future = na.spawn(fresh()(na.zeros(4)).then(broken))  # stands in line
    with pytest.raises(ValueError, match="in a closure") as caught:
        await future
    (note,) = caught.value.__notes__
    assert f"line {line_of('# stands in line')}, in" in note
    with pytest.raises(ValueError, match="in a closure"):
        await future
    assert len(caught.value.__notes__) == 1


# --- one operation fails --------------------------------------------------------------------


async def test_only_the_nth_launch_fails(device: na.Device) -> None:
    z = await na.zeros(4)
    results = []
    with inject(device, "kernel", after=2) as fault:
        for _ in range(4):
            try:
                await add_one(z)
                results.append("right")
            except KernelError:
                results.append("failed")
    assert results == ["right", "right", "failed", "right"]
    assert fault.calls == 4
    assert (await z.to_host()).tolist() == [3] * 4


@pytest.mark.parametrize("after", range(4))
async def test_an_allocation_that_fails_half_way_leaves_nothing(
    device: na.Device, after: int
) -> None:
    host = np.ones(1000, np.float32)
    before = used(device)

    def program() -> na.DeviceOp[Any]:
        made = na.zip(na.from_host(host), na.zeros(1000))
        return made.then(lambda t: saxpy(t[1], 3.0, t[0])).output().dup().to_host()

    refused = contextlib.suppress(OutOfDeviceMemoryError)
    with inject(device, "allocation", after=after) as fault, refused:
        assert (await program()).tolist() == [3] * 1000
    assert fault.happened == (after < 3)
    assert (await program()).tolist() == [3] * 1000
    assert used(device) == before


# --- the device is lost -----------------------------------------------------------------------


async def test_a_lost_device_fails_all_later_operations(
    device: na.Device,
) -> None:
    z, y = await na.zeros(4), await na.zeros(4)
    streams = [device.new_stream() for _ in range(2)]
    future = None
    with inject(device, "device") as fault:
        future = na.spawn(add_one(z), streams[0])  # breaks it
        with pytest.raises(DeviceLostError) as caught:
            await future
        said = str(caught.value)
        assert "At work then was:\n  add_one(z)" in said
        assert f"line {line_of('# breaks it')}, in" in said
        launched = fault.calls
        for attempt in (
            lambda: add_one(y).sync(),
            lambda: na.zeros(4).sync_on(streams[1]),
            lambda: na.spawn(add_one(y)).sync(),
            device.new_stream,
            streams[1].synchronize,
            device.synchronize,
        ):
            with pytest.raises(DeviceLostError) as caught:
                attempt()
            assert "add_one(z)" in str(caught.value)
        with pytest.raises(DeviceLostError):
            await add_one(y)
        assert fault.calls == launched, "something was launched on a lost device"
    assert (await add_one(y).output().to_host()).tolist() == [1] * 4


@pytest.mark.parametrize("replayed", [False, True], ids=["a launch", "a graph"])
def test_who_blocks_is_told_of_a_lost_device(
    device: na.Device, stream: na.Stream, replayed: bool
) -> None:
    z = na.zeros(8).sync()
    add_one(z).sync()
    graph = add_one(z).graph_on(stream)
    with inject(device, "device"):
        with pytest.raises(DeviceLostError, match="an injected fault"):
            (graph.launch() if replayed else add_one(z)).sync_on(stream)
        with pytest.raises(DeviceLostError):
            na.fill(z, 3).sync()
    assert (na.ones(8).to_host().sync() == 1).all()


async def test_all_waiters_are_told_of_lost_devices(
    device: na.Device,
) -> None:
    tensors = [await na.zeros(4) for _ in range(6)]
    with inject(device, "device", after=3):
        futures = [na.spawn(add_one(z)) for z in tensors]
        results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 300)
    lost = [r for r in results if isinstance(r, DeviceLostError)]
    assert lost and all(r is lost[0] for r in lost)
    assert "At work then" in str(lost[0])


async def test_a_lost_device_returns_what_work_held(device: na.Device) -> None:
    before = used(device)
    with inject(device, "device"):
        futures = [na.spawn(na.zeros(1 << 16).then(lambda z: add_one(z))) for _ in range(3)]
        with pytest.raises(DeviceLostError):
            await futures.pop()
        assert all(f.done() for f in futures)  # those on other streams are told at once
        while futures:
            with pytest.raises(DeviceLostError):
                await futures.pop()
    gc.collect()
    assert used(device) == before


# --- the device does not tell ---------------------------------------------------------------


async def test_a_lost_completion_does_not_hang_its_awaiter(device: na.Device) -> None:
    z = await na.zeros(4)
    before = used(device)
    with inject(device, "completion") as fault:
        future = na.spawn(add_one(z))  # which has a mark, whoever waits for it
        assert fault.happened
        r = await asyncio.wait_for(waited(future), 300)
        assert (await r.z.to_host()).tolist() == [1] * 4
        assert used(device) == before


def test_a_lost_completion_does_not_keep_memory(device: na.Device, stream: na.Stream) -> None:
    before = used(device)
    with inject(device, "completion"):
        z = na.zeros(1 << 16).sync_on(stream)
        assert stream.pending == 0
    del z
    assert used(device) == before


async def test_a_gate_is_no_lost_completion(device: na.Device, stream: na.Stream) -> None:
    z = await na.zeros(4)
    with Gate(stream):
        future = na.spawn(add_one(z), stream)
        await settle(device)
        assert not stream.query_device()
        assert not future.done()
    await future


async def test_a_failing_look_reaches_the_awaiter_only(
    device: na.Device, stream: na.Stream
) -> None:
    z = await na.zeros(4)
    with Gate(stream) as gate:
        future = na.spawn(add_one(z), stream)
        task = asyncio.ensure_future(waited(future))
        await settle(device)
        with inject(device, "query"):
            stream_look(stream)
        gate.open()
        await task
    with inject(device, "query"), pytest.raises(DriverError, match="an injected fault"):
        await na.spawn(add_one(z), stream)
    assert (await z.to_host()).tolist() == [2] * 4


def stream_look(stream: na.Stream) -> None:
    with pytest.raises(DriverError):
        stream.advance()


async def test_looks_that_fail_elsewhere_are_nobodys_error(device: na.Device) -> None:
    one, two = device.new_stream(), device.new_stream()
    z = await na.zeros(4)
    with Gate(one):
        future = na.spawn(add_one(z), one)
        with inject(device, "query") as fault:
            device.reclaim()
            assert fault.happened
            assert (await na.ones(4).to_host().schedule(two)).tolist() == [1] * 4
    await future


async def test_a_question_that_fails_elsewhere_is_nobodys_error(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is out of memory, or waits for room, asks every stream."""
    one = device.new_stream()
    z = await na.zeros(4)
    asked: list[na.Stream] = []

    def give_up(stream: na.Stream) -> bool:
        asked.append(stream)
        raise DriverError("cuStreamQuery", 999, "CUDA_ERROR_UNKNOWN", "an injected fault")

    with Gate(one):
        future = na.spawn(add_one(z), one)
        with monkeypatch.context() as patch:
            patch.setattr(na.Stream, "query_device", give_up)
            device.ask()
        assert one in asked
    await future


def test_what_is_no_fault_is_refused(device: na.Device) -> None:
    fire: Any = "fire"
    with pytest.raises(CallerError, match="'allocation', 'kernel'"), inject(device, fire):
        pass
    with (
        pytest.raises(CallerError, match="is -1: write a whole number"),
        inject(device, "kernel", after=-1),
    ):
        pass


# --- nobody waits ---------------------------------------------------------------------------


async def test_a_failure_after_its_future_was_dropped_warns(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    gate.close()
    with inject(device, "kernel"):
        na.spawn(add_one(z), stream)  # forgotten
    gate.open()
    with pytest.warns(RuntimeWarning, match=r"add_one\(z\) failed and was never awaited.*injected"):
        await stream.done()


async def test_who_was_cancelled_is_not_warned_of(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    gate.close()
    with inject(device, "kernel"):
        task = asyncio.ensure_future(waited(na.spawn(add_one(z), stream)))
        await settle(device)
    task.cancel()
    await settle(device)
    del task
    gate.open()
    await stream.done()
    gc.collect()
