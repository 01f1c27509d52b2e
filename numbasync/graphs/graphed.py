"""`graphed` functions: captured once per argument types, replayed with each call's arguments.

A graph has its inputs and outputs at fixed addresses. A call copies its arguments there, replays
the graph and copies the results out, in one operation, so that concurrent calls need not know that
they share these buffers.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Any, Generic, TypeVar, overload

import numpy as np

from numbasync.arguments import check_bool, check_whole, shown
from numbasync.device.callsite import call_site
from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission
from numbasync.errors import NotAGraphNodeError, OperationError
from numbasync.extending import Home, copy, first_home
from numbasync.graphs.captured import NOTHING, Captured
from numbasync.graphs.graph import CudaGraph
from numbasync.graphs.graphed_arguments import Arguments
from numbasync.graphs.recorder import Branch, Recorder, Recording
from numbasync.graphs.recording import Recorded
from numbasync.ops.context import Context
from numbasync.ops.enqueue import run_steps
from numbasync.ops.op import DeviceOp, Shared, Steps
from numbasync.ops.operands import check_op, name_of
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.copies import upload_new
from numbasync.tensors.partition import Partition
from numbasync.tensors.pinned import HostBuffer
from numbasync.tensors.tensor import SharedTensor, Tensor

T = TypeVar("T")

MOST = 16  # captures that one function keeps


class Graphed(Generic[T]):
    """A function of tensors that returns an operation, replayed as a graph.

    Made by `na.graphed`. A call, with the function's arguments, returns an operation of the same
    value.
    """

    def __init__(self, function: Callable[..., DeviceOp[Any]], copies: bool, most: int) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._copies = copies
        self._most = most
        self._lock = threading.Lock()
        self._captures: OrderedDict[Hashable, Shared[Captured]] = OrderedDict()
        self._captured: dict[Hashable, Captured] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> DeviceOp[T]:
        return self.replay(*args, **kwargs)

    def replay(self, *args: Any, **kwargs: Any) -> Replayed:
        """The operation of a call; it knows afterwards which graph it has replayed."""
        return Replayed(self, Arguments(self.name, args, kwargs))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        raise OperationError(
            f"{self.name} is a method: a capture would hold one object's state for all of them.\n"
            "Graph a bound method, na.graphed(obj.method), or derive the class from na.Module."
        )

    @property
    def name(self) -> str:
        return name_of(self._function)

    @property
    def graphs(self) -> tuple[CudaGraph[Any], ...]:
        """The captured graphs, least recently used first."""
        with self._lock:
            captured = (self._captured.get(key) for key in self._captures)
            return tuple(c.graph for c in captured if c is not None)

    def captured(self, ctx: Context, arguments: Arguments) -> Steps[Captured]:
        """Steps that return the capture for these argument types; captures if there is none."""
        key = ctx.device, arguments.key
        with self._lock:
            capture = self._captures.get(key)
            if capture is None:
                capture = self._captures[key] = _Capture(self, arguments, key).shared()
                capture.suppress_warning()
                while True:
                    if len(self._captures) <= self._most:
                        break
                    old, _ = self._captures.popitem(last=False)
                    self._captured.pop(old, None)
            self._captures.move_to_end(key)
        try:
            return (yield from capture.steps(ctx))
        except BaseException:
            with self._lock:
                if self._captures.get(key) is capture:
                    del self._captures[key]  # so that the next call tries again
                    self._captured.pop(key, None)
            raise

    def keep(self, key: Hashable, captured: Captured) -> None:
        with self._lock:
            if key in self._captures:
                self._captured[key] = captured

    def try_replay(
        self, submission: Submission, pool: MemoryPool | None, arguments: Arguments
    ) -> tuple[Any, CudaGraph[Any]] | None:
        """The fast path of a call: its value, and the graph; None, if it needs its steps."""
        device = submission.stream.device
        key = device, arguments.key
        with self._lock:
            captured = self._captured.get(key)
            if captured is None:
                return None
            self._captures.move_to_end(key)
        value = captured.try_replay(submission, pool or device.pool, arguments.arrays, self._copies)
        return None if value is NOTHING else (value, captured.graph)

    def run(self, *args: Any, **kwargs: Any) -> DeviceOp[Any]:
        """The operation that the function itself returns, unrecorded."""
        op = self._function(*args, **kwargs)
        return check_op(op, f"what {self.name} returns, for na.graphed,")

    def check(self, value: Any, recorded: Recorded) -> None:
        """Refuse results that the next call overwrites and no device can copy: host arrays."""
        if not self._copies:
            return
        written = [c.operands[0] for c in recorded.commands if c.call == "download"]
        for array in _host_arrays(value):
            if any(np.may_share_memory(array, host) for host in written):
                raise NotAGraphNodeError(
                    f"{self.name} gives an array in the host's memory, {array.dtype}"
                    f"{list(array.shape)}, which each replay overwrites.\nGive the tensor, and "
                    f"read it behind the call: await {self.name}(...).to_host()."
                )

    def out(self, ctx: Context, value: Any) -> Steps[Any]:
        """Steps that return a call's result: copies of the captured value, or the value itself."""
        if self._copies:
            return (yield from _copied(ctx, value))
        return value

    def __repr__(self) -> str:
        return f"<graphed {self.name}, {len(self._captured)} captures>"


