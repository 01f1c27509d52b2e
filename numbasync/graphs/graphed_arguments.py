"""The arguments of one call of a graphed function: the arrays, and the key of the capture."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from types import NoneType
from typing import Any

import numpy as np

from numbasync import dtypes
from numbasync.backend import array_protocols
from numbasync.errors import CallerError, OperationError
from numbasync.ops.operands import is_op, suppress_unused_warnings
from numbasync.tensors import import_array
from numbasync.tensors.tensor import SharedTensor, Tensor

# Types of arguments that are neither operations nor arrays.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, NoneType})


class Arguments:
    """The arguments of one call, by position and by name, with the arrays kept separately.

    Attributes:
        arrays: tensors and NumPy arrays, in order.
        are_tensors: every argument is a tensor or a plain value.
        key: equal for calls that one capture serves.
    """

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._name = name
        self.arrays: list[Any] = []
        self.are_tensors = True
        keys = list[Hashable]()
        with suppress_unused_warnings((*args, *kwargs.values())):
            self._args = [self._sorted(i, v, keys) for i, v in enumerate(args)]
            self._kwargs = {k: self._sorted(k, v, keys) for k, v in sorted(kwargs.items())}
        self.key: Hashable = (len(args), tuple(self._kwargs), tuple(keys))

    def _sorted(self, where: int | str, value: Any, keys: list[Hashable]) -> Any:
        cls = type(value)
        if cls is Tensor:
            keys.append((value.shape, value.dtype))
            self.arrays.append(value)
            return _Array
        if cls in _PLAIN:
            keys.append(_value_key(value))
            return value
        self.are_tensors = False
        if is_op(value):
            raise OperationError(
                f"argument {where!r} of {self._name} is an operation, {value}: run it first, or go "
                f"on with its value: op.then({self._name})."
            )
        if isinstance(value, SharedTensor):
            value = value.tensor
        if not isinstance(value, Tensor) and array_protocols.is_foreign(value):
            array = import_array.argument(value)
            value = value if array is None else array
        if isinstance(value, Tensor | np.ndarray):
            keys.append((value.shape, dtypes.check_dtype(value.dtype, records=True)))
            self.arrays.append(value)
            return _Array
        key = _value_key(value)
        try:
            hash(key)
            keys.append(key)
        except TypeError:
            raise CallerError(
                f"argument {where!r} of {self._name} is a {type(value).__name__}, which a capture "
                "cannot remember: pass tensors, NumPy arrays, and values that are hashable."
            ) from None
        return value

    def with_arrays(self, arrays: tuple[Tensor, ...]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, with these arrays in place of the call's own."""
        remaining = iter(arrays)

        def put(value: Any) -> Any:
            return next(remaining) if value is _Array else value

        return [put(v) for v in self._args], {k: put(v) for k, v in self._kwargs.items()}


def _value_key(value: Any) -> Hashable:
    """The key of an argument that is no array.

    1, 1.0 and True compare equal, and so do 0.0 and -0.0, but they are different kernel arguments;
    and NaN is not equal to itself.
    """
    cls = type(value)
    if isinstance(value, tuple):
        return cls, tuple(_value_key(part) for part in value)
    if isinstance(value, np.generic):
        return cls, value.dtype, value.tobytes()
    if cls is float:
        return cls, struct.pack("d", value)
    if cls is complex:
        return cls, np.array(value).tobytes()
    return cls, value


class _Array:
    """The placeholder of an array in `Arguments`."""
