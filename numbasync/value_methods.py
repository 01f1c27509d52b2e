"""Methods of an operation that stand for methods of the value it will give.

`op.partition((4, 4))` is an operation that calls `partition` on the tensor when that is there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from numbasync.backend import interchange
from numbasync.errors import OperationError

if TYPE_CHECKING:
    from numbasync.op import DeviceOp


class ValueMethods:
    """What operations offer of tensors, of tuples, and of the results of launches."""

    def _labelled(self, change: Callable[[Any], Any], label: str) -> DeviceOp[Any]:
        """An operation that changes the value on the host, and how messages name it."""
        raise NotImplementedError

    # --- of operations that give a tuple ---

    def first(self) -> DeviceOp[Any]:
        """The first element of the tuple that this gives."""
        return self._labelled(partial(_element, str(self), 0), "first")

    def last(self) -> DeviceOp[Any]:
        """The last element of the tuple that this gives."""
        return self._labelled(partial(_element, str(self), -1), "last")

    def output(self) -> DeviceOp[Any]:
        """What a launch wrote: its one output as it was passed, or the tuple of them."""
        return self._labelled(partial(_outputs, str(self)), "output")

    # --- of operations that give a tensor, or something that has the same method ---

    def partition(self, tile: int | tuple[int, ...]) -> DeviceOp[Any]:
        """The tensor's partition into tiles of this shape."""
        return self._of_value("partition", tile)

    def unpartition(self) -> DeviceOp[Any]:
        """The tensor of a partition."""
        return self._of_value("unpartition")

    def reshape(self, *shape: int | tuple[int, ...]) -> DeviceOp[Any]:
        """The tensor with another shape of the same size; no copy."""
        return self._of_value("reshape", *shape)

    def shared_tensor(self) -> DeviceOp[Any]:
        """The tensor as a SharedTensor."""
        return self._of_value("shared")

    def dup(self) -> DeviceOp[Any]:
        """A copy of the tensor, in storage of its own."""
        return self._of_value("dup").then(_itself)

    def to_host(self) -> DeviceOp[Any]:
        """The tensor's elements as a NumPy array."""
        return self._of_value("to_host").then(_itself)

    # --- how ---

    def _of_value(self, method: str, *args: Any) -> DeviceOp[Any]:
        return self._labelled(partial(_call, str(self), method, args), method)


# Functions, which can be pickled. They know the operation's name alone: the operation itself
# would keep all that it holds alive.


def _call(name: str, method: str, args: tuple[Any, ...], value: Any) -> Any:
    found = getattr(value, method, None)
    if found is None:
        raise OperationError(
            f"{name} gave a {type(value).__name__}, which has no {method}(); a tensor, a "
            "partition or the result of a launch has."
        )
    return found(*args)


def _element(name: str, index: int, values: Any) -> Any:
    if not isinstance(values, tuple) or not values:
        gave = "an empty tuple" if values == () else f"a {type(values).__name__}"
        raise OperationError(f"{name} gave {gave}, not a tuple of values.")
    return values[index]


def _outputs(name: str, result: Any) -> Any:
    positions = getattr(type(result), "_output_positions", None)
    if positions is None:
        raise OperationError(
            f"{name} gave a {type(result).__name__}; only the result of a launch has outputs."
        )
    # A number that the kernel counts down, say, is an output of nothing.
    found = tuple(v for v in map(result.__getitem__, positions) if _is_array(v))
    return found[0] if len(found) == 1 else found


def _is_array(value: Any) -> bool:
    return hasattr(value, "to_host") or interchange.place(value) is not None


def _itself(op: DeviceOp[Any]) -> DeviceOp[Any]:
    return op
