"""The reductions of collectives, in the order of the ranks: ((x0 + x1) + x2) + ..., in the dtype of
the elements. Every rank computes the same, so all have equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numbasync.arguments import is_one_of, shown
from numbasync.errors import CallerError, DTypeError

REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,
}


def check_reduction(op: str, dtype: np.dtype[Any]) -> None:
    """
    Raises:
        CallerError: there is no such reduction.
        DTypeError: elements of this dtype are not reduced.
    """
    if not is_one_of(op, REDUCTIONS):
        raise CallerError(f"a reduction is one of {', '.join(REDUCTIONS)}, not {shown(op, 40)}.")
    if dtype.kind not in "fiu" or (op == "avg" and dtype.kind != "f"):
        advice = "Convert it first: await t.astype(np.float32)."
        raise DTypeError(f"{op} of elements of {dtype} is not defined here.\n{advice}")


def reduced(arrays: Sequence[np.ndarray[Any, Any]], op: str, out: np.ndarray[Any, Any]) -> None:
    """Write the reduction of arrays of equal shape to `out`, which is none of them."""
    combine = REDUCTIONS[op]
    out[...] = arrays[0]
    for array in arrays[1:]:
        combine(out, array, out=out)
    if op == "avg":
        out /= len(arrays)
