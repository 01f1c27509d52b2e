"""Methods of an operation that call methods of the operation's later value.

`op.partition((4, 4))` is an operation that calls `partition` on the tensor that `op` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from numbasync.arguments import shown
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
    """A type without instances. In an overload only Any matches it, and Any would match all of the
    tuple types that follow.
    """


class _OfArrays:
    """A method of NumPy's arrays: an attribute that is missing, and whose error says what to write.
    No `__getattr__`, which would make every access to an operation's attributes slower.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, op: object, owner: type) -> NoReturn:
        error = f"{owner.__name__!r} object has no attribute {self._name!r}"
        if op is None:
            raise AttributeError(error)
        raise AttributeError(
            f"{error}.\n{op} is an operation, not its value: write "
            f"(await op.to_host()).{self._name}(...)"
        )


class ValueMethods(Generic[T_co]):
    """The methods of tensors, of tuples and of the results of launches that operations offer."""

    def _labelled(self, change: Callable[[Any], Any], label: str) -> DeviceOp[Any]:
        """An operation that applies `change` to the value on the host; messages show `label`."""
        raise NotImplementedError

    def _unzipped(self, n: int | None) -> tuple[DeviceOp[Any], ...]:
        """One operation for each element of the tuple."""
        raise NotImplementedError

    # --- refused, because the value does not exist yet ---

    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # a type checker should report their use as an error
        all, any, argmax, argmin, cumsum, dot, max, mean = (_OfArrays() for _ in range(8))
        min, prod, round, sort, std, sum, transpose, var = (_OfArrays() for _ in range(8))

        def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
            # What NumPy calls for an array on the left of an operator, and for its functions.
            if ufunc.__name__ in ("equal", "not_equal") and method == "__call__":
                return self == inputs[inputs[0] is self]
            raise OperationError(
                f"{self} is an operation, not its value, so NumPy cannot compute with it: write "
                "await op.to_host()."
            )

    def __eq__(self, other: object) -> bool:
        """Whether both are the same operation. To compare values, await the operation first.

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
            f"(await op)[{shown(index, 40)}]; or, of an operation that gives a tuple, op.unzip()."
        )

    # --- for operations that give a tuple ---

    @overload
    def first(self: ValueMethods[tuple[A, *tuple[Any, ...]]]) -> DeviceOp[A]: ...
    @overload
    def first(self) -> DeviceOp[Any]: ...
    def first(self) -> DeviceOp[Any]:
        """The first element of the tuple that this operation gives.

        Examples:
            >>> await na.zip(na.value(1), na.value(2)).first()
            1
        """
        return self._labelled(partial(_element, str(self), 0), "first")

    @overload
    def last(self: ValueMethods[tuple[*tuple[Any, ...], A]]) -> DeviceOp[A]: ...
    @overload
    def last(self) -> DeviceOp[Any]: ...
    def last(self) -> DeviceOp[Any]:
        """The last element of the tuple that this operation gives.

        Examples:
            >>> await na.zip(na.value(1), na.value(2)).last()
            2
        """
        return self._labelled(partial(_element, str(self), -1), "last")

    @overload
    def unzip(  # type: ignore[overload-overlap]  # matches Any only
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
        """One operation for each element of the tuple. The operation itself runs once.

        Args:
            n: the number of elements; optional where the operation knows it (`zip`, a launch).

        Examples:
            >>> z, x = na.zip(na.zeros(3), na.ones(3)).unzip()
            >>> await saxpy(z, 2.0, x).output().to_host()
            array([2., 2., 2.], dtype=float32)
        """
        return self._unzipped(n)

    def output(self) -> DeviceOp[Any]:
        """The outputs of a launch: the only output, as it was passed, or the tuple of outputs.

        Examples:
            >>> z = await saxpy(na.zeros(3), 2.0, na.ones(3)).output()
            >>> await z.to_host()
            array([2., 2., 2.], dtype=float32)
        """
        return self._labelled(partial(_outputs, str(self)), "output")

    # --- for operations that give a tensor, or another value with the same method ---

    def partition(self, tile: int | tuple[int, ...]) -> DeviceOp[Partition]:
        """The tensor's partition into tiles of shape `tile`.

        Examples:
            >>> op = saxpy(na.zeros(8).partition(4), 2.0, na.ones(8))  # blocks of 4 threads
            >>> (await op).z.grid
            (2,)
        """
        return self._of_value("partition", tile)

    def unpartition(self) -> DeviceOp[Tensor]:
        """The tensor of a partition.

        Examples:
            >>> z = await saxpy(na.zeros(8).partition(4), 2.0, na.ones(8)).output().unpartition()
            >>> z.shape
            (8,)
        """
        return self._of_value("unpartition")

    def reshape(self, *shape: int | tuple[int, ...]) -> DeviceOp[Tensor]:
        """The tensor with another shape of the same size; no copy.

        Examples:
            >>> await na.arange(6).reshape((2, 3)).to_host()
            array([[0., 1., 2.],
                   [3., 4., 5.]], dtype=float32)
        """
        return self._of_value("reshape", *shape)

    def shared_tensor(self) -> DeviceOp[SharedTensor]:
        """The tensor as a SharedTensor.

        Examples:
            >>> weights = await na.ones(3).shared_tensor()
            >>> type(weights).__name__
            'SharedTensor'
        """
        return self._of_value("shared")

    def dup(self) -> DeviceOp[Tensor]:
        """A copy of the tensor, in storage of its own.

        Examples:
            >>> t = await na.ones(3).dup()
            >>> await t.to_host()
            array([1., 1., 1.], dtype=float32)
        """
        return self._of_value("dup").then(itself)

    def to_host(self) -> DeviceOp[HostArray]:
        """The tensor's elements as a NumPy array.

        Examples:
            >>> await na.arange(3).to_host()
            array([0., 1., 2.], dtype=float32)
        """
        return self._of_value("to_host").then(itself)

    def astype(self, dtype: Any) -> DeviceOp[Tensor]:
        """A contiguous copy of the tensor in elements of another type.

        Examples:
            >>> await na.linspace(0, 3, 4).astype(np.int32).to_host()
            array([0, 1, 2, 3], dtype=int32)
        """
        return self._of_value("astype", dtype).then(itself)

    def item(self) -> DeviceOp[Any]:
        """The tensor's only element as a Python number, a deferred value: await it before use.

        Examples:
            >>> await na.full(1, 3).item()
            3.0
        """
        return self._of_value("item").then(itself)

    # --- implementation ---

    def _of_value(self, method: str, *args: Any) -> DeviceOp[Any]:
        return self._labelled(partial(_call, str(self), method, args), method)


# Module-level functions, which can be pickled. They get the operation's name only: the operation
# would keep alive everything that it holds.


def _call(name: str, method: str, args: tuple[Any, ...], value: Any) -> Any:
    bound_method = getattr(value, method, None)
    if bound_method is None:
        raise OperationError(
            f"{name} gave a {type(value).__name__}, which has no {method}(); a tensor, a "
            "partition or the result of a launch has."
        )
    return bound_method(*args)


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
    # Scalars are no outputs, even where the kernel assigns to the parameter.
    arrays = tuple(v for v in map(result.__getitem__, positions) if _is_array(v))
    return arrays[0] if len(arrays) == 1 else arrays


def _is_array(value: Any) -> bool:
    return hasattr(value, "to_host") or array_protocols.place(value) is not None


def itself(op: DeviceOp[Any]) -> DeviceOp[Any]:
    return op
