"""A soak: a million awaited operations of every kind, and what is left behind.

    python -m tests.soak [operations] [device kind]

prints the process's resident memory, the device's pool and what the interpreter holds, as the
operations go on. They must stay where they are after the first steps.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time

import numpy as np

import numbasync as na
from tests.common import add_one, used

STEPS = 10


def resident() -> float:
    """MiB of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def row(device: na.Device, done: int, start: float) -> str:
    in_use = used(device)  # collects first
    rate = done / max(time.perf_counter() - start, 1e-9)
    return (
        f"{done:>9,} | {resident():7.1f} MiB | pool {in_use:>8,} B | {len(gc.get_objects()):>7,} "
        f"objects | {threading.active_count():>2} threads | {rate:>7,.0f} a second"
    )


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


async def soak(device: na.Device, operations: int) -> None:
    z, host, gone = await na.zeros(256, np.int32), np.ones(256, np.float32), device.new_stream()
    for _ in range(200):
        await round_of(z, host, gone)
    start, done, rounds = time.perf_counter(), 0, 200
    print(row(device, done, start), flush=True)
    for step in range(1, STEPS + 1):
        while done < operations * step // STEPS:
            done += await round_of(z, host, gone)
            rounds += 1
        print(row(device, done, start), flush=True)
    expected = np.int32(9 * rounds)
    assert (await z.to_host() == expected).all(), "an operation was lost, or came twice"


def main() -> None:
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    (device, *_) = na.devices(sys.argv[2] if len(sys.argv) > 2 else None)
    print(device)
    with na.use_device(device):
        na.run(soak(device, operations))


if __name__ == "__main__":
    main()
