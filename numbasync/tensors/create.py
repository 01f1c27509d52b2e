"""Functions that create, fill, copy and convert tensors. All are lazy: they return operations.

`dtype` defaults to float32. A shape is an int or a tuple of ints. Values that are not
constant are computed by the device (`backend/formulas`): the same bits on every device.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np

from numbasync import dtypes, layout
from numbasync.arguments import check_number, check_whole, shown, with_type
from numbasync.backend import array_protocols
from numbasync.backend.formulas import BITS, Diagonal, Floats, Integers, Key, Normal, Uniform
from numbasync.device.callsite import call_site
from numbasync.errors import DeviceMismatchError, DTypeError, OperationError, ShapeError
from numbasync.native import compiled
from numbasync.ops.constructors import Value
from numbasync.ops.context import Context
from numbasync.ops.home import Home
from numbasync.ops.op import DeviceOp, Steps
from numbasync.ops.operands import is_op, suppress_unused_warnings
from numbasync.tensors.array_spec import ArraySpec, contiguous, spec_of
from numbasync.tensors.copies import HostArray
from numbasync.tensors.copies import fill as fill_tensor
from numbasync.tensors.copy_ops import Convert, operands_of
from numbasync.tensors.create_ops import Computed, FromHost, Full, Generated, element
from numbasync.tensors.host_arrays import host_array, is_arrow, place
from numbasync.tensors.partition import Partition
from numbasync.tensors.pinned import HostBuffer, direct
from numbasync.tensors.tensor import SharedTensor, Tensor, writable
from numbasync.tensors.tensor import memcpy as memcpy

PITCH = 512  # bytes; the pitch of the driver's own pitched allocations


@compiled
def empty(shape: Any, dtype: Any = np.float32) -> DeviceOp[Tensor]:
    """An uninitialised tensor.

    Examples:
        >>> t = await na.empty((2, 3))
        >>> t.shape, t.dtype.name
        ((2, 3), 'float32')
    """
    return Full(contiguous(shape, dtype, records=True), None, "empty")


def empty_pitched(shape: Any, dtype: Any = np.float32) -> DeviceOp[Tensor]:
    """An uninitialised tensor whose rows, along the last axis, begin at multiples of 512 bytes.

    Every row is then read in as few memory transactions as possible, and the driver itself copies
    to and from the host and between pitched tensors. The tensor is not contiguous; kernels index
    it like any other tensor.

    Args:
        shape: two axes or more.

    Examples:
        >>> t = await na.empty_pitched((2, 100))
        >>> t.shape, t.strides
        ((2, 100), (512, 4))
    """
    element, extents = dtypes.check_dtype(dtype), layout.check_shape(shape)
    if len(extents) < 2:
        raise ShapeError(f"rows at a pitch need two axes or more, not the shape {shown(extents)}.")
    *rows, columns = extents
    padded = -(-columns * element.itemsize // PITCH) * PITCH // element.itemsize
    padded_op = Full(ArraySpec((*rows, padded), element), None, "empty_pitched")
    return padded_op.map(operator.itemgetter((..., slice(columns))))


@compiled
def zeros(shape: Any, dtype: Any = np.float32) -> DeviceOp[Tensor]:
    """A tensor of zeros, or of structures of zeros.

    Examples:
        >>> t = await na.zeros((2, 3))
        >>> await t.to_host()
        array([[0., 0., 0.],
               [0., 0., 0.]], dtype=float32)
    """
    spec = contiguous(shape, dtype, records=True)
    zero = spec.zero
    if zero is None:
        zero = np.zeros(1, spec.dtype)[0] if spec.dtype.names else element(0, spec.dtype)
        spec.zero = zero
    return Full(spec, zero, "zeros")


def ones(shape: Any, dtype: Any = np.float32) -> DeviceOp[Tensor]:
    """A tensor of ones.

    Examples:
        >>> await na.ones(3, np.int32).to_host()
        array([1, 1, 1], dtype=int32)
    """
    return _full(shape, 1, dtype, "ones")


def full(shape: Any, value: Any, dtype: Any = np.float32) -> DeviceOp[Tensor]:
    """A tensor whose elements all are `value`, converted to `dtype`.

    Examples:
        >>> await na.full((2, 2), 7, np.int64).to_host()
        array([[7, 7],
               [7, 7]])
    """
    return _full(shape, value, dtype, "full")


def empty_like(t: Any, dtype: Any = None) -> DeviceOp[Tensor]:
    """An uninitialised tensor with the shape of `t`, and its dtype unless that is given.

    Args:
        t: a tensor, shared or partitioned, or an array. Only its shape and dtype are used: the
            new tensor is contiguous, and on the device that the operation runs on.

    Examples:
        >>> x = np.ones((2, 3), np.int32)
        >>> t = await na.empty_like(x)
        >>> t.shape, t.dtype.name
        ((2, 3), 'int32')
    """
    return empty(*_shape_and_dtype(t, dtype, "empty_like"))


def zeros_like(t: Any, dtype: Any = None) -> DeviceOp[Tensor]:
    """Zeros with the shape of `t`, and its dtype unless that is given; see `empty_like`.

    Examples:
        >>> t = await na.zeros_like(np.ones(3), dtype=np.int32)
        >>> await t.to_host()
        array([0, 0, 0], dtype=int32)
    """
    return zeros(*_shape_and_dtype(t, dtype, "zeros_like"))


def ones_like(t: Any, dtype: Any = None) -> DeviceOp[Tensor]:
    """Ones with the shape of `t`, and its dtype unless that is given; see `empty_like`.

    Examples:
        >>> t = await na.zeros((2, 2))
        >>> await na.ones_like(t).to_host()
        array([[1., 1.],
               [1., 1.]], dtype=float32)
    """
    return ones(*_shape_and_dtype(t, dtype, "ones_like"))


def full_like(t: Any, value: Any, dtype: Any = None) -> DeviceOp[Tensor]:
    """`value` everywhere, with the shape of `t`, and its dtype unless that is given; see
    `empty_like`.

    Examples:
        >>> t = await na.zeros(3)
        >>> await na.full_like(t, 0.5).to_host()
        array([0.5, 0.5, 0.5], dtype=float32)
    """
    shape, element_dtype = _shape_and_dtype(t, dtype, "full_like")
    return full(shape, value, element_dtype)


def _shape_and_dtype(t: Any, dtype: Any, what: str) -> tuple[Any, Any]:
    if isinstance(t, Partition):
        t = t.tensor
    if is_op(t):
        with suppress_unused_warnings((t,)):
            raise OperationError(
                f"{what} takes a tensor, whose shape is known, not {shown(t)}: run it first, "
                f"t = await op, or go on with its value, op.then(na.{what})."
            )
    shape, own = getattr(t, "shape", None), getattr(t, "dtype", None)
    if not isinstance(shape, tuple) or own is None:
        raise OperationError(
            f"{what} takes a tensor or an array, not {with_type(t)}.\n"
            f"Write a shape and a dtype: na.{what.removesuffix('_like')}(shape, ..., dtype=...)"
        )
    return shape, own if dtype is None else dtype


def _full(shape: Any, value: Any, dtype: Any, name: str) -> DeviceOp[Tensor]:
    spec = contiguous(shape, dtype)
    op = Full(spec, element(value, spec.dtype), name)
    op._site = call_site(2)
    return op


def arange(
    start: float, stop: float | None = None, step: float = 1, dtype: Any = np.float32
) -> DeviceOp[Tensor]:
    """Evenly spaced values from `start` up to, not including, `stop`.

    With one bound only, that is `stop`, and `start` is 0.

    Raises:
        ShapeError: the number of values is not finite.
        DTypeError: a bound or the step is no real number.

    Examples:
        >>> await na.arange(4).to_host()
        array([0., 1., 2., 3.], dtype=float32)
        >>> await na.arange(10, 30, 5, dtype=np.int32).to_host()
        array([10, 15, 20, 25], dtype=int32)
    """
    element_dtype = dtypes.check_dtype(dtype)
    bounds = {"start": 0, "stop": start} if stop is None else {"start": start, "stop": stop}
    for name, bound in (*bounds.items(), ("step", step)):
        check_number(bound, f"{name} of arange", DTypeError)
    # Python's integers are exact; differences of NumPy's narrow ones wrap around.
    first, last, step = (_as_python(value) for value in (*bounds.values(), step))
    if step == 0:
        raise ShapeError("arange with a step of 0 has no end; write a step that is not 0.")
    try:
        count = max(0, math.ceil((last - first) / step))
    except TypeError:
        raise DTypeError(
            f"arange from {shown(first)} to {shown(last)} by {shown(step)}: write numbers."
        ) from None
    except (OverflowError, ValueError):  # infinite, or not a number
        raise ShapeError(
            f"arange from {shown(first)} to {shown(last)} by {shown(step)} has no end; write "
            "finite numbers."
        ) from None

    spec = ArraySpec((count,), element_dtype)
    if isinstance(first, int) and isinstance(step, int) and not dtypes.is_float(element_dtype):
        if not -(2**63) <= first <= BITS:
            raise DTypeError(
                f"start of arange is {shown(first)}, which no dtype of integers holds: write one "
                "from -2**63 to 2**64 - 1, or a dtype such as np.float64."
            )
        return Computed(spec, Integers(first, step), "arange")
    return Computed(spec, Floats(float(first), float(step)), "arange")


def _as_python(value: Any) -> Any:
    return int(value) if isinstance(value, Integral) else value


def linspace(start: float, stop: float, count: int, dtype: Any = np.float32) -> DeviceOp[Tensor]:
    """`count` evenly spaced values from `start` to `stop`, both included.

    Examples:
        >>> await na.linspace(0, 1, 5).to_host()
        array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    for name, bound in (("start", start), ("stop", stop)):
        check_number(bound, f"{name} of linspace", DTypeError, is_complex=True)
    spec = contiguous(check_whole(count, "count of linspace", 0, error=ShapeError), dtype)
    steps = spec.shape[0] - 1
    first, last = (_as_float(bound) for bound in (start, stop))
    if isinstance(first, float) and isinstance(last, float):
        step = (last - first) / steps if steps > 0 else 0.0
        if step or steps < 1 or first == last:  # else too small a step: NumPy divides later
            return Computed(spec, Floats(first, step, last if steps > 0 else None), "linspace")
    return Generated(spec, partial(_spaced, first, last, spec.shape[0], spec.dtype), "linspace")


