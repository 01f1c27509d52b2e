"""A soak: a million awaited operations of every kind, and what is left behind.

    python -m tests.soak [operations] [device kind] [--steps 10] [--drift 1.1] [--growth 8]

prints the process's resident memory, the device's pool, what the interpreter holds, and the
median time of an operation, as the operations go on. They must stay where they are: it fails if
the last fifth of the steps is slower than the first fifth by more than `--drift`, or has more
than `--growth` MiB more in memory, or if the pool has grown at all.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import numbasync as na
from tests.common import add_one, used


@dataclass(frozen=True)
class Step:
    """What was seen at the end of a step.

    Attributes:
        median: microseconds of one operation, in the rounds of this step.
        memory: MiB of the process that are resident.
        pool: bytes of the device's pool that are in use.
    """

    median: float
    memory: float
    pool: int


def resident() -> float:
    """MiB of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def seen(device: na.Device, done: int, start: float, times: Sequence[float]) -> Step:
    """A step, which is printed."""
    device.synchronize()  # what nobody awaits is in flight, and has memory
    in_use = used(device)  # collects first
    step = Step(statistics.median(times) * 1e6, resident(), in_use)
    rate = done / max(time.perf_counter() - start, 1e-9)
    print(
        f"{done:>9,} | {step.memory:7.1f} MiB | pool {step.pool:>8,} B | "
        f"{len(gc.get_objects()):>7,} objects | {threading.active_count():>2} threads | "
        f"{rate:>7,.0f} a second | median {step.median:7.2f} us an op",
        flush=True,
    )
    return step


def complaints(steps: Sequence[Step], drift: float, growth: float) -> list[str]:
    """What has not stayed where it was, from the first fifth of the steps to the last."""
    fifth = max(1, len(steps) // 5)
    first, last = steps[:fifth], steps[-fifth:]
    found = []
    slower = statistics.median(s.median for s in last) / statistics.median(s.median for s in first)
    print(f"median of the last fifth / of the first fifth: {slower:.3f}")
    if slower > drift:
        found.append(f"the median drifted by {slower:.3f}, allowed are {drift:g}")
    more = last[-1].memory - first[-1].memory
    print(f"memory since the first fifth: {more:+.1f} MiB")
    if more > growth:
        found.append(f"{more:.1f} MiB more in memory, allowed are {growth:g}")
    if last[-1].pool > first[-1].pool:
        found.append(f"{last[-1].pool - first[-1].pool:,} bytes more in use on the device")
    return found


async def round_of(z: na.Tensor, host: np.ndarray, gone: na.Stream) -> int:
    """A few operations of each kind; how many. `z` has grown by 9 afterwards."""
    await add_one(z)
    for _ in range(4):
        await add_one(z.partition(64))
    await na.gather(add_one(z), add_one(z), na.value(1))
    once = add_one(z).output().shared()
    await na.gather(once, once.then(lambda t: t.dup()))
    made = await na.zeros(256).then(lambda t: add_one(t)).output()
    await made.copy_from(host)
    task = asyncio.ensure_future(_awaited(na.ones(256).then(lambda t: t.to_host()).schedule(gone)))
    await asyncio.sleep(0)
    task.cancel()
    na.spawn(na.zeros(256), gone)  # and forgotten
    await add_one(z)
    return 14


async def _awaited(future: na.DeviceFuture[np.ndarray]) -> np.ndarray:
    return await future


async def soak(device: na.Device, operations: int, steps: int) -> list[Step]:
    """So many operations, in so many steps; at least one round a step."""
    z, host, gone = await na.zeros(256, np.int32), np.ones(256, np.float32), device.new_stream()
    for _ in range(200):
        await round_of(z, host, gone)
    start, done, rounds, found = time.perf_counter(), 0, 200, []
    for step in range(1, steps + 1):
        times = []
        while done < operations * step // steps or not times:
            began = time.perf_counter()
            count = await round_of(z, host, gone)
            times.append((time.perf_counter() - began) / count)
            done += count
            rounds += 1
        found.append(seen(device, done, start, times))
    expected = np.int32(9 * rounds)
    assert (await z.to_host() == expected).all(), "an operation was lost, or came twice"
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("operations", nargs="?", type=int, default=1_000_000)
    parser.add_argument("kind", nargs="?", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=10, help="how often to look; 5 or more")
    parser.add_argument("--drift", type=float, default=1.1, help="of the median, at most")
    parser.add_argument("--growth", type=float, default=8.0, help="of the memory, in MiB, at most")
    args = parser.parse_args(argv)
    if args.steps < 5 or args.operations < 1:
        parser.error("write at least 1 operation and --steps 5")
    (device, *_) = na.devices(args.kind)
    print(device)
    with na.use_device(device):
        steps = na.run(soak(device, args.operations, args.steps))
    found = complaints(steps, args.drift, args.growth)
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
