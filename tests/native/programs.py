"""Random programs, and all that they leave behind: numbers, access records, values and errors.

A program is its seed. It ends where it began, with every stream idle, so that two runs of one seed
can be compared step by step.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from numbasync.testing import Gate, inject
from tests.common import add_one, copy_to, saxpy, waited

STREAMS, TENSORS, SIZE = 3, 5, 16


@na.launcher
@cuda.jit
def tiled(z: na.KernelOutput, a, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] - z[i]


@na.launcher(may_alias=True)
@cuda.jit
def aliased(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + x[i]


@na.launcher
@cuda.jit
def both(z: na.KernelOutput, y: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i], y[i] = x[i] - 1, x[i] + 1


def compiled(z: na.Tensor, x: na.Tensor, y: na.Tensor, stream: na.Stream) -> None:
    """Compile all kernels of programs, and plan their calls: every later call is a fast one, and
    none is still to be enqueued when a program cancels it.
    """
    half = z[: SIZE // 2], x[: SIZE // 2]
    for _ in range(2):
        saxpy(z, 1.0, x).sync_on(stream)
        saxpy(z, 1, x).sync_on(stream)
        saxpy(z, np.float64(1), x).sync_on(stream)
        saxpy(z, 1.0, x.shared()).sync_on(stream)
        saxpy(*_with(half, 1.0)).sync_on(stream)
        tiled(z.partition(4), 1.0, x).sync_on(stream)
        tiled(z.partition(4), 1.0, x.partition(4)).sync_on(stream)
        add_one(z).sync_on(stream)
        add_one[(1,), (SIZE,)](z).sync_on(stream)
        copy_to(z, x).sync_on(stream)
        aliased(z, z).sync_on(stream)
        aliased(z, x).sync_on(stream)
        both(z, y, x).sync_on(stream)


def _with(pair: tuple[Any, Any], a: float) -> tuple[Any, float, Any]:
    return pair[0], a, pair[1]


class Program:
    """One run of a program.

    Attributes:
        seen: what each step left behind.
        counts_retired: whether the submissions in flight are noted after each step, which is the
            same twice only where work passes when the program lets it.
    """

    def __init__(self, device: na.Device, seed: int, counts_retired: bool = False) -> None:
        self.rng = random.Random(seed)
        self.device, self.counts_retired = device, counts_retired
        self.streams = [device.new_stream() for _ in range(STREAMS)]
        self.tensors = [na.full(SIZE, i).sync_on(self.streams[0]) for i in range(TENSORS)]
        self.constant = na.full(SIZE, 3).sync_on(self.streams[0]).shared()
        z, x, y = self.tensors[:3]
        compiled(z, x, y, self.streams[0])
        for stream in self.streams:
            stream.synchronize()
        self.first = [stream._sequence for stream in self.streams]
        self.gates: dict[int, Gate] = {}
        self.futures: list[Any] = []
        self.graph = na.zip(
            add_one(self.tensors[3]), saxpy(self.tensors[4], 1.0, self.constant)
        ).graph_on(self.streams[2])
        self.seen: list[Any] = []

    # --- operations ---

    def pair(self) -> tuple[na.Tensor, na.Tensor]:
        z, x = self.rng.sample(self.tensors, 2)
        return z, x

    def op(self, depth: int = 0) -> na.DeviceOp[Any]:
        z, x = self.pair()
        rng = self.rng
        a = float(rng.randrange(3))
        kinds: list[Callable[[], Any]] = [
            lambda: saxpy(z, a, x),
            lambda: add_one(z),
            lambda: copy_to(z, x),
            lambda: saxpy(z, a, self.constant),
            lambda: saxpy(z[: SIZE // 2], a, x[SIZE // 2 :]),
            lambda: tiled(z.partition(4), a, x),
            lambda: tiled(z.partition(4), a, x.partition(4)),
            lambda: aliased(z, z),
            lambda: both(*rng.sample(self.tensors, 3)),
            lambda: saxpy(z, np.float64(a), x),
            lambda: saxpy(z, int(a), x),
            lambda: add_one[(1,), (SIZE,)](z),
            lambda: na.fill(z, a),
            lambda: na.zeros(SIZE),
            lambda: na.full(SIZE, a),
            lambda: na.empty(SIZE).map(lambda t: t.shape),
            lambda: na.from_host(np.arange(SIZE, dtype=np.float32)),
            lambda: z.to_host().map(lambda array: array.shape),
            lambda: self.graph.launch(),
        ]
        if depth < 2:
            kinds += [
                lambda: self.op(depth + 1).map(lambda r: None),
                lambda: add_one(z).first(),
                lambda: na.zip(*(self.op(depth + 1) for _ in range(rng.randrange(1, 4)))),
                lambda: na.zeros(SIZE).then(lambda t: saxpy(t, a, x)).first(),
                lambda: na.zip(*(self._launch() for _ in range(rng.choice((3, 33, 70))))),
                lambda: saxpy(z, a, x).then(lambda r: add_one(r.z)),
                lambda: add_one(z).first().then(lambda t: saxpy(t, a, x)).first(),
                lambda: na.value(z).then(lambda t: self.op(2)),
                lambda: saxpy(add_one(z).first(), a, x),
            ]
        op: na.DeviceOp[Any] = rng.choice(kinds)()
        return op

    def _launch(self) -> na.DeviceOp[Any]:
        z, x = self.pair()
        return saxpy(z, 0.0, x) if self.rng.randrange(8) else tiled(z.partition(4), 1.0, x)

    def refused(self) -> None:
        """A call that must be refused, or fails."""
        z, x = self.pair()

        def wrong(_: Any) -> Any:
            raise ValueError("wrong")

        stream = self.stream()
        calls: list[Callable[[], Any]] = [
            lambda: saxpy(z, 1.0, z).async_on(stream),
            lambda: saxpy(z[2:8], 1.0, z[:6]).async_on(stream),
            lambda: both(z, z, x).async_on(stream),
            lambda: both(z, x, x).async_on(stream),
            lambda: saxpy(z, 2**64, x).async_on(stream),
            lambda: saxpy(z, "a", x).async_on(stream),
            lambda: saxpy(z, 1.0).async_on(stream),
            lambda: na.zip(add_one(z), na.value(1).then(wrong)).async_on(stream),
            lambda: add_one(z).then(wrong).async_on(stream),
            lambda: add_one(z).map(lambda r: add_one(x).sync()).async_on(stream),
            lambda: self._twice(add_one(z), stream),
        ]
        self.seen.append(self.outcome(self.rng.choice(calls)))

    @staticmethod
    def _twice(op: na.DeviceOp[Any], stream: na.Stream) -> None:
        op.async_on(stream)
        op.async_on(stream)

    @staticmethod
    def outcome(call: Callable[[], Any]) -> str:
        """The value of a call, or its error, as text."""
        try:
            return repr(call())
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    # --- steps ---

    def stream(self) -> na.Stream:
        return self.rng.choice(self.streams)

    def submit(self) -> None:
        self.seen.append(self.outcome(lambda: self.op().async_on(self.stream())))

    def synchronise(self) -> None:
        self.seen.append(self.outcome(lambda: self.op().sync_on(self.stream())))

    def awaited(self) -> None:
        ops = [self.op() for _ in range(self.rng.randrange(1, 4))]

        async def main() -> Any:
            return await na.gather(*ops) if len(ops) > 1 else await ops[0]

        self.seen.append(self.outcome(lambda: na.run(main())))

    def spawned(self) -> None:
        self.futures.append(na.spawn(self.op(), self.stream()))

    def cancelled(self) -> None:
        """Tasks of which one is cancelled while it waits: its work stays in its order."""
        ops = [self.op().schedule(self.stream()) for _ in range(3)]

        async def main() -> list[str]:
            tasks = [asyncio.ensure_future(waited(op)) for op in ops]
            await asyncio.sleep(0)
            tasks[1].cancel()
            for gate in self.gates.values():
                gate.open()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            return [type(r).__name__ for r in results[::2]]

        self.seen.append(self.outcome(lambda: na.run(main())))
        self.gates.clear()

    def limited(self) -> None:
        with na.limit(ops=self.rng.randrange(1, 3)):
            self.awaited()

    def fails(self) -> None:
        """A kernel, an allocation or a signal that fails; the next one is well."""
        fault: Any = self.rng.choice(["kernel", "allocation", "completion"])
        with inject(self.device, fault, self.rng.randrange(2)):
            ops = [self.op() for _ in range(2)]
            for op in ops:
                self.seen.append(self.outcome(lambda op=op: op.sync_on(self.streams[0])))
            self.seen.append(self.outcome(self.device.synchronize))

    def replay(self) -> None:
        self.graph.launch().async_on(self.stream())

    def read(self) -> None:
        self.seen.append(self.tensors[self.rng.randrange(TENSORS)].to_host().sync().tolist())

    def shut(self) -> None:
        which = self.rng.randrange(STREAMS)
        self.gates[which] = Gate(self.streams[which])
        self.gates[which].close()

    def open(self) -> None:
        self.gates.popitem()[1].open()

    def look(self) -> None:
        self.device.reclaim()

    def dropped(self) -> None:
        """A new tensor in the place of one that may be in use."""
        at = self.rng.randrange(3)  # not those of the graph
        self.tensors[at] = na.full(SIZE, 7).async_on(self.streams[0])

    def step(self) -> None:
        free = [self.submit] * 6 + [self.refused, self.spawned, self.dropped, self.look]
        if self.gates:  # the program may not wait for a stream that it holds
            steps = [*free, self.open, self.open, self.cancelled]
        else:
            steps = [
                *free, self.shut, self.shut, self.synchronise, self.awaited, self.awaited,
                self.read, self.fails, self.limited, self.replay, self.replay, self.cancelled,
            ]  # fmt: skip
        chosen = self.rng.choice(steps)
        self.seen.append(chosen.__name__)
        chosen()
        self.note()

    def note(self) -> None:
        """Note the streams' numbers, and the access record of every tensor. On a GPU both depend on
        what is done by then: an event between streams has a number, and finished work needs none.
        """
        if self.device.kind == "cuda":
            return
        streams, first = self.streams, self.first
        self.seen.append([s._sequence - n for s, n in zip(streams, first, strict=True)])
        if self.counts_retired:
            self.seen.append([stream.in_flight_count for stream in streams])
        for tensor in [*self.tensors, self.constant.tensor]:
            storage = tensor.storage
            self.seen.append((
                self._number(storage.writer),
                sorted(
                    (streams.index(s), self._number(r))
                    for s, r in storage.readers.items() if s in streams
                ),
            ))  # fmt: skip

    def _number(self, submission: Any) -> Any:
        if submission is None or submission.latest.stream not in self.streams:
            return None
        at = self.streams.index(submission.latest.stream)
        return at, submission.latest.sequence - self.first[at]

    def run(self, steps: int = 40) -> list[str]:
        for _ in range(steps):
            self.step()
        for gate in self.gates.values():
            gate.open()
        for future in self.futures:
            self.seen.append(self.outcome(future.sync))
        for stream in self.streams:
            self.seen.append(self.outcome(stream.synchronize))
        with contextlib.suppress(na.errors.NumbasyncError):
            self.device.synchronize()
        self.seen += [t.to_host().sync_on(self.streams[0]).tolist() for t in self.tensors]
        self.seen.append([stream.in_flight_count for stream in self.streams])
        self.seen.append([stream in self.device.busy for stream in self.streams])
        return [_plain(str(x)) for x in self.seen]


def _plain(text: str) -> str:
    """Without the numbers that differ from run to run: addresses, and numbers of streams."""
    return re.sub(r"0x[0-9a-f]+|Stream \d+|spawned_\d+", "_", text)
