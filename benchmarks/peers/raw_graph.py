"""Graphs by `cuda.bindings` alone: captured, instantiated and launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.host_work import compute
from benchmarks.measure import Case, awaited, per_part, timed
from benchmarks.peers import driver
from benchmarks.replayed import DEPTH, NODES
from benchmarks.work import CHAIN, check


def of_graph(ordinal: int) -> list[Case]:
    """The launch of a graph alone, and with a wait behind it."""
    raw, cases = driver.of(ordinal), []
    for nodes in NODES:
        graph = _Graph(raw, nodes)
        cases += [
            Case(
                f"cuda.bindings: graph of {nodes}, cuGraphLaunch",
                timed(graph.launch, graph.wait, every=DEPTH), graph.check,
            ),
            Case(
                f"cuda.bindings: graph of {nodes}, cuGraphLaunch + synchronize",
                timed(graph.launch_and_wait, graph.wait), graph.check,
            ),
        ]  # fmt: skip
    return cases


def of_node(ordinal: int) -> list[Case]:
    """The launch of a graph, and launches one by one; times are per node."""
    graph = _Graph(driver.of(ordinal), CHAIN)
    return [
        Case(
            "cuda.bindings: cuGraphLaunch + synchronize",
            per_part(timed(graph.launch_and_wait, graph.wait), CHAIN), graph.check,
        ),
        Case(
            "cuda.bindings: packed launches + one synchronize",
            per_part(timed(graph.launch_singly, graph.wait), CHAIN), graph.check_singly,
        ),
    ]  # fmt: skip


def of_chain(ordinal: int, length: int) -> list[Case]:
    """`length` launches, one by one and as a graph."""
    graph = _Graph(driver.of(ordinal), length)
    return [
        Case(
            "cuda.bindings: packed launches + one synchronize",
            timed(graph.launch_singly, graph.wait), graph.check_singly,
        ),
        Case(
            "cuda.bindings: cuGraphLaunch + synchronize",
            timed(graph.launch_and_wait, graph.wait), graph.check,
        ),
    ]  # fmt: skip


def of_step(ordinal: int, nodes: int, work: int) -> list[Case]:
    """Work of the host after the wait for a launch, and before it."""
    graph = _Graph(driver.of(ordinal), nodes)

    async def behind() -> None:
        graph.launch_and_wait()
        compute(work)

    async def beside() -> None:
        graph.launch()
        compute(work)
        graph.wait()

    return [
        Case("cuda.bindings: cuGraphLaunch + synchronize, work", awaited(behind), graph.check),
        Case("cuda.bindings: cuGraphLaunch, work, synchronize", awaited(beside), graph.check),
    ]


class _Graph:
    """`nodes` packed launches on one row, captured on a stream.

    Attributes:
        launch: replays them.
        launch_and_wait: replays them, and waits.
        launch_singly: launches them one by one, and waits.
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

        launch_singly()  # the first launch loads the kernel, which must not happen in the capture
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        raw.ok(cu.cuStreamBeginCapture(stream, mode))
        enqueue()
        captured = raw.ok(cu.cuStreamEndCapture(stream))
        executable: Any = raw.ok(cu.cuGraphInstantiate(captured, 0))
        raw.ok(cu.cuGraphUpload(executable, stream))
        self.wait()

        def launch() -> None:
            (result,) = replay(executable, stream)
            if result:
                raise RuntimeError(f"cuGraphLaunch says {result!r}")

        def launch_and_wait() -> None:
            (result,) = replay(executable, stream)
            (waited,) = synchronize(stream)
            if result or waited:
                raise RuntimeError(f"the driver says {result!r}, {waited!r}")

        self.launch, self.launch_and_wait = launch, launch_and_wait
        self.launch_singly = launch_singly

    def wait(self) -> None:
        self._raw.synchronize(self._stream)

    async def check(self) -> None:
        self._check(self.launch_and_wait)

    async def check_singly(self) -> None:
        self._check(self.launch_singly)

    def _check(self, run: Callable[[], None]) -> None:
        self._raw.fill(self._z, 0)
        run()
        check(self._raw.read(self._z), self._nodes)
