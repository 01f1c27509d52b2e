"""Algorithms as operations: what they take, and when their kernels are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from numbasync import layout
from numbasync.arguments import as_wholes, shown
from numbasync.errors import OperationError, ShapeError
from numbasync.layout import Layout
from numbasync.ops.constructors import value
from numbasync.ops.context import Context
from numbasync.ops.home import Home, first_home
from numbasync.ops.op import DeviceOp, Steps
from numbasync.ops.operands import as_child, common_stream, is_op, suppress_unused_warnings
from numbasync.ops.run import describe
from numbasync.tensors.create import from_host
from numbasync.tensors.host_arrays import plain
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor

T = TypeVar("T")
Build = Callable[[Tensor], DeviceOp[T]]


class Algorithm(DeviceOp[T]):
    """The kernels that compute something of one tensor.

    Args:
        name: of the function that was called.
        x: a tensor, an array, or an operation that gives one of these.
        plan: checks a shape and a dtype, and gives what builds the operation of such a tensor. It
            is called at once if shape and dtype are known.
    """

    def __init__(
        self, name: str, x: Any, plan: Callable[[layout.Shape, np.dtype[Any]], Build[T]]
    ) -> None:
        self._unused = False  # a refused operation needs no warning
        self._name = name
        self._plan = plan
        self._x: Any
        self._x = x
        with suppress_unused_warnings((x,)):
            if is_op(x):
                stream = common_stream((x,))
                x.consume()
                if stream is not None:
                    self.stream = stream
            else:
                array = self._x = self._array(x)
                plan(array.shape, array.dtype)
        self._unused = True

    def _array(self, x: Any) -> Any:
        if isinstance(x, SharedTensor | Partition):
            x = x.tensor
        if not isinstance(x, Tensor | np.ndarray):
            raise OperationError(
                f"{self._name} takes a tensor, a NumPy array, or an operation that gives one, not "
                f"{describe(x)}.\nOf a launch, write op.output(); of another library's array, "
                "na.as_tensor(x)."
            )
        array = plain(x)
        layout.check_dtype(array.dtype)
        return array

    def _inner(self) -> Iterable[tuple[str, Any]]:
        return (("x", self._x),) if is_op(self._x) else ()

    @property
    def home(self) -> Home:
        return first_home((self._x,))

    def steps(self, ctx: Context) -> Steps[T]:
        given = self._x
        x: Any = self._array((yield from given.steps(ctx))) if is_op(given) else given
        build = self._plan(x.shape, x.dtype)
        if isinstance(x, np.ndarray):
            x = yield from as_child(ctx, from_host(x), self).steps(ctx)
        value: T = yield from as_child(ctx, build(x), self).steps(ctx)
        return value

    def _describe(self) -> str:
        x: Any = self._x
        return f"{self._name}({x if is_op(x) else getattr(x, 'shape', '')})"


def permuted(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A view with the axes in this order."""
    offset, shape, strides = x._layout
    order = Layout(offset, tuple(shape[a] for a in axes), tuple(strides[a] for a in axes))
    return x._view(order)


def contiguous(x: Tensor) -> DeviceOp[Tensor]:
    """The tensor, or a contiguous copy."""
    return value(x) if x.is_contiguous else x.dup()


def axes_of(name: str, axis: Any, rank: int) -> tuple[int, ...]:
    """The axes to reduce, ascending.

    Raises:
        ShapeError: one of them does not exist, or comes twice.
    """
    if axis is None:
        return tuple(range(rank))
    given = as_wholes(axis)
    if given is None or isinstance(axis, bool):
        raise ShapeError(f"{name} along axis={shown(axis)}: write a whole number, or a tuple.")
    for a in given:
        if not -rank <= a < rank:
            which = f"one from {-rank} to {rank - 1}" if rank else "axis=None"
            raise ShapeError(f"{name} along axis {shown(a)}, of {rank} axes: write {which}.")
    axes = sorted(a % rank for a in given)
    if len(set(axes)) < len(axes):
        raise ShapeError(f"{name} along axis={shown(axis)}: an axis comes twice; write it once.")
    return tuple(axes)


def one_axis(name: str, axis: Any, rank: int) -> int:
    """The one axis that `axis` names.

    Raises:
        ShapeError: it does not exist, or is not one.
    """
    axes = axes_of(name, axis, rank)
    if len(axes) != 1:
        raise ShapeError(f"{name} along axis={shown(axis)}: write one axis.")
    return axes[0]
