"""NumPy's array methods on tensors: as a view, as an operation, or refused with advice.

Python's operators, comparisons and conversions would need the elements immediately, on the host.
They raise an error that says what to write instead. Without that error `t == u` would be False, and
`if t:` would test the length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from numbasync import dtypes
from numbasync.arguments import shown
from numbasync.errors import DTypeError, OperationError, ShapeError
from numbasync.layout import Layout
from numbasync.tensors.array import DeviceArray
from numbasync.tensors.copy_ops import Convert, Item

if TYPE_CHECKING:
    from numbasync.ops.op import DeviceOp


def _binary(symbol: str, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented  # the other type may implement it, such as an id of a batch
        left, right = (other, self) if reflected else (self, other)
        return _refuse(f"{_shown(left)} {symbol} {_shown(right)}")

    return method


def _unary(form: str) -> Callable[[Any], Any]:
    return lambda self: _refuse(form.format(_shown(self)))


def _is_operand(value: object) -> bool:
    return isinstance(value, NoOperators | np.ndarray | np.generic | int | float | complex | list)


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return repr(value) if isinstance(value, NoOperators) else f"{shown(value)}"


# Operators by the names of NumPy's functions, and functions of arrays by those whose `reduce` they
# call.
_OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "floor_divide": "//",
    "remainder": "%", "power": "**", "matmul": "@", "bitwise_and": "&", "bitwise_or": "|",
    "bitwise_xor": "^", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
    "equal": "==", "not_equal": "!=",
}  # fmt: skip
_REDUCTIONS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
    "logical_or": "any",
}  # fmt: skip
OF_ALGORITHMS = frozenset(
    (
        "all",
        "any",
        "argmax",
        "argmin",
        "argsort",
        "cumprod",
        "cumsum",
        "max",
        "mean",
        "min",
        "prod",
        "searchsorted",
        "sort",
        "std",
        "sum",
        "var",
    )
)  # of an array's methods and NumPy's functions
OF_BATCHES = ("sum", "max", "min", "mean", "argmax", "dot")  # of an array's methods
_INSTEAD = {
    "copy": "await t.dup()",
    "fill": "await na.fill(t, number)",
    "flatten": "t.reshape(-1), a view",
    "ravel": "t.reshape(-1), a view",
    "transpose": "t.T or t.mT, a view",
    "squeeze": "t.reshape(shape), a view",
    "view": "t.reinterpret(dtype), a view",
    "to": "await na.to_device(t, device), or await t.astype(dtype)",
    "cpu": "await t.to_host(), a NumPy array",
    "numpy": "await t.to_host(), a NumPy array",
    "get": "await t.to_host(), a NumPy array",
}


def no_attribute(tensor: Any, name: str) -> AttributeError:
    """The error of an attribute that is missing. It says what to write where NumPy's arrays have
    it.
    """
    error = f"{type(tensor).__name__!r} object has no attribute {name!r}"
    instead = _INSTEAD.get(name)
    if instead is None:
        if name.startswith("_") or not callable(getattr(np.ndarray, name, None)):
            return AttributeError(error)
        instead = f"(await t.to_host()).{name}(...), on the host"
        if name in OF_ALGORITHMS:
            instead += f"; or, on the device, await na.algorithms.{name}(t, ...)"
        if name in OF_BATCHES:
            instead += (
                f"; or, among others in one kernel, b = na.CommandBatch(); y = b.{name}(b.use(t)"
            )
            instead += ", ...)" if name == "dot" else "); z = await b.compute(y)"
    return AttributeError(f"{error}.\nOf {tensor!r} write {instead}")


def _refuse(what: str, instead: str = "") -> NoReturn:
    written = f"Write {instead}; or a kernel," if instead else "Write a kernel,"
    raise OperationError(
        f"{what}: Python cannot compute with the elements of a tensor, which are on a device.\n"
        f"{written} or record it: b = na.CommandBatch(); x = b.use(t); then x + 1, x == y ... "
        "on the batch's ids. To compute on the host: array = await t.to_host()"
    )


class NoOperators:
    """Operators and conversions of Python that a tensor refuses, with advice."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker should report their use as an error
        __add__, __radd__ = _binary("+"), _binary("+", reflected=True)
        __sub__, __rsub__ = _binary("-"), _binary("-", reflected=True)
        __mul__, __rmul__ = _binary("*"), _binary("*", reflected=True)
        __truediv__, __rtruediv__ = _binary("/"), _binary("/", reflected=True)
        __floordiv__, __rfloordiv__ = _binary("//"), _binary("//", reflected=True)
        __mod__, __rmod__ = _binary("%"), _binary("%", reflected=True)
        __pow__, __rpow__ = _binary("**"), _binary("**", reflected=True)
        __matmul__, __rmatmul__ = _binary("@"), _binary("@", reflected=True)
        __and__, __rand__ = _binary("&"), _binary("&", reflected=True)
        __or__, __ror__ = _binary("|"), _binary("|", reflected=True)
        __xor__, __rxor__ = _binary("^"), _binary("^", reflected=True)
        __lt__, __le__, __gt__, __ge__ = map(_binary, ("<", "<=", ">", ">="))
        __neg__, __invert__, __abs__ = map(_unary, ("-{}", "~{}", "abs({})"))

        __hash__ = object.__hash__

        def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
            # What NumPy calls for an array on the left of an operator, and for its functions.
            if kwargs.get("out") is not None or not all(map(_is_operand, inputs)):
                return NotImplemented
            name, shown = ufunc.__name__, [_shown(x) for x in inputs]
            if method == "reduce":
                called = _REDUCTIONS.get(name, name + ".reduce")
                instead = f"await na.algorithms.{called}(t)" if called in OF_ALGORITHMS else ""
                return _refuse(f"np.{called}({shown[0]})", instead)
            if method == "__call__" and name in _OPERATORS:
                return _refuse(f" {_OPERATORS[name]} ".join(shown))
            called = name if method == "__call__" else f"{name}.{method}"
            return _refuse(f"np.{called}({', '.join(shown)})")

        def __array__(self, *args, **kwargs):
            raise DTypeError(
                f"{self!r} is no NumPy array: copying it takes a moment in which others can work.\n"
                "Write: array = await t.to_host()        # or t.to_host().sync()"
            )

        def __eq__(self, other):
            # Identity must compare, as weak references do; so must strings, None and sentinels.
            if self is other or not _is_operand(other):
                return NotImplemented
            return _refuse(f"{_shown(self)} == {_shown(other)}")

        def __bool__(self):
            raise OperationError(
                f"whether {self!r} is true, its elements would have to say, which are on a device."
                "\nWrite `t is not None`, `t.size > 0`, or `await t.item() != 0`."
            )

        def _number(self):
            raise OperationError(
                f"{self!r} is no number of Python's: fetching that takes a moment in which others "
                "can work.\nWrite: x = await t.item()        # or t.item().sync()"
            )

        __float__ = __int__ = __complex__ = _number

        def __setitem__(self, key, value):
            raise OperationError(
                f"the elements of {self!r} are set by operations.\n"
                "Write: await na.fill(t[key], number)        # or na.memcpy(t[key], array)"
            )


