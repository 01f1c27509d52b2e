"""CUDA graphs, captured from commands.

The commands are enqueued on a private stream while the stream is being captured. A graph can
therefore hold all operations of a queue, and no work of other threads, which use other streams.
The dependencies of a command are set in the driver before the command is captured, so that
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
from numbasync.errors import DriverError, GraphUpdateError
from numbasync.native import known

if TYPE_CHECKING:
    from numbasync.backend.cuda.debug_exceptions import Found
    from numbasync.backend.cuda.gpu import Gpu

# CUDA 12 has these functions beside older forms without edge data.
_capture_info: Any = getattr(cu, "cuStreamGetCaptureInfo_v3", cu.cuStreamGetCaptureInfo)
_set_dependencies: Any = getattr(
    cu, "cuStreamUpdateCaptureDependencies_v2", cu.cuStreamUpdateCaptureDependencies
)
_SET = int(cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
INVALIDATED = int(cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
ATTEMPTS = 16  # of a capture, each of which another thread may invalidate
_TYPES = {
    int(getattr(cu.CUgraphNodeType, f"CU_GRAPH_NODE_TYPE_{name.upper()}")): name
    for name in ("kernel", "memcpy", "memset", "host", "event_record", "mem_alloc", "mem_free")
}


class _Captured(NamedTuple):
    """A captured graph, with the last nodes of each command."""

    handle: Any
    ends: list[list[Any]]
    checks: tuple[Found, ...]

    def destroy(self) -> None:
        _destroy(self.handle)


class _Capturing(CudaQueue):
    """A queue on a stream that is being captured: its work is recorded, not run."""

    __slots__ = ()
    counted = 0


@known
class ExecutableGraph:
    """Commands as an executable graph of one GPU.

    Attributes:
        checks: the checks that a launch needs, for exceptions that debug kernels raise.
        number: the driver's handle, as a number.
    """

    __slots__ = ("__weakref__", "_captured", "_commands", "_device", "_exec", "checks", "number")

    def __init__(self, device: Gpu, commands: Sequence[Command]) -> None:
        enter(device)
        self._device = device
        self._commands = tuple(commands)
        with device.capturing:
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
        """Replay the graph on the stream with this handle."""
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
        # A graph of the new command alone gives its parameters in the driver's form.
        single = _capture(self._device, [Command(command.call, command.operands, command.name)])
        try:
            ends = single.ends[0]
            if len(ends) != 1 or _type_of(ends[0]) != "kernel" or single.checks:
                raise GraphUpdateError(f"{command.name} is more than a kernel in a graph.")
            result, parameters = cu.cuGraphKernelNodeGetParams(ends[0])
            if result:
                fail(result, "cuGraphKernelNodeGetParams")
            (result,) = cu.cuGraphExecKernelNodeSetParams(self._exec, node, parameters)
        finally:
            single.destroy()
        if result:
            raise GraphUpdateError(
                f"the driver does not change {old.name} to {command.name} in a graph."
            ) from error_of(result, "cuGraphExecKernelNodeSetParams")
        changed = list(self._commands)
        changed[position] = command
        self._commands = tuple(changed)

    def replace(self, commands: Sequence[Command]) -> None:
        enter(self._device)
        with self._device.capturing:
            captured = _capture(self._device, commands)
            # The nodes of the original capture still identify those of the executable graph.
            result, info = cu.cuGraphExecUpdate(self._exec, captured.handle)
            checks = captured.checks
            captured.destroy()
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
    """Streams for capturing, and for work that must not wait for other work."""

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
    """The graph of these commands. The capture is repeated if another thread invalidates it, which
    a wait for the whole device does (`cuCtxSynchronize`, also by another library).

    Raises:
        The error of enqueueing a command; else the driver's error for the whole capture.
    """
    with device.capturing:
        for _ in range(ATTEMPTS - 1):
            try:
                return _capture_once(device, commands)
            except DriverError as error:
                if error.code != INVALIDATED:
                    raise
        return _capture_once(device, commands)


def _capture_once(device: Gpu, commands: Sequence[Command]) -> _Captured:
    """The graph of these commands. A capture that has begun is always ended."""
    stream = device.capture_streams.take()
    queue = _Capturing(stream)
    # Relaxed: other driver calls of this thread and of others are not restricted meanwhile.
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    refused: Any = None
    ends: list[list[Any]] = []
    try:  # ^C may come right behind the call
        (refused,) = cu.cuStreamBeginCapture(stream.handle, mode)
        if refused:
            fail(refused, "cuStreamBeginCapture")
        current: list[Any] = []
        for command in commands:
            dependencies = [node for i in command.after for node in ends[i]]
            if [int(n) for n in dependencies] != [int(n) for n in current]:
                _start_after(stream, dependencies)
            command.enqueue(queue)
            current = _latest(stream)
            ends.append(current)
    except BaseException as error:
        if refused:
            raise
        result, graph = cu.cuStreamEndCapture(stream.handle)
        if result:
            error.add_note(f"Ending the capture failed as well: {error_of(result, 'EndCapture')}")
        elif graph is not None and int(graph):
            _destroy(graph)
        device.capture_streams.give(stream)
        if int(result) == INVALIDATED and isinstance(error, DriverError):
            raise error_of(result, "cuStreamEndCapture") from error
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
    """The nodes after which the next captured work would start."""
    result, _, _, _, nodes, *_ = _capture_info(stream.handle)
    if result:
        fail(result, "cuStreamGetCaptureInfo")
    return list(nodes or ())


def _destroy(graph: Any) -> None:
    """Destroy an unused graph, ignoring errors of the driver."""
    with contextlib.suppress(Exception):
        cu.cuGraphDestroy(graph)


def _type_of(node: Any) -> str:
    result, node_type = cu.cuGraphNodeGetType(node)
    if result:
        fail(result, "cuGraphNodeGetType")
    return _TYPES.get(int(node_type), str(node_type))
