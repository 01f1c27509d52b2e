"""Memory that two libraries use on streams of their own, and that one of them drops meanwhile.

Another library's side stream is one of ours, which it uses as an external stream, and which a gate
holds shut.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.testing import Gate, settle
from tests.common import copy_to
from tests.libraries import SIZE, Library

pytestmark = [
    pytest.mark.cuda,
    # Numba finds small grids wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


async def test_memory_dropped_on_side_streams_outlives_our_launch(
    device: na.Device, library: Library, stream: na.Stream, producer: na.Stream, gate: Gate
) -> None:
    out = await na.zeros(SIZE)
    with library.on(producer):
        x = library.make(np.full(SIZE, 5, np.float32))
        copy_to(out, x).sync_on(stream)  # everything is loaded
        address = library.pointer(x)
        gate.close()
        copy_to(out, x).async_on(stream)
        del x
        gc.collect()
        await settle(device)
        poison = [library.make(np.full(SIZE, 66, np.float32)) for _ in range(8)]
        assert address not in [library.pointer(p) for p in poison]
    gate.open()
    await stream.done()
    assert ((await out.to_host()) == 5).all()


async def test_a_side_stream_uses_dropped_memory_before_us(
    device: na.Device, library: Library, stream: na.Stream, producer: na.Stream, shut: Gate
) -> None:
    out = library.ones()
    with library.on(producer):
        out[:] = library.take(await na.full(SIZE, 1))  # everything is loaded
    device.synchronize()
    t = await na.full(SIZE, 3)
    shut.close()
    with library.on(producer):
        borrowed = library.take(t)
        out[:] = borrowed
        del t, borrowed
        gc.collect()
        # Not waited for: the pool may give one of them the same memory, behind the side stream.
        poison = [na.full(SIZE, 66).async_on(stream) for _ in range(8)]
    await settle(device)
    shut.open()
    producer.backend.synchronize()
    assert (library.host(out) == 3).all()
    await stream.done()
    assert all([(await p.to_host() == 66).all() for p in poison])


async def test_a_side_streams_launch_is_behind_dropped_memory(
    device: na.Device, library: Library, producer: na.Stream, shut: Gate
) -> None:
    there: Any = na.launcher(stream="caller")(copy_to.kernel)
    out = library.ones()
    with library.on(producer):
        x = library.make(np.full(SIZE, 5, np.float32))
        for _ in range(2):
            there(out, x).async_on()
        one = library.ones()  # a copy, which would wait for the gate
        poison = [one * 66 for _ in range(8)]  # what allocates might, too
        poison.clear()
        producer.backend.synchronize()
        out *= 0
        shut.close()
        there(out, x).async_on()
        del x
        gc.collect()
        poison = [one * 66 for _ in range(8)]
        shut.open()
        producer.backend.synchronize()
        assert (library.host(out) == 5).all()
        assert all((library.host(p) == 66).all() for p in poison)
