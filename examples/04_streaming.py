"""More data than fits at once, from a source that is faster than the device.

`na.limit` bounds what is in flight: submitting waits, while the loop turns, and memory stays
flat however long the source goes on. What the source writes goes through page-locked buffers,
which the device copies from where they lie.

    python examples/04_streaming.py
"""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
from numba import cuda

import numbasync as na

CHUNK = 4096
CHUNKS = 60
BUFFERS = 4


@na.launcher
@cuda.jit
def add_squares(total: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, x[i] * x[i])


async def chunks(buffers: list[na.HostBuffer], free: asyncio.Queue[int]) -> AsyncIterator[int]:
    """Fills buffers as they come free: a socket, a file, a camera. Gives the one it has filled."""
    for number in range(CHUNKS):
        at = await free.get()
        buffers[at][:] = number
        yield at


async def main() -> None:
    device = na.default_device()
    total = await na.zeros(1, np.float64)
    await add_squares.compile(na.meta(1, np.float64), na.meta(CHUNK))

    buffers = [na.pinned(CHUNK) for _ in range(BUFFERS)]
    free: asyncio.Queue[int] = asyncio.Queue()
    for at in range(BUFFERS):
        free.put_nowait(at)

    async def process(at: int) -> None:
        chunk = await na.from_host(buffers[at])  # copied from where it lies
        free.put_nowait(at)  # and now it may be filled again
        await add_squares[16, 256](total, chunk)

    device.pool.reset_high()
    with na.limit(ops=8, bytes=8 * CHUNK * 4):
        async with asyncio.TaskGroup() as group:
            async for at in chunks(buffers, free):
                group.create_task(process(at))

    result = float((await total.to_host())[0])
    assert result == sum(CHUNK * n * n for n in range(CHUNKS))
    most = device.memory_stats().used_high
    print(f"{CHUNKS} chunks of {CHUNK * 4:,} bytes: {result:.0f}; at most {most:,} bytes in use")
    assert most < CHUNKS * CHUNK * 4 / 2


na.run(main())
