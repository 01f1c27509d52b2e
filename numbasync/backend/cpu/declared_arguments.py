"""Types of arguments, and their conversion to those of a kernel's declared signature.

A launch on a GPU converts them by writing them into memory of those types, and refuses an integer
that the declared type does not hold.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numba.core import types as _types
from numba.np.numpy_support import as_dtype

from numbasync import layout
from numbasync.backend.bfloat16_type import bfloat16
from numbasync.backend.declared_signatures import declared, resolved, type_of
from numbasync.errors import DTypeError, KernelCompileError

types: Any = _types  # type checkers do not know all of its names


class Formal:
    """The types to which the arguments of a call are converted.

    Attributes:
        keys: the arguments' parts of a variant's key, after the conversion.
    """

    def __init__(self, name: str, declared_types: tuple[Any, ...]) -> None:
        self.keys: tuple[Hashable, ...] = declared_types
        self._name = name

    def passed(self, arguments: Sequence[Any]) -> list[Any]:
        """The converted arguments of one launch.

        Raises:
            DTypeError: an integer does not fit its declared type.
        """
        pairs = zip(self.keys, arguments, strict=True)
        return [self._one(declared_type, argument) for declared_type, argument in pairs]

    def _one(self, declared_type: Any, value: Any) -> Any:
        if isinstance(declared_type, types.BaseTuple):
            parts = [self._one(t, v) for t, v in zip(declared_type, value, strict=True)]
            tuple_class: Any = type(value)
            return tuple_class(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(declared_type, types.Integer):
            number, dtype = operator.index(value), as_dtype(declared_type)
            bounds = np.iinfo(dtype)
            if not bounds.min <= number <= bounds.max:
                raise DTypeError(
                    f"kernel {self._name}: an argument does not fit the kernel's type: {number} "
                    f"is no {declared_type}"
                )
            return dtype.type(number)
        if isinstance(declared_type, types.Boolean):
            return bool(value)
        if declared_type == bfloat16:
            return layout.bfloat16().type(value)
        if isinstance(declared_type, types.Float | types.Complex):
            with np.errstate(over="ignore"):
                return as_dtype(declared_type).type(value)
        return value


def formal(dispatcher: Any, keys: tuple[Hashable, ...]) -> Formal | None:
    """The conversion of arguments with these keys; None if they need none.

    Raises:
        KernelCompileError: signatures are declared, and none of them fits.
    """
    if not declared(dispatcher):
        return None
    actual = tuple(type_of(k) for k in keys)
    name = dispatcher.py_func.__name__
    try:
        chosen = resolved(dispatcher, actual)
    except TypeError as error:
        raise KernelCompileError(
            f"kernel {name} cannot be compiled for ({', '.join(map(str, actual))}): {error}"
        ) from error
    return None if chosen == actual else Formal(name, chosen)
