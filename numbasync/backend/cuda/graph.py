"""CUDA graphs, captured from commands.

The commands are enqueued on a stream that nobody else has, while it is being captured. So
whatever the queue can do, a graph can hold, and nothing that others do gets into it: other
threads use other streams. What a command starts after is told to the driver before it, so that
branches need no streams and events of their own.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from numbasync.backend.cuda.driver import cu, enter, error_of, fail
from numbasync.backend.cuda.stream import CudaQueue, CudaStream
from numbasync.backend.protocols import Command
from numbasync.errors import GraphUpdateError

if TYPE_CHECKING:
    from numbasync.backend.cuda.debug_exceptions import Found
    from numbasync.backend.cuda.gpu import Gpu

# CUDA 12 has them beside older forms, which know no data of edges.
_capture_info: Any = getattr(cu, "cuStreamGetCaptureInfo_v3", cu.cuStreamGetCaptureInfo)
_set_dependencies: Any = getattr(
    cu, "cuStreamUpdateCaptureDependencies_v2", cu.cuStreamUpdateCaptureDependencies
)
_SET = int(cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
_TYPES = {
    int(getattr(cu.CUgraphNodeType, f"CU_GRAPH_NODE_TYPE_{name.upper()}")): name
    for name in ("kernel", "memcpy", "memset", "host", "event_record", "mem_alloc", "mem_free")
}


class _Captured(NamedTuple):
    """A graph that was captured: of each command the node that it ended with."""

    handle: Any
    ends: list[list[Any]]
    checks: tuple[Found, ...]

    def destroy(self) -> None:
        _destroy(self.handle)


class _Capturing(CudaQueue):
    """A queue on a stream that is being captured. What it is asked to do is not done now."""

    __slots__ = ()
    counted = 0


class CudaGraph:
    """Commands as an executable graph of one GPU."""

    def __init__(self, device: Gpu, commands: Sequence[Command]) -> None:
        enter(device)
        self._device = device
        self._commands = tuple(commands)
        self._captured = _capture(device, commands)
        self.checks = self._captured.checks
        result, self._exec = cu.cuGraphInstantiate(self._captured.handle, 0)
        if result:
            self._captured.destroy()
            fail(result, "cuGraphInstantiate")
        self.number = int(self._exec)
        stream = device.capture_streams.take()
        (result,) = cu.cuGraphUpload(self._exec, stream.handle)
        if not result:
            stream.synchronize()
        device.capture_streams.give(stream)
        if result:
            fail(result, "cuGraphUpload")

    @property
    def commands(self) -> Sequence[Command]:
        return self._commands

    @property
    def counts(self) -> Mapping[str, int]:
        enter(self._device)
        handle = self._captured.handle
        result, _, number = cu.cuGraphGetNodes(handle, 0)
        if result:
            fail(result, "cuGraphGetNodes")
        if not number:
            return {}
        result, nodes, _ = cu.cuGraphGetNodes(handle, number)
        if result:
            fail(result, "cuGraphGetNodes")
        return Counter(_type_of(node) for node in nodes)

    def launch(self, handle: Any) -> None:
        """Replay it on a stream."""
        (result,) = cu.cuGraphLaunch(self._exec, handle)
        if result:
            fail(result, "cuGraphLaunch")

    def change(self, position: int, command: Command) -> None:
        enter(self._device)
        (node,) = self._captured.ends[position]
        old = self._commands[position]
        if _type_of(node) != "kernel":
            raise GraphUpdateError(
                f"{old.name} is more than a kernel in the graph: it was compiled with debug=True."
            )
        # A graph of the new command alone has its parameters as the driver wants them.
        one = _capture(self._device, [Command(command.call, command.operands, command.name)])
        try:
            ends = one.ends[0]
            if len(ends) != 1 or _type_of(ends[0]) != "kernel" or one.checks:
                raise GraphUpdateError(f"{command.name} is more than a kernel in a graph.")
            result, parameters = cu.cuGraphKernelNodeGetParams(ends[0])
            if result:
                fail(result, "cuGraphKernelNodeGetParams")
            (result,) = cu.cuGraphExecKernelNodeSetParams(self._exec, node, parameters)
        finally:
            one.destroy()
        if result:
            raise GraphUpdateError(
                f"the driver does not change {old.name} to {command.name} in a graph."
            ) from error_of(result, "cuGraphExecKernelNodeSetParams")
        changed = list(self._commands)
        changed[position] = command
        self._commands = tuple(changed)

    def replace(self, commands: Sequence[Command]) -> None:
        enter(self._device)
        new = _capture(self._device, commands)
        # The nodes that it was made of still name those of the executable graph.
        result, info = cu.cuGraphExecUpdate(self._exec, new.handle)
        checks = new.checks
        new.destroy()
        if result:
            raise GraphUpdateError(
                f"the driver cannot replace the graph's commands by the new ones: "
                f"{getattr(info.result, 'name', info.result)}."
            ) from error_of(result, "cuGraphExecUpdate")
        self._commands = tuple(commands)
        self.checks = checks

    def __del__(self) -> None:
        # Absent if the constructor failed; at the interpreter's end the driver may be gone.
        with contextlib.suppress(Exception):
            exec_, captured = getattr(self, "_exec", None), getattr(self, "_captured", None)
            enter(self._device)
            if exec_ is not None and captured is not None:
                cu.cuGraphExecDestroy(exec_)
                captured.destroy()


class CaptureStreams:
    """Streams for capturing, and for what must not wait for anything."""

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._spare: list[CudaStream] = []

    def take(self) -> CudaStream:
        try:
            return self._spare.pop()
        except IndexError:
            stream = CudaStream(self._device, 0)
            stream.captures = True
            return stream

    def give(self, stream: CudaStream) -> None:
        self._spare.append(stream)


def _capture(device: Gpu, commands: Sequence[Command]) -> _Captured:
    """The graph of these commands. What is begun is always ended.

    Raises:
        What enqueuing a command raised; else what the driver says of the whole.
    """
    stream = device.capture_streams.take()
    queue = _Capturing(stream)
    # Relaxed: what this thread and others do meanwhile is not restricted.
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    (result,) = cu.cuStreamBeginCapture(stream.handle, mode)
    if result:
        fail(result, "cuStreamBeginCapture")
    ends: list[list[Any]] = []
    try:
        at: list[Any] = []
        for command in commands:
            before = [node for i in command.after for node in ends[i]]
            if [int(n) for n in before] != [int(n) for n in at]:
                _start_after(stream, before)
            command.enqueue(queue)
            at = _latest(stream)
            ends.append(at)
    except BaseException as error:
        result, graph = cu.cuStreamEndCapture(stream.handle)
        if result:
            error.add_note(f"Ending the capture failed as well: {error_of(result, 'EndCapture')}")
        elif graph is not None and int(graph):
            _destroy(graph)
        device.capture_streams.give(stream)
        raise
    result, graph = cu.cuStreamEndCapture(stream.handle)
    device.capture_streams.give(stream)
    if result:
        fail(result, "cuStreamEndCapture")
    return _Captured(graph, ends, tuple(queue.checks))


def _start_after(stream: CudaStream, nodes: list[Any]) -> None:
    (result,) = _set_dependencies(stream.handle, nodes, None, len(nodes), _SET)
    if result:
        fail(result, "cuStreamUpdateCaptureDependencies")


def _latest(stream: CudaStream) -> list[Any]:
    """The nodes that whatever is captured next would start after."""
    result, _, _, _, nodes, *_ = _capture_info(stream.handle)
    if result:
        fail(result, "cuStreamGetCaptureInfo")
    return list(nodes or ())


def _destroy(graph: Any) -> None:
    """Give a graph back that nobody needs, whatever the driver says of it."""
    with contextlib.suppress(Exception):
        cu.cuGraphDestroy(graph)


def _type_of(node: Any) -> str:
    result, kind = cu.cuGraphNodeGetType(node)
    if result:
        fail(result, "cuGraphNodeGetType")
    return _TYPES.get(int(kind), str(kind))