def _as_float(bound: Any) -> Any:
    """An integer that NumPy has no type for as the nearest float64."""
    return float(bound) if isinstance(bound, int) else bound


def _spaced(start: float, stop: float, count: int, dtype: np.dtype[Any]) -> HostArray:
    return np.linspace(start, stop, count).astype(dtype)


def eye(rows: int, columns: int | None = None, dtype: Any = np.float32) -> DeviceOp[Tensor]:
    """Ones on the diagonal, zeros elsewhere; shape `(rows, columns or rows)`.

    Examples:
        >>> await na.eye(2, 3).to_host()
        array([[1., 0., 0.],
               [0., 1., 0.]], dtype=float32)
    """
    spec = contiguous((rows, rows if columns is None else columns), dtype)
    return Computed(spec, Diagonal(spec.shape[1] + 1, min(spec.shape)), "eye")


def rand(shape: Any, seed: int | None = None, dtype: Any = np.float32) -> DeviceOp[Tensor]:
    """Uniform values in [0, 1), float32 or float64: those of NumPy's Philox generator.

    The device computes them: of a seed they are the same bits on every device, and those of
    `np.random.Generator(np.random.Philox(seed)).random(shape, dtype)`.

    Args:
        seed: as for `np.random.Philox`; None: different values each time.

    Raises:
        DTypeError: the dtype is neither float32 nor float64, or the seed is invalid.

    Examples:
        >>> t = await na.rand(3, seed=7)
        >>> expected = np.random.Generator(np.random.Philox(7)).random(3, np.float32)
        >>> bool((await t.to_host() == expected).all())
        True
    """
    element_dtype = _float(dtype, "rand")
    spec = ArraySpec(layout.check_shape(shape), element_dtype)
    return Computed(spec, Uniform(_key(seed)), "rand")