class _Capture(DeviceOp[Captured]):
    """Captures a function for the types of one call's arguments."""

    def __init__(self, graphed: Graphed[Any], arguments: Arguments, key: Hashable) -> None:
        self._graphed = graphed
        self._arguments = arguments
        self._key = key

    def steps(self, ctx: Context) -> Steps[Captured]:
        graphed, arguments = self._graphed, self._arguments
        inputs = tuple(Tensor.allocate(ctx, a.shape, a.dtype) for a in arguments.arrays)
        args, kwargs = arguments.with_arrays(inputs)
        recorder = Recorder(ctx.device.new_stream(), allocates=True)
        op = graphed.run(*args, **kwargs)
        op.consume()
        value = yield from recorder.record(op, Branch(), ctx.submission.site)
        recorded = recorder.finish()
        graphed.check(value, recorded)
        graph: CudaGraph[Any] = CudaGraph(recorder.stream, recorded)
        captured = Captured(graph, inputs, value)
        graphed.keep(self._key, captured)
        return captured

    def _describe(self) -> str:
        return f"capture of {self._graphed.name}"


class Replayed(DeviceOp[Any]):
    """One call: copies the arguments in, replays, and copies the results out.

    Attributes:
        graph_used: the graph that was replayed; None before.
    """

    graph_used: CudaGraph[Any] | None = None
    _value: Any = None

    def __init__(self, graphed: Graphed[Any], arguments: Arguments) -> None:
        self._site = call_site(2)
        self._graphed = graphed
        self._arguments = arguments
        self.has_fast_path = arguments.are_tensors

    @property
    def home(self) -> Home:
        return first_home(self._arguments.arrays)

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        replayed = self._graphed.try_replay(submission, pool, self._arguments)
        if replayed is None:
            return False
        self._value, self.graph_used = replayed
        return True

    def result(self) -> Any:
        value, self._value = self._value, None
        return value

    def steps(self, ctx: Context) -> Steps[Any]:
        graphed, arguments = self._graphed, self._arguments
        if isinstance(ctx, Recording):
            raise NotAGraphNodeError(
                f"{graphed.name} is replayed as a graph of its own; in another graph, use the "
                "function itself."
            )
        captured = yield from graphed.captured(ctx, arguments)
        tensors = list[Tensor]()
        for array in arguments.arrays:
            tensors.append((yield from _on_device(ctx, array)))
        # The rest is one critical section: another thread's call uses the same buffers.
        with ctx.device.submit_lock:
            # Calls run one after the other, in strict ordering too: the caller sees no sharing.
            captured.graph.follow(ctx)
            for target, tensor in zip(captured.inputs, tensors, strict=True):
                if target.same_elements(tensor):
                    continue
                run_steps(copy(ctx, target, tensor))
            captured.graph.launch_in(ctx)
            self.graph_used = captured.graph
            value = run_steps(graphed.out(ctx, captured.output))
            captured.graph.cover()
            return value

    def _describe(self) -> str:
        return f"{self._graphed.name}()"


