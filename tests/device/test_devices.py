"""Devices, streams and events; processes that fork."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
from typing import Any

import pytest

import numbasync as na
from numbasync.errors import CallerError, DeviceMismatchError, StateError
from numbasync.testing import Gate, settle
from tests import sessions
from tests.common import add_one, used, waited


def test_there_is_always_a_cpu_device() -> None:
    cpus = na.devices("cpu")
    assert len(cpus) >= 1 and all(d.kind == "cpu" for d in cpus)
    assert na.devices() == na.devices("cuda") + cpus
    assert cpus[0] is na.devices("cpu")[0]
    with pytest.raises(CallerError, match="no device kind 'tpu'"):
        na.devices("tpu")


def test_what_a_device_says_of_itself(device: na.Device) -> None:
    assert repr(device) == f"<Device {device.kind}:{device.ordinal} {device.name}>"
    assert len(device.compute_capability) == 2
    assert device.limits.max_threads_per_block >= 1024
    assert device.can_access(device)
    assert device.backend.completion.reason


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"NUMBASYNC_DEVICE": "cpu"}, "cpu:0 of 2"),
        ({"NUMBASYNC_DEVICE": "cpu", "NUMBASYNC_CPU_DEVICES": "5"}, "cpu:0 of 5"),
        ({"NUMBASYNC_DEVICE": "tpu"}, "'tpu' is not a device kind"),
        ({"NUMBASYNC_DEVICE": "cpu", "NUMBASYNC_CPU_DEVICES": "many"}, "'many' is not a number"),
        ({"NUMBASYNC_DEVICE": "cpu", "NUMBASYNC_CPU_DEVICES": "0"}, "'0' is not a number"),
    ],
)
def test_the_environment_chooses(
    variables: dict[str, str], says: str, python: str, python_env: dict[str, str]
) -> None:
    program = (
        "import numbasync as na\n"
        "try:\n"
        "    print(na.default_device().label, 'of', len(na.devices('cpu')))\n"
        "except na.errors.DeviceUnavailableError as error:\n"
        "    print(error)\n"
    )
    result = sessions.run_program(python, ["-c", program], {**python_env, **variables}, seconds=600)
    assert says in result.stdout, result.stderr


async def test_the_current_device_belongs_to_the_task() -> None:
    one, two = na.devices("cpu")[:2]
    seen: dict[str, na.Device] = {}
    entered, left = asyncio.Event(), asyncio.Event()

    async def inside() -> None:
        with na.use_device(two):
            entered.set()
            await left.wait()
            seen["inside"] = na.default_device()
            seen["inherited"] = await asyncio.create_task(ask())

    async def ask() -> na.Device:
        return na.default_device()

    with na.use_device(one):
        task = asyncio.create_task(inside())
        await entered.wait()
        seen["outside"] = na.default_device()
        left.set()
        await task
    assert seen == {"inside": two, "inherited": two, "outside": one}


def test_a_device_is_used_by_its_name(device: na.Device) -> None:
    for name in (device.label, f"{device.kind}:{device.ordinal}"):
        with na.use_device(name) as used:
            assert used is device is na.default_device() is na.empty(1).sync().device
    first = na.devices(device.kind)[0]
    with na.use_device(device.kind):
        assert na.default_device() is first


@pytest.mark.parametrize("name", ["cpu:99", "gpu", "CPU", "", "cuda:", "cpu:0 "])
def test_a_missing_device_is_refused_with_the_existing(name: str) -> None:
    before = na.default_device()
    with pytest.raises(na.errors.CallerError) as refused, na.use_device(name):
        pass
    said = str(refused.value)
    assert repr(name) in said and all(d.label in said for d in na.devices())
    assert ("no CUDA device: " in said) == (not na.devices("cuda"))
    assert na.default_device() is before


async def test_streams(device: na.Device) -> None:
    stream = await na.Stream.create(device)
    assert stream.device is device and stream.query()
    assert await stream.done() is stream
    stream.synchronize()
    assert "0 in flight" in repr(stream)
    assert hasattr(stream, "__cuda_stream__") == (device.kind == "cuda")


async def test_query_and_pending_follow_the_gate(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    na.zeros(4).sync()
    gate.close()
    for _ in range(3):
        na.zeros(4).async_on(stream)
    assert stream.pending == 3 and not stream.query()
    assert "3 in flight" in repr(stream)
    gate.open()
    await stream.done()
    assert stream.pending == 0 and stream.query()


def test_a_dropped_stream_is_reused_and_counts_on(device: na.Device) -> None:
    stream = device.new_stream()
    backend = stream.backend
    na.zeros(4).sync_on(stream)
    del stream
    gc.collect()
    idle = len(device._dropped_streams[0])  # also those of earlier tests
    again = [device.new_stream() for _ in range(idle)]
    found = [s for s in again if s.backend is backend]
    assert len(found) == 1
    assert na.full(4, 3).to_host().sync_on(found[0]).tolist() == [3] * 4


async def test_a_stream_that_nobody_holds_finishes_its_work(device: na.Device) -> None:
    na.zeros(4).sync()
    start = used(device)
    spare = [device.new_stream() for _ in range(51)]  # to make one may wait for a shut gate
    stream = spare.pop()
    held = Gate(stream)
    held.close()
    del spare
    backend = stream.backend
    na.zeros(2**18).async_on(stream)
    held.stream = None  # type: ignore[assignment]
    del stream
    gc.collect()
    assert all(s.backend is not backend for s in [device.new_stream() for _ in range(50)])
    assert used(device) > start
    held.open()
    device.synchronize()
    assert used(device) == start


async def test_round_robin_uses_every_stream(device: na.Device, policy: Any) -> None:
    streams = [await na.with_context(lambda ctx: ctx.stream).schedule(policy) for _ in range(5)]
    assert len(set(streams)) == 4 and streams[0] is streams[4]


async def test_least_pending_avoids_a_held_stream(device: na.Device) -> None:
    na.zeros(4).sync()
    policy = na.LeastPending(device, 2)
    with Gate(policy.streams[0]):
        na.zeros(4).async_on(policy.streams[0])
        for _ in range(3):
            assert policy.next_stream() is policy.streams[1]
            await na.zeros(4).schedule(policy)
    policy.streams[0].synchronize()


async def test_events(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    add_one(na.zeros(8)).sync()
    event, later = device.new_event(), device.new_event()
    assert event.query() and await event is event
    with pytest.raises(StateError, match="recorded"):
        event.elapsed_ms(later)
    event.record(stream)
    await event
    gate.close()
    add_one(na.zeros(8)).async_on(stream)
    later.record(stream)
    task = asyncio.ensure_future(waited(later))
    await settle(device)
    assert not later.query() and not task.done()
    with pytest.raises(StateError):
        event.elapsed_ms(later)
    gate.open()
    await task
    later.synchronize()
    assert later.query() and event.elapsed_ms(later) > 0
    assert "passed" in repr(later)


async def test_an_event_orders_two_streams(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    na.zeros(8).sync()
    other, event = device.new_stream(), device.new_event(timing=False)
    gate.close()
    na.zeros(8).async_on(stream)
    event.record(stream)
    event.wait(other)
    na.zeros(8).async_on(other)
    await settle(device)
    assert not other.query()
    gate.open()
    await other.done()
    assert stream.query()


def test_an_event_of_another_device_is_refused() -> None:
    one, two = na.devices("cpu")[:2]
    with pytest.raises(DeviceMismatchError):
        one.new_event().record(two.new_stream())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child(device: na.Device, python: str, python_env: dict[str, str]) -> None:
    """The CPU device works in it; CUDA cannot, and says so."""
    program = """
