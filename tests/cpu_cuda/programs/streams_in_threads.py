"""Streams of several threads and coroutines, and a named tuple of arrays."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numba import cuda


class Body(NamedTuple):
    place: object
    speed: object


@cuda.jit
def step(body, dt):
    i = cuda.grid(1)
    if i < body.place.size:
        body.place[i] += body.speed[i] * dt


@cuda.jit
def scale(x, factor):
    start, stride = cuda.grid(1), cuda.gridsize(1)
    for i in range(start, x.size, stride):
        x[i] *= factor


def in_a_thread(n):
    stream = cuda.stream()
    with cuda.pinned(host := np.arange(n, dtype=np.float64)):
        held = cuda.to_device(host, stream=stream)
        scale[2, 32, stream](held, 3.0)
        held.copy_to_host(host, stream=stream)
        stream.synchronize()
    return host


async def in_a_coroutine(n):
    stream = cuda.stream()
    held = cuda.to_device(np.ones(n), stream=stream)
    scale[1, 64, stream](held, n)
    await stream.async_done()
    return held.copy_to_host(stream=stream)


with ThreadPoolExecutor(4) as pool:
    for n, got in zip((10, 100, 1000), pool.map(in_a_thread, (10, 100, 1000)), strict=True):
        np.testing.assert_array_equal(got, np.arange(n) * 3.0)


async def main():
    return await asyncio.gather(*(in_a_coroutine(n) for n in (5, 6, 7)))


for n, got in zip((5, 6, 7), asyncio.run(main()), strict=True):
    np.testing.assert_array_equal(got, np.full(n, float(n)))

body = Body(cuda.to_device(np.zeros(40)), cuda.to_device(np.arange(40.0)))
for _ in range(3):
    step[2, 32](body, 0.5)
np.testing.assert_allclose(body.place.copy_to_host(), np.arange(40) * 1.5)

with cuda.defer_cleanup():
    before, after = cuda.event(), cuda.event()
    before.record()
    scale[1, 32](body.place, 2.0)
    after.record()
    after.synchronize()
    assert cuda.event_elapsed_time(before, after) >= 0
    other = cuda.stream()
    after.wait(other)
np.testing.assert_allclose(body.place.copy_to_host(), np.arange(40) * 3.0)
