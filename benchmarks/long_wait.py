"""Waiting for a kernel of half a second: gaps of the event loop, processor time, and delay.

The delay is the device's time from an event behind the kernel to an event that is recorded as soon
as the waiter is back. Both are of the device's own clock, so no two clocks are compared; recording
and passing the second event is included, so the delay is at most what is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from benchmarks import peer_registry, report
from benchmarks.measure import Figure, Measured, Missing
from benchmarks.targets import Target
from numbasync.device.device import Device
from numbasync.testing.timing.timer import Stopwatch, seconds_of, turns, without_garbage_collection

SECONDS = 0.5
TICK = 0.005
OURS, EXECUTOR = "numbasync: await", "run_in_executor: stream.synchronize"
BLOCKING = "numbasync: sync_on"  # it has no gap, as the loop stands still
GAP, SHARE, DELAY = "worst gap of a 5 ms ticker", "processor use of the process", "delay, at most"
METHOD = (
    "A kernel of one thread that adds up for about {seconds:g} s. Worst gap between two turns of a "
    "task that sleeps {tick:g} ms, in waits of their own; in others, without that task, processor "
    "time of the process over the kernel's time, and the device's time from the end of the "
    "kernel to a mark enqueued as soon as the waiter is back, which includes enqueuing it. "
    "Medians and quartiles of {rounds} waits after one that does not count."
)
TARGETS = (
    Target(f"a 500 ms kernel: {GAP}", f"{OURS}: {GAP}", None, 10.0, 6.0),
    Target(f"a 500 ms kernel: {SHARE}", f"{OURS}: {SHARE}", None, 5.0, 1.0),
    Target(f"a 500 ms kernel: {DELAY}", f"{OURS}: {DELAY}", None, 100.0, 40.0),
)
UNITS = {GAP: "ms", SHARE: "%", DELAY: "us"}


@na.launcher
@cuda.jit
def add_up(z: na.KernelOutput, steps: Any) -> None:
    total = 0.0
    for _ in range(steps):  # a sum of floats is not replaced by a product
        total += 1.0
    if cuda.grid(1) == 0:
        z[0] = total


@dataclass(slots=True)
class _Kernel:
    """The kernel, with as many steps as take about `SECONDS` on this machine."""

    stream: na.Stream
    z: na.Tensor
    steps: int

    def op(self) -> Any:
        return add_up[1, 1](self.z, self.steps)


async def long_wait(device: Device, rounds: int) -> report.Record:
    """The table of this kernel."""
    kernel = _calibrated(device)
    waits = {OURS: _await, EXECUTOR: _in_executor, BLOCKING: _block}
    samples = dict[str, list[float]]()
    with without_garbage_collection():
        for (name, wait), counts in turns(list(waits.items()), rounds):
            found = {} if wait is _block else {GAP: await _gap(device, kernel, wait)}
            found[SHARE], found[DELAY] = await _cost(device, kernel, wait)
            for quantity, value in found.items() if counts else ():
                samples.setdefault(f"{name}: {quantity}", []).append(value)
    np.testing.assert_equal((await kernel.z.to_host())[0], kernel.steps)
    method = METHOD.format(seconds=SECONDS, tick=TICK * 1e3, rounds=rounds)
    return report.table(
        "a kernel of 500 ms", method, _measured(device, samples), f"{OURS}: {GAP}", TARGETS,
        "each in its own unit",
    )  # fmt: skip


def _measured(device: Device, samples: dict[str, list[float]]) -> Measured:
    measured = Measured([], [])
    for name, values in samples.items():
        quantity = name.split(": ")[-1]
        if quantity == SHARE and not peer_registry.has_own_processor(device):
            measured.missing.append(Missing(name, "the kernel is computed by this very process"))
        else:
            measured.figures.append(Figure.of(name, values, 1, UNITS[quantity]))
    return measured


def _calibrated(device: Device) -> _Kernel:
    stream = device.new_stream()
    z = na.zeros(1, np.float64).sync_on(stream)
    kernel = _Kernel(stream, z, 100_000)
    while True:
        kernel.op().sync_on(stream)  # compiles; lets the clock of the device rise
        seconds = seconds_of(lambda: kernel.op().sync_on(stream))
        if seconds > SECONDS / 10:
            kernel.steps = round(kernel.steps * SECONDS / seconds)
            return kernel
        kernel.steps *= 4


_Wait = Callable[[_Kernel, na.Event], Awaitable[None]]


async def _await(kernel: _Kernel, end: na.Event) -> None:
    await kernel.op().inspect(lambda _: end.record(kernel.stream)).schedule(kernel.stream)


async def _in_executor(kernel: _Kernel, end: na.Event) -> None:
    kernel.op().inspect(lambda _: end.record(kernel.stream)).async_on(kernel.stream)
    await asyncio.get_running_loop().run_in_executor(None, kernel.stream.synchronize)


async def _block(kernel: _Kernel, end: na.Event) -> None:
    kernel.op().inspect(lambda _: end.record(kernel.stream)).sync_on(kernel.stream)


async def _gap(device: Device, kernel: _Kernel, wait: _Wait) -> float:
    """The longest time between two turns of the ticker, in milliseconds."""
    worst = 0.0
    last = time.perf_counter()

    def note_turn() -> None:
        nonlocal worst, last
        now = time.perf_counter()
        worst, last = max(worst, now - last), now

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK)
            note_turn()

    ticker = asyncio.ensure_future(tick())
    await asyncio.sleep(0)
    await wait(kernel, device.new_event())
    note_turn()  # a wait that holds up the loop ends before the ticker's next turn
    ticker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ticker
    return worst * 1e3


async def _cost(device: Device, kernel: _Kernel, wait: _Wait) -> tuple[float, float]:
    """Percent of a processor, and microseconds until the waiter is back, at most."""
    end, back = device.new_event(), device.new_event()
    with Stopwatch() as wall, Stopwatch(time.process_time) as processor:
        await wait(kernel, end)
        back.record(kernel.stream)
    await back
    return 100 * processor.seconds / wall.seconds, 1e3 * end.elapsed_ms(back)
