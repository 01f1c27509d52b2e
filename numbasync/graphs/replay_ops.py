"""Operations that replay: a graph, or a recording that is enqueued once."""

from __future__ import annotations

from sys import _getframe
from typing import Any, Protocol

from numbasync.device.storage import MemoryPool
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.extending import Home
from numbasync.graphs.recording import Recorded
from numbasync.native import compiled, known
from numbasync.ops.constructors import Leaf
from numbasync.ops.context import Context
from numbasync.ops.simple_op import SimpleOp
from numbasync.tensors.pinned import sharing


class Replayable(Protocol):
    """The interface of a graph that `GraphLaunch` uses."""

    stream: Stream

    def try_launch(self, submission: Submission) -> bool: ...

    def launch_in(self, ctx: Context) -> None: ...


@known
class GraphLaunch(SimpleOp[None]):
    """One replay of a graph. The operation keeps the graph alive."""

    __slots__ = ("_graph",)
    has_fast_path = True
    label = "graph.launch()"  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    def __init__(self, graph: Replayable) -> None:
        frame = _getframe(2)  # as in `Launch`
        self._site = frame.f_code, frame.f_lasti
        self._unused = True
        self._graph = graph

    @property
    def home(self) -> Home:
        return self._graph.stream

    @compiled
    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        return self._graph.try_launch(submission)

    def result(self) -> None:
        return None

    def steps(self, ctx: Context) -> Any:
        self._graph.launch_in(ctx)
        return None
        yield  # makes this function a generator

    def _describe(self) -> str:
        return self.label


class Replay(Leaf[None]):
    """Enqueues the commands of a recording one by one, once."""

    def __init__(self, recorded: Recorded, label: str) -> None:
        self._recorded = recorded
        self._label = label

    def enqueue(self, ctx: Context) -> None:
        recorded = self._recorded
        for source in recorded.sources:
            ctx.order(source)
        with ctx.device.submit_lock, sharing:
            for prior in recorded.dependencies:
                ctx.depend(prior)
            for storage in recorded.reads:
                ctx.read(storage, recorded.names.get(storage))
            for storage in recorded.writes:
                ctx.write(storage, recorded.names.get(storage))
            ctx.retain(recorded)
            for command in recorded.commands:
                command.enqueue(ctx.queue)

    def _describe(self) -> str:
        return self._label
