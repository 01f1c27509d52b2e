"""Scans: along an axis, each element combined with all before it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from numbasync import dtypes
from numbasync.algorithms.launches import Array, Launches
from numbasync.algorithms.look_back import words_of_row
from numbasync.algorithms.operation import Algorithm, one_axis
from numbasync.algorithms.operators import U64, Operator, operator_of
from numbasync.algorithms.prefix import Prefix
from numbasync.algorithms.reduce_kernels import THREADS
from numbasync.algorithms.scan_kernels import (
    each_of,
    scan_block,
    scan_kernel,
    scan_row_kernel,
)
from numbasync.arguments import check_bool, is_one_of, shown
from numbasync.errors import CallerError
from numbasync.layout import Shape
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty
from numbasync.tensors.create_ops import element
from numbasync.tensors.tensor import Tensor

SCANS = ("sum", "prod", "min", "max", "any", "all")


def scan(
    x: Any, op: Any = "sum", axis: Any = -1, exclusive: bool = False, *, initial: Any = None
) -> DeviceOp[Tensor]:
    """Along an axis, each element combined with all before it.

    Args:
        x: a tensor or a NumPy array of any shape, or an operation that gives one.
        op: `"sum"`, `"prod"`, `"min"`, `"max"`, `"any"`, `"all"`; or an associative function of two
            numbers, which is compiled for the device. The first of the two is of what comes before.
            Define it once: each function, and each lambda, is compiled by itself and kept.
        axis: which axis; None: the elements of all axes in order, as one.
        exclusive: leave the element itself out. The first result is `initial`.
        initial: what is combined before the first element. None: nothing, or where `exclusive`
            needs it, the operator's neutral element: 0, 1, the largest or the least number.

    The result has the shape of `x`, of `axis=None` one axis. Its dtype is NumPy's: of sums and
    products of integers and bool 64 bits, of `any` and `all` bool, else that of `x`. float16 and
    bfloat16 are computed in float32, and each result is rounded once. `min` and `max` are NaN from
    the first NaN on.

    The order of the combinations follows from shape and dtype alone. So the bits are the same for
    every grid, in each run, on each GPU; the CPU device may contract products differently.

    Error bound of a sum, to first order: with u = ``2**-24`` for float32 and ``2**-53`` for
    float64, ``h u scan(abs(x))``. Along the last axis, h is at most 41 for up to 4,096 elements,
    and ``70 + n / 2**26`` for n elements; along others 41 for up to 128, and 40 more for each
    factor of 128 beyond. Sums of integers are exact modulo ``2**64``.

    Along the last axis one kernel reads and writes each element once. More than 128 elements along
    another one are read twice, by three. What is not contiguous is copied first.

    Raises:
        ShapeError: there is no such axis.
        DTypeError: `op` is not defined of these elements, or `initial` is none of them.
        CallerError: there is no such operator, or `exclusive` of a function has no `initial`.

    Examples:
        >>> t = await na.arange(1, 5)
        >>> await na.algorithms.scan(t).to_host()
        array([ 1.,  3.,  6., 10.], dtype=float32)
        >>> await na.algorithms.scan(t, exclusive=True).to_host()
        array([0., 1., 3., 6.], dtype=float32)
        >>> await na.algorithms.scan(np.array([2, 1, 5, 3]), "max").to_host()
        array([2, 2, 5, 5])
    """
    is_exclusive = check_scan("scan", op, exclusive, initial)
    return _scanned("scan", x, op, axis, is_exclusive, initial)


def cumsum(x: Any, axis: Any = None) -> DeviceOp[Tensor]:
    """The sums of each element and all before it, along an axis, or of all; see `scan`.

    Examples:
        >>> await na.algorithms.cumsum(np.array([[1, 2], [3, 4]]), axis=0).to_host()
        array([[1, 2],
               [4, 6]])
    """
    return _scanned("cumsum", x, "sum", axis)


def cumprod(x: Any, axis: Any = None) -> DeviceOp[Tensor]:
    """The products of each element and all before it, along an axis, or of all; see `scan`.

    Examples:
        >>> await na.algorithms.cumprod(np.array([2, 3, 7])).to_host()
        array([ 2,  6, 42])
    """
    return _scanned("cumprod", x, "prod", axis)


def _scanned(
    name: str, x: Any, op: Any, axis: Any, is_exclusive: bool = False, initial: Any = None
) -> DeviceOp[Tensor]:
    plan = partial(_plan, name, op, axis, is_exclusive, initial)
    return Algorithm(name, x, plan, of_prefix=_plan_prefix)


def check_scan(name: str, op: Any, exclusive: Any, initial: Any) -> bool:
    """Whether a scan is exclusive.

    Raises:
        CallerError: there is no such operator, or no first result.
    """
    is_exclusive = check_bool(exclusive, f"exclusive of {name}")
    if isinstance(op, str) and not is_one_of(op, SCANS):
        raise CallerError(f"op={shown(op)}: write one of {', '.join(SCANS)}, or a function of two.")
    if is_exclusive and initial is None and not isinstance(op, str):
        raise CallerError(
            f"an exclusive {name} by {shown(op)} needs a first result, which no function tells: "
            "write initial=."
        )
    return is_exclusive


def start_of(op: Any, operator: Operator, is_exclusive: bool, initial: Any) -> Any:
    """What is combined before the first element, of the type of states; None: nothing."""
    if not is_exclusive and initial is None:
        return None
    state = operator.states[0]
    if initial is None:
        return element(neutral(op, state), state)
    return element(element(initial, operator.out), state)  # what a result can be


def neutral(op: str, state: np.dtype[Any]) -> Any:
    """What changes nothing if it is combined by one of `SCANS`."""
    if op in ("min", "max"):
        if dtypes.has_nan(state):
            return math.inf if op == "min" else -math.inf
        return getattr(np.iinfo(state), "max" if op == "min" else "min")
    return int(op in ("prod", "all"))


def _plan(
    name: str, op: Any, axis: Any, is_exclusive: bool, initial: Any, shape: Shape,
    dtype: np.dtype[Any],
) -> Any:  # fmt: skip
    """What builds the scan of a tensor of this shape and dtype."""
    result: Shape = (math.prod(shape),) if axis is None else shape
    along = one_axis(name, axis, len(shape)) if axis is not None else 0
    operator = operator_of(op, dtype)
    start = start_of(op, operator, is_exclusive, initial)
    if not math.prod(result):
        return lambda _: empty(result, operator.out)
    n = result[along]
    columns = math.prod(result[along + 1 :])
    seen = (math.prod(result[:along]), n, columns)

    launches = Launches((shape, dtype))
    x = launches.operands[0].reshape(seen)
    launches.give(put_scan(launches, operator, x, start, is_exclusive).reshape(result))
    return launches


def _plan_prefix(
    name: str, op: Any, axis: Any, is_exclusive: bool, initial: Any, shape: Shape,
    dtype: np.dtype[Any], one: Shape, whole: np.dtype[Any],
) -> Launches:  # fmt: skip
    """The launches that scan a prefix. What is behind its end has a part in nothing before it."""
    if axis is not None:
        one_axis(name, axis, 1)
    operator = operator_of(op, dtype)
    start = start_of(op, operator, is_exclusive, initial)
    launches = Launches((shape, dtype), (one, whole))
    x, extent = launches.operands
    if shape[0]:
        z = put_scan(launches, operator, x.reshape((1, *shape, 1)), start, is_exclusive)
    else:
        z = launches.empty(shape, operator.out)
    launches.give(z.reshape(shape), extent, kind=Prefix)
    return launches


def put_scan(
    launches: Launches, operator: Operator, x: Array, start: Any = None, is_exclusive: bool = False,
    is_first: bool = True,
) -> Array:  # fmt: skip
    """Put the scan along the middle of three axes, of elements or of states, behind the launches;
    its result.
    """
    rows, n, columns = x.shape
    state = operator.states[0]
    block = scan_block(n, columns, each_of(state))
    parts = -(-n // (block.along * each_of(state)))
    blocks = -(-columns // block.columns) * -(-rows // block.rows)
    out = operator.out if is_first else state
    what = state, operator.lift, operator.combine, operator.finish
    has_start = start is not None
    first = start if has_start else 0

    def written(kernel: Any, seen: Array, before: Array) -> Array:
        z = launches.empty(seen.shape, out)
        launches.launch(kernel[blocks * parts, THREADS], z, seen, before, first, parts)
        return z.reshape(x.shape)

    if block.along == THREADS:  # of one column
        seen = x.reshape((rows, 1, n))
        kernel = scan_row_kernel(*what, x.dtype, out, is_first, parts > 1, has_start, is_exclusive)
        if parts == 1:
            return written(kernel, seen, seen)
        words = launches.full((rows * words_of_row(state, parts) + 1,), 0, U64)
        return written(kernel, seen, words)
    how = parts > 1, has_start, is_exclusive
    if parts == 1:
        return written(scan_kernel(*what, block, is_first, False, *how), x, x)
    full = parts - 1  # of the last chunk nothing is behind
    totals = scan_kernel(*what, block, is_first, True, False, False, False)
    last = scan_kernel(*what, block, is_first, False, *how)
    z = launches.empty((rows, full, columns), state)
    launches.launch(totals[blocks * full, THREADS], z, x, x, 0, full)
    return written(last, x, put_scan(launches, operator, z, is_first=False))
