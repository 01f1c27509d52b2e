"""The reductions of collectives, in the order of the ranks: ((x0 + x1) + x2) + ..., in the dtype of
the elements. Every rank computes the same, so all have equal bits.

Of bool, as in NumPy, "sum" and "max" are "or", "prod" and "min" are "and". Complex numbers have no
order, hence no "min" and "max".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numbasync.arguments import is_one_of, shown
from numbasync.errors import CallerError, DTypeError
from numbasync.memo import Memo

REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,
}


_known = Memo[tuple[str, np.dtype[Any]], bool](256)  # that are defined


def check_reduction(op: str, dtype: np.dtype[Any]) -> None:
    """
    Raises:
        CallerError: there is no such reduction.
        DTypeError: elements of this dtype are not reduced.
    """
    if type(op) is str and (op, dtype) in _known:
        return
    if not is_one_of(op, REDUCTIONS):
        raise CallerError(f"a reduction is one of {', '.join(REDUCTIONS)}, not {shown(op, 40)}.")
    if dtype.kind == "c" and op in ("min", "max"):
        raise DTypeError(
            f"{op} of elements of {dtype} is not defined: complex numbers have no order.\n"
            "Reduce a real part of each: a kernel can write it to a tensor of floats."
        )
    if dtype.kind not in "bfiuc" or (op == "avg" and dtype.kind not in "fc"):
        advice = "Convert it first: await t.astype(np.float32)."
        if dtype.names:
            advice = "Reduce each field by itself, in a tensor of its own."
        raise DTypeError(f"{op} of elements of {dtype} is not defined here.\n{advice}")
    _known[str(op), dtype] = True


def plainly(op: str, dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any]]:
    """A reduction and a dtype of the same memory that give the same: complex numbers are added as
    pairs of floats, and of bool "or" is the maximum of bytes, "and" the minimum.
    """
    if dtype.kind == "b":
        return {"sum": "max", "prod": "min"}.get(op, op), np.dtype(np.uint8)
    if dtype.kind == "c" and op != "prod":
        return op, np.dtype(f"f{dtype.itemsize // 2}")
    return op, dtype


def reduced(arrays: Sequence[np.ndarray[Any, Any]], op: str, out: np.ndarray[Any, Any]) -> None:
    """Write the reduction of arrays of equal shape to `out`, which is none of them."""
    combine = REDUCTIONS[op]
    out[...] = arrays[0]
    for array in arrays[1:]:
        combine(out, array, out=out)
    if op == "avg":
        floats = out.view(plainly(op, out.dtype)[1])
        floats /= len(arrays)
