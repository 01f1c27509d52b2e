"""Functions that replay: captured once for each kind of arguments, fed with each call's own.

A graph has its inputs and outputs at fixed places. A call copies its arguments there, replays,
and copies what comes out, in one operation, so that calls may overlap as if there were no places
to share.
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

MOST = 16  # captures of one function that are kept


class _Captured(NamedTuple):
    """One capture: the graph, where its inputs are, and what came out."""

    graph: CudaGraph[Any]
    inputs: tuple[Tensor, ...]
    output: Any


class Graphed(Generic[T]):
    """A function of tensors that gives an operation, replayed as a graph.

    Made by `na.graphed`. Called like the function, it gives an operation of the same value.
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
        """A call, which knows afterwards what it has replayed."""
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
        """What has been captured, the one that was used last at the end."""
        with self._lock:
            return tuple(self._graphs[key] for key in self._captures if key in self._graphs)

    def captured(self, ctx: Context, arguments: _Arguments) -> Steps[_Captured]:
        """The capture for such arguments; made now, if there is none."""
        key = ctx.device, arguments.key
        with self._lock:
            found = self._captures.get(key)
            if found is None:
                found = self._captures[key] = _Capture(self, arguments, key).shared()
                found.suppress_warning()
                while len(self._captures) > self._most:
                    old, _ = self._captures.popitem(last=False)
                    self._graphs.pop(old, None)
            self._captures.move_to_end(key)
        try:
            return (yield from found.steps(ctx))
        except BaseException:
            with self._lock:
                if self._captures.get(key) is found:
                    del self._captures[key]  # so that the next call tries again
                    self._graphs.pop(key, None)
            raise

    def keep(self, key: Hashable, graph: CudaGraph[Any]) -> None:
        with self._lock:
            if key in self._captures:
                self._graphs[key] = graph

    def run(self, *args: Any, **kwargs: Any) -> DeviceOp[Any]:
        """What the function itself gives."""
        made = self._function(*args, **kwargs)
        return check_op(made, f"what {self.name} returns, for na.graphed,")

    def check(self, value: Any, recorded: Recorded) -> None:
        """Refuse to hand out what the next call overwrites, and what no device can copy."""
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
        """What a call hands out of what came out."""
        if self._copies:
            return (yield from _copied(ctx, value))
        return value

    def __repr__(self) -> str:
        return f"<graphed {self.name}, {len(self._graphs)} captures>"


