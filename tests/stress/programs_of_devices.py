"""Random programs over tensors of two devices, run by all forms that name no stream, while any of
the two is current; against NumPy doing the same in the order of submission.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import numbasync as na
from numbasync.errors import DeviceMismatchError
from tests.stress.programs import MOST, axpy, bump, index, number

Array = np.ndarray[Any, Any]
form = st.sampled_from(["sync", "await", "gather", "tasks", "spawn", "shared", "chain", "zip"])


class ProgramsOfDevices(RuleBasedStateMachine):
    """One program. Every tensor has an array that holds what it must hold, and a device."""

    devices: tuple[na.Device, na.Device]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.tensors: list[tuple[na.Tensor, Array]] = []
        self.pending: list[tuple[Any, Array | None]] = []

    # --- running ---

    def run(self, op: Any, form: str, expected: Array | None = None) -> None:
        """Run the operation while whatever device is current; NumPy has done the same already."""
        if form == "spawn":
            self.pending.append((na.spawn(op), expected))
            return
        value = op.sync() if form == "sync" else self.loop.run_until_complete(_awaited(op, form))
        if expected is not None:
            np.testing.assert_array_equal(value, expected)

    def pick(self, i: int) -> tuple[na.Tensor, Array]:
        return self.tensors[i % len(self.tensors)]

    def pair(self, i: int, j: int) -> tuple[na.Tensor, Array, na.Tensor, Array]:
        """Two tensors of one length, and their arrays."""
        (a, x), (b, y) = self.pick(i), self.pick(j)
        n = min(len(x), len(y))
        return a[:n], x[:n], b[:n], y[:n]

    def keep(self, tensor: na.Tensor, array: Array, device: na.Device) -> None:
        assert tensor.device is device
        if len(self.tensors) >= MOST:
            del self.tensors[0]
        self.tensors.append((tensor, array))

    def any(self, current: bool) -> Any:
        return na.use_device(self.devices[current])

    # --- rules ---

    @rule(n=st.integers(1, 8), value=number, current=st.booleans(), upload=st.booleans())
    def make(self, n: int, value: int, current: bool, upload: bool) -> None:
        array = np.full(n, value, np.int32)
        with self.any(current) as device:
            made = na.from_host(array) if upload else na.full(n, value, np.int32)
            self.keep(made.sync(), array.copy(), device)

    @precondition(lambda self: self.tensors)
    @rule(i=index, value=number, form=form, current=st.booleans(), kind=st.integers(0, 5))
    def change(self, i: int, value: int, form: str, current: bool, kind: int) -> None:
        tensor, array = self.pick(i)
        with self.any(current):
            if kind == 0:
                array[:] = value
                self.run(na.fill(tensor, value), form)
            elif kind == 1:
                array += 1
                self.run(bump(tensor.partition(4) if value > 0 else tensor), form)
            elif kind == 2:
                array += value * 2
                self.run(axpy(tensor, value, np.full(len(array), 2, np.int32)), form)
            elif kind == 3:
                array += value * 2
                self.run(axpy(tensor, value, na.full(len(array), 2, np.int32)), form)
            elif kind == 4:
                array += 1
                self.run(na.defer(lambda: bump(tensor)), form)
            else:
                array += 2
                self.run(na.value(tensor).then(bump).then(lambda r: bump(r.z)), form)

    @precondition(lambda self: self.tensors)
    @rule(i=index, j=index, a=number, form=form, current=st.booleans(), shared=st.booleans())
    def combine(self, i: int, j: int, a: int, form: str, current: bool, shared: bool) -> None:
        z, out, x, values = self.pair(i, j)
        if z.storage is x.storage:
            return
        with self.any(current):
            op = axpy(z, a, x.shared() if shared else x)
            if z.device is x.device:
                out += a * values
                self.run(op, form)
            else:
                with pytest.raises(DeviceMismatchError, match="x = await na.to_device"):
                    op.sync()

    @precondition(lambda self: self.tensors)
    @rule(i=index, j=index, form=form, current=st.booleans())
    def copy(self, i: int, j: int, form: str, current: bool) -> None:
        dst, out, src, values = self.pair(i, j)
        out[:] = values.copy()
        with self.any(current):
            self.run(na.memcpy(dst, src), form)

    @precondition(lambda self: self.tensors)
    @rule(i=index, to=st.booleans(), current=st.booleans())
    def move(self, i: int, to: bool, current: bool) -> None:
        tensor, array = self.pick(i)
        device = self.devices[to]
        with self.any(current):
            moved = na.to_device(tensor, device).sync()
        if tensor.device is not device:
            self.keep(moved, array.copy(), device)

    @precondition(lambda self: self.tensors)
    @rule(i=index, form=form, current=st.booleans(), kind=st.integers(0, 2))
    def read(self, i: int, form: str, current: bool, kind: int) -> None:
        tensor, array = self.pick(i)
        with self.any(current):
            if kind == 0:
                self.run(tensor.to_host(), form, array.copy())
            elif kind == 1:
                self.run(tensor.dup().to_host(), form, array.copy())
            else:
                joined = na.concatenate([tensor, np.zeros(2, np.int32)])
                self.run(joined.to_host(), form, np.append(array, [0, 0]))

    @precondition(lambda self: self.tensors)
    @rule(i=index, j=index, form=form, current=st.booleans())
    def both(self, i: int, j: int, form: str, current: bool) -> None:
        """One operation of parts on any devices."""
        (a, x), (b, y) = self.pick(i), self.pick(j)
        x += 1
        y += 1
        with self.any(current):
            self.run(na.zip(bump(a), bump(b)), form)

    @precondition(lambda self: self.tensors)
    @rule(i=index, form=form, current=st.booleans(), times=st.integers(1, 3))
    def graph(self, i: int, form: str, current: bool, times: int) -> None:
        tensor, array = self.pick(i)
        with self.any(current):
            graph = bump(tensor).graph()
            for _ in range(times):
                array += 1
                self.run(graph.launch(), form)

    @precondition(lambda self: self.tensors)
    @rule(i=index, start=st.integers(0, 3), step=st.sampled_from([1, 2]))
    def view(self, i: int, start: int, step: int) -> None:
        tensor, array = self.pick(i)
        if start < len(array):
            device = tensor.device
            assert device is not None
            self.keep(tensor[start::step], array[start::step], device)

    @rule()
    def wait(self) -> None:
        pending, self.pending = self.pending, []

        async def all_of_it() -> list[Any]:
            return list(await na.gather(*(future for future, _ in pending)))

        values = self.loop.run_until_complete(all_of_it())
        for value, (_, expected) in zip(values, pending, strict=True):
            if expected is not None:
                np.testing.assert_array_equal(value, expected)

    def teardown(self) -> None:
        try:
            self.wait()
            while self.tensors:
                tensor, array = self.tensors.pop()
                np.testing.assert_array_equal(tensor.to_host().sync(), array)
                del tensor
        finally:
            self.loop.close()


async def _awaited(op: Any, form: str) -> Any:
    if form == "gather":
        return (await na.gather(na.zeros(2), op))[1]
    if form == "tasks":
        return (await asyncio.gather(na.zeros(2), op))[1]
    if form == "shared":
        once = op.shared()
        return (await na.gather(once, once))[1]
    if form == "chain":
        return await op.map(lambda value: value).inspect(lambda _: None)
    if form == "zip":
        return (await na.zip(na.zeros(2), op))[1]
    return await op
