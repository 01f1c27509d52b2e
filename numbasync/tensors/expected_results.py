"""The value that an operation is going to have, where it is known before the operation runs."""

from __future__ import annotations

from typing import Any

from numbasync.ops.constructors import Value, Zip
from numbasync.ops.op import ChainOp, DeviceOp, Map, Select, Shared
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import Tensor

UNKNOWN = object()  # the value is known only once the operation has run

# Methods without side effects, by their label. SharedTensor.partition() is none: it moves it.
_OF_TUPLES = frozenset({"first", "last", "output"})
_OF_TENSORS: dict[type, tuple[str, ...]] = {
    Tensor: ("partition", "reshape"), Partition: ("unpartition",)
}  # fmt: skip


def foreseen(op: DeviceOp[Any]) -> Any:
    """The value that `op` is going to have, or UNKNOWN; a tuple may have UNKNOWN elements.

    Calls no closure of the program, moves no tensor and allocates nothing.

    Raises:
        CallerError: `op` is certain to fail, such as `output()` of an operation that is no launch.
    """
    links: list[ChainOp[Any, Any]] = []
    while isinstance(op, ChainOp):
        links.append(op)
        op = op._first
    value = _foreseen(op)
    while links and value is not UNKNOWN:
        value = _changed(links.pop(), value)
    return value


def _foreseen(op: DeviceOp[Any]) -> Any:
    if isinstance(op, Value):
        return op._value
    if isinstance(op, Zip):
        return tuple(map(foreseen, op._ops))
    if isinstance(op, Select):
        values = foreseen(op._parent)
        fits = isinstance(values, tuple) and len(values) == op._count
        return values[op._index] if fits else UNKNOWN
    if isinstance(op, Shared):  # until it runs, it holds the operation that it shares
        parent = getattr(op._once._steps, "__self__", None)
        return foreseen(parent) if isinstance(parent, DeviceOp) else UNKNOWN
    method = getattr(op, "foreseen", None)
    return UNKNOWN if method is None else method()


def _changed(link: ChainOp[Any, Any], value: Any) -> Any:
    if not isinstance(link, Map):
        return UNKNOWN
    label = link._label
    if label in _OF_TENSORS.get(type(value), ()):
        return link._change(value)
    if label not in _OF_TUPLES:
        return UNKNOWN
    positions = getattr(type(value), "_output_positions", ())
    if label == "output" and any(value[i] is UNKNOWN for i in positions):
        return UNKNOWN
    return link._change(value)
