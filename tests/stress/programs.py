"""Random programs: operations over tensors and views, submitted in every way, on streams whose
interleaving a seed decides, against NumPy doing the same things in the order of submission.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from numba import cuda

import numbasync as na
from numbasync.errors import KernelError, MovedError, OutOfDeviceMemoryError
from numbasync.ops import context, submission_queue
from numbasync.testing import Gate, inject, seeded
from tests.common import used, waited

STREAMS = 3
MOST = 8  # tensors at a time

index = st.integers(0, 63)
number = st.integers(-9, 9)
way = st.sampled_from(["enqueue", "spawn", "task", "cancelled", "dropped"])


@na.launcher(threads=8)
@cuda.jit
def axpy(z: na.KernelOutput, a, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


@na.launcher(threads=8)
@cuda.jit
def bump(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += 1


def compiled() -> None:
    """Every variant that the programs use, so that no gate is in the way of a compilation."""
    whole = na.zeros(4, np.int32).sync()
    for z in (whole, whole[::2]):
        bump(z).sync()
        for x in (whole.dup().sync(), whole.dup().sync()[::2]):
            if x.shape == z.shape:
                axpy(z, 1, x).sync()
        na.fill(z, 1).sync()
        na.memcpy(whole.dup().sync()[:2], z[:2]).sync()
        na.memcpy(z[:2], whole.dup().sync()[:2]).sync()
        z.dup().sync()
        z.to_host().sync()
    other = na.zeros(8, np.int32).sync()
    for z, x in ((whole, other[::2]), (whole[::2], other[:2]), (whole[::2], other[:4:2])):
        axpy(z, 1, x).sync()
        na.memcpy(z, x).sync()


class Refused(Exception):
    """What a closure raises."""


def _raise(_: Any) -> Any:
    raise Refused


async def _settled(awaitable: Any) -> Any:
    """Its value, or its error as a value; without its traceback, which would hold this frame."""
    try:
        return await awaitable
    except Exception as error:
        return error.with_traceback(None)


class Programs(RuleBasedStateMachine):
    """One program. Every tensor has an array that holds what it must hold."""

    device: na.Device
    numbers_only: bool  # what is still held, and which error there is, does not matter

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.loop = asyncio.new_event_loop()
        self.before = self.device.memory_stats().used_current
        self.tensors: list[tuple[na.Tensor, np.ndarray[Any, Any]]] = []
        self.pending: list[tuple[Any, np.ndarray[Any, Any] | None]] = []
        self.gates: list[Gate] = []
        # Each with what a launch of it does to the arrays.
        self.graphs: list[tuple[na.CudaGraph[Any], list[Any]]] = []

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        self.stack.enter_context(na.use_device(self.device))
        self.stack.enter_context(seeded(self.device, seed))
        self.streams = [self.device.new_stream() for _ in range(STREAMS)]
        self.gates = [Gate(stream) for stream in self.streams]
        self.stack.callback(na.limit, device=self.device)
        # A whole collection, when an allocation fails, would walk Hypothesis's own tree.
        young = SimpleNamespace(collect=lambda: gc.collect(1))
        self.stack.enter_context(mock.patch.object(context, "gc", young))
        self.pinned = na.pinned(8, np.int32)
        self.pinned[:] = self.held = np.arange(8, dtype=np.int32)
        self.scratch = na.zeros(1, np.int32).sync()

    # --- submitting ---

    def submit(self, op: Any, way: str, s: int, expected: Any = None) -> bool:
        """Submit now; NumPy has done the same already, or does it right after. Whether it runs:
        what was cancelled while it waited for room does not.
        """
        stream = self.streams[s % STREAMS]
        if way == "enqueue" and expected is None:
            op.async_on(stream)
        elif way == "dropped" and expected is None:
            na.spawn(op, stream)
        elif way in ("task", "cancelled"):
            future = op.schedule(stream)
            task = self.loop.create_task(waited(future))
            self.turn(1)
            if way == "cancelled":
                task.cancel()
                self.turn(2)
                return not future.cancelled()
            self.pending.append((task, expected))
        else:
            future = na.spawn(op, stream)
            # One that fails on purpose needs no warning, if the program fails before it is awaited.
            future._seen = way == "failing"
            self.pending.append((future, expected))
        return True

    def turn(self, n: int) -> None:
        async def turns() -> None:
            for _ in range(n):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def pick(self, i: int) -> tuple[na.Tensor, np.ndarray[Any, Any]]:
        return self.tensors[i % len(self.tensors)]

    def pair(self, i: int, j: int) -> tuple[Any, Any, Any, Any]:
        """Two tensors of one length, and their arrays."""
        (a, x), (b, y) = self.pick(i), self.pick(j)
        n = min(len(x), len(y))
        return a[:n], x[:n], b[:n], y[:n]

    def keep(self, tensor: na.Tensor, array: np.ndarray[Any, Any]) -> None:
        if len(self.tensors) >= MOST:
            del self.tensors[0]
        self.tensors.append((tensor, array))

    # --- rules ---

    @rule(n=st.integers(1, 8), value=number, s=index)
    def make(self, n: int, value: int, s: int) -> None:
        tensor = na.full(n, value, np.int32).async_on(self.streams[s % STREAMS])
        self.keep(tensor, np.full(n, value, np.int32))

    @rule(values=st.lists(number, min_size=1, max_size=8), s=index)
    def upload(self, values: list[int], s: int) -> None:
        source = np.array(values, np.int32)
        tensor = na.from_host(source).async_on(self.streams[s % STREAMS])
        self.keep(tensor, source.copy())
        source[:] = 77  # what was enqueued has its own copy

    @precondition(lambda self: self.tensors)
    @rule(i=index, value=number, way=way, s=index)
    def fill(self, i: int, value: int, way: str, s: int) -> None:
        tensor, array = self.pick(i)
        if self.submit(na.fill(tensor, value), way, s):
            array[:] = value

    @precondition(lambda self: self.tensors)
    @rule(i=index, way=way, s=index, tile=st.integers(0, 4))
    def add_one(self, i: int, way: str, s: int, tile: int) -> None:
        tensor, array = self.pick(i)
        if self.submit(bump(tensor.partition(tile) if tile else tensor), way, s):
            array += 1

    @precondition(lambda self: self.tensors)
    @rule(i=index, j=index, way=way, s=index, a=number, shared=st.booleans())
    def combine(self, i: int, j: int, way: str, s: int, a: int, shared: bool) -> None:
        z, out, x, values = self.pair(i, j)
        if z.storage is x.storage:
            return
        if self.submit(axpy(z, a, x.shared() if shared else x), way, s):
            out += a * values

    @precondition(lambda self: self.tensors)
    @rule(i=index, j=index, way=way, s=index)
    def copy(self, i: int, j: int, way: str, s: int) -> None:
        dst, out, src, values = self.pair(i, j)
        if self.submit(na.memcpy(dst, src), way, s):
            out[:] = values.copy()

    @precondition(lambda self: self.tensors)
    @rule(i=index, j=index, way=way, s=index)
    def chain(self, i: int, j: int, way: str, s: int) -> None:
        z, out, x, values = self.pair(i, j)
        if z.storage is x.storage:
            return
        op = na.zip(bump(x), na.value(z)).then(lambda pair: axpy(pair[1], 2, x))
        if self.submit(op, way, s):
            values += 1
            out += 2 * values

    @precondition(lambda self: self.tensors)
    @rule(i=index, s=index, t=index)
    def share(self, i: int, s: int, t: int) -> None:
        """One operation for two, on two streams; what it gives is read on the second."""
        tensor, array = self.pick(i)
        once = bump(tensor).output().shared()
        array += 1
        self.submit(once, "spawn", s)
        self.submit(once.then(lambda z: z.to_host()), "spawn", t, array.copy())

    # --- page-locked memory, failures, limits ---

    @precondition(lambda self: self.tensors)
    @rule(i=index, way=way, s=index)
    def to_pinned(self, i: int, way: str, s: int) -> None:
        tensor, array = self.pick(i)
        if self.submit(tensor.copy_to(self.pinned[: len(array)]), way, s):
            self.held[: len(array)] = array

    @precondition(lambda self: self.tensors)
    @rule(i=index, way=way, s=index)
    def from_pinned(self, i: int, way: str, s: int) -> None:
        tensor, array = self.pick(i)
        if self.submit(tensor.copy_from(self.pinned[: len(array)]), way, s):
            array[:] = self.held[: len(array)]

    @precondition(lambda self: self.tensors)
    @rule(i=index, s=index, value=number)
    def fail_behind_work(self, i: int, s: int, value: int) -> None:
        """What was enqueued before the error is done all the same."""
        tensor, array = self.pick(i)
        self.submit(na.fill(tensor, value).then(_raise), "failing", s, Refused)
        array[:] = value

    @precondition(lambda self: self.tensors)
    @rule(i=index, s=index, t=index)
    def kernel_fails(self, i: int, s: int, t: int) -> None:
        """It changes nothing, and everyone who shares it is told."""
        tensor, _ = self.pick(i)
        once = bump(tensor).output().shared()
        submission_queue.drain()  # or the fault would be that of something that waits for room
        with inject(self.device, "kernel"):
            self.submit(once, "failing", s, KernelError)
        self.submit(once.then(lambda z: z.to_host()), "failing", t, KernelError)

    @precondition(lambda self: self.tensors)
    @rule(i=index, s=index)
    def out_of_memory(self, i: int, s: int) -> None:
        tensor, array = self.pick(i)
        op = na.zip(bump(tensor), tensor.dup())
        submission_queue.drain()
        with inject(self.device, "allocation"):
            self.submit(op, "failing", s, OutOfDeviceMemoryError)
        array += 1

    @rule(s=index)
    def completion_is_lost(self, s: int) -> None:
        """Who awaits what comes later, or blocks, finds out."""
        with inject(self.device, "completion"):
            na.fill(self.scratch, 1).async_on(self.streams[s % STREAMS])

    @precondition(lambda self: all(gate.is_open for gate in self.gates))
    @rule(ops=st.integers(1, 3))
    def limit(self, ops: int) -> None:
        na.limit(ops=ops)

    @precondition(lambda self: self.tensors)
    @rule(i=index, start=st.integers(0, 3), step=st.sampled_from([1, 2]))
    def view(self, i: int, start: int, step: int) -> None:
        tensor, array = self.pick(i)
        if start < len(array):
            self.keep(tensor[start::step], array[start::step])

    @precondition(lambda self: self.tensors)
    @rule(i=index, way=way, s=index)
    def duplicate(self, i: int, way: str, s: int) -> None:
        tensor, array = self.pick(i)
        self.keep(tensor.dup().async_on(self.streams[s % STREAMS]), array.copy())

    @precondition(lambda self: self.tensors)
    @rule(i=index)
    def take(self, i: int) -> None:
        at = i % len(self.tensors)
        tensor, array = self.tensors[at]
        self.tensors[at] = tensor.take(), array
        with pytest.raises(MovedError):
            tensor.to_host().async_on(self.streams[0])

    @precondition(lambda self: self.tensors)
    @rule(i=index)
    def drop(self, i: int) -> None:
        del self.tensors[i % len(self.tensors)]

    @precondition(lambda self: self.tensors)
    @rule(i=index, way=way, s=index)
    def read(self, i: int, way: str, s: int) -> None:
        tensor, array = self.pick(i)
        self.submit(tensor.to_host(), way, s, array.copy())

    @precondition(lambda self: self.tensors)
    @rule(i=index, s=index, value=number)
    def crowd(self, i: int, s: int, value: int) -> None:
        """Two streams read what the third then writes."""
        tensor, array = self.pick(i)
        for stream in (s, s + 1):
            self.submit(tensor.to_host(), "spawn", stream, array.copy())
        self.submit(na.fill(tensor, value), "enqueue", s + 2)
        array[:] = value

    # --- graphs ---

    def part(self, kind: int, i: int, j: int) -> tuple[na.DeviceOp[Any], Any]:
        """An operation that a graph can hold, and what it does to the arrays."""
        z, out, x, values = self.pair(i, j)
        if kind == 0:
            return na.fill(z, j - 30), lambda: out.fill(j - 30)
        if kind == 1:
            return bump(z), lambda: np.add(out, 1, out=out)
        if kind == 2:
            n = len(out)
            return z.copy_from(self.pinned[:n]), lambda: np.copyto(out, self.held[:n])
        if z.storage is x.storage:
            return na.value(1), lambda: None
        if kind == 3:
            return axpy(z, i - 30, x), lambda: np.add(out, (i - 30) * values, out=out)
        return na.memcpy(z, x), lambda: np.copyto(out, values)

    @precondition(lambda self: self.tensors)
    @rule(
        parts=st.lists(st.tuples(st.integers(0, 4), index, index, st.integers(0, 2)), max_size=4),
        s=index, scope=st.booleans(),
    )  # fmt: skip
    def capture(self, parts: list[tuple[int, int, int, int]], s: int, scope: bool) -> None:
        stream = self.streams[s % STREAMS]
        made = [self.part(kind, i, j) for kind, i, j, _ in parts]
        if scope:
            with na.CudaGraph.scope(stream) as recorder:
                branches = [recorder, recorder.fork(), recorder.fork()]
                for (op, _), (*_, branch) in zip(made, parts, strict=True):
                    branches[branch].record(op)
            graph: na.CudaGraph[Any] = recorder.graph
        else:
            graph = na.zip(*(op for op, _ in made)).graph_on(stream)
        if len(self.graphs) >= 3:
            del self.graphs[0]
        self.graphs.append((graph, [change for _, change in made]))

    @precondition(lambda self: self.graphs)
    @rule(i=index, way=way, s=index, times=st.integers(1, 2))
    def launch(self, i: int, way: str, s: int, times: int) -> None:
        graph, changes = self.graphs[i % len(self.graphs)]
        for _ in range(times):
            if self.submit(graph.launch(), way, s):
                for change in changes:
                    change()

    @precondition(lambda self: self.graphs and self.tensors)
    @rule(i=index, j=index, k=index, s=index, kind=st.integers(0, 4))
    def update(self, i: int, j: int, k: int, s: int, kind: int) -> None:
        graph, changes = self.graphs[i % len(self.graphs)]
        op, change = self.part(kind, j, k)
        graph.update(op)
        change()
        self.submit(graph.launch(), "enqueue", s)
        for change in changes:
            change()

    @precondition(lambda self: self.graphs and self.tensors)
    @rule(i=index, j=index, k=index, s=index, kind=st.integers(0, 4))
    def between(self, i: int, j: int, k: int, s: int, kind: int) -> None:
        """Between two launches on one stream, another one uses a buffer, of the graph perhaps."""
        graph, changes = self.graphs[i % len(self.graphs)]
        op, change = self.part(kind, j, k)
        for submitted, after, where in (
            (graph.launch(), changes, s), (op, [change], s + 1), (graph.launch(), changes, s),
        ):  # fmt: skip
            self.submit(submitted, "enqueue", where)
            for each in after:
                each()

    @precondition(lambda self: self.graphs)
    @rule(i=index)
    def drop_graph(self, i: int) -> None:
        del self.graphs[i % len(self.graphs)]

    @rule(n=st.integers(1, 6))
    def turns(self, n: int) -> None:
        self.turn(n)

    @rule(s=index)
    def shut(self, s: int) -> None:
        gate = self.gates[s % STREAMS]
        if gate.is_open:
            na.limit()  # who waits for room does not open it
            gate.close()
        else:
            gate.open()

    @rule(s=index)
    def another_stream(self, s: int) -> None:
        """Drop a stream with its work, and go on with a new one."""
        at = s % STREAMS
        if self.gates[at].is_open:
            self.streams[at] = self.device.new_stream()
            self.gates[at] = Gate(self.streams[at])

    @rule()
    def wait(self) -> None:
        if all(gate.is_open for gate in self.gates):
            self.settle()

    def settle(self) -> None:
        pending, self.pending = self.pending, []

        async def all_of_it() -> list[Any]:
            return [await _settled(awaitable) for awaitable, _ in pending]

        for value, (_, expected) in zip(
            self.loop.run_until_complete(all_of_it()), pending, strict=True
        ):
            if isinstance(expected, type):
                assert self.numbers_only or isinstance(value, expected), value
            elif isinstance(value, BaseException):
                raise value
            elif expected is not None:
                np.testing.assert_array_equal(value, expected)

    def teardown(self) -> None:
        try:
            for gate in self.gates:
                gate.open()
            if self.gates:
                self.finish()
        finally:
            self.stack.close()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # after a failure, of what is left
                self.pending.clear()
                self.graphs.clear()
                self.tensors.clear()
                self.loop.close()

    def finish(self) -> None:
        self.settle()
        self.device.synchronize()  # also streams that nobody holds any more
        self.graphs.clear()
        while self.tensors:
            tensor, array = self.tensors.pop()
            np.testing.assert_array_equal(tensor.to_host().sync(), array)
            del tensor
        np.testing.assert_array_equal(self.pinned, self.held)
        del self.scratch
        self.streams.clear()
        self.gates.clear()
        self.turn(2)
        # Less, if the collector has found something older meanwhile.
        if not self.numbers_only and self.device.memory_stats().used_current > self.before:
            assert used(self.device) <= self.before, "memory is still held"


def machine(device: na.Device, numbers_only: bool) -> type[Programs]:
    """The class of programs that run on `device`."""
    return type("Programs", (Programs,), {"device": device, "numbers_only": numbers_only})
