"""Random programs that submit, cancel and hold streams: what is wanted runs, in its order."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import numbasync as na
from numbasync.testing import Gate, counters, settle
from tests.common import waited


@na.launcher
@cuda.jit
def step(z: na.KernelOutput, a):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = z[i] * 3 + a


WAYS_TO_SUBMIT = ["await", "spawn", "chain", "shared"]
_op = st.tuples(
    st.just("op"), st.integers(0, 2), st.integers(0, 3), st.sampled_from(WAYS_TO_SUBMIT),
    st.integers(0, 1),
)  # fmt: skip
_events = st.one_of(
    _op, _op, _op,
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("gate"), st.integers(0, 1)),
    st.tuples(st.just("turn"), st.integers(1, 4)),
)  # fmt: skip


@settings(
    max_examples=25, derandomize=True
)  # fmt: skip
@given(st.lists(_events, min_size=4, max_size=24))
def test_random_programs_run_what_is_wanted_in_order(
    device: na.Device, events: list[tuple[Any, ...]]
) -> None:
    na.run(_random_program(device, events))


async def _random_program(device: na.Device, events: list[tuple[Any, ...]]) -> None:
    tensors = [await na.zeros(1, np.int64) for _ in range(3)]
    await step(await na.zeros(1, np.int64), 1)
    streams = [device.new_stream() for _ in range(2)]
    gates = [Gate(stream) for stream in streams]
    limits: list[Any] = [None, *(na.limit(ops=n, priority=n) for n in (1, 2, 1))]
    for limit in limits[1:]:
        limit.__enter__()
        limit.__exit__(None, None, None)
    done: list[tuple[int, na.DeviceFuture[Any], Any]] = []
    before = counters()

    async def submit(i: int, lane: int, way: str, s: int) -> None:
        a = len(done) + 1
        op: Any = (
            na.value(tensors[i]).then(lambda t: step(t, a)) if way == "chain"
            else step(tensors[i], a).shared() if way == "shared"
            else step(tensors[i], a)
        )  # fmt: skip
        future = op.schedule(streams[s])
        if way == "spawn":
            future.start()
            done.append((i, future, None))
        else:
            done.append((i, future, asyncio.ensure_future(waited(future))))
            await asyncio.sleep(0)

    for event, *args in events:
        if event == "op":
            limit = limits[args[1]]
            with contextlib.nullcontext() if limit is None else limit:
                await submit(*args)
        elif event == "cancel" and done:
            _, future, task = done[args[0] % len(done)]
            waits = future._submission is None and not future.done()
            (task or future).cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert future.cancelled() or not waits, "it was not enqueued, and not withdrawn"
        elif event == "gate":
            gate = gates[args[0]]
            gate.close() if gate.is_open else gate.open()
        elif event == "turn":
            for _ in range(args[0]):
                await asyncio.sleep(0)
        await settle(device)
    for gate in gates:
        gate.open()
    await asyncio.gather(*(waited(f) for _, f, _ in done if not f.cancelled()))
    expected = [0, 0, 0]
    ran = 0
    for number, (i, future, _) in enumerate(done, 1):
        if not future.cancelled():
            expected[i] = (expected[i] * 3 + number) % 2**64
            ran += 1
    assert (counters() - before).launches == ran
    got = [int((await t.to_host())[0]) % 2**64 for t in tensors]
    assert got == expected, "in the order of submission"
    await asyncio.gather(*(t for *_, t in done if t is not None), return_exceptions=True)
    assert device.in_flight == (0, 0)
    for limit in limits[1:]:
        with limit:
            await step(tensors[0], 1)  # there is room again
