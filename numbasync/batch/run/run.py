"""Running a batch: one operation that compiles, allocates, uploads and launches, in this order.

Nothing is enqueued before every kernel is compiled, so a compilation error leaves no effects. All
memory is allocated up front (`Memory`), and every launch is an operation on allocated memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from sys import _getframe
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from numbasync.arguments import shown
from numbasync.backend.protocols import Work
from numbasync.batch.codegen import kernel_files
from numbasync.batch.codegen.writer import KernelText, argument_value
from numbasync.batch.record.buffer_id import BufferId
from numbasync.batch.run.fast_path import COUNTER
from numbasync.batch.run.plan import Prepared, partial_key
from numbasync.batch.run.ready import Ready
from numbasync.device.storage import MemoryPool
from numbasync.errors import (
    InternalError,
    KernelCompileError,
    LauncherError,
    NoResultError,
    ShapeError,
    UnsupportedKernelError,
)
from numbasync.extending import (
    Home,
    HostArray,
    Storage,
    Submission,
    contiguous,
    copy,
    download,
    enqueue,
    fill,
    staged_bytes,
    upload,
)
from numbasync.launch.call import Launch
from numbasync.launch.launcher import Launcher
from numbasync.layout import Layout
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.tensors.tensor import Tensor

if TYPE_CHECKING:
    from numbasync.batch.run.state import BatchRun

T = TypeVar("T")


class Results(Mapping[BufferId, T]):
    """The results of a batch's operation, by id: tensors for a batch, arrays for a replay.

    Attributes:
        by_number: the same results by the ids' numbers.

    Examples:
        >>> b = na.CommandBatch()
        >>> y = b.upload(np.arange(4, dtype=np.float32)) * 2
        >>> results = await b.op()
        >>> await results[y].to_host()
        array([0., 2., 4., 6.], dtype=float32)
    """

    def __init__(self, found: Mapping[int, T], batch: BatchRun) -> None:
        self.by_number = found
        self._batch = batch

    def __getitem__(self, key: BufferId) -> T:
        number = self._batch.recorder.check(key, "results").number
        if number not in self.by_number:
            raise NoResultError(f"{shown(key)} is no result of {self._batch.absent(number)}")
        return self.by_number[number]

    def __iter__(self) -> Iterator[BufferId]:
        return (self._batch.recorder.again(n) for n in self.by_number)

    def __len__(self) -> int:
        return len(self.by_number)

    @property
    def all(self) -> tuple[T, ...]:
        """The results, in the order in which they were recorded."""
        return tuple(self.by_number.values())

    def __repr__(self) -> str:
        return f"<Results of {self._batch.recorder.label}: {list(self.by_number.values())}>"


# --- memory -------------------------------------------------------------------------


class Memory:
    """All device memory of one run.

    Attributes:
        tensors: of inputs and results, as they were recorded.
        flat: of every node that is in memory, with one axis, as kernels take them.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.tensors: dict[int, Tensor] = {}
        self.flat: dict[int, Tensor] = {}
        self._scratch: Storage | None = None
        self.counters: Tensor | None = None

    def allocate(self, ctx: Context, held: Mapping[int, Tensor]) -> Steps[None]:
        """Allocate the memory of the run, except for the tensors in `held`, which exist: inputs,
        and results that a graph writes for the host.
        """
        plan = self.prepared
        for n in plan.inputs:
            tensor = held.get(n)
            if tensor is None:
                continue  # `upload` allocates it
            self.tensors[n] = tensor
            if not tensor.is_contiguous:
                packed = Tensor.allocate(ctx, tensor.shape, tensor.dtype)
                yield from copy(ctx, packed, tensor)
                tensor = packed
            self.flat[n] = tensor.reshape(tensor.size)
        for n in plan.outputs:
            if n in held:
                self._keep(n, held[n])
            elif not plan.nodes[n].is_whole:
                self._own(ctx, n)
        if plan.arena.offsets:  # also for buffers without elements, which are passed to kernels
            self._scratch = ctx.alloc(plan.arena.nbytes)
        for n, offset in plan.arena.offsets.items():
            if n >= 0:
                node = plan.nodes[n]
                self.flat[n] = self._at(ctx, offset, node.size, node.dtype)
        if plan.counters:
            self.counters = Tensor.allocate(ctx, (plan.counters,), COUNTER)
            yield from fill(ctx, self.counters, np.uint32(0))

    def upload(self, ctx: Context, n: int, array: HostArray) -> Steps[None]:
        """Upload a host array as an input.

        Raises:
            ShapeError: the array was resized since it was recorded.
        """
        shape = self.prepared.nodes[n].shape
        if array.shape != shape:
            raise ShapeError(
                f"an array that was uploaded to the batch had the shape {shape}, and has "
                f"{array.shape} now. Resize it before, or upload a copy."
            )
        self._own(ctx, n)
        yield from upload(ctx, self.tensors[n], array, is_new=True)

    def operate(self, ctx: Context, n: int) -> Steps[None]:
        """Enqueue a whole operation, whose result has memory of its own."""
        nodes = self.prepared.nodes
        whole: Any = nodes[n].extra
        tensors = [self.flat[i].reshape(nodes[i].shape) for i in nodes[n].inputs]
        op = whole.build(*tensors, **dict(whole.keywords))
        op.consume()
        self._keep(n, (yield from op.steps(ctx)))

    def _own(self, ctx: Context, n: int) -> None:
        node = self.prepared.nodes[n]
        spec = contiguous(node.shape, node.dtype.type)
        self._keep(n, Tensor.of(ctx.device, ctx.alloc(spec.nbytes), spec))

    def _keep(self, n: int, tensor: Tensor) -> None:
        node, device = self.prepared.nodes[n], tensor.device
        assert device is not None  # the tensor has memory
        flat = contiguous((node.size,), node.dtype.type)
        self.tensors[n] = tensor
        self.flat[n] = Tensor.of(device, tensor.storage, flat)

    def _at(self, ctx: Context, offset: int, count: int, dtype: np.dtype[Any]) -> Tensor:
        layout = Layout(offset, (count,), (dtype.itemsize,))
        return Tensor(ctx.device, self._scratch, layout, dtype)

    def launch(
        self, ctx: Context, group: int, kernel: Launcher, values: Mapping[int, Any]
    ) -> Launch:
        """One kernel of the batch as an operation on this memory."""
        plan = self.prepared
        text = plan.texts[group]
        arguments: list[Any] = []
        for role, value in text.arguments:
            if role in ("read", "write"):
                arguments.append(self.flat[value])
            elif role == "constant":
                arguments.append(argument_value(values[value], plan.nodes[value].dtype))
            elif role == "partial":
                part = text.partials[value]
                offset = plan.arena.offsets[partial_key(group, value)]
                arguments.append(self._at(ctx, offset, part.extent, part.dtype))
            else:
                arguments.append(self.counters if role == "counter" else value)
        return kernel[text.grid, text.block](*arguments)


