"""The launches of an algorithm, put together once for operands of the same shapes and dtypes.

A plan of an algorithm names the memory that it makes and the kernels that it launches, in order,
before there are tensors: extents, grids and views follow from shapes and dtypes alone. Each run
then allocates and launches, and computes nothing of that again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from numbasync import layout
from numbasync.algorithms.planned_run import Made, PlannedLaunch, PlannedRun, View
from numbasync.backend import protocols
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool, Storage
from numbasync.device.submission import Submission
from numbasync.launch.call import Launch
from numbasync.layout import Layout, Shape
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.create import from_host
from numbasync.tensors.create_ops import element
from numbasync.tensors.tensor import Tensor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Array:
    """What a launch will get: an operand, or memory that the algorithm makes, seen in a shape.

    Attributes:
        place: its memory: the operands come first, then what is made.
        at: where the elements lie in it, from the operand's first on.
    """

    place: int
    at: Layout
    dtype: np.dtype[Any]

    @property
    def shape(self) -> Shape:
        return self.at.shape

    def reinterpret(self, dtype: np.dtype[Any]) -> Array:
        """The same bytes as elements of another type."""
        at = layout.reinterpret(self.at, self.dtype.itemsize, dtype.itemsize)
        return Array(self.place, at, dtype)

    def part(self, start: int, shape: Shape) -> Array:
        """Elements from `start` on, of an array of one axis, in a shape."""
        at = _whole(shape, self.dtype)
        begin = self.at.offset + start * self.dtype.itemsize
        return Array(self.place, Layout(begin, *at[1:]), self.dtype)

    def first(self, most: int) -> Array:
        """The first elements along the last axis."""
        offset, shape, strides = self.at
        return Array(self.place, Layout(offset, (*shape[:-1], most), strides), self.dtype)

    def reshape(self, shape: Shape) -> Array:
        return Array(self.place, layout.reshape(self.at, shape, self.dtype.itemsize), self.dtype)

    def permuted(self, axes: Sequence[int]) -> Array:
        """A view with the axes in this order."""
        return Array(self.place, permuted_layout(self.at, axes), self.dtype)


Order = tuple[int, ...] | None  # of axes


class Launches:
    """The launches of an algorithm for operands of these shapes and dtypes.

    Args:
        operands: shape and dtype of each.
        orders: of each operand, the order of axes in which the kernels see it; None: as it is.
            The kernels see it contiguous: what is not is copied first.

    Attributes:
        operands: what launches get of them.
        orders: as given.
        label: the name of the operation in messages, once it was asked for; None before.

    Examples:
        >>> from numba import cuda
        >>> from numbasync.algorithms.launches import Launches
        >>> @na.launcher
        ... @cuda.jit
        ... def twice(z: na.KernelOutput, x: na.KernelInput):
        ...     i = cuda.grid(1)
        ...     if i < z.shape[0]:
        ...         z[i] = 2 * x[i]
        >>> plan = Launches(((2, 3), np.dtype(np.float32)))
        >>> (x,) = plan.operands
        >>> z = plan.empty((6,), x.dtype)
        >>> plan.launch(twice[1, 32], z, x.reshape((6,)))
        >>> plan.give(z.reshape((2, 3)))
    """

    def __init__(
        self, *operands: tuple[Shape, np.dtype[Any]], orders: Sequence[Order] | None = None
    ) -> None:
        self.orders: tuple[Order, ...] = tuple(orders or [None] * len(operands))
        self.operands = tuple(
            Array(
                i, _whole(shape if order is None else tuple(shape[a] for a in order), dtype), dtype
            )
            for i, ((shape, dtype), order) in enumerate(zip(operands, self.orders, strict=True))
        )
        self.label: str | None = None
        self._is_plain = not any(self.orders)  # whether operands and results are as they are
        self._are_copied = False
        self._results: tuple[View, ...]
        self._made: list[Made] = []
        self._views: list[View] = []
        self._known: dict[Array, int] = {}  # the view of each array
        self._launches: list[tuple[Any, list[Any], list[tuple[int, int]]]] = []
        self._runs: dict[protocols.Device, PlannedRun] = {}

    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Memory that each run allocates."""
        return self.full(shape, None, dtype)

    def full(self, shape: Shape, value: Any, dtype: np.dtype[Any]) -> Array:
        """Memory that each run allocates, and fills with a value before the first launch."""
        spec = ArraySpec(shape, dtype)
        self._made.append(Made(spec, None if value is None else element(value, dtype)))
        return Array(len(self.operands) + len(self._made) - 1, spec.at, dtype)

    def constant(self, array: np.ndarray[Any, Any]) -> Array:
        """Memory that each run allocates, and uploads the elements of an array to. Nothing changes
        the array from then on.
        """
        spec = ArraySpec(array.shape, array.dtype)
        self._made.append(Made(spec, array))
        return Array(len(self.operands) + len(self._made) - 1, spec.at, array.dtype)

    def launch(self, kernel: Any, *args: Any) -> None:
        """Put a launch behind the others.

        Args:
            kernel: with its extents, as `kernel[blocks, threads]`.
            args: arrays and numbers.
        """
        values, views = list(args), []
        for i, arg in enumerate(args):
            if isinstance(arg, Array):
                values[i] = None
                views.append((i, self._view(arg)))
        self._launches.append((kernel, values, views))

    def _view(self, array: Array) -> int:
        if array not in self._known:
            self._known[array] = len(self._views)
            self._views.append(_view_of(array))
        return self._known[array]

    def give(
        self, *results: Array, are_copied: bool = False, kind: Callable[..., Any] | None = None
    ) -> None:
        """Say what a run gives, behind the last launch: a tensor, or a tuple of several.

        Args:
            are_copied: contiguous copies of these.
            kind: makes what is given of the tensors; None: the tuple.
        """
        self._results, self._are_copied = tuple(map(_view_of, results)), are_copied
        self._kind = kind
        self._is_plain = self._is_plain and not are_copied

    def _given(self, tensors: Sequence[Tensor]) -> Any:
        if self._kind is not None:
            return self._kind(*tensors)
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def has_fast_path(self, operands: Sequence[Any]) -> bool:
        """Whether a run copies none of these operands, and none of its results."""
        return self._is_plain and not [
            x for x in operands if type(x) is not Tensor or not x.is_contiguous
        ]

    def try_enqueue(
        self, operands: tuple[Tensor, ...], submission: Submission, pool: MemoryPool | None
    ) -> Any:
        """Enqueue a run like one that took its steps, if nothing has to be waited for: what it
        gives, or None.
        """
        run = self._runs.get(submission.stream.device.backend)
        given = None if run is None else run.packed.enqueue(operands, submission, pool)
        return None if given is None else self._given(given)

    def run(self, ctx: Context, operands: Sequence[Tensor]) -> Steps[Any]:
        """Enqueue a run, by its fast path where that serves; what it gives."""
        if self.has_fast_path(operands):
            run = _Run(self, tuple(operands))
            if ctx.try_enqueue(run):
                return run.result()
        return (yield from self.steps(ctx, operands))

    def _note(self, device: Device, operands: Sequence[Tensor], launches: Sequence[Launch]) -> None:
        """Keep what the launches of a run are, for runs like it."""
        plans = [launch.plan_on(device.backend) for launch in launches]
        planned, names = list[PlannedLaunch](), list[str]()
        for plan, (_, values, views) in zip(plans, self._launches, strict=True):
            if plan is None or plan.empty:
                return
            planned.append(PlannedLaunch(plan.work, tuple(values), tuple(views)))
            names += [name for name in plan.names if name not in names[-1:]]
        self._runs[device.backend] = PlannedRun(
            tuple([x.is_aligned for x in operands]), tuple(self._made), tuple(self._views),
            tuple(planned), self._results, tuple(names),
        )  # fmt: skip

    def steps(self, ctx: Context, operands: Sequence[Tensor]) -> Steps[Any]:
        """Allocate, launch, and give the results."""
        seen = []
        for x, order in zip(operands, self.orders, strict=True):
            if order is not None:
                x = x._view(permuted_layout(x._layout, order))
            if not x.is_contiguous:
                x = yield from enqueue_part(ctx, x.dup())
            seen.append(x)
        storages = []
        for spec, value in self._made:
            if isinstance(value, np.ndarray):
                storages.append((yield from enqueue_part(ctx, from_host(value))).storage)
                continue
            if ctx.admission is not None:
                yield from ctx.room(spec.nbytes)
            storages.append(ctx.alloc(spec.nbytes))
            if value is not None:
                ctx.queue.fill(Tensor.of(ctx.device, storages[-1], spec).handle, value)
        tensors = self._tensors(seen, storages, ctx.device)
        launches = [_called(*launch, tensors) for launch in self._launches]
        for launch in launches:
            yield from enqueue_part(ctx, launch)
        if self.has_fast_path(operands):
            self._note(ctx.device, operands, launches)
        given = [self._seen(result, seen, storages, ctx.device) for result in self._results]
        if self._are_copied:
            for i, result in enumerate(given):
                given[i] = yield from enqueue_part(ctx, result.dup())
        return self._given(given)

    def _tensors(
        self, operands: Sequence[Tensor], storages: Sequence[Storage], device: Device
    ) -> list[Tensor]:
        return [self._seen(view, operands, storages, device) for view in self._views]

    def _seen(
        self, view: View, operands: Sequence[Tensor], storages: Sequence[Storage], device: Device
    ) -> Tensor:
        place, at, dtype, spec = view
        own = place - len(operands)
        if own >= 0:
            if spec is not None:
                return Tensor.of(device, storages[own], spec)
            return Tensor.of(device, storages[own], self._made[own][0])._view(at, dtype)
        x = operands[place]
        if x.shape == at.shape and spec is not None and x.dtype == dtype:
            return x
        start = x._layout.offset
        if spec is not None and not start and x.source is None and x.device is not None:
            return Tensor.of(x.device, x.storage, spec)  # whose key is known
        return x._view(Layout(start + at.offset, at.shape, at.strides) if start else at, dtype)