def randn(
    shape: Any,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int | None = None,
    dtype: Any = np.float32,
) -> DeviceOp[Tensor]:
    """Normally distributed values, float32 or float64, of the words of NumPy's Philox generator.

    Element i is the normal distribution's quantile of 53 bits of word i of
    `np.random.Philox(seed)`, by algorithm AS 241 (Wichura 1988) in float64, then rounded: the same
    bits on every device. The error is below 1e-15 of the value, and no value is farther than
    8.3 `std` from `mean`.

    Args:
        seed: as for `np.random.Philox`; None: different values each time.

    Raises:
        DTypeError: the dtype is neither float32 nor float64, the seed is invalid, or `mean` or
            `std` is no real number.

    Examples:
        >>> t = await na.randn(10_000, mean=5, std=2, seed=7)
        >>> values = await t.to_host()
        >>> f"{values.mean():.1f} {values.std():.1f}"
        '5.0 2.0'
    """
    element_dtype = _float(dtype, "randn")
    check_number(mean, "mean of randn", DTypeError)
    check_number(std, "std of randn", DTypeError)
    spec = ArraySpec(layout.check_shape(shape), element_dtype)
    return Computed(spec, Normal(_key(seed), float(mean), float(std)), "randn")


def _key(seed: int | None) -> Key:
    try:
        key = np.random.Philox(seed).state["state"]["key"]
    except (TypeError, ValueError) as error:
        raise DTypeError(
            f"seed={shown(seed)}: {error}; write a whole number of at least 0, or None. A dtype is "
            "given by its name: dtype=np.float64."
        ) from None
    return int(key[0]), int(key[1])