# --- kernels ------------------------------------------------------------------------


def kernels(prepared: Prepared, ctx: Context) -> Steps[list[Launcher | None]]:
    """Every kernel of the plan, compiled for the device; None in place of a whole operation."""
    loaded: list[Launcher | None] = []
    for group, text in zip(prepared.fusion.groups, prepared.texts, strict=True):
        if group.is_whole:
            loaded.append(None)
            continue
        kernel = kernel_files.find(text)
        if kernel is None:
            with _attributed(text):
                yield kernel_files.loading(text)
            kernel = kernel_files.find(text)
            if kernel is None:
                raise InternalError(f"kernel {text.name} was loaded and is not there")
        loaded.append(kernel)
    if ctx.device not in prepared.compiled:
        for text, kernel in zip(prepared.texts, loaded, strict=True):
            if kernel is None:
                continue
            yield from _compile(prepared, text, kernel, ctx)
        prepared.compiled.add(ctx.device)
    return loaded


def _compile(prepared: Prepared, text: KernelText, kernel: Launcher, ctx: Context) -> Steps[None]:
    """Compile a kernel for the argument types of its launches."""
    arguments: list[Any] = []
    for role, value in text.arguments:
        if role in ("read", "write"):
            arguments.append(_meta(prepared.nodes[value].dtype))
        elif role == "constant":
            arguments.append(argument_value(0, prepared.nodes[value].dtype))
        elif role == "partial":
            arguments.append(_meta(text.partials[value].dtype))
        else:
            arguments.append(_meta(COUNTER) if role == "counter" else value)
    with _attributed(text):
        yield from enqueue(ctx, kernel.compile(*arguments))


@contextmanager
def _attributed(text: KernelText) -> Iterator[None]:
    """Attribute compilation errors of a kernel with functions of the program to these functions:
    generated code compiles.
    """
    try:
        yield
    except (LauncherError, KernelCompileError, UnsupportedKernelError) as error:
        if not text.functions:
            raise
        names = ", ".join(function.name for _, function in text.functions)
        message = f"kernel {text.name}, with {names}: {error}"
        if isinstance(error, UnsupportedKernelError):  # another device may run the function
            raise UnsupportedKernelError(message) from error
        raise KernelCompileError(
            f"{message}\n"
            "A function of a program takes scalars, and gives one number that Numba can compile."
        ) from error


def _meta(dtype: np.dtype[Any]) -> Tensor:
    """A tensor without memory that describes an argument."""
    spec = contiguous((2,), dtype.type)  # with 1 element, every order would be contiguous
    return Tensor(None, None, spec.at, spec.dtype)


# --- operations -----------------------------------------------------------------------


