"""Types of arguments, and their conversion to those of a kernel's declared signature.

A launch on a GPU converts them by writing them into memory of those types, and refuses an integer
that the declared type does not hold.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import numpy as np
from numba.core import types as _types
from numba.np.numpy_support import as_dtype

from numbasync import dtypes
from numbasync.backend.declared_signatures import declared, resolved, type_of
from numbasync.errors import DTypeError, KernelCompileError

types: Any = _types  # type checkers do not know all of its names


Conversion = Callable[[Any], Any]


class Formal:
    """The types to which the arguments of a call are converted.

    Attributes:
        keys: the arguments' parts of a variant's key, after the conversion.
        is_plain: no argument changes: only what kernels assume of an array's layout does.
    """

    def __init__(self, name: str, actual: tuple[Any, ...], declared: tuple[Any, ...]) -> None:
        self.keys: tuple[Hashable, ...] = declared
        self._conversions = [
            None if given == wanted else _conversion(name, wanted)
            for given, wanted in zip(actual, declared, strict=True)
        ]
        self.is_plain = not any(self._conversions)

    def passed(self, arguments: Sequence[Any]) -> list[Any]:
        """The converted arguments of one launch.

        Raises:
            DTypeError: an integer does not fit its declared type.
        """
        pairs = zip(self._conversions, arguments, strict=True)
        return [argument if convert is None else convert(argument) for convert, argument in pairs]


def _conversion(name: str, declared_type: Any) -> Conversion | None:
    """What makes a value one of a declared type; None if any value is one as it is."""
    if isinstance(declared_type, types.BaseTuple):
        return _of_tuple([_conversion(name, each) for each in declared_type])
    if isinstance(declared_type, types.Integer):
        return _of_integer(name, declared_type)
    if isinstance(declared_type, types.Boolean):
        return bool
    if declared_type in dtypes.extension_types().values():
        return cast("Conversion", dtypes.numpy_dtype(declared_type).type)
    if isinstance(declared_type, types.Float | types.Complex):
        return _of_float(as_dtype(declared_type).type)
    return None


def _of_tuple(conversions: list[Conversion | None]) -> Conversion | None:
    if not any(conversions):
        return None

    def convert(value: Any) -> Any:
        pairs = zip(conversions, value, strict=True)
        parts = [part if each is None else each(part) for each, part in pairs]
        tuple_class: Any = type(value)
        return tuple_class(*parts) if hasattr(value, "_fields") else tuple(parts)

    return convert


def _of_integer(name: str, declared_type: Any) -> Conversion:
    dtype = as_dtype(declared_type)
    least, most, made = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), dtype.type

    def convert(value: Any) -> Any:
        number = operator.index(value)
        if not least <= number <= most:
            raise DTypeError(
                f"kernel {name}: an argument does not fit the kernel's type: {number} "
                f"is no {declared_type}"
            )
        return made(number)

    return convert


def _of_float(made: Any) -> Conversion:
    def convert(value: Any) -> Any:
        with np.errstate(over="ignore"):
            return made(value)

    return convert


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
    return None if chosen == actual else Formal(name, actual, chosen)