class _Arguments:
    """The arguments of one call, by position and by name; arrays apart from the rest."""

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._name = name
        self.arrays: list[Tensor | np.ndarray[Any, Any]] = []
        kinds = list[Hashable]()
        with suppress_unused_warnings((*args, *kwargs.values())):
            self._args = [self._sorted(i, v, kinds) for i, v in enumerate(args)]
            self._kwargs = {k: self._sorted(k, v, kinds) for k, v in sorted(kwargs.items())}
        self.key: Hashable = (len(args), tuple(self._kwargs), tuple(kinds))

    def _sorted(self, where: int | str, value: Any, kinds: list[Hashable]) -> Any:
        if is_op(value):
            raise OperationError(
                f"argument {where!r} of {self._name} is an operation, {value}: run it first, or go "
                f"on with its value: op.then({self._name})."
            )
        if isinstance(value, SharedTensor):
            value = value.tensor
        if not isinstance(value, Tensor) and array_protocols.is_foreign(value):
            found = import_array.argument(value)
            value = value if found is None else found
        if isinstance(value, Tensor | np.ndarray):
            kinds.append((value.shape, layout.check_dtype(value.dtype, records=True)))
            self.arrays.append(value)
            return _Array
        kind = _kind(value)
        try:
            hash(kind)
            kinds.append(kind)
        except TypeError:
            raise CallerError(
                f"argument {where!r} of {self._name} is a {type(value).__name__}, which a capture "
                "cannot remember: pass tensors, NumPy arrays, and values that are hashable."
            ) from None
        return value

    def with_arrays(self, arrays: tuple[Tensor, ...]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, with these arrays in the places of its own."""
        left = iter(arrays)

        def put(value: Any) -> Any:
            return next(left) if value is _Array else value

        return [put(v) for v in self._args], {k: put(v) for k, v in self._kwargs.items()}


def _kind(value: Any) -> Hashable:
    """What a value is known by. 1, 1.0 and True are equal, and so are 0.0 and -0.0, but other
    arguments of kernels; and what is no number is not equal to itself.
    """
    made_of = type(value)
    if isinstance(value, tuple):
        return made_of, tuple(_kind(part) for part in value)
    if isinstance(value, np.generic):
        return made_of, value.dtype, value.tobytes()
    if made_of in (float, complex):
        return made_of, np.array(value).tobytes()
    return made_of, value


class _Array:
    """Stands where an array was."""


class _Capture(DeviceOp[_Captured]):
    """Captures a function for such arguments."""

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
    """One call: arguments in, replay, results out.

    Attributes:
        graph_used: what was replayed; None before.
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
        found = yield from graphed.captured(ctx, arguments)
        given = list[Tensor]()
        for array in arguments.arrays:
            given.append((yield from _on_device(ctx, array)))
        # From here on at once: another thread's call uses the same places.
        with ctx.device.submit_lock:
            # Calls follow each other, in strict ordering too: the caller sees nothing shared.
            found.graph.follow(ctx)
            for place, tensor in zip(found.inputs, given, strict=True):
                if not place.same_elements(tensor):
                    prepared(copy(ctx, place, tensor))
            found.graph.launch_in(ctx)
            self.graph_used = found.graph
            return prepared(graphed.out(ctx, found.output))

    def _describe(self) -> str:
        return f"{self._graphed.name}()"


def _on_device(ctx: Context, array: Tensor | np.ndarray[Any, Any]) -> Steps[Tensor]:
    """The array as one that is copied without further preparation."""
    if isinstance(array, Tensor):
        if array.is_contiguous:
            return array
        made = Tensor.allocate(ctx, array.shape, array.dtype)
        yield from copy(ctx, made, array)
        return made
    made = Tensor.of(ctx.device, ctx.alloc(array.nbytes), ArraySpec(array.shape, array.dtype))
    yield from upload_new(ctx, made, array)
    return made


def _host_arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Those in a result, where `_copied` looks for tensors; none that the user has made."""
    if isinstance(value, np.ndarray):
        if not isinstance(value, HostBuffer):
            yield value
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _host_arrays(part)


def _copied(ctx: Context, value: Any) -> Generator[Any, None, Any]:
    """The same, with copies of all tensors in it."""
    if isinstance(value, Tensor):
        made = Tensor.allocate(ctx, value.shape, value.dtype)
        yield from copy(ctx, made, value)
        return made
    if isinstance(value, SharedTensor):
        return SharedTensor((yield from _copied(ctx, value.tensor)))
    if isinstance(value, Partition):
        made = yield from _copied(ctx, value.tensor)
        return made.partition(value.tile)
    if isinstance(value, tuple | list):
        parts = list[Any]()
        for part in value:
            parts.append((yield from _copied(ctx, part)))
        made_of: Any = type(value)
        return made_of(*parts) if hasattr(value, "_fields") else made_of(parts)
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
    """Turn a function that gives an operation into one that replays it as a graph.

    The first call with arguments of some shapes and dtypes captures; that and every later such
    call copies its arguments to where the graph reads them, replays it, and copies the results.
    Arguments that are no arrays are part of what is captured, as are tensors that the function
    uses without being passed: new values of those in place are seen, new tensors are not. What
    the function writes to an argument, it writes to the graph's copy: give it back as a result.

        @na.graphed
        def step(x):
            return layer(hidden, x, weights).then(lambda _: head(out, hidden)).output()

        y = await step(x)

    Args:
        copies: hand out copies of the results; else the graph's own tensors, which the next call
            overwrites.
        most: captures that are kept; of more, the one that was not used for longest goes.

    Raises:
        OperationError: it is no function, or, when called, gives no operation.
        NotAGraphNodeError: when run, of what no graph can repeat; also, unless `copies` is False,
            of a result in the host's memory.
    """
    if function is None:
        return functools.partial(graphed, copies=copies, most=most)
    run: Callable[..., DeviceOp[Any]] = function
    if not callable(run):
        raise OperationError(f"na.graphed takes a function, not {function!r:.60}.")
    if not isinstance(most, int) or most < 1:
        raise CallerError(f"most={most!r}: keep 1 capture, or more.")
    return Graphed(run, copies, most)
