"""Collectives: operations in which several devices, or several processes, take part.

In one process they take one tensor a device, and give a tuple of new tensors, one a device:

    sums = await na.collective.all_reduce([a, b])  # a on cuda:0, b on cuda:1

In a group of processes each process passes its tensor and its communicator, and gets a tensor:

    comm = await na.collective.connect(key, rank)  # key = na.collective.new_key(2), created once
    total = await na.collective.all_reduce(t, comm=comm)

Where the devices have a library of collectives, which for GPUs is NCCL (from a
checkout: `pip install '.[nccl]'`), it runs them, and its rounding is its own. Else reductions are
done in the order of the devices or ranks, in the dtype of the elements: ((x0 + x1) + x2). Every
device has the same bits, either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from numbasync.arguments import shown
from numbasync.collective import group_ops, local
from numbasync.collective.communicator import Communicator as Communicator
from numbasync.collective.exchange import GroupKey as GroupKey
from numbasync.collective.exchange import new_key as new_key
from numbasync.collective.group_ops import connect as connect
from numbasync.collective.group_ops import recv as recv
from numbasync.collective.group_ops import send as send
from numbasync.errors import CallerError
from numbasync.ops.op import DeviceOp
from numbasync.tensors.tensor import Tensor

Parts = Sequence[Tensor]
Tensors = tuple[Tensor, ...]


@overload
def all_reduce(parts: Parts, op: str = "sum", *, out: Parts | None = None) -> DeviceOp[Tensors]: ...
@overload
def all_reduce(parts: Tensor, op: str = "sum", *, comm: Communicator) -> DeviceOp[Tensor]: ...
def all_reduce(
    parts: Any,
    op: str = "sum",
    *,
    out: Parts | None = None,
    comm: Communicator | None = None,
) -> DeviceOp[Any]:
    """The reduction of all parts, element by element, on every device.

    Args:
        parts: tensors of equal shape and dtype, each of another device; with `comm`, one tensor.
        op: `"sum"`, `"prod"`, `"min"`, `"max"`, or of floats and complex numbers `"avg"`. Of bool,
            as in NumPy, `"sum"` and `"max"` are "or", `"prod"` and `"min"` are "and"; complex
            numbers have no `"min"` and `"max"`.
        out: the tensors that the results are written to, one on each device, such as the parts
            themselves; None: new ones. Not with `comm`.

    Raises:
        ShapeError, DTypeError, CallerError: the parts, or the reduction, do not fit.
        RankLostError: when awaited: another process of the group has ended.
        CollectiveTimeoutError: when awaited: another process has not called this in time.
        CollectiveError: when awaited: another process has called something else.

    Examples:
        >>> devices = na.devices("cpu")[:2]
        >>> parts = await na.scatter(np.arange(4, dtype=np.float32), devices)  # [0, 1] and [2, 3]
        >>> sums = await na.collective.all_reduce(parts)
        >>> [(await t.to_host()).tolist() for t in sums]
        [[2.0, 4.0], [2.0, 4.0]]
    """
    if comm is None:
        return local.all_reduce(_listed(parts), op, out)
    if out is not None:
        raise CallerError(
            f"all_reduce of {comm!r} gives a new tensor, and takes no out={shown(out, 40)}."
        )
    return group_ops.all_reduce(group_ops.checked(parts, "all_reduce", comm), op, comm)


@overload
def reduce_scatter(parts: Parts, op: str = "sum") -> DeviceOp[Tensors]: ...
@overload
def reduce_scatter(parts: Tensor, op: str = "sum", *, comm: Communicator) -> DeviceOp[Tensor]: ...
def reduce_scatter(
    parts: Any, op: str = "sum", *, comm: Communicator | None = None
) -> DeviceOp[Any]:
    """The reduction of all parts, of which each device gets an equal part of the first axis.

    Args and errors: as of `all_reduce`.

    Examples:
        >>> devices = na.devices("cpu")[:2]
        >>> parts = await na.scatter(np.arange(4, dtype=np.float32), devices)  # [0, 1] and [2, 3]
        >>> sums = await na.collective.reduce_scatter(parts)
        >>> [(await t.to_host()).tolist() for t in sums]
        [[2.0], [4.0]]
    """
    if comm is None:
        return local.reduce_scatter(_listed(parts), op)
    return group_ops.reduce_scatter(group_ops.checked(parts, "reduce_scatter", comm), op, comm)


@overload
def all_gather(parts: Parts) -> DeviceOp[Tensors]: ...
@overload
def all_gather(parts: Tensor, *, comm: Communicator) -> DeviceOp[Tensor]: ...
def all_gather(parts: Any, *, comm: Communicator | None = None) -> DeviceOp[Any]:
    """All parts, joined along the first axis, on every device. Errors: as of `all_reduce`.

    Examples:
        >>> devices = na.devices("cpu")[:2]
        >>> parts = await na.scatter(np.arange(4, dtype=np.float32), devices)  # [0, 1] and [2, 3]
        >>> whole = await na.collective.all_gather(parts)
        >>> [(await t.to_host()).tolist() for t in whole]
        [[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]]
    """
    if comm is None:
        return local.all_gather(_listed(parts))
    return group_ops.all_gather(group_ops.checked(parts, "all_gather", comm), comm)


@overload
def broadcast(parts: Parts, root: int = 0) -> DeviceOp[Tensors]: ...
@overload
def broadcast(parts: Tensor, root: int = 0, *, comm: Communicator) -> DeviceOp[Tensor]: ...
def broadcast(parts: Any, root: int = 0, *, comm: Communicator | None = None) -> DeviceOp[Any]:
    """The part of one device, on every device. The other parts say where, of what shape and dtype.

    Args:
        root: the number of the device, or the rank, that has the elements.
        parts and errors: as of `all_reduce`.

    Examples:
        >>> devices = na.devices("cpu")[:2]
        >>> parts = await na.scatter(np.arange(4, dtype=np.float32), devices)  # [0, 1] and [2, 3]
        >>> copies = await na.collective.broadcast(parts, root=1)
        >>> [(await t.to_host()).tolist() for t in copies]
        [[2.0, 3.0], [2.0, 3.0]]
    """
    if comm is None:
        return local.broadcast(_listed(parts), root)
    return group_ops.broadcast(group_ops.checked(parts, "broadcast", comm), root, comm)


def _listed(parts: Any) -> Parts:
    if type(parts) is list or type(parts) is tuple:
        return parts
    if isinstance(parts, Tensor) or not isinstance(parts, Sequence):
        raise CallerError(
            f"a collective of one process takes a list with one tensor a device, not "
            f"{shown(parts)}; in a group of processes pass the tensor and comm=..."
        )
    return parts
