"""What only a GPU shows of waiting: kernels that overlap or take long, and who wakes the loop."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import native
from numbasync.device import reactor, waits
from numbasync.device.wait_estimate import RING_S, Lateness
from numbasync.errors import DeviceLostError
from numbasync.testing import Gate, counters
from tests.common import add_one, used, waited
from tests.device.fake_streams import Clock, turns
from tests.waiting import eventually, rung_once

pytestmark = [
    pytest.mark.cuda,
    # Numba finds grids of one block wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]
streams = pytest.importorskip("numbasync.backend.cuda.stream")
ROOT = Path(__file__).parent.parent.parent


@na.launcher
@cuda.jit
def spin(z: na.KernelOutput, n):
    v = z[0]
    for _ in range(n):
        v = v * 1.0000001 + 1e-9
    z[0] = v


def steps_for(seconds: float, stream: na.Stream) -> int:
    """How many steps of `spin` take this long, once the clocks are up."""
    z = na.zeros(1).sync_on(stream)
    steps = 1_000_000
    begin, end = stream.device.new_event(), stream.device.new_event()
    for _ in range(4):
        begin.record(stream)
        spin[1, 1](z, steps).async_on(stream)
        end.record(stream)
        stream.synchronize()
        steps = max(1000, int(steps * seconds * 1e3 / begin.elapsed_ms(end)))
    return steps


async def test_gather_overlaps_two_kernels_of_one_block(device: na.Device) -> None:
    steps = steps_for(0.05, device.new_stream())
    tensors = [await na.zeros(1) for _ in range(2)]

    async def seconds(n: int) -> float:
        began = time.perf_counter()
        await na.gather(*(spin[1, 1](z, steps) for z in tensors[:n]))
        return time.perf_counter() - began

    await seconds(2)
    seen = []
    for _ in range(3):  # the host has other work, too
        alone, both = await seconds(1), await seconds(2)
        seen.append((alone, both))
        # 75 ms for two of 50 ms; clocks are not steady, so measured against one alone.
        if both < 1.5 * alone:
            assert alone > 0.02, "this is no measurement"
            return
    pytest.fail(f"one after the other (one, both): {seen}")


# How a loop learns that the device has passed a point, each way made the only one.
NO_GLANCE = "stream.CudaStream.spin_poll = lambda self: False; "
LOOKS = NO_GLANCE + "host_callback.host_function = lambda: 0"
SLEEPS = NO_GLANCE + (
    "host_callback._begun = True; host_callback._compile(); device.CudaDevice.spin_seconds = 0.0"
)
PATHS = {
    "glances": ("word", ""),
    "without the core": ("word", "native.switch(False)"),
    "counter polling": ("word", LOOKS),
    "event polling": ("event", LOOKS),
    "native wake-up": ("word", SLEEPS),
    "events and native wake-up": ("event", SLEEPS),
}


@pytest.mark.parametrize("path", PATHS)
def test_every_completion_path_passes_the_same_suite(
    path: str, python: str, python_env: dict[str, str]
) -> None:
    completion, change = PATHS[path]
    env = {**python_env, "NUMBASYNC_COMPLETION": completion, "NUMBASYNC_DEVICE": "cuda"}
    env.pop("PYTHONWARNINGS")
    program = f"""
import sys, pytest
from numbasync import native
from numbasync.backend.cuda import device, host_callback, stream
{change}
sys.exit(pytest.main([
    "-q", "-x", "-p", "numbasync.testing.plugin", "--device", "cuda",
    "tests/ops/test_awaiting.py", "tests/ops/test_awaiting_costs.py", "tests/ops/test_gather.py",
    "tests/device/test_ordering.py",
]))
"""
    result = subprocess.run(
        [python, "-c", program], env=env, capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-1000:]


def test_a_free_does_not_wait_for_other_streams(device: na.Device, stream: na.Stream) -> None:
    """What a gate shows by holding a stream, a long kernel shows by running."""
    steps = steps_for(0.2, stream)
    z, out = na.zeros(1).sync(), na.zeros(2**20).sync()
    source = na.full(2**20, 5).sync()
    start = used(device)
    spin[1, 1](z, steps).async_on(stream)
    na.memcpy(out, source).async_on(stream)
    del source
    assert device.memory_stats().used_current == start, "the copy is still to come"
    poison = na.full(2**20, 9).sync_on(device.new_stream())
    stream.synchronize()
    assert (out.to_host().sync() == 5).all() and (poison.to_host().sync() == 9).all()
    assert used(device) == start


def test_finalisers_of_the_backend_never_raise(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numbasync.backend.cuda import memory

    raised: list[Any] = []
    gc.collect()
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    lost = device.new_pool().allocate(1000, device.new_stream().backend)
    with monkeypatch.context() as patch:  # as at interpreter exit, when the driver is gone
        patch.setattr(memory.cu, "cuMemFreeAsync", lambda *_: 1 // 0)
        del lost
    assert raised == []


@pytest.fixture
def python_way() -> Iterator[None]:
    native.switch(False)
    yield
    native.switch(True)


async def test_a_good_ring_asks_the_driver_nothing(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch,
    python_way: None,
) -> None:  # fmt: skip
    """The core asks the driver where no patch sees it; tests/native counts its calls."""
    await rung_once(stream)
    query, asked = streams.CudaStream._query, []

    def count(self: Any) -> int:
        asked.append(self)
        return query(self)

    monkeypatch.setattr(streams.CudaStream, "_query", count)
    future = na.spawn(na.ones(4).to_host(), stream)
    stream.synchronize()
    await future
    assert asked, "nobody had vouched for it"
    watcher = reactor.current()
    for _ in range(50):  # a loop that sleeps for long asks, too, and a timer may come first
        before, wakeups = watcher.statistics(), counters().callbacks
        gate.close()
        task = asyncio.ensure_future(waited(na.ones(4).to_host().schedule(stream)))
        await eventually(lambda n=wakeups: counters().callbacks > n)
        asked.clear()
        gate.open()
        assert (await task == 1).all()
        if not asked:
            break
    else:
        pytest.fail("the driver was asked behind every ring")
    assert watcher.statistics().wakeups > before.wakeups
    assert stream.backend.verified_sequence() == stream.enqueue_signal() - 1


async def test_the_ring_needs_no_interpreter(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    """The libraries that call the driver for Python wrap what the driver is to call."""
    await rung_once(stream)

    class Poll(ctypes.Structure):
        _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("seen", ctypes.c_short))

    watcher = reactor.current()
    wakeups = counters().callbacks
    gate.close()
    task = asyncio.ensure_future(waited(na.zeros(4).schedule(stream)))
    await eventually(lambda: counters().callbacks > wakeups)
    waker = watcher._waker
    assert waker is not None
    poll = Poll(waker.fileno, select.POLLIN, 0)
    gate.open()
    # Nobody gets the interpreter while this waits.
    assert ctypes.PyDLL(None).poll(ctypes.byref(poll), 1, 5000) == 1
    await task


FAULT = """
from numba import cuda
import numbasync as na
from numbasync.backend.cuda import host_callback
from numbasync.device import reactor, waits
from numbasync.device.wait_estimate import RING_S, Lateness