class Run(DeviceOp[T]):
    """A batch, run once, and the results that the same submission reads."""

    has_fast_path = True
    _read: Any = None  # set by the fast path

    def __init__(self, batch: BatchRun, prepared: Prepared, reads: tuple[int, ...] = ()) -> None:
        frame = _getframe(2)  # as in `Launch`
        self._site = frame.f_code, frame.f_lasti
        self._batch = batch
        self._prepared = prepared
        self._reads = reads

    @property
    def home(self) -> Home:
        return self._batch.device

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        batch, device = self._batch, submission.stream.device
        ready: Ready | None = self._prepared.ready.get(device)
        if ready is None or batch.device is not device:
            return False
        try:
            path, pool = ready.path(batch, self._reads), pool or device.pool
            enqueued = path.enqueue(batch, submission, pool)
        except BaseException as error:
            batch.failed(error)
            raise
        if enqueued is None:
            return False
        new_memory, self._read = enqueued
        batch.ran_fast(path, new_memory, submission, pool)
        return True

    def run(self, ctx: Context) -> Steps[Memory]:
        """Run the batch step by step."""
        batch = self._batch
        try:
            batch.check_device(ctx.device)
            memory = yield from run(ctx, batch, self._prepared)
        except BaseException as error:
            batch.failed(error)
            raise
        batch.ran(memory.tensors, ctx.submission)
        return memory

    def _describe(self) -> str:
        return f"batch of {self._batch.recorder.operations} operations"


class BatchOp(Run[Results[Tensor]]):
    """A batch, run once. Returns its results."""

    def result(self) -> Results[Tensor]:
        return self._results(self._batch.tensors)

    def steps(self, ctx: Context) -> Steps[Results[Tensor]]:
        memory = yield from self.run(ctx)
        return self._results(memory.tensors)

    def _results(self, made: Mapping[int, Tensor]) -> Results[Tensor]:
        return Results({n: made[n] for n in self._prepared.wanted if n in made}, self._batch)


class OneResult(Run[Tensor]):
    """A batch, run once. Returns the tensor of one id."""

    def __init__(self, batch: BatchRun, prepared: Prepared, number: int) -> None:
        super().__init__(batch, prepared)
        self._number = number

    def result(self) -> Tensor:
        return self._batch.tensors[self._number]

    def steps(self, ctx: Context) -> Steps[Tensor]:
        memory = yield from self.run(ctx)
        return memory.tensors[self._number]


def run(ctx: Context, batch: BatchRun, plan: Prepared) -> Steps[Memory]:
    """Enqueue a plan: uploads of the inputs that are not on the device yet, and the kernels."""
    loaded = yield from kernels(plan, ctx)
    values, tensors = batch.recorder.values, batch.tensors
    arrays: dict[int, HostArray] = {n: values[n] for n in plan.inputs if n not in tensors}
    if ctx.admission is not None:
        staged = sum(staged_bytes(ctx.device, a.nbytes) for a in arrays.values())
        yield from ctx.room(plan.peak_bytes + staged)
    memory = Memory(plan)
    yield from memory.allocate(ctx, tensors)
    for n, array in arrays.items():
        yield from memory.upload(ctx, n, array)
        batch.transfers.uploads += bool(array.size)
    works: list[Work | None] = []
    for group, kernel in enumerate(loaded):
        if kernel is None:
            yield from memory.operate(ctx, plan.fusion.groups[group].roots[0])
            works.append(None)
            continue
        if plan.texts[group].grid == 0:
            works.append(None)
            continue
        launch = memory.launch(ctx, group, kernel, values)
        launch.consume()
        if not (launch.has_fast_path and ctx.try_enqueue(launch)):
            yield from launch.steps(ctx)
        batch.kernels_launched += 1
        plan_of_launch = launch.plan_on(ctx.device.backend)
        works.append(None if plan_of_launch is None else plan_of_launch.work)
    if ctx.device not in plan.ready:
        plan.ready[ctx.device] = Ready.of(plan, ctx.device, works)
    return memory


class Compute(Run[Any]):
    """A batch, run once. Returns a new NumPy array for one id, a tuple of arrays for several."""

    def result(self) -> Any:
        read, self._read = self._read, None
        return read

    def steps(self, ctx: Context) -> Steps[Any]:
        batch = self._batch
        memory = yield from self.run(ctx)
        arrays: list[HostArray] = []
        for n in self._reads:
            tensor = memory.tensors.get(n)
            if tensor is None:  # the node is a number
                arrays.append(np.array(batch.recorder.values[n]))
                continue
            array = yield from download(ctx, tensor)
            arrays.append(array)
            batch.transfers.downloads += bool(array.size)
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def _width(self) -> int | None:
        count = len(self._reads)
        return count if count > 1 else None

    def _describe(self) -> str:
        return _label(self._batch.recorder.operations)


@lru_cache(256)
def _label(operations: int) -> str:
    return f"batch of {operations} operations, read"
