"""Methods of an operation that stand for methods of the value it will give.

`op.partition((4, 4))` is an operation that calls `partition` on the tensor when that is there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from numbasync.backend import array_protocols
from numbasync.errors import OperationError

if TYPE_CHECKING:
    from numbasync.ops.op import DeviceOp
    from numbasync.tensors.copies import HostArray
    from numbasync.tensors.partition import Partition
    from numbasync.tensors.tensor import SharedTensor, Tensor

T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class _Unknown:
    """Nothing is one but what has no type: Any, which would be any of the tuples below."""


class ValueMethods(Generic[T_co]):
    """What operations offer of tensors, of tuples, and of the results of launches."""

    def _labelled(self, change: Callable[[Any], Any], label: str) -> DeviceOp[Any]:
        """An operation that changes the value on the host, and how messages name it."""
        raise NotImplementedError

    def _unzipped(self, n: int | None) -> tuple[DeviceOp[Any], ...]:
        """One operation for each element of the tuple."""
        raise NotImplementedError

    # --- what is not offered, since the value is not there yet ---

    __hash__ = object.__hash__
    __array_ufunc__ = None  # NumPy leaves `array == op` and its like to the operation

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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise OperationError(
            f"{self} is an operation, not its value, so NumPy cannot read it: write "
            "await op.to_host()."
        )

    def __getitem__(self, index: Any) -> NoReturn:
        raise OperationError(
            f"{self} is an operation, not its value, and has no elements yet: write "
            f"(await op)[{index!r:.40}]; or, of an operation that gives a tuple, op.unzip()."
        )

    # --- of operations that give a tuple ---

    @overload
    def first(self: ValueMethods[tuple[A, *tuple[Any, ...]]]) -> DeviceOp[A]: ...
    @overload
    def first(self) -> DeviceOp[Any]: ...
    def first(self) -> DeviceOp[Any]:
        """The first element of the tuple that this gives."""
        return self._labelled(partial(_element, str(self), 0), "first")

    @overload
    def last(self: ValueMethods[tuple[*tuple[Any, ...], A]]) -> DeviceOp[A]: ...
    @overload
    def last(self) -> DeviceOp[Any]: ...
    def last(self) -> DeviceOp[Any]:
        """The last element of the tuple that this gives."""
        return self._labelled(partial(_element, str(self), -1), "last")

    @overload
    def unzip(  # type: ignore[overload-overlap]  # of no type but Any
        self: ValueMethods[tuple[_Unknown, ...]], n: int | None = None
    ) -> tuple[DeviceOp[Any], ...]: ...
    @overload
    def unzip(self: ValueMethods[tuple[A]], n: int | None = None) -> tuple[DeviceOp[A]]: ...
    @overload
    def unzip(
        self: ValueMethods[tuple[A, B]], n: int | None = None
    ) -> tuple[DeviceOp[A], DeviceOp[B]]: ...
    @overload
    def unzip(
        self: ValueMethods[tuple[A, B, C]], n: int | None = None
    ) -> tuple[DeviceOp[A], DeviceOp[B], DeviceOp[C]]: ...
    @overload
    def unzip(
        self: ValueMethods[tuple[A, B, C, D]], n: int | None = None
    ) -> tuple[DeviceOp[A], DeviceOp[B], DeviceOp[C], DeviceOp[D]]: ...
    @overload
    def unzip(
        self: ValueMethods[tuple[A, ...]], n: int | None = None
    ) -> tuple[DeviceOp[A], ...]: ...
    @overload
    def unzip(self, n: int | None = None) -> tuple[DeviceOp[Any], ...]: ...
    def unzip(self, n: int | None = None) -> tuple[DeviceOp[Any], ...]:
        """One operation for each element of the tuple that this gives; it runs once.

        Args:
            n: how many elements; may be left out where the operation knows it (`zip`, a launch).
        """
        return self._unzipped(n)

    def output(self) -> DeviceOp[Any]:
        """What a launch wrote: its one output as it was passed, or the tuple of them."""
        return self._labelled(partial(_outputs, str(self)), "output")

    # --- of operations that give a tensor, or something that has the same method ---

    def partition(self, tile: int | tuple[int, ...]) -> DeviceOp[Partition]:
        """The tensor's partition into tiles of this shape."""
        return self._of_value("partition", tile)

    def unpartition(self) -> DeviceOp[Tensor]:
        """The tensor of a partition."""
        return self._of_value("unpartition")

    def reshape(self, *shape: int | tuple[int, ...]) -> DeviceOp[Tensor]:
        """The tensor with another shape of the same size; no copy."""
        return self._of_value("reshape", *shape)

    def shared_tensor(self) -> DeviceOp[SharedTensor]:
        """The tensor as a SharedTensor."""
        return self._of_value("shared")

    def dup(self) -> DeviceOp[Tensor]:
        """A copy of the tensor, in storage of its own."""
        return self._of_value("dup").then(itself)

    def to_host(self) -> DeviceOp[HostArray]:
        """The tensor's elements as a NumPy array."""
        return self._of_value("to_host").then(itself)

    def astype(self, dtype: Any) -> DeviceOp[Tensor]:
        """A contiguous copy of the tensor in elements of another type."""
        return self._of_value("astype", dtype).then(itself)

    def item(self) -> DeviceOp[Any]:
        """The tensor's only element as a number of Python's, to be awaited before it is used."""
        return self._of_value("item").then(itself)

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
    return hasattr(value, "to_host") or array_protocols.place(value) is not None


def itself(op: DeviceOp[Any]) -> DeviceOp[Any]:
    return op