def _float(dtype: Any, name: str) -> np.dtype[Any]:
    element = dtypes.check_dtype(dtype)
    if element not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise DTypeError(f"{name} makes float32 or float64, not {element}; convert() its result.")
    return element


@compiled
def from_host(array: Any) -> DeviceOp[Tensor]:
    """A tensor with the elements that `array` has when the operation is enqueued.

    The elements of a `na.pinned` array are read when the copy runs, after earlier copies to it.

    Args:
        array: a NumPy array, anything that `np.asarray` takes, or another library's array in host
            memory. Shape and dtype are kept, except that times become int64.

    Raises:
        DTypeError: a tensor cannot have such elements, or some are missing (nulls).
        OperationError: some elements are masked.

    Examples:
        >>> t = await na.from_host(np.arange(6).reshape(2, 3))
        >>> t.shape, t.dtype.name
        ((2, 3), 'int64')
        >>> await t.to_host()
        array([[0, 1, 2],
               [3, 4, 5]])
    """
    source = _host_array(array)
    return FromHost(spec_of(source), source)


def _host_array(array: Any) -> HostArray:
    if type(array) is np.ndarray:
        return host_array(array)
    dl_device = place(array) if array_protocols.is_foreign(array) else None
    if dl_device is None:
        if isinstance(array, HostBuffer):
            direct(array)  # refuses views that no device can copy from
            return array
        return host_array(array)
    if dl_device[0] in array_protocols.HOST:
        if is_arrow(array):
            return host_array(array)  # Arrow has more types than DLPack
        return array_protocols.numpy_of(array_protocols.read_dlpack(array))
    raise DeviceMismatchError(
        f"{array_protocols.name_of(array)} lies {array_protocols.where(dl_device)}, "
        "not in host memory.\n"
        "Use it in place: t = na.as_tensor(x). To have a copy: await t.dup()"
    )


