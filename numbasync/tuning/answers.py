"""Compares what a configuration's kernel has written with what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from numbasync.dtypes import has_nan, is_extension, limits_of

Array: TypeAlias = np.ndarray[Any, Any]


def difference(
    names: Sequence[str],
    actual: Sequence[Array],
    expected: Sequence[Array],
    tolerance: float | None,
) -> str:
    """How the arrays that a kernel has written differ from the expected ones; empty if they agree.

    Args:
        names: of the arrays, for the message.
        tolerance: the allowed difference of an element, relative to the largest expected value of
            its array; None: the square root of the type's precision. Integers are compared exactly.
    """
    for name, array, want in zip(names, actual, expected, strict=True):
        if array.shape != want.shape:
            return f"{name} has shape {array.shape}, expected is {want.shape}"
        if array.dtype == want.dtype and np.array_equal(array, want):  # spares large temporaries
            continue
        bad = _wrong(array, want, tolerance)
        if bad.any():
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            place = ", ".join(map(str, index))
            return (
                f"{int(bad.sum()):,} of {bad.size:,} elements of {name} differ; first "
                f"{name}[{place}]: {array[index]!r}, expected {want[index]!r}"
            )
    return ""


def _wrong(array: Array, want: Array, tolerance: float | None) -> Array:
    """Which elements differ."""
    if not has_nan(array.dtype) or not (want.dtype.kind in "biufc" or is_extension(want.dtype)):
        return np.asarray(array != want)
    relative = float(limits_of(array.dtype).eps) ** 0.5 if tolerance is None else tolerance
    finite = np.isfinite(want)
    scale = float(np.abs(want[finite]).max(initial=0))
    with np.errstate(all="ignore"):  # infinities and NaNs are compared first
        equal = (array == want) | (np.isnan(array) & np.isnan(want))
        near = np.abs(array.astype(np.result_type(array, np.float64)) - want) <= relative * scale
    return np.asarray(~(equal | (finite & near)))
