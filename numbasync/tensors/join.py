"""Joining tensors: `concatenate` and `stack`, into a new tensor of the common dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbasync import dtypes, layout
from numbasync.arguments import as_whole, shown
from numbasync.errors import DTypeError, OperationError, ShapeError
from numbasync.ops.context import Context
from numbasync.ops.home import Home, first_home
from numbasync.ops.op import DeviceOp, Steps
from numbasync.ops.operands import common_stream, is_op, suppress_unused_warnings
from numbasync.ops.run import describe
from numbasync.tensors.copies import HostArray, copy
from numbasync.tensors.create import from_host
from numbasync.tensors.host_arrays import plain
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor


def concatenate(tensors: Sequence[Any], axis: int = 0) -> DeviceOp[Tensor]:
    """The tensors concatenated along an existing axis, as a new tensor.

    Args:
        tensors: a list or a tuple of tensors, NumPy arrays, and operations that return tensors.
            Their extents in the other axes are equal.
        axis: counted from the end if negative.

    Raises:
        ShapeError: the list is empty, the tensors have no such axis, or their other extents differ.
            Raised by this call if all shapes are known, else when the operation runs.
        DTypeError: the dtypes have no common type by NumPy's rules.

    Examples:
        >>> x = await na.zeros((2, 2))
        >>> t = await na.concatenate([x, np.ones((1, 2), np.float32)])
        >>> await t.to_host()
        array([[0., 0.],
               [0., 0.],
               [1., 1.]], dtype=float32)
    """
    return Joined(tensors, axis, is_new=False)


def stack(tensors: Sequence[Any], axis: int = 0) -> DeviceOp[Tensor]:
    """The tensors, all of one shape, along a new axis, as a new tensor.

    Args:
        tensors: as for `concatenate`.
        axis: which of the result's axes is the new one; counted from the end if negative.

    Raises:
        As `concatenate`.

    Examples:
        >>> pairs = await na.stack([na.arange(3), na.ones(3)], axis=-1)
        >>> await pairs.to_host()
        array([[0., 1.],
               [1., 1.],
               [2., 1.]], dtype=float32)
    """
    return Joined(tensors, axis, is_new=True)


class _Plan(NamedTuple):
    """The result's shape and dtype, the axis, and where along it each tensor starts."""

    shape: layout.Shape
    dtype: np.dtype[Any]
    axis: int
    starts: list[int]


class Joined(DeviceOp[Tensor]):
    """Joins tensors into a new one."""

    def __init__(self, tensors: Any, axis: Any, is_new: bool, name: str | None = None) -> None:
        self._unused = False  # a refused operation needs no warning
        self._is_new = is_new
        self._name = name or ("stack" if is_new else "concatenate")
        with suppress_unused_warnings(tensors if isinstance(tensors, list | tuple) else (tensors,)):
            self._parts = self._listed(tensors)
            number = as_whole(axis)
            if number is None:
                raise ShapeError(
                    f"{self._name} along axis {shown(axis)}: write a whole number. To have one "
                    "axis only, join what t.reshape(-1) gives of each."
                )
            self._axis = number
            ops = [part for part in self._parts if is_op(part)]
            stream = common_stream(ops)
            if not ops:
                self._plan(self._parts)
        if stream is not None:
            self.stream = stream
        for op in ops:
            op.consume()
        self._unused = True

    def _inner(self) -> Iterable[tuple[str, Any]]:
        return ((str(i), part) for i, part in enumerate(self._parts) if is_op(part))

    @property
    def home(self) -> Home:
        return first_home(self._parts)

    def _listed(self, tensors: Any) -> tuple[Any, ...]:
        if not isinstance(tensors, list | tuple) or hasattr(tensors, "_output_positions"):
            raise OperationError(
                f"{self._name} takes a list of tensors, not {describe(tensors)}.\n"
                f"Write na.{self._name}([t, u])."
            )
        if not tensors:
            raise ShapeError(f"{self._name} of no tensors: write at least one.")
        return tuple(t if is_op(t) else self._part(i, t) for i, t in enumerate(tensors))

    def _part(self, position: int, value: Any) -> Tensor | HostArray:
        if isinstance(value, SharedTensor | Partition):
            value = value.tensor
        if not isinstance(value, Tensor | np.ndarray):
            raise OperationError(
                f"{self._name}: number {position} is no tensor, but {describe(value)}.\n"
                "It takes tensors, NumPy arrays, and operations that give tensors. Of a launch, "
                "write op.output(); of another library's array, na.as_tensor(x)."
            )
        part: Tensor | HostArray = plain(value)
        dtypes.check_dtype(part.dtype, records=True)
        return part

    def _plan(self, parts: Sequence[Tensor | HostArray]) -> _Plan:
        shapes = [part.shape for part in parts]
        if not self._is_new and () in shapes:
            raise ShapeError(
                f"concatenate of shapes {shapes}: a tensor without axes has none to join along.\n"
                "Write stack, which gives it one."
            )
        rank = len(shapes[0]) + self._is_new
        if not -rank <= self._axis < rank:
            raise ShapeError(
                f"{self._name} along axis {shown(self._axis)}, of {rank} axes: write one from "
                f"{-rank} to "
                f"{rank - 1}."
            )
        axis = self._axis % rank
        if self._is_new:
            shapes = [(*shape[:axis], 1, *shape[axis:]) for shape in shapes]
        first, *others = shapes
        for i, shape in enumerate(others, 1):
            if len(shape) != rank or any(
                a != b for k, (a, b) in enumerate(zip(first, shape, strict=True)) if k != axis
            ):
                but = "" if self._is_new else f" but in axis {axis}"
                raise ShapeError(
                    f"{self._name}: number {i} has the shape {parts[i].shape}, and number 0 "
                    f"{parts[0].shape}; they must agree{but}."
                )
        try:
            dtype = np.result_type(*(part.dtype for part in parts))
        except TypeError:
            kinds = ", ".join(dict.fromkeys(str(part.dtype) for part in parts))
            raise DTypeError(f"{self._name} of {kinds}: they have no common type.") from None
        ends = np.cumsum([shape[axis] for shape in shapes]).tolist()
        result_shape = (*first[:axis], ends[-1], *first[axis + 1 :])
        return _Plan(result_shape, dtype, axis, [0, *ends[:-1]])

    def steps(self, ctx: Context) -> Steps[Tensor]:
        parts: list[Any] = []
        for i, part in enumerate(self._parts):
            value = part
            if is_op(part):
                value = self._part(i, (yield from part.steps(ctx)))
            parts.append(value)
        shape, dtype, axis, starts = self._plan(parts)
        yield from ctx.room(math.prod(shape) * dtype.itemsize)
        joined = Tensor.allocate(ctx, shape, dtype)
        before = (slice(None),) * axis
        for start, part in zip(starts, parts, strict=True):
            source: Tensor = part
            if isinstance(part, np.ndarray):
                upload = from_host(part)
                upload.consume()
                source = yield from upload.steps(ctx)
            if self._is_new:
                source = source[(*before, None)]
            target = joined[(*before, slice(start, start + source.shape[axis]))]
            yield from copy(ctx, target, source)
        return joined

    def _describe(self) -> str:
        return f"{self._name}({len(self._parts)} tensors)"
