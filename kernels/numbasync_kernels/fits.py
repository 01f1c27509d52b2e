"""What all kernels here ask of their arguments: how many axes they have, and of which type."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

FLOAT32 = ("float32",)
FLOATS = ("float16", "bfloat16", "float32")
UINT8 = ("uint8",)
INT32 = ("int32",)
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REAL = (*INTEGERS, "float16", "bfloat16", "float32", "float64")


def fits(names: str, ndim: int, dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Conditions on parameters, named with spaces between: their axes, and one of `dtypes`.

    To compare two dtypes is quicker than one with a name, so of parameters that must agree the
    first is asked for its name.
    """
    first, *others = names.split()
    if len(dtypes) != 1:
        return tuple(f"{n}.ndim == {ndim} and {n}.dtype in {dtypes}" for n in (first, *others))
    return (
        f"{first}.ndim == {ndim} and {first}.dtype == {dtypes[0]!r}",
        *(f"{n}.ndim == {ndim} and {n}.dtype == {first}.dtype" for n in others),
    )


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """The name of a dtype, which NumPy computes each time."""
    return dtype.name


def dtype_of(name: str) -> Any:
    """The dtype of a name that NumPy or ml_dtypes has."""
    kind = getattr(np, name, None)
    if kind is None:
        import ml_dtypes

        kind = getattr(ml_dtypes, name)
    return np.dtype(kind)
