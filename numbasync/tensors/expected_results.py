"""What an operation is going to give, where that is known before it runs."""

from __future__ import annotations

from typing import Any

from numbasync.ops.constructors import Value, Zip
from numbasync.ops.op import ChainOp, DeviceOp, Map, Select, Shared
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import Tensor

UNKNOWN = object()  # what only running the operation tells

# Changes of a value that do nothing besides. A SharedTensor's partition() moves it.
_OF_TUPLES = frozenset({"first", "last", "output"})
_OF_TENSORS: dict[type, tuple[str, ...]] = {
    Tensor: ("partition", "reshape"), Partition: ("unpartition",)
}  # fmt: skip


def foreseen(op: DeviceOp[Any]) -> Any:
    """The value that `op` is going to give, or UNKNOWN; of a tuple, also of its elements.

    No closure of the program is called, and nothing is moved or made.

    Raises:
        CallerError: it is certain to fail, such as `output()` of something that is no launch.
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
        is_fit = isinstance(values, tuple) and len(values) == op._count
        return values[op._index] if is_fit else UNKNOWN
    if isinstance(op, Shared):  # until it runs, it holds what it is made of
        parent = getattr(op._once._steps, "__self__", None)
        return foreseen(parent) if isinstance(parent, DeviceOp) else UNKNOWN
    ask = getattr(op, "foreseen", None)
    return UNKNOWN if ask is None else ask()


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