def _on_device(ctx: Context, array: Tensor | np.ndarray[Any, Any]) -> Steps[Tensor]:
    """Steps that return the array as a contiguous tensor, whose copy has no prerequisites."""
    if isinstance(array, Tensor):
        if array.is_contiguous:
            return array
        tensor = Tensor.allocate(ctx, array.shape, array.dtype)
        yield from copy(ctx, tensor, array)
        return tensor
    tensor = Tensor.of(ctx.device, ctx.alloc(array.nbytes), ArraySpec(array.shape, array.dtype))
    yield from upload_new(ctx, tensor, array)
    return tensor


def _host_arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The host arrays in a result, found as `_copied` finds tensors; without `HostBuffer`s, which
    the user has made.
    """
    if isinstance(value, np.ndarray):
        if not isinstance(value, HostBuffer):
            yield value
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _host_arrays(part)


def _copied(ctx: Context, value: Any) -> Generator[Any, None, Any]:
    """Steps that return `value` with copies of all tensors in it."""
    if isinstance(value, Tensor):
        copied = Tensor.allocate(ctx, value.shape, value.dtype)
        yield from copy(ctx, copied, value)
        return copied
    if isinstance(value, SharedTensor):
        return SharedTensor((yield from _copied(ctx, value.tensor)))
    if isinstance(value, Partition):
        copied = yield from _copied(ctx, value.tensor)
        return copied.partition(value.tile)
    if isinstance(value, tuple | list):
        parts = list[Any]()
        for part in value:
            parts.append((yield from _copied(ctx, part)))
        cls: Any = type(value)
        return cls(*parts) if hasattr(value, "_fields") else cls(parts)
    if isinstance(value, dict):
        items = {}
        for key, part in value.items():
            items[key] = yield from _copied(ctx, part)
        return items
    return value


@overload
def graphed(function: Callable[..., DeviceOp[T]], /) -> Graphed[T]: ...
@overload
def graphed(
    *, copies: bool = True, most: int = MOST
) -> Callable[[Callable[..., DeviceOp[T]]], Graphed[T]]: ...
def graphed(function: Any = None, /, *, copies: bool = True, most: int = MOST) -> Any:
    """Turn a function that returns an operation into one that replays the operation as a graph.

    The first call with arguments of some shapes and dtypes captures. That call and every later one
    of these shapes and dtypes copies its arguments to the graph's input buffers, replays the graph,
    and copies the results. Arguments that are no arrays are part of the capture, and so are tensors
    that the function uses without taking them as arguments: replays see new values in those
    tensors, but not new tensors. The function's writes to an argument go to the graph's copy of it:
    return the argument as a result.

        @na.graphed
        def step(x):
            return layer(hidden, x, weights).then(lambda _: head(out, hidden)).output()

        y = await step(x)

    Args:
        copies: return copies of the results; False: the graph's own tensors, which the next call
            overwrites.
        most: number of captures to keep; beyond it the least recently used one is dropped.

    Raises:
        OperationError: `function` is not callable, or its call returns no operation.
        NotAGraphNodeError: raised when a call's operation runs: it does work that no graph can
            repeat, or, unless `copies` is False, has a result in host memory.

    Examples:
        >>> @na.graphed
        ... def affine(x):
        ...     return na.ones(x.shape).then(lambda z: saxpy(z, 2.0, x)).output()
        >>> y = await affine(np.arange(3, dtype=np.float32))  # captures, and replays
        >>> y = await affine(np.full(3, 5, np.float32))  # replays
        >>> await y.to_host()
        array([11., 11., 11.], dtype=float32)
    """
    copies = check_bool(copies, "copies of graphed")
    if function is None:
        return functools.partial(graphed, copies=copies, most=most)
    run: Callable[..., DeviceOp[Any]] = function
    if not callable(run):
        raise OperationError(f"na.graphed takes a function, not {shown(function)}.")
    most = check_whole(most, "most, the captures that graphed keeps,", 1)
    return Graphed(run, copies, most)
