"""Graphs: an operation captured once, and replayed by one driver call.

Capturing runs the operation's closures and compiles its kernels, but computes nothing before the
first launch. A graph owns the captured buffers: every buffer lives as long as the graph, or as long
as a launch of the graph is in flight. Each launch is ordered like any operation that uses those
buffers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from sys import _getframe
from typing import Any, Generic, TypeVar, overload

import numpy as np

from numbasync import notebook
from numbasync.arguments import shown
from numbasync.backend import protocols
from numbasync.backend.protocols import Command
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool, Storage
from numbasync.device.stream import AnyStream, Stream, as_stream
from numbasync.device.submission import Submission
from numbasync.errors import CallerError, DeviceMismatchError, GraphUpdateError
from numbasync.extending import Home
from numbasync.graphs.buffer_leases import AttachedGraph
from numbasync.graphs.recorder import Recording, recorded_of
from numbasync.graphs.recording import Recorded, check_edges
from numbasync.graphs.scope import Scope
from numbasync.graphs.topology import (
    GraphStatistics,
    Node,
    Topology,
    described,
    node_of,
    topology_of,
)
from numbasync.launch.call import Launch
from numbasync.native import compiled, known
from numbasync.ops.constructors import Leaf
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp
from numbasync.ops.operands import check_closure, check_op, name_of, suppress_unused_warnings
from numbasync.ops.pickling import unpicklable
from numbasync.ops.run import enqueue_on, stream_for
from numbasync.ops.simple_op import SimpleOp
from numbasync.public import Public
from numbasync.tensors.array import DeviceArray
from numbasync.tensors.pinned import sharing

T = TypeVar("T")


@known
class GraphLaunch(SimpleOp[None]):
    """One replay of a graph. The operation keeps the graph alive."""

    __slots__ = ("_graph",)
    has_fast_path = True
    label = "graph.launch()"  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    def __init__(self, graph: CudaGraph[Any]) -> None:
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


@known
class CudaGraph(Public, Generic[T]):
    """The captured work of an operation, which can be launched any number of times.

    Made by `op.graph_on(stream)`, `CudaGraph.capture(stream, op)`, or a scope. On the CPU device
    a graph is a list of commands, with the same rules.

    Attributes:
        stream: the graph's default stream: `update` always runs there, and `launch` unless the
            caller chooses another stream.
        device: the stream's device.

    Examples:
        >>> z, x = await na.gather(na.zeros(3), na.ones(3))
        >>> graph = saxpy(z, 2.0, x).graph()  # compiled and captured; nothing has run
        >>> for _ in range(3):
        ...     _ = await graph.launch()
        >>> await z.to_host()
        array([6., 6., 6.], dtype=float32)
        >>> graph.topology().counts
        {'kernel': 1}
    """

    __slots__ = (
        "__dict__", "__weakref__", "_attached", "_backend", "_dependencies", "_is_own", "_launches",
        "_names", "_recorded", "_shares", "_updated", "device", "stream",
    )  # fmt: skip

    def __init__(self, stream: Stream, recorded: Recorded, output: T | None = None) -> None:
        if not isinstance(recorded, Recorded):
            raise CallerError(
                f"CudaGraph is not called, with {type(recorded).__name__}: write "
                "CudaGraph.capture(stream, op)."
            )
        self.stream = stream
        self.device: Device = stream.device
        self._output = output
        self._launches = self._updates = 0
        self._updated: Submission | None = None
        self._backend: protocols.Graph = self.device.backend.graph(recorded.commands)
        with self.device.submit_lock:
            self._hold(recorded)

    def _hold(self, recorded: Recorded) -> None:
        """Attach the graph to the recorded storages. The caller holds `device.submit_lock`."""
        self._recorded = recorded
        with sharing:
            self._attached = AttachedGraph(recorded.reads, recorded.writes)
        self._dependencies = recorded.dependencies
        self._names = tuple(s.command.name for s in recorded.steps if s.origin is not None)
        # Two devices may use the same page-locked array: see `sharing`.
        self._shares = any(s.pool.device is None for s in self._attached.storages)
        self._is_own = not self._shares and not recorded.sources  # memory of this device only

    # --- capturing ---

    @staticmethod
    def capture(stream: AnyStream, op: DeviceOp[T]) -> CudaGraph[T]:
        """Capture `op` for replays on `stream`; blocks until the capture is done.

        The operation may allocate: the graph owns that memory, at the same addresses in each
        launch. Host arrays that it uploads are read now, those of `na.pinned` at each launch.

        Raises:
            NotAGraphNodeError: the operation contains work that no graph can repeat.
            ReentrancyError: called inside a closure, or a scope.
            The errors of the operation itself. The stream remains usable after any error.

        Examples:
            >>> z = await na.zeros(3)
            >>> graph = na.CudaGraph.capture(na.default_device().new_stream(), na.fill(z, 7))
            >>> graph.topology().counts
            {'memset': 1}
        """
        with suppress_unused_warnings((op,)):
            stream = as_stream(stream, "capture")
        check_op(op, "what capture takes")
        recorded, value = recorded_of(op, stream, allocates=True)
        return CudaGraph(stream, recorded, value)

    @overload
    @staticmethod
    def scope(stream: AnyStream) -> Scope: ...
    @overload
    @staticmethod
    def scope(stream: AnyStream, f: Callable[[Scope], object]) -> CudaGraph[None]: ...
    @staticmethod
    def scope(
        stream: AnyStream, f: Callable[[Scope], object] | None = None
    ) -> Scope | CudaGraph[None]:
        """Record operations one by one: inside `with CudaGraph.scope(stream) as s:`, or in `f(s)`,
        with which this returns the finished graph. See `Scope`.

        Examples:
            >>> z = await na.zeros(3)
            >>> with na.CudaGraph.scope(na.default_device().new_stream()) as s:
            ...     _ = s.record(na.fill(z, 7))
            >>> s.graph.topology().counts
            {'memset': 1}
        """
        scope = Scope(stream, CudaGraph)
        if f is None:
            return scope
        check_closure(f, "scope")
        with scope:
            value = f(scope)
            if inspect.isgenerator(value) or inspect.iscoroutine(value):
                value.close()
                raise CallerError(
                    f"{name_of(f)} gives a {type(value).__name__}, which records nothing: a scope "
                    "is recorded at once. Write a plain function, without await and yield."
                )
        return scope.graph

    # --- output, launch, update ---

    def take_output(self) -> T | None:
        """The value of the captured operation, handed out once; None afterwards.

        Each launch overwrites its tensors, whose contents are undefined before the first launch.

        Examples:
            >>> graph = na.full(3, 7).graph()
            >>> t = graph.take_output()  # which each launch writes anew
            >>> _ = await graph.launch()
            >>> await t.to_host()
            array([7., 7., 7.], dtype=float32)
        """
        output, self._output = self._output, None
        return output

    @compiled
    def launch(self) -> DeviceOp[None]:
        """An operation that replays all captured work.

        The operation runs on the graph's default stream unless the caller chooses another one.
        Launches of one graph run one after the other.
        """
        return GraphLaunch(self)

    def update(self, op: DeviceOp[Any]) -> None:
        """Enqueue `op` on the graph's stream, before the next launch, usually to copy new input.

        Args:
            op: an operation of graph nodes only, such as `na.memcpy(buffer, array)`.

        Raises:
            NotAGraphNodeError: `op` allocates, or waits for the host; nothing is enqueued.

        Examples:
            >>> z, x = await na.gather(na.zeros(3), na.ones(3))
            >>> graph = saxpy(z, 2.0, x).graph()
            >>> graph.update(na.fill(x, 5))  # runs before the next launch
            >>> _ = await graph.launch()
            >>> await z.to_host()
            array([10., 10., 10.], dtype=float32)
        """
        check_op(op, "what update takes")
        if not op.is_node:  # not known beforehand: record its commands
            label = op.label
            op = Replay(recorded_of(op, self.stream, allocates=False)[0], label)
        self._updated, _ = enqueue_on(op, self.stream)
        self._updates += 1

    # --- changing the captured work ---

    def set_args(self, node: Node | int, *args: Any, **kwargs: Any) -> None:
        """Replace the arguments of a kernel node; launches already enqueued keep the old ones.

        Args:
            node: a node of `graph.nodes`, or its position.
            args, kwargs: all arguments of the kernel, as in a call of it. A grid and a block that
                were given in brackets stay.

        Raises:
            GraphUpdateError: the node is no kernel, or the driver cannot; nothing has changed.
            The errors of the kernel call itself.

        Examples:
            >>> z, x = await na.gather(na.zeros(3), na.ones(3))
            >>> graph = saxpy(z, 2.0, x).graph()
            >>> graph.set_args(graph.nodes[0], z, 10.0, x)
            >>> _ = await graph.launch()
            >>> await z.to_host()
            array([10., 10., 10.], dtype=float32)
        """
        position = node.position if isinstance(node, Node) else node
        steps = self._recorded.steps
        counted = isinstance(position, int | np.integer) and not isinstance(position, bool)
        if not counted or not 0 <= position < len(steps):
            raise CallerError(
                f"set_args({shown(node)}): the graph has {len(steps)} nodes, numbered from 0; "
                "write one of graph.nodes, or its position."
            )
        position = int(position)
        old = steps[position]
        if isinstance(node, Node) and node != node_of(position, old.command):
            raise CallerError(
                f"set_args: {node!r} is of another graph, or was here before a recapture; here "
                f"node {position} is {old.command.name}. Write one of graph.nodes."
            )
        if not isinstance(old.origin, Launch):
            raise GraphUpdateError(
                f"node {position} is a {old.command.kind} ({old.command.name}); only a kernel has "
                "arguments. Copy other data with update(), or capture again: recapture(op)."
            )
        call = old.origin.again(args, kwargs)
        recorded, _ = recorded_of(call, self.stream, allocates=False)
        if len(recorded.steps) != 1:
            raise GraphUpdateError(
                f"{call} is {len(recorded.steps)} nodes, and not one: its arguments must be "
                "tensors and numbers, and its grid not empty."
            )
        (new,) = recorded.steps
        command = Command("launch", new.command.operands, new.command.name, old.command.after)
        new_steps = list(steps)
        new_steps[position] = replace(new, command=command)
        check_edges(new_steps)
        with self.device.submit_lock:
            self._backend.change(position, command)
            self._replace(Recorded(
                tuple(new_steps), (*self._recorded.keep_alive, *recorded.keep_alive),
                (*self._dependencies, *recorded.dependencies), self._recorded.nbytes,
                {**self._recorded.names, **recorded.names},
            ))  # fmt: skip

    def recapture(self, op: DeviceOp[T]) -> None:
        """Capture `op` in place of the graph's work: the same kernels and copies in the same
        order, with other arguments.

        This is much cheaper than a new graph, and holders of this object launch the new work. The
        graph's output is replaced, too.

        Raises:
            GraphUpdateError: `op` has another topology, or the driver cannot; nothing has changed.
            The errors of `capture`.

        Examples:
            >>> z, x = await na.gather(na.zeros(3), na.ones(3))
            >>> graph = saxpy(z, 2.0, x).graph()
            >>> graph.recapture(saxpy(z, 5.0, x))
            >>> _ = await graph.launch()
            >>> await z.to_host()
            array([5., 5., 5.], dtype=float32)
        """
        check_op(op, "what recapture takes")
        recorded, value = recorded_of(op, self.stream, allocates=True)
        old, new = ([(c.kind, c.after) for c in r.commands] for r in (self._recorded, recorded))
        if old != new:
            raise GraphUpdateError(
                f"{op} is of another topology "
                f"({described(topology_of(recorded.commands, {}).counts)}) "
                f"than the graph ({described(self.topology().counts)}): capture a new graph."
            )
        with self.device.submit_lock:
            self._backend.replace(recorded.commands)
            self._replace(recorded)
        self._output = value

    def _replace(self, recorded: Recorded) -> None:
        """Replace the recording. Launches in flight keep the old one alive; the next launch records
        its access of every storage. The caller holds the device's `submit_lock`.
        """
        self._hold(recorded)
        self._updates += 1

    # --- inspection ---

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The graph's nodes, in the order in which they were recorded."""
        return self.topology().nodes

    def topology(self) -> Topology:
        """The graph's nodes and edges, and the number of nodes of each kind."""
        return topology_of(self._backend.commands, self._backend.counts)

    def to_dot(self) -> str:
        """The graph in Graphviz's language; `topology().to_png(path)` draws it.

        Examples:
            >>> z = await na.zeros(3)
            >>> print(na.fill(z, 1).graph().to_dot())
            digraph graph_of_numbasync {
              node [fontname=monospace];
              n0 [label="fill", shape=ellipse];
            }
        """
        return self.topology().to_dot()

    def statistics(self) -> GraphStatistics:
        """The size of the graph, and how often it was used.

        Examples:
            >>> graph = na.zeros(1000).graph()
            >>> graph.statistics().nbytes
            4000
        """
        return GraphStatistics(
            len(self._recorded.steps), self._launches, self._updates,
            len(self._attached.storages), self._recorded.nbytes,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        topology = self.topology()
        nodes = described(topology.counts)
        title = f"CudaGraph on {self.stream.device.label}: {nodes}; {self._launches} launches"
        return notebook.tree(title, []) + topology._repr_svg_()

    def __repr__(self) -> str:
        counts = described(topology_of(self._recorded.commands, {}).counts)
        return f"<CudaGraph {counts}, {self._launches} launches, {self.stream!r}>"

    # --- launching ---

    def try_launch(self, submission: Submission) -> bool:
        """The fast path: enqueue a replay, if it needs no ordering; returns whether it did."""
        if self._shares:
            with self.device.submit_lock, sharing:
                return self._launched(submission)
        with self.device.submit_lock:
            return self._launched(submission)

    def _launched(self, submission: Submission) -> bool:
        """`try_launch`; the caller holds the locks."""
        if not self._attached.is_current_on(submission.stream) or not self._begin(submission):
            return False
        submission.queue = submission.stream.backend.replay(self._backend, submission.queue)
        self._launches += 1
        return True

    def _begin(self, submission: Submission, taken: Iterable[Storage] = ()) -> bool:
        """Note the launch that the caller is about to enqueue; False: it needs ordering."""
        stream = submission.stream
        if (
            self._dependencies
            or self._recorded.sources
            or stream.device is not self.device
            or (self._updated is not None and self._updated.stream is not stream)
        ):
            return False
        submission.launched += self._names
        submission.keep_alive += (self, self._recorded)
        self._attached.launched(submission, taken)  # before the replay: ^C may come right after it
        return True

    def begin(self, submission: Submission, inputs: Iterable[DeviceArray]) -> bool:
        """Note a launch, and writes of `inputs` before it, which the caller enqueues next, and then
        `replay`, under `device.submit_lock`. False, with nothing noted: that needs ordering.
        """
        if not self._is_own or not self._attached.move_to(submission.stream):
            return False
        if not self._begin(submission, list(self._attached.stale)):
            return False
        self._attached.cover(tensor.storage for tensor in inputs)
        return True

    def replay(self, submission: Submission) -> None:
        """Enqueue the launch that `begin` has noted."""
        submission.queue = submission.stream.backend.replay(self._backend, submission.queue)
        self._launches += 1

    def cover(self) -> None:
        """Note that whatever has used the buffers since the latest launch is of its submission."""
        self._attached.cover(())

    def uses(self, storage: Storage | None) -> bool:
        """Whether a launch uses the storage."""
        return storage in self._attached.storages

    def follow(self, ctx: Context) -> None:
        """Order the work enqueued from now on after the graph's latest launch."""
        self._attached.follow(ctx)

    def launch_in(self, ctx: Context) -> None:
        """Enqueue a replay, ordered with all other submissions that use the graph's buffers."""
        if ctx.device is not self.device:
            raise DeviceMismatchError(
                f"{self!r} cannot be launched on {ctx.stream!r}, which is another device's."
            )
        if isinstance(ctx, Recording):
            ctx.inline(self._recorded)
            ctx.retain(self)
            return
        for source in self._recorded.sources:
            ctx.order(source)
        if self._updated is not None:
            ctx.after(self._updated)
        with self.device.submit_lock, sharing if self._shares else nullcontext():
            for dependency in self._dependencies:
                ctx.depend(dependency)
            taken = self._attached.take(ctx, self._recorded.names)
            ctx.submission.launched += self._names
            ctx.retain((self, self._recorded))
            ctx.queue.replay(self._backend)
            self._attached.launched(ctx.submission, taken)
            self._dependencies = ()
            self._updated = None
            self._launches += 1


def captured(op: Any, *where: Any) -> CudaGraph[Any]:
    """An operation, captured on a stream, or on the next one of the default device's policy."""
    (stream,) = where or (stream_for(op),)
    return CudaGraph.capture(stream, op)


unpicklable(CudaGraph, "Pickle the operation instead, and capture it where it is to run.")
