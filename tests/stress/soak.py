"""A soak: a million awaited operations of every kind, and what is left behind.

    python -m tests.stress.soak [operations] [device kind] [--steps 10] [--drift 1.1] [--growth 8]

prints the process's resident memory, the device's pool, what the interpreter holds, and the
median time of an operation, as the operations go on. They must stay where they are: it fails if
the last fifth of the steps is slower than the first fifth by more than `--drift`, or has more
than `--growth` MiB more in memory, or if the pool has grown at all. Slower is what takes longer
beside a loop of plain Python in the same step, since clocks of machines change.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import numbasync as na
from tests.common import add_one, used

PARTS = 5  # of a step
YARDS = 10  # times that the yardstick is taken behind each part, which is 50 ms a step


@dataclass(frozen=True)
class Step:
    """What was seen at the end of a step.

    Attributes:
        median: microseconds of one operation, in the rounds of this step.
        memory: MiB of the process that are resident.
        pool: bytes of the device's pool that are in use.
        yardstick: milliseconds of the same fixed work, in this step.
    """

    median: float
    memory: float
    pool: int
    yardstick: float

    @property
    def pace(self) -> float:
        """What an operation takes on this machine as it is now, in yardsticks."""
        return self.median / self.yardstick


def yardstick() -> float:
    """Milliseconds of a fixed loop of plain Python: about one, as a round of operations takes, so
    that what disturbs one now and then leaves the median of either as it is.
    """
    began = time.perf_counter()
    for i in range(20_000):
        _ = i ^ 1
    return (time.perf_counter() - began) * 1e3


def resident() -> float:
    """MiB of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def seen(
    device: na.Device, done: int, start: float, times: Sequence[float], yards: Sequence[float]
) -> Step:
    """A step, which is printed."""
    device.synchronize()  # what nobody awaits is in flight, and has memory
    in_use = used(device)  # collects first
    step = Step(statistics.median(times) * 1e6, resident(), in_use, statistics.median(yards))
    rate = done / max(time.perf_counter() - start, 1e-9)
    print(
        f"{done:>9,} | {step.memory:7.1f} MiB | pool {step.pool:>8,} B | "
        f"{len(gc.get_objects()):>7,} objects | {threading.active_count():>2} threads | "
        f"{rate:>7,.0f} a second | median {step.median:7.2f} us an op | "
        f"yardstick {step.yardstick:.3f} ms",
        flush=True,
    )
    return step


def complaints(steps: Sequence[Step], drift: float, growth: float) -> list[str]:
    """What has not stayed where it was, from the first fifth of the steps to the last."""
    fifth = max(1, len(steps) // 5)
    first, last = steps[:fifth], steps[-fifth:]
    found = []
    slower = statistics.median(s.pace for s in last) / statistics.median(s.pace for s in first)
    print(f"median in yardsticks, of the last fifth / of the first fifth: {slower:.3f}")
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


async def walk(
    device: na.Device, operations: int, steps: int, round_of: Callable[[], Awaitable[int]]
) -> list[Step]:
    """So many operations, in so many steps; at least one round a step.

    Args:
        round_of: a few operations; how many.
    """
    start, done, found = time.perf_counter(), 0, []
    for step in range(steps):
        times, yards = list[float](), list[float]()
        for part in range(1, PARTS + 1):
            goal = operations * (PARTS * step + part) // (PARTS * steps)
            while done < goal or not times:
                began = time.perf_counter()
                count = await round_of()
                times.append((time.perf_counter() - began) / count)
                done += count
            yards += [yardstick() for _ in range(YARDS)]
        found.append(seen(device, done, start, times, yards))
    return found


async def soak(device: na.Device, operations: int, steps: int) -> list[Step]:
    """So many operations of every kind."""
    z, host, gone = await na.zeros(256, np.int32), np.ones(256, np.float32), device.new_stream()
    rounds = 0

    async def one() -> int:
        nonlocal rounds
        rounds += 1
        return await round_of(z, host, gone)

    for _ in range(200):
        await one()
    found = await walk(device, operations, steps, one)
    expected = np.int32(9 * rounds)
    assert (await z.to_host() == expected).all(), "an operation was lost, or came twice"
    return found


Soak = Callable[[na.Device, int, int], Coroutine[Any, Any, list[Step]]]


def main(argv: Sequence[str] | None = None) -> int:
    return command(argv, "tests.stress.soak", __doc__, soak, 1_000_000)


def command(
    argv: Sequence[str] | None, name: str, about: str | None, run: Soak, operations: int
) -> int:
    """Run a soak as its arguments say; the exit status.

    Args:
        operations: how many, if none are asked for.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=about)
    parser.add_argument("operations", nargs="?", type=int, default=operations)
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
        steps = na.run(run(device, args.operations, args.steps))
    found = complaints(steps, args.drift, args.growth)
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
