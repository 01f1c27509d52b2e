"""Users' scalar functions as operations of batches, which fuse like the built-in operations."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from functools import cached_property
from types import FunctionType
from typing import Any, overload
from weakref import WeakValueDictionary

from numbasync.batch.record import element_ops
from numbasync.batch.record.buffer_id import BufferId, Operand
from numbasync.batch.record.element_ops import DType
from numbasync.errors import LauncherError, OperationError
from numbasync.facts.source import carry_source
from numbasync.launch.result import ResultType, register_reducers, type_of

MOST_PARAMETERS = 16


class Elementwise:
    """A scalar function of a program, as an operation; created by `@elementwise`.

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

    def __call__(self, /, *operands: Operand) -> BufferId:
        """Record the operation. At least one operand is an id; the others may be numbers.

        Raises:
            OperationError: too few or too many operands, or none is an id.
        """
        first = next((x for x in operands if isinstance(x, BufferId)), None)
        if first is None:
            raise OperationError(
                f"{self.name} is an operation of batches: pass at least one of their ids. To "
                f"compute with numbers, call {self.name}.py_func."
            )
        if len(operands) != self.arity:
            raise OperationError(f"{self.name} takes {self.arity} operands, not {len(operands)}.")
        return first.recorder.apply(self, operands)

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


@overload
def elementwise(function: Callable[..., Any], /) -> Elementwise: ...
@overload
def elementwise(*, dtype: Any = None) -> Callable[[Callable[..., Any]], Elementwise]: ...
def elementwise(function: Any = None, /, *, dtype: Any = None) -> Any:
    """Make a batch operation of a scalar function that Numba can compile.

    The operation is called with ids, `f(a, 2.0)`, and broadcasts and fuses like the built-in
    operations. In the kernel the function is called with scalars of the operands' types; a float16
    is passed as the float32 of equal value, a Python float in the operands' common type, a Python
    int as an int64. The function may call `math` and other device functions. It is compiled when
    the batch is first executed, with the values of globals and enclosing variables at that time; a
    function that Numba refuses raises `KernelCompileError`, and nothing is enqueued.

    Args:
        dtype: of the results; default: NumPy's common type of the operands.

    Raises:
        LauncherError: the object is not a function of 1 to 16 positional parameters.
        DTypeError: batches do not support that dtype.

    Examples:
        >>> @na.elementwise
        ... def clip(x, most):
        ...     return min(x, most)
        >>> b = na.CommandBatch()
        >>> await b.compute(clip(b.upload(np.arange(4, dtype=np.float32)), 2.0))
        array([0., 1., 2., 2.], dtype=float32)
    """
    result_dtype = None if dtype is None else element_ops.check_dtype(dtype, "elementwise")

    def decorate(function: Any) -> Elementwise:
        return Elementwise(function, result_dtype)

    return decorate if function is None else decorate(function)
