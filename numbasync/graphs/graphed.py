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
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from numbasync import layout
from numbasync.backend import array_protocols
from numbasync.device.callsite import call_site
from numbasync.errors import CallerError, NotAGraphNodeError, OperationError
from numbasync.graphs.graph import CudaGraph
from numbasync.graphs.recorder import Branch, Recorder, Recording
from numbasync.graphs.recording import Recorded
from numbasync.ops.context import Context
from numbasync.ops.enqueue import prepared
from numbasync.ops.op import DeviceOp, Shared, Steps
from numbasync.ops.operands import check_op, is_op, name_of, suppress_unused_warnings
from numbasync.tensors import import_array
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.copies import copy, upload_new
from numbasync.tensors.partition import Partition
from numbasync.tensors.pinned import HostBuffer
from numbasync.tensors.tensor import SharedTensor, Tensor

T = TypeVar("T")

MOST = 16  # captures that one function keeps


class _Captured(NamedTuple):
    """One capture: the graph, its input buffers, and the captured operation's value."""

    graph: CudaGraph[Any]
    inputs: tuple[Tensor, ...]
    output: Any


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
        self._captures: OrderedDict[Hashable, Shared[_Captured]] = OrderedDict()
        self._graphs: dict[Hashable, CudaGraph[Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> DeviceOp[T]:
        return self.replay(*args, **kwargs)

    def replay(self, *args: Any, **kwargs: Any) -> Replayed:
        """The operation of a call; it knows afterwards which graph it has replayed."""
        return Replayed(self, _Arguments(self.name, args, kwargs))

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
            return tuple(self._graphs[key] for key in self._captures if key in self._graphs)

    def captured(self, ctx: Context, arguments: _Arguments) -> Steps[_Captured]:
        """Steps that return the capture for these argument types; captures if there is none."""
        key = ctx.device, arguments.key
        with self._lock:
            capture = self._captures.get(key)
            if capture is None:
                capture = self._captures[key] = _Capture(self, arguments, key).shared()
                capture.suppress_warning()
                while len(self._captures) > self._most:
                    old, _ = self._captures.popitem(last=False)
                    self._graphs.pop(old, None)
            self._captures.move_to_end(key)
        try:
            return (yield from capture.steps(ctx))
        except BaseException:
            with self._lock:
                if self._captures.get(key) is capture:
                    del self._captures[key]  # so that the next call tries again
                    self._graphs.pop(key, None)
            raise

    def keep(self, key: Hashable, graph: CudaGraph[Any]) -> None:
        with self._lock:
            if key in self._captures:
                self._graphs[key] = graph

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
        return f"<graphed {self.name}, {len(self._graphs)} captures>"


class _Arguments:
    """The arguments of one call, by position and by name, with the arrays kept separately."""

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._name = name
        self.arrays: list[Tensor | np.ndarray[Any, Any]] = []
        keys = list[Hashable]()
        with suppress_unused_warnings((*args, *kwargs.values())):
            self._args = [self._sorted(i, v, keys) for i, v in enumerate(args)]
            self._kwargs = {k: self._sorted(k, v, keys) for k, v in sorted(kwargs.items())}
        self.key: Hashable = (len(args), tuple(self._kwargs), tuple(keys))

    def _sorted(self, where: int | str, value: Any, keys: list[Hashable]) -> Any:
        if is_op(value):
            raise OperationError(
                f"argument {where!r} of {self._name} is an operation, {value}: run it first, or go "
                f"on with its value: op.then({self._name})."
            )
        if isinstance(value, SharedTensor):
            value = value.tensor
        if not isinstance(value, Tensor) and array_protocols.is_foreign(value):
            array = import_array.argument(value)
            value = value if array is None else array
        if isinstance(value, Tensor | np.ndarray):
            keys.append((value.shape, layout.check_dtype(value.dtype, records=True)))
            self.arrays.append(value)
            return _Array
        key = _value_key(value)
        try:
            hash(key)
            keys.append(key)
        except TypeError:
            raise CallerError(
                f"argument {where!r} of {self._name} is a {type(value).__name__}, which a capture "
                "cannot remember: pass tensors, NumPy arrays, and values that are hashable."
            ) from None
        return value

    def with_arrays(self, arrays: tuple[Tensor, ...]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, with these arrays in place of the call's own."""
        remaining = iter(arrays)

        def put(value: Any) -> Any:
            return next(remaining) if value is _Array else value

        return [put(v) for v in self._args], {k: put(v) for k, v in self._kwargs.items()}


def _value_key(value: Any) -> Hashable:
    """The key of an argument that is no array.

    1, 1.0 and True compare equal, and so do 0.0 and -0.0, but they are different kernel arguments;
    and NaN is not equal to itself.
    """
    cls = type(value)
    if isinstance(value, tuple):
        return cls, tuple(_value_key(part) for part in value)
    if isinstance(value, np.generic):
        return cls, value.dtype, value.tobytes()
    if cls in (float, complex):
        return cls, np.array(value).tobytes()
    return cls, value


class _Array:
    """The placeholder of an array in `_Arguments`."""


class _Capture(DeviceOp[_Captured]):
    """Captures a function for the types of one call's arguments."""

    def __init__(self, graphed: Graphed[Any], arguments: _Arguments, key: Hashable) -> None:
        self._graphed = graphed
        self._arguments = arguments
        self._key = key

    def steps(self, ctx: Context) -> Steps[_Captured]:
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
        graphed.keep(self._key, graph)
        return _Captured(graph, inputs, value)

    def _describe(self) -> str:
        return f"capture of {self._graphed.name}"


class Replayed(DeviceOp[Any]):
    """One call: copies the arguments in, replays, and copies the results out.

    Attributes:
        graph_used: the graph that was replayed; None before.
    """

    graph_used: CudaGraph[Any] | None = None

    def __init__(self, graphed: Graphed[Any], arguments: _Arguments) -> None:
        self._site = call_site(2)
        self._graphed = graphed
        self._arguments = arguments

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
                if not target.same_elements(tensor):
                    prepared(copy(ctx, target, tensor))
            captured.graph.launch_in(ctx)
            self.graph_used = captured.graph
            return prepared(graphed.out(ctx, captured.output))

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
    """
    if function is None:
        return functools.partial(graphed, copies=copies, most=most)
    run: Callable[..., DeviceOp[Any]] = function
    if not callable(run):
        raise OperationError(f"na.graphed takes a function, not {function!r:.60}.")
    if not isinstance(most, int) or most < 1:
        raise CallerError(f"most={most!r}: keep 1 capture, or more.")
    return Graphed(run, copies, most)
