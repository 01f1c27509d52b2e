"""Constants, types and modules with Numba's types: what a kernel's names stand for.

NumPy lets a float32 absorb a Python float; Numba computes with float64. So Python floats
become float64, large integers know their width, and types called as functions reduce.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from numbasync.backend.cpu.interpreter.arrays import element, wrap
from numbasync.backend.cpu.interpreter.integers import maker, tag
from numbasync.errors import UnsupportedKernelError


def to_dtype(dtype: Any) -> np.dtype[Any]:
    """A NumPy dtype of a NumPy dtype or of a Numba type."""
    own = getattr(dtype, "dtype", None)
    if isinstance(own, np.dtype):  # a record type
        found: np.dtype[Any] = own
        return found
    name = getattr(dtype, "name", None)
    if isinstance(name, str) and not isinstance(dtype, (type, np.dtype)):
        return np.dtype("bool" if name.startswith("bool") else name)
    made: np.dtype[Any] = np.dtype(dtype)
    return made


class Cast:
    """An integer or boolean type called as a function: reduces, as the compiled cast does."""

    __slots__ = ("_make", "dtype")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._make = bool if dtype.kind == "b" else maker(dtype)

    def __call__(self, value: Any) -> Any:
        if value.__class__ is int:
            return self._make(wrap(value, self.dtype)) if self._make is not bool else bool(value)
        return self._make(element(value, self.dtype))


def strict(value: Any) -> Any:
    """A constant or a type, so that arithmetic with it gives Numba's type."""
    if type(value) is float:
        return np.float64(value)
    if isinstance(value, tuple):
        parts = [strict(v) for v in value]
        made: Any = type(value)
        return made(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, type):
        kept = not issubclass(value, (np.integer, np.bool_))
        return value if kept else Cast(np.dtype(value))
    if is_numba_type(value):
        dtype = to_dtype(value)
        return Cast(dtype) if dtype.kind in "iub" else value
    return tag(value)


def is_numba_type(value: Any) -> bool:
    return hasattr(value, "cast_python_value") and not isinstance(value, type)


def to_float(value: Any = 0.0) -> Any:
    """`float(value)`: a float32 stays one, as Numba says."""
    return value if isinstance(value, np.floating) else np.float64(value)


def to_int(value: Any = 0) -> Any:
    """`int(value)`: an integer stays what it is, a float becomes an int64."""
    if isinstance(value, int):
        return int(value) if value.__class__ is bool else value
    return tag(element(value, np.dtype(np.int64)))


def rounded(value: Any, digits: Any = None) -> Any:
    """`round(value)`, which raises nothing for nan."""
    if digits is not None or isinstance(value, int):
        return round(value, digits) if digits is not None else value
    return to_int(np.rint(value))


BUILTINS = {"float": to_float, "int": to_int, "round": rounded}


class Module:
    """The stand-in for `numpy`: the same names, strictly typed."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, types.ModuleType):
            raise unsupported(found.__name__)
        value = self.__dict__[name] = strict(found)
        return value


class NumbaModule:
    """The stand-in for `numba` and `numba.types`: types, and `cuda` where it is given."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__[name] = numba_name(self._module, name)
        return value


def numba_name(module: types.ModuleType, name: str) -> Any:
    """A type that `module` holds under this name, or the error that says why there is none."""
    full = f"{module.__name__}.{name}"
    if not hasattr(module, name):
        raise UnsupportedKernelError(f"{module.__name__} has no {name!r}: is {full} misspelt?")
    found = getattr(module, name)
    if is_numba_type(found):
        return strict(found)
    if isinstance(found, types.ModuleType) and found.__name__ in TYPE_MODULES:
        return NumbaModule(found)
    raise unsupported(full)


TYPE_MODULES = ("numba.types", "numba.core.types", "numba.cuda.types")


def unsupported(name: str) -> UnsupportedKernelError:
    short = name.removeprefix("numba.") if name.startswith("numba.cuda.") else name
    return UnsupportedKernelError(
        f"{short} is not available in interpreted kernels of the CPU device."
    )