host_callback._begun = True
host_callback._compile()

@na.launcher
@cuda.jit
def wait_and_fault(z: na.KernelOutput, steps, i):
    v = z[0]
    for _ in range(steps):
        v = v * 1.0000001 + 1e-9
    z[i] = v

async def main():
    stream = na.default_device().new_stream()
    z = await na.zeros(4).schedule(stream)
    await wait_and_fault[1, 1](z, 1, 0).schedule(stream)
    future = na.spawn(wait_and_fault[1, 1](z, 10_000_000, 2**40), stream)
    last = stream._sequence
    try:
        await future
    except na.errors.DeviceLostError:
        print("asleep", reactor.current().statistics().sleeps > 0)
        print("vouched", stream.backend.verified_sequence() >= last)

na.run(main())
"""


def test_nothing_vouches_for_a_fault(python: str, python_env: dict[str, str]) -> None:
    result = subprocess.run(
        [python, "-c", FAULT], env={**python_env, "NUMBASYNC_DEVICE": "cuda"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.stdout.split() == ["asleep", "True", "vouched", "False"], result.stderr


def test_the_asked_status_is_the_drivers(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch, python_way: None
) -> None:
    """Of a stream whose word has moved although the driver reports a fault."""
    future = na.spawn(na.ones(4).to_host(), stream)
    stream.synchronize()
    assert future.done()
    illegal = streams.cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with monkeypatch.context() as patch:
        patch.setattr(streams.CudaStream, "_query", lambda self: int(illegal))
        with pytest.raises(DeviceLostError, match=r"ILLEGAL_ADDRESS.*reported by cuStreamQuery"):
            future.sync()
    device.forget_fault()
    assert np.ones(4).sum() == na.ones(4).to_host().sync().sum()


async def test_a_long_kernel_is_waited_for_asleep(device: na.Device) -> None:
    from numbasync.backend.cuda import host_callback

    z = await na.zeros(1)
    steps = steps_for(0.2, device.new_stream())
    deadline = time.monotonic() + 60
    while not host_callback.host_function():  # compiled on another thread, once
        assert time.monotonic() < deadline
        await na.value(0)
    before, sleeps = counters().callbacks, reactor.current().statistics().sleeps
    cpu = time.process_time()
    began = time.perf_counter()
    await spin[1, 1](z, steps)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert counters().callbacks == before + 1
    assert reactor.current().statistics().sleeps > sleeps
    assert cpu < 0.2 * wall, "looked instead of sleeping"


async def test_only_long_unforeseen_work_rings(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that the test holds: a GPU that others use, too, may take any time."""
    await rung_once(stream)
    z = await na.zeros(1)
    await add_one(z).schedule(stream)
    clock = Clock()
    for module in (reactor, waits):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(Lateness, "is_long", False)  # this machine has other work, too
    watcher = reactor.current()
    before = counters().callbacks
    for _ in range(200):
        await add_one(z)  # in no time
    for earlier, wakeups in ((0, 1), (1, 2), (2, 2)):  # the third one is foreseen
        gate.close()
        task = asyncio.ensure_future(waited(add_one(z).schedule(stream)))
        await eventually(lambda: watcher.statistics().waiting)
        clock.now += 0.9 * RING_S
        await eventually(lambda: watcher._queues)
        await turns(50)
        assert counters().callbacks == before + earlier
        clock.now += 0.2 * RING_S
        await eventually(lambda n=wakeups: counters().callbacks >= before + n)
        await turns(50)
        assert counters().callbacks == before + wakeups
        gate.open()
        await task


def test_the_completion_path_is_chosen_by_the_environment(
    python: str, python_env: dict[str, str]
) -> None:
    program = "import numbasync as na; d = na.devices('cuda')[0]; print(d.backend.completion.name)"
    for path in ("word", "event"):
        result = subprocess.run(
            [python, "-c", program], env={**python_env, "NUMBASYNC_COMPLETION": path},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert result.stdout.strip() == path, result.stderr