class _Run:
    """A run of launches as a part of an operation: see `try_enqueue`."""

    has_fast_path = True

    def __init__(self, launches: Launches, operands: tuple[Tensor, ...]) -> None:
        self._launches = launches
        self._operands = operands
        self._given: Any = None

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        self._given = self._launches.try_enqueue(self._operands, submission, pool)
        return self._given is not None

    def result(self) -> Any:
        return self._given


def _view_of(array: Array) -> View:
    is_whole = array.at == _whole(array.shape, array.dtype)
    spec = ArraySpec(array.shape, array.dtype) if is_whole else None
    return View(array.place, array.at, array.dtype, spec)


def enqueue_part(ctx: Context, op: DeviceOp[T]) -> Steps[T]:
    """Enqueue a part of an algorithm; its value."""
    op.suppress_warning()
    if op.has_fast_path and ctx.try_enqueue(op):
        return op.result()
    return (yield from op.steps(ctx))


def _called(
    kernel: Any, values: list[Any], views: list[tuple[int, int]], seen: Sequence[Tensor]
) -> Launch:
    args = values.copy()
    for i, view in views:
        args[i] = seen[view]
    launch: Launch = kernel(*args)
    launch.suppress_warning()
    return launch


def _whole(shape: Shape, dtype: np.dtype[Any]) -> Layout:
    return Layout(0, shape, layout.contiguous_strides(shape, dtype.itemsize))


def permuted_layout(at: Layout, axes: Sequence[int]) -> Layout:
    """The layout with the axes in this order."""
    offset, shape, strides = at
    return Layout(offset, tuple(shape[a] for a in axes), tuple(strides[a] for a in axes))
