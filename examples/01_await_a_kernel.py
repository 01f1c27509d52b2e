"""Await a kernel.

A Numba kernel, decorated by `@na.launcher`, becomes a function that gives an operation.
Nothing happens until the operation is awaited; while the device works, so does the loop.

    python examples/01_await_a_kernel.py
"""

import asyncio

import numpy as np
from numba import cuda

import numbasync as na


@na.launcher
@cuda.jit
def saxpy(z: na.KernelOutput, a, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


async def tick(times: list[float]) -> None:
    """Something else that the loop has to do."""
    loop = asyncio.get_running_loop()
    while True:
        times.append(loop.time())
        await asyncio.sleep(0.001)


async def main() -> None:
    n = 10_000_000
    z = await na.ones(n)
    x = np.linspace(0, 1, n, dtype=np.float32)

    # The first call of a kernel compiles it. Here that is done before the ticks are counted.
    await saxpy.compile(z.partition(256), 2.0, x)

    times: list[float] = []
    ticker = asyncio.create_task(tick(times))
    # The partition says which tile of z a block gets, and so how many blocks there are.
    result = await saxpy(z.partition(256), 2.0, x)
    ticker.cancel()

    print(f"ran on {na.default_device().label}, {len(times)} ticks meanwhile")
    print(f"gave back: z {result.z.tensor is z}, a {result.a}, x {result.x is x}")

    host = await z.to_host()
    np.testing.assert_allclose(host, 2 * x + 1, rtol=1e-6)
    print(f"z = 2 x + 1: {host[:3]} ... {host[-1]}")


na.run(main())
