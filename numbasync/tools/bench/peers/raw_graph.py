"""Graphs as one writes them with `cuda.bindings` alone: captured, instantiated and launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbasync.tools.bench.host_work import compute
from numbasync.tools.bench.measure import Case, awaited, per_part, timed
from numbasync.tools.bench.peers import driver
from numbasync.tools.bench.replayed import DEPTH, NODES
from numbasync.tools.bench.work import CHAIN, check


def of_graph(ordinal: int) -> list[Case]:
    """The launch alone, and with a wait behind it."""
    raw, cases = driver.of(ordinal), []
    for nodes in NODES:
        one = _Graph(raw, nodes)
        cases += [
            Case(
                f"cuda.bindings: graph of {nodes}, cuGraphLaunch",
                timed(one.launch, one.wait, every=DEPTH), one.right,
            ),
            Case(
                f"cuda.bindings: graph of {nodes}, cuGraphLaunch + synchronize",
                timed(one.launch_and_wait, one.wait), one.right,
            ),
        ]  # fmt: skip
    return cases


def of_node(ordinal: int) -> list[Case]:
    """The same, counted by nodes; and the launches one by one."""
    one = _Graph(driver.of(ordinal), CHAIN)
    return [
        Case(
            "cuda.bindings: cuGraphLaunch + synchronize",
            per_part(timed(one.launch_and_wait, one.wait), CHAIN), one.right,
        ),
        Case(
            "cuda.bindings: packed launches + one synchronize",
            per_part(timed(one.launch_singly, one.wait), CHAIN), one.right_singly,
        ),
    ]  # fmt: skip


def of_chain(ordinal: int, length: int) -> list[Case]:
    """So many launches, by themselves and as a graph."""
    one = _Graph(driver.of(ordinal), length)
    return [
        Case(
            "cuda.bindings: packed launches + one synchronize",
            timed(one.launch_singly, one.wait), one.right_singly,
        ),
        Case(
            "cuda.bindings: cuGraphLaunch + synchronize",
            timed(one.launch_and_wait, one.wait), one.right,
        ),
    ]  # fmt: skip


def of_step(ordinal: int, nodes: int, work: int) -> list[Case]:
    """Work of the host behind a launch, and beside it."""
    one = _Graph(driver.of(ordinal), nodes)

    async def behind() -> None:
        one.launch_and_wait()
        compute(work)

    async def beside() -> None:
        one.launch()
        compute(work)
        one.wait()

    return [
        Case("cuda.bindings: cuGraphLaunch + synchronize, work", awaited(behind), one.right),
        Case("cuda.bindings: cuGraphLaunch, work, synchronize", awaited(beside), one.right),
    ]


class _Graph:
    """So many packed launches on one row, captured on a stream.

    Attributes:
        launch: replay them.
        launch_and_wait: replay them, and wait.
        launch_singly: launch them one by one, and wait.
    """

    def __init__(self, raw: driver.Driver, nodes: int) -> None:
        self._raw, self._nodes, cu = raw, nodes, raw.cu
        self._stream, self._z = raw.stream(), raw.row(0)
        stream, z, x, call = self._stream, self._z, raw.row(1), raw.packed()
        replay, synchronize = cu.cuGraphLaunch, cu.cuStreamSynchronize

        def enqueue() -> None:
            for _ in range(nodes):
                call(z, x, stream)

        def launch_singly() -> None:
            enqueue()
            (result,) = synchronize(stream)
            if result:
                raise RuntimeError(f"cuStreamSynchronize says {result!r}")

        launch_singly()  # what a first launch loads is there before the capture
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        raw.ok(cu.cuStreamBeginCapture(stream, mode))
        enqueue()
        graph = raw.ok(cu.cuStreamEndCapture(stream))
        found: Any = raw.ok(cu.cuGraphInstantiate(graph, 0))
        raw.ok(cu.cuGraphUpload(found, stream))
        self.wait()

        def launch() -> None:
            (result,) = replay(found, stream)
            if result:
                raise RuntimeError(f"cuGraphLaunch says {result!r}")

        def launch_and_wait() -> None:
            (result,) = replay(found, stream)
            (waited,) = synchronize(stream)
            if result or waited:
                raise RuntimeError(f"the driver says {result!r}, {waited!r}")

        self.launch, self.launch_and_wait = launch, launch_and_wait
        self.launch_singly = launch_singly

    def wait(self) -> None:
        self._raw.synchronize(self._stream)

    async def right(self) -> None:
        self._check(self.launch_and_wait)

    async def right_singly(self) -> None:
        self._check(self.launch_singly)

    def _check(self, run: Callable[[], None]) -> None:
        self._raw.fill(self._z, 0)
        run()
        check(self._raw.read(self._z), self._nodes)
