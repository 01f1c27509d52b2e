"""Scalar functions as elementwise operations: of batches, where they fuse, and of tensors.

Of tensors an operation is a batch of one: its kernel is the batch's, for any layout and
broadcasting, kept by its structure.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from types import FunctionType
from typing import Any, TypeAlias, overload
from weakref import WeakValueDictionary

import numpy as np

from numbasync.batch.command_batch import CommandBatch
from numbasync.batch.record import element_ops
from numbasync.batch.record.buffer_id import BufferId, Operand
from numbasync.batch.record.element_ops import DType
from numbasync.batch.run.run import OneResult
from numbasync.errors import LauncherError, OperationError
from numbasync.facts.source import carry_source
from numbasync.launch.result import ResultType, register_reducers, type_of
from numbasync.ops.constructors import value, zip
from numbasync.ops.op import DeviceOp
from numbasync.ops.operands import is_op
from numbasync.tensors.tensor import SharedTensor, Tensor

MOST_PARAMETERS = 16
NAMES = (
    *sorted({*element_ops.OPS} - {"square", "gelu_tanh"}), "elu", "leaky_relu", "scale",
)  # fmt: skip
Array: TypeAlias = Tensor | SharedTensor | np.ndarray[Any, Any] | DeviceOp[Any]


class Elementwise:
    """A scalar function of a program, as an operation; created by `@elementwise`.

    Called with ids of a batch it is recorded; called with tensors it is an operation of its own.

    Attributes:
        py_func: the function.
        name: the function's name.
        arity: the number of operands.
        dtype: of the results; None: NumPy's common type of the operands.
        Kind: a type that belongs to this function alone.

    An `Elementwise` is pickled as launchers are: by its name, or by value with cloudpickle.

    Examples:
        >>> @na.elementwise(dtype=np.bool_)
        ... def is_near(a, b):
        ...     return abs(a - b) < 0.01
        >>> is_near.name, is_near.arity, is_near.dtype.name
        ('is_near', 2, 'bool')
    """

    def __init__(self, function: Any, dtype: DType | None, kind: ResultType | None = None) -> None:
        self._given = function
        self.py_func: FunctionType = getattr(function, "py_func", function)
        if not isinstance(self.py_func, FunctionType):
            raise LauncherError(
                f"na.elementwise takes a function of scalars, not {type(function).__name__}."
            )
        self.name = self.py_func.__name__
        parameters = inspect.signature(self.py_func).parameters.values()
        plain = {"POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD"}
        if {p.kind.name for p in parameters} - plain:
            raise LauncherError(f"elementwise {self.name}: kernels pass operands by position only.")
        self.arity = len(parameters)
        if not 1 <= self.arity <= MOST_PARAMETERS:
            raise LauncherError(
                f"elementwise {self.name} has {self.arity} parameters; 1 to {MOST_PARAMETERS} "
                "are possible."
            )
        self.dtype = dtype
        self.__doc__ = self.py_func.__doc__
        self.__name__ = self.name
        self.Kind = kind or type_of(self.py_func, "Kind", (), (function, dtype))
        _functions[self.Kind] = self

    def __reduce__(self) -> tuple[Any, ...]:
        register_reducers()  # called here, not on import: the call imports numba.cuda
        carry_source(self.py_func)
        return _function_of, (self.Kind,)

    @cached_property
    def device(self) -> Any:
        """The device function that kernels call."""
        from numbasync.kernel_names import cuda

        if self._given is not self.py_func and self._given.targetoptions.get("device"):
            return self._given
        return cuda.jit(device=True)(self.py_func)

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]  # of numbers alone: refused
        self, /, *operands: Array | float
    ) -> DeviceOp[Tensor]: ...
    @overload
    def __call__(self, /, *operands: Operand) -> BufferId: ...
    def __call__(self, /, *operands: Any) -> Any:
        """Record the operation, or make one of tensors.

        Args:
            operands: ids of a batch and numbers; or tensors, NumPy arrays, operations that give
                these, and numbers. They broadcast as in NumPy.

        Returns:
            The id of the result, or an operation that gives it as a new contiguous tensor.

        Raises:
            OperationError: too few or too many operands, or all are numbers.
            ShapeError: the shapes do not broadcast.
            DTypeError: batches do not support the element type.
        """
        if len(operands) != self.arity:
            raise OperationError(f"{self.name} takes {self.arity} operands, not {len(operands)}.")
        first = next((x for x in operands if isinstance(x, BufferId)), None)
        if first is not None:
            return first.recorder.apply(self, operands)
        return _operation(self.name, lambda _, ids: self(*ids), operands)

    def __repr__(self) -> str:
        return f"<elementwise {self.name}, {self.arity} operands>"


# As for launchers: by the types with which the functions are pickled, and those unpickled by value.
_functions: WeakValueDictionary[ResultType, Elementwise] = WeakValueDictionary()
_unpickled: deque[Elementwise] = deque(maxlen=32)


def _function_of(kind: ResultType) -> Elementwise:
    operation = _functions.get(kind)
    if operation is None:
        function, dtype = kind._made_of
        operation = Elementwise(function, dtype, kind)
        _unpickled.append(operation)
    return operation


class Named:
    """An operation that every batch has, of tensors; created by `elementwise(name)`.

    Attributes:
        name: of the batch's method.
    """

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name
        self.__doc__ = getattr(CommandBatch, name).__doc__

    def __call__(self, /, *operands: Array | float, **options: Any) -> DeviceOp[Tensor]:
        """The operation of these operands, as of an `Elementwise`; options are the method's."""
        if any(isinstance(x, BufferId) for x in operands):
            raise OperationError(f"{self.name} of ids of a batch: write b.{self.name}(...).")
        return _operation(
            self.name, lambda batch, ids: getattr(batch, self.name)(*ids, **options), operands
        )

    def __repr__(self) -> str:
        return f"<elementwise {self.name}>"


