"""Methods of an operation that stand for methods of the value it will give.

`op.partition((4, 4))` is an operation that calls `partition` on the tensor when that is there.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn

from numbasync.backend import interchange
from numbasync.errors import OperationError

if TYPE_CHECKING:
    from numbasync.op import DeviceOp


class ValueMethods:
    """What operations offer of tensors, of tuples, and of the results of launches."""

    def _labelled(self, change: Callable[[Any], Any], label: str) -> DeviceOp[Any]:
        """An operation that changes the value on the host, and how messages name it."""
        raise NotImplementedError

    # --- what is not offered, since the value is not there yet ---

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Whether they are the same operation. Its value is compared when it is there.

        Raises:
            OperationError: `other` is a number or an array.
        """
        if self is other:
            return True
        if hasattr(other, "dtype") or isinstance(other, Number | list | tuple):
            raise OperationError(
                f"{self} is an operation, not its value, so == compares nothing: write "
                "(await op) == other."
            )
        return NotImplemented

    def __bool__(self) -> bool:
        raise OperationError(
            f"{self} is an operation, not its value, so it is neither true nor false: write "
            "`if await op`, or `if op is not None`."
        )

    def __getitem__(self, index: Any) -> NoReturn:
        raise OperationError(
            f"{self} is an operation, not its value, and has no elements yet: write "
            f"(await op)[{index!r:.40}]; or, of an operation that gives a tuple, op.unzip()."
        )

    # --- of operations that give a tuple ---

    def first(self) -> DeviceOp[Any]:
        """The first element of the tuple that this gives."""
        return self._labelled(lambda values: self._element(values, 0), "first")

    def last(self) -> DeviceOp[Any]:
        """The last element of the tuple that this gives."""
        return self._labelled(lambda values: self._element(values, -1), "last")

    def output(self) -> DeviceOp[Any]:
        """What a launch wrote: its one output as it was passed, or the tuple of them."""
        return self._labelled(self._outputs, "output")

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
        return self._of_value("dup").then(itself)

    def to_host(self) -> DeviceOp[Any]:
        """The tensor's elements as a NumPy array."""
        return self._of_value("to_host").then(itself)

    # --- how ---

    def _of_value(self, method: str, *args: Any) -> DeviceOp[Any]:
        # The name now: the operation itself would keep all that it holds alive.
        name = str(self)

        def call(value: Any) -> Any:
            found = getattr(value, method, None)
            if found is None:
                raise OperationError(
                    f"{name} gave a {type(value).__name__}, which has no {method}(); a tensor, a "
                    "partition or the result of a launch has."
                )
            return found(*args)

        return self._labelled(call, method)

    def _element(self, values: Any, index: int) -> Any:
        if not isinstance(values, tuple) or not values:
            gave = "an empty tuple" if values == () else f"a {type(values).__name__}"
            raise OperationError(f"{self} gave {gave}, not a tuple of values.")
        return values[index]

    def _outputs(self, result: Any) -> Any:
        positions = getattr(type(result), "_output_positions", None)
        if positions is None:
            raise OperationError(
                f"{self} gave a {type(result).__name__}; only the result of a launch has outputs."
            )
        # A number that the kernel counts down, say, is an output of nothing.
        found = tuple(v for v in map(result.__getitem__, positions) if _is_array(v))
        return found[0] if len(found) == 1 else found


def _is_array(value: Any) -> bool:
    return hasattr(value, "to_host") or interchange.place(value) is not None


def itself(op: DeviceOp[Any]) -> DeviceOp[Any]:
    return op
