"""Arguments of kernels whose signatures are declared: made what they are declared to be.

What a GPU's launch does by writing them into memory of those types, and refuses where that
would lose something: an integer that the declared type does not hold.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numba.np.numpy_support import as_dtype, from_dtype

from numbasync.backend.cpu.library.entry_points import types
from numbasync.backend.declared_signatures import declared, resolved
from numbasync.backend.protocols import ArrayKey
from numbasync.errors import DTypeError, KernelCompileError


class Formal:
    """What a call's arguments become.

    Attributes:
        keys: their parts of a variant's key, then.
    """

    def __init__(self, name: str, kinds: tuple[Any, ...]) -> None:
        self.keys: tuple[Hashable, ...] = kinds
        self._name = name

    def passed(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments of one launch.

        Raises:
            DTypeError: a number does not fit.
        """
        given = zip(self.keys, arguments, strict=True)
        return [self._one(kind, a) for kind, a in given]

    def _one(self, kind: Any, value: Any) -> Any:
        if isinstance(kind, types.BaseTuple):
            parts = [self._one(k, v) for k, v in zip(kind, value, strict=True)]
            made: Any = type(value)
            return made(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(kind, types.Integer):
            number, dtype = operator.index(value), as_dtype(kind)
            bounds = np.iinfo(dtype)
            if not bounds.min <= number <= bounds.max:
                raise DTypeError(
                    f"kernel {self._name}: an argument does not fit the kernel's type: {number} "
                    f"is no {kind}"
                )
            return dtype.type(number)
        if isinstance(kind, types.Boolean):
            return bool(value)
        if isinstance(kind, types.Float | types.Complex):
            with np.errstate(over="ignore"):
                return as_dtype(kind).type(value)
        return value


def formal(dispatcher: Any, keys: tuple[Hashable, ...]) -> Formal | None:
    """What arguments with such keys become; None if they stay what they are.

    Raises:
        KernelCompileError: signatures are declared, and none of them is meant.
    """
    if not declared(dispatcher):
        return None
    actual = tuple(_type_of(k) for k in keys)
    name = dispatcher.py_func.__name__
    try:
        found = resolved(dispatcher, actual)
    except TypeError as error:
        raise KernelCompileError(
            f"kernel {name} cannot be compiled for ({', '.join(map(str, actual))}): {error}"
        ) from error
    return None if found == actual else Formal(name, found)


def _type_of(key: Hashable) -> Any:
    if isinstance(key, ArrayKey):
        return types.Array(from_dtype(np.dtype(key.dtype)), key.ndim, key.order)
    if isinstance(key, tuple):
        return types.BaseTuple.from_types([_type_of(k) for k in key])
    return key