def _operation(
    name: str, record: Callable[[CommandBatch, list[Any]], BufferId], operands: Sequence[Any]
) -> DeviceOp[Tensor]:
    """The operation of tensors, arrays and operations that give them, recorded by `record`."""
    if any(map(is_op, operands)):
        given = zip(*(x if is_op(x) else value(x) for x in operands))
        made: DeviceOp[Tensor] = given.then(lambda xs: _operation(name, record, xs))
        return made
    arrays = [x for x in operands if isinstance(x, Tensor | SharedTensor | np.ndarray)]
    if not arrays:
        raise OperationError(
            f"{name} is of tensors, or of ids of a batch: pass at least one. To compute with "
            "numbers, call the function itself."
        )
    device = next((x.device for x in arrays if not isinstance(x, np.ndarray)), None)
    for x in arrays:
        element_ops.check_dtype(x.dtype, name)
    batch = CommandBatch(device)
    ids: list[Any] = list(operands)
    for i, x in enumerate(operands):
        if isinstance(x, np.ndarray):
            ids[i] = batch.upload(x)
        elif isinstance(x, Tensor | SharedTensor):
            ids[i] = batch.use(x)
    result = record(batch, ids)
    return OneResult(batch, batch.closed(), result.number)


@overload
def elementwise(function: str, /) -> Named: ...
@overload
def elementwise(function: Callable[..., Any], /) -> Elementwise: ...
@overload
def elementwise(*, dtype: Any = None) -> Callable[[Callable[..., Any]], Elementwise]: ...
def elementwise(function: Any = None, /, *, dtype: Any = None) -> Any:
    """Make an elementwise operation of a scalar function that Numba can compile.

    `await f(x, 2.0)` of a tensor or a NumPy array gives a tensor: of any layout, broadcast as in
    NumPy, by one kernel. Called with ids of a batch, it fuses like the built-in operations. In the
    kernel the function is called with scalars of the operands' types; a float16
    is passed as the float32 of equal value, a Python float in the operands' common type, a Python
    int as an int64. The function may call `math` and other device functions. It is compiled when
    the batch is first executed, with the values of globals and enclosing variables at that time; a
    function that Numba refuses raises `KernelCompileError`, and nothing is enqueued.

    Args:
        function: or the name of an elementwise operation that batches have: "relu", "where", ...
        dtype: of the results; default: NumPy's common type of the operands.

    Raises:
        LauncherError: the object is not a function of 1 to 16 positional parameters, nor such a
            name.
        DTypeError: batches do not support that dtype.

    Examples:
        >>> @na.elementwise
        ... def clip(x, most):
        ...     return min(x, most)
        >>> b = na.CommandBatch()
        >>> await b.compute(clip(b.upload(np.arange(4, dtype=np.float32)), 2.0))
        array([0., 1., 2., 2.], dtype=float32)
        >>> x = np.array([[-1, 3], [5, -7]], np.float32)
        >>> await clip(x.T, 4).to_host()
        array([[-1.,  4.],
               [ 3., -7.]], dtype=float32)
        >>> await na.elementwise("leaky_relu")(x, 0.5).to_host()
        array([[-0.5,  3. ],
               [ 5. , -3.5]], dtype=float32)
    """
    if isinstance(function, str):
        if function not in NAMES:
            raise LauncherError(
                f"na.elementwise({function!r:.60}): write a function, or one of {', '.join(NAMES)}."
            )
        return Named(function)
    result_dtype = None if dtype is None else element_ops.check_dtype(dtype, "elementwise")

    def decorate(function: Any) -> Elementwise:
        return Elementwise(function, result_dtype)

    return decorate if function is None else decorate(function)
