"""Buffer ids: handles of a batch's values before these are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from numbasync.arguments import with_type
from numbasync.batch.record.nodes import Node
from numbasync.errors import CallerError, DTypeError
from numbasync.layout import Shape
from numbasync.ops.op import DeviceOp
from numbasync.public import Public
from numbasync.tensors.tensor import SharedTensor, Tensor

Operand = Any  # a BufferId, or a number


def how_to_pass(value: Any) -> str:
    """The remedy for `value`, where an id of a batch is required."""
    if isinstance(value, BufferId):
        return "it is an id already"
    if isinstance(value, Tensor | SharedTensor):
        return "write b.use(tensor), without a copy"
    if isinstance(value, DeviceOp):
        return "await it, or record b.use(tensor) of the tensor that it gives"
    if hasattr(value, "__cuda_array_interface__"):
        return "write b.use(na.as_tensor(array))"
    if hasattr(value, "shape") or isinstance(value, list | tuple):
        return "upload it first: b.upload(array)"
    return "pass an id"


class Records(Protocol):
    """The recording of an id: operators of the id record into it."""

    @property
    def label(self) -> str: ...

    @property
    def nodes(self) -> Sequence[Node]: ...

    def elementwise(self, name: str, *operands: Operand) -> BufferId: ...

    def apply(self, function: Any, operands: tuple[Operand, ...]) -> BufferId: ...


class BufferId(Public):
    """One value of a batch: an upload, or the result of an operation.

    Operators record operations: `a + b`, `2 * a`, `-a`, `abs(a)`, `a ** 2`, `a < b`. Comparisons
    return ids, too, so `a == b` has no truth value; `is` distinguishes ids.

    Attributes:
        recorder: the recording that the id belongs to.
        number: the number of its node in the batch.
        shape, ndim, dtype: of the value.

    Examples:
        >>> b = na.CommandBatch()
        >>> x = b.upload(np.arange(6, dtype=np.int32).reshape(2, 3))
        >>> y = x * 0.5
        >>> y.shape, y.dtype.name
        ((2, 3), 'float64')
    """

    __slots__ = ("__weakref__", "number", "recorder")

    __array_ufunc__ = None  # makes `np.float32(2) * a` call `__rmul__`
    __hash__ = object.__hash__

    def __init__(self, recorder: Records, number: int) -> None:
        try:
            recorder.nodes  # noqa: B018  # what any recording has
        except AttributeError:
            raise CallerError(
                f"a BufferId is of a batch, not of {with_type(recorder)}: write b.upload(array)."
            ) from None
        self.recorder = recorder
        self.number = number

    @property
    def shape(self) -> Shape:
        return self.recorder.nodes[self.number].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.recorder.nodes[self.number].dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __add__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("add", self, other)

    def __radd__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("add", other, self)

    def __sub__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("sub", self, other)

    def __rsub__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("sub", other, self)

    def __mul__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("mul", self, other)

    def __rmul__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("mul", other, self)

    def __truediv__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("div", self, other)

    def __rtruediv__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("div", other, self)

    def __pow__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("pow", self, other)

    def __rpow__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("pow", other, self)

    def __neg__(self) -> BufferId:
        return self.recorder.elementwise("neg", self)

    def __abs__(self) -> BufferId:
        return self.recorder.elementwise("abs", self)

    def __lt__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("less", self, other)

    def __le__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("less_equal", self, other)

    def __gt__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("greater", self, other)

    def __ge__(self, other: Operand) -> BufferId:
        return self.recorder.elementwise("greater_equal", self, other)

    def __eq__(self, other: Operand) -> BufferId:  # type: ignore[override]
        return self.recorder.elementwise("equal", self, other)

    def __ne__(self, other: Operand) -> BufferId:  # type: ignore[override]
        return self.recorder.elementwise("not_equal", self, other)

    def __bool__(self) -> bool:
        raise DTypeError(
            f"{self!r} has no truth yet: it is computed when the batch is executed.\n"
            "Choose between values with b.where(condition, x, y)."
        )

    def __repr__(self) -> str:
        return f"<BufferId {self.number} {self.shape} {self.dtype}>"