class ArrayMethods(DeviceArray, NoOperators):
    """Methods of a tensor that have NumPy's names."""

    __slots__ = ()

    @property
    def T(self) -> Self:
        """A view with the axes in reverse order; no copy."""
        offset, shape, strides = self._layout
        return self._view(Layout(offset, shape[::-1], strides[::-1]))

    @property
    def mT(self) -> Self:
        """A view of the matrices along the last two axes, each transposed; no copy.

        Raises:
            ShapeError: there is one axis, or none.
        """
        offset, shape, strides = self._layout
        if len(shape) < 2:
            raise ShapeError(f"mT is of matrices, not of {self!r}: write two axes or more.")
        *outer, rows, columns = range(len(shape))
        order = *outer, columns, rows
        return self._view(
            Layout(offset, tuple(shape[i] for i in order), tuple(strides[i] for i in order))
        )

    def astype(self, dtype: Any) -> DeviceOp[Self]:
        """An operation that returns a contiguous copy in another dtype; see `convert`.

        Examples:
            >>> t = await na.linspace(0, 3, 4)
            >>> (await t.astype(np.int32)).dtype.name
            'int32'
        """
        dtypes.check_dtype(self.dtype)  # a structure is not converted
        return Convert(self, dtypes.check_dtype(dtype))

    def item(self) -> DeviceOp[Any]:
        """An operation that returns the only element as a Python number.

        The number exists only when the device is done: await the operation before using it.
        Closures, such as those of `then`, are called earlier and cannot use it.

        Raises:
            ShapeError: the tensor has more elements than one, or none.

        Examples:
            >>> t = await na.arange(3)
            >>> await t[2].item()
            2.0
        """
        if self.shape.count(1) != len(self.shape):
            raise ShapeError(
                f"item() is of one element, not of {self!r}.\n"
                "Take one, await t[0, 0].item(), or all of them: array = await t.to_host()"
            )
        return Item(self)