import os, warnings, numbasync as na
warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork in a process with threads
async def main():
    return (await (await na.ones(3)).to_host()).tolist()
assert na.run(main()) == [1, 1, 1]
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    assert na.run(main()) == [1, 1, 1]
    print("parent", status)
else:
    try:
        print("child", na.run(main()), flush=True)
    except na.errors.DeviceUnavailableError as error:
        print("child", error, flush=True)
    os._exit(0)
"""
    result = subprocess.run(
        [python, "-c", program], env={**python_env, "NUMBASYNC_DEVICE": device.kind},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.stderr == ""
    expected = "[1.0, 1.0, 1.0]" if device.kind == "cpu" else "CUDA cannot be used in a forked"
    assert result.stdout.startswith(f"child {expected}")
    assert result.stdout.endswith("parent 0\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_work_in_flight_survives_a_fork(
    device: na.Device, python: str, python_env: dict[str, str]
) -> None:
    if device.kind != "cpu":
        pytest.skip("CUDA cannot be used in a forked child")
    program = """
import faulthandler, os, sys, warnings, numbasync as na
from tests.common import add_one
warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork in a process with threads
streams = [na.default_device().new_stream() for _ in range(3)]
failed = 0
for i in range(12):
    z = na.zeros(3000).sync()
    futures = [na.spawn(add_one(z), streams[k % 3]) for k in range(6)]
    if i % 6:
        futures[i % 6 - 1].sync()
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(180, exit=True)
        os._exit(not ((z.to_host().sync() == 6).all() and futures[-1].sync().z is z))
    assert (z.to_host().sync() == 6).all()
    failed += os.waitpid(child, 0)[1] != 0
print(failed)
"""
    env = {**python_env, "NUMBASYNC_DEVICE": device.kind}
    result = sessions.run_program(python, ["-c", program], env, seconds=600)
    assert (result.stdout, result.stderr) == ("0\n", "")