def meta(shape: Any, dtype: Any = np.float32) -> DeviceOp[Tensor]:
    """A tensor without memory, to describe an argument to `kernel.compile`.

    Examples:
        >>> t = await na.meta((1000, 1000))
        >>> t.shape, t.device
        ((1000, 1000), None)
        >>> await saxpy.compile(na.meta(1), 2.0, na.meta(1))  # compiles, and launches nothing
    """
    spec = contiguous(shape, dtype, records=True)
    return Value(Tensor(None, None, spec.at, spec.dtype))


def dup(t: Tensor | SharedTensor) -> DeviceOp[Tensor]:
    """A contiguous copy of a tensor, in storage of its own.

    Examples:
        >>> t = await na.ones(3)
        >>> copy = await na.dup(t)
        >>> _ = await na.fill(t, 0)
        >>> await copy.to_host()
        array([1., 1., 1.], dtype=float32)
    """
    return _readable(t, "dup").dup()


def convert(t: Tensor | SharedTensor, dtype: Any) -> DeviceOp[Tensor]:
    """A contiguous copy in elements of another type, converted as NumPy's `astype` does.

    Examples:
        >>> t = await na.linspace(0, 3, 4)
        >>> await na.convert(t, np.int32).to_host()
        array([0, 1, 2, 3], dtype=int32)
    """
    tensor = _readable(t, "convert")
    dtypes.check_dtype(tensor.dtype)  # a structure is not converted
    return Convert(tensor, dtypes.check_dtype(dtype))


def fill(t: Tensor, value: Any) -> DeviceOp[Tensor]:
    """An operation that sets every element of a tensor to `value`, and returns the tensor.

    Examples:
        >>> t = await na.zeros((2, 3))
        >>> await na.fill(t[:, 0], 5)  # a view: the first column
        <Tensor (2,) float32 on cpu:0>
        >>> await t.to_host()
        array([[5., 0., 0.],
               [5., 0., 0.]], dtype=float32)
    """
    if isinstance(t, SharedTensor):
        raise OperationError(
            f"fill would write to {t!r}, which is shared; write to a copy: await s.dup()."
        )
    tensor = writable(_readable(t, "fill"), "fill")
    return Fill(
        tensor, element(value, dtypes.check_dtype(tensor.dtype))
    )  # numbers only, no structures


def _readable(t: Any, what: str) -> Tensor:
    tensor = t.tensor if isinstance(t, SharedTensor) else t
    if isinstance(tensor, Tensor):
        return tensor
    with suppress_unused_warnings((t,)):
        raise OperationError(
            f"{what} takes a tensor, not {shown(t)}: run it first, t = await op, or go on with its "
            f"value, op.then(lambda t: na.{what}(t, ...))."
            if is_op(t)
            else f"{what} takes a tensor, not {with_type(t)}.\n"
            "Make one of an array: t = await na.from_host(array)"
        )


class Fill(DeviceOp[Tensor]):
    """Sets every element of an existing tensor to one value."""

    def __init__(self, tensor: Tensor, value: np.generic) -> None:
        self._site = call_site(2)
        self._tensor = tensor
        self._value = value

    @property
    def home(self) -> Home:
        return self._tensor.device

    @property
    def is_node(self) -> bool:  # type: ignore[override]
        return self._tensor.is_contiguous

    def operands(self) -> frozenset[int] | None:
        return operands_of(self._tensor)

    def steps(self, ctx: Context) -> Steps[Tensor]:
        yield from fill_tensor(ctx, self._tensor, self._value)
        return self._tensor

    def _describe(self) -> str:
        return f"fill({self._tensor.shape}, {self._value})"
