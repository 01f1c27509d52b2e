"""The operations of a batch, as its methods."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from numbasync import algorithms, dtypes
from numbasync.arguments import check_bool, is_one_of, shown
from numbasync.batch.record import element_ops
from numbasync.batch.record.buffer_id import BufferId, Operand
from numbasync.batch.record.recorder import Of, Recorder
from numbasync.errors import CallerError, DTypeError, ShapeError
from numbasync.layout import Shape
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty
from numbasync.tensors.tensor import Tensor


class Vocabulary:
    """The operations that a batch can record. Operands are ids and numbers; shapes broadcast and
    types are promoted as in NumPy. NaN and infinities propagate as in NumPy; integers wrap.
    """

    recorder: Recorder

    # --- elementwise ---

    def add(self, a: Operand, b: Operand) -> BufferId:
        """`a + b`; for bools, logical or."""
        return self.recorder.elementwise("add", a, b)

    def sub(self, a: Operand, b: Operand) -> BufferId:
        """`a - b`."""
        return self.recorder.elementwise("sub", a, b)

    def mul(self, a: Operand, b: Operand) -> BufferId:
        """`a * b`; for bools, logical and."""
        return self.recorder.elementwise("mul", a, b)

    def scale(self, x: Operand, factor: float) -> BufferId:
        """`x * factor`, by a number."""
        return self.recorder.elementwise("mul", x, factor)

    def div(self, a: Operand, b: Operand) -> BufferId:
        """`a / b`; for integers a float64, as in NumPy."""
        return self.recorder.elementwise("div", a, b)

    def pow(self, a: Operand, b: Operand) -> BufferId:
        """`a ** b`. A negative power in an array of integers drops the fraction; as a number it is
        refused, as NumPy refuses both.
        """
        return self.recorder.elementwise("pow", a, b)

    def neg(self, x: Operand) -> BufferId:
        """`-x`."""
        return self.recorder.elementwise("neg", x)

    def abs(self, x: Operand) -> BufferId:
        """`abs(x)`."""
        return self.recorder.elementwise("abs", x)

    def exp(self, x: Operand) -> BufferId:
        """The exponential."""
        return self.recorder.elementwise("exp", x)

    def expm1(self, x: Operand) -> BufferId:
        """`exp(x) - 1`, with all digits where `x` is small."""
        return self.recorder.elementwise("expm1", x)

    def log(self, x: Operand) -> BufferId:
        """The natural logarithm."""
        return self.recorder.elementwise("log", x)

    def log1p(self, x: Operand) -> BufferId:
        """`log(1 + x)`, with all digits where `x` is small."""
        return self.recorder.elementwise("log1p", x)

    def sqrt(self, x: Operand) -> BufferId:
        """The square root."""
        return self.recorder.elementwise("sqrt", x)

    def sin(self, x: Operand) -> BufferId:
        """The sine."""
        return self.recorder.elementwise("sin", x)

    def cos(self, x: Operand) -> BufferId:
        """The cosine."""
        return self.recorder.elementwise("cos", x)

    def tanh(self, x: Operand) -> BufferId:
        """The hyperbolic tangent."""
        return self.recorder.elementwise("tanh", x)

    def relu(self, x: Operand) -> BufferId:
        """`maximum(x, 0)`."""
        return self.recorder.elementwise("relu", x)

    def leaky_relu(self, x: BufferId, slope: float = 0.01) -> BufferId:
        """`x` where it is not negative, else `x * slope`.

        Source: Maas, Hannun and Ng, Rectifier Nonlinearities Improve Neural Network Acoustic
        Models, 2013.
        """
        r, of_x = self.recorder, Of(self._id(x, "leaky_relu"))
        slope = _finite("leaky_relu", "slope", slope)
        is_up, down = Of(r.compute("greater_equal", of_x, 0)), Of(r.compute("mul", of_x, slope))
        return r.give(r.compute("where", is_up, of_x, down))

    def elu(self, x: BufferId, alpha: float = 1.0) -> BufferId:
        """`x` where it is positive, else `alpha * expm1(x)`.

        Source: Clevert, Unterthiner and Hochreiter, Fast and Accurate Deep Network Learning by
        Exponential Linear Units, 2016.
        """
        r, of_x = self.recorder, Of(self._id(x, "elu"))
        alpha = _finite("elu", "alpha", alpha)
        down = Of(r.compute("mul", Of(r.compute("expm1", of_x)), alpha))
        return r.give(r.compute("where", Of(r.compute("greater", of_x, 0)), of_x, down))

    def sigmoid(self, x: Operand) -> BufferId:
        """`1 / (1 + exp(-x))`."""
        return self.recorder.elementwise("sigmoid", x)

    def swish(self, x: Operand) -> BufferId:
        """`x / (1 + exp(-x))`, also called SiLU."""
        return self.recorder.elementwise("swish", x)

    def gelu(self, x: Operand, approximate: Literal["none", "tanh"] = "none") -> BufferId:
        """`x` times the normal distribution's function at `x`: `x / 2 * (1 + erf(x / sqrt(2)))`.

        Args:
            approximate: `"tanh"`: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`.

        Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
        """
        if not is_one_of(approximate, ("none", "tanh")):
            raise CallerError(f"gelu: approximate={shown(approximate)}; write 'none' or 'tanh'.")
        return self.recorder.elementwise("gelu" if approximate == "none" else "gelu_tanh", x)

    def maximum(self, a: Operand, b: Operand) -> BufferId:
        """The larger operand; NaN if either operand is NaN."""
        return self.recorder.elementwise("maximum", a, b)

    def minimum(self, a: Operand, b: Operand) -> BufferId:
        """The smaller operand; NaN if either operand is NaN."""
        return self.recorder.elementwise("minimum", a, b)

    def clamp(self, x: Operand, low: Operand, high: Operand) -> BufferId:
        """`minimum(maximum(x, low), high)`: NaN stays NaN."""
        return self.recorder.elementwise("clamp", x, low, high)

    def where(self, condition: Operand, x: Operand, y: Operand) -> BufferId:
        """`x` where the condition is true (not 0), else `y`."""
        return self.recorder.elementwise("where", condition, x, y)

    def equal(self, a: Operand, b: Operand) -> BufferId:
        """`a == b`, as bools."""
        return self.recorder.elementwise("equal", a, b)

    def not_equal(self, a: Operand, b: Operand) -> BufferId:
        """`a != b`, as bools."""
        return self.recorder.elementwise("not_equal", a, b)

    def less(self, a: Operand, b: Operand) -> BufferId:
        """`a < b`, as bools."""
        return self.recorder.elementwise("less", a, b)

    def less_equal(self, a: Operand, b: Operand) -> BufferId:
        """`a <= b`, as bools."""
        return self.recorder.elementwise("less_equal", a, b)

    def greater(self, a: Operand, b: Operand) -> BufferId:
        """`a > b`, as bools."""
        return self.recorder.elementwise("greater", a, b)

    def greater_equal(self, a: Operand, b: Operand) -> BufferId:
        """`a >= b`, as bools."""
        return self.recorder.elementwise("greater_equal", a, b)

    def cast(self, x: BufferId, dtype: Any) -> BufferId:
        """`x` in another type, as NumPy's `astype`. A float outside the integer type's range gives
        an arbitrary value of that type.
        """
        target = element_ops.check_dtype(dtype, "cast")
        number = self._id(x, "cast")
        return self.recorder.give(self.recorder.cast(number, target))

    # --- reductions ---

    def sum(self, x: BufferId, axis: int | None = None, keepdims: bool = False) -> BufferId:
        """The sum along an axis, or of all elements.

        float32 and float64 accumulate in float64, float16 in float32, integers and bools in int64,
        which wraps. For n elements the error is at most `n * 2**-53` (float16: `n * 2**-24`) of the
        sum of their absolute values, plus one rounding to the result's type.
        """
        return self._reduce("sum", x, axis, keepdims)

    def mean(self, x: BufferId, axis: int | None = None, keepdims: bool = False) -> BufferId:
        """The mean; NaN for no elements. Accumulates like `sum`, integers in float64."""
        return self._reduce("mean", x, axis, keepdims)

    def max(
        self, x: BufferId, axis: int | BufferId | None = None, keepdims: bool = False
    ) -> BufferId:
        """The largest element; NaN if any element is NaN. `max(a, b)` of two ids is `maximum`."""
        if isinstance(axis, BufferId):
            return self.maximum(x, axis)
        return self._reduce("max", x, axis, keepdims)

    def min(
        self, x: BufferId, axis: int | BufferId | None = None, keepdims: bool = False
    ) -> BufferId:
        """The smallest element; NaN if any element is NaN. `min(a, b)` of two ids is `minimum`."""
        if isinstance(axis, BufferId):
            return self.minimum(x, axis)
        return self._reduce("min", x, axis, keepdims)

    def argmax(self, x: BufferId, axis: int | None = None) -> BufferId:
        """The index of the first largest element, or of the first NaN; int64."""
        return self._reduce("argmax", x, axis, False)

    def argmin(self, x: BufferId, axis: int | None = None) -> BufferId:
        """The index of the first smallest element, or of the first NaN; int64."""
        return self._reduce("argmin", x, axis, False)

    def dot(self, a: BufferId, b: BufferId) -> BufferId:
        """The sum of the products of two vectors' elements. Accumulates like `sum`.

        Raises:
            ShapeError: the operands are not two vectors of one length.
        """
        left, right = self._id(a, "dot"), self._id(b, "dot")
        if a.ndim != 1 or a.shape != b.shape:
            raise ShapeError(
                f"dot of shapes {a.shape} and {b.shape}: it takes two vectors of one length.\n"
                "For rows of matrices, write b.sum(x * y, axis=-1)."
            )
        recorder = self.recorder
        _, dtype = element_ops.resolve("mul", (a.dtype, b.dtype))
        factors = (Of(left), Of(right))
        if element_ops.is_small(dtype):  # whose products have more digits
            factors = (
                Of(recorder.cast(left, element_ops.F32)),
                Of(recorder.cast(right, element_ops.F32)),
            )
        total = recorder.reduce("sum", recorder.compute("mul", *factors), None, False)
        return self.recorder.give(recorder.cast(total, dtype))

    # --- composites ---

    def softmax(self, x: BufferId, axis: int = -1) -> BufferId:
        """`exp(x - max(x)) / sum(exp(x - max(x)))` along an axis; float16 in float32."""
        r = self.recorder
        number, dtype = self._floats(x, "softmax")
        high = Of(r.reduce("max", number, axis, True))
        e = r.compute("exp", Of(r.compute("sub", Of(number), high)))
        share = r.compute("div", Of(e), Of(r.reduce("sum", e, axis, True)))
        return r.give(r.cast(share, dtype))

    def log_softmax(self, x: BufferId, axis: int = -1) -> BufferId:
        """The logarithms of `softmax`, which are finite where that is 0; float16 in float32."""
        r = self.recorder
        number, dtype = self._floats(x, "log_softmax")
        high = Of(r.reduce("max", number, axis, True))
        away = Of(r.compute("sub", Of(number), high))
        total = Of(r.reduce("sum", r.compute("exp", away), axis, True))
        return r.give(r.cast(r.compute("sub", away, Of(r.compute("log", total))), dtype))

    def layer_norm(
        self, x: BufferId, weight: Operand = None, bias: Operand = None, eps: float = 1e-5
    ) -> BufferId:
        """`(x - mean) / sqrt(variance + eps) * weight + bias` along the last axis; float16 in
        float32.

        Args:
            weight, bias: ids that broadcast to `x`, numbers, or None.

        Raises:
            ShapeError: weight or bias do not broadcast to the shape of `x`.

        Source: Ba, Kiros and Hinton, Layer Normalization, 2016.
        """
        r = self.recorder
        number, dtype = self._floats(x, "layer_norm")
        if not isinstance(eps, int | float | np.number) or not 0 <= eps < math.inf:
            raise CallerError(f"layer_norm: eps={shown(eps)}; write a small number, 0 or more.")
        centred = Of(r.compute("sub", Of(number), Of(r.reduce("mean", number, -1, True))))
        variance = Of(r.reduce("mean", r.compute("square", centred), -1, True))
        root = Of(r.compute("sqrt", Of(r.compute("add", variance, float(eps)))))
        y = r.compute("div", centred, root)
        if weight is not None:
            y = r.compute("mul", Of(y), weight)
        if bias is not None:
            y = r.compute("add", Of(y), bias)
        if r.nodes[y].shape != x.shape:
            raise ShapeError(
                f"layer_norm of shape {x.shape} with weights of shape {r.nodes[y].shape}: weight "
                "and bias broadcast to x, which keeps its shape."
            )
        return r.give(r.cast(y, dtype) if element_ops.is_small(dtype) else y)

    # --- operations with kernels of their own ---

    def cumsum(self, x: BufferId, axis: int | None = None) -> BufferId:
        """The sums of each element and all before it, along an axis, or of all as one axis, by
        `algorithms.cumsum`; of integers and bools in int64.
        """
        number, shape = self._along(x, "cumsum", axis)
        dtype = element_ops.reduced("sum", x.dtype)
        return self.recorder.whole("cumsum", (number,), shape, dtype, algorithms.cumsum, axis=axis)

    def sort(self, x: BufferId, axis: int | None = -1, descending: bool = False) -> BufferId:
        """The elements in ascending order along an axis, or of all as one axis, stably, by
        `algorithms.sort`: a NaN counts as the largest.
        """
        number, shape = self._along(x, "sort", axis)
        down = check_bool(descending, "descending of sort")
        how = {"axis": axis, "descending": down}
        return self.recorder.whole("sort", (number,), shape, x.dtype, algorithms.sort, **how)

    def matmul(self, a: BufferId, b: BufferId) -> BufferId:
        """`a @ b` of two matrices of one dtype, float32 or one of 16 bits, by the ready kernel
        `nn.gemm`.

        Raises:
            ShapeError: they are no matrices, or their extents do not fit.
            DTypeError: the dtypes differ, or are others.
        """
        left, right = self._id(a, "matmul"), self._id(b, "matmul")
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
            raise ShapeError(
                f"matmul of shapes {a.shape} and {b.shape}: write matrices of (m, k) and (k, n)."
            )
        if a.dtype != b.dtype or not (element_ops.is_small(a.dtype) or a.dtype == element_ops.F32):
            raise DTypeError(
                f"matmul of {a.dtype} and {b.dtype}: write two of one dtype, "
                f"{', '.join(dtypes.SMALL)} or float32, as b.cast gives them."
            )
        shape = a.shape[0], b.shape[1]
        return self.recorder.whole("matmul", (left, right), shape, a.dtype, _product)

    # --- how ---

    def _along(self, x: BufferId, what: str, axis: int | None) -> tuple[int, Shape]:
        """The node, and the shape of a result along an axis, or of all elements as one."""
        number = self._id(x, what)
        if axis is None:
            return number, (math.prod(x.shape),)
        self.recorder.axis_of(what, axis, x.shape)
        return number, x.shape

    def _id(self, x: Any, what: str) -> int:
        self.recorder.check_open(what)
        return self.recorder.check(x, what).number

    def _reduce(self, name: str, x: BufferId, axis: Any, keepdims: bool) -> BufferId:
        number = self._id(x, name)
        return self.recorder.give(self.recorder.reduce(name, number, axis, keepdims))

    def _floats(self, x: BufferId, what: str) -> tuple[int, element_ops.DType]:
        """The node to compute with, and the type of the result."""
        number = self._id(x, what)
        if not x.shape:
            raise ShapeError(f"{what} of a single value: it needs an axis.")
        if element_ops.is_small(x.dtype):
            return self.recorder.cast(number, element_ops.F32), x.dtype
        if element_ops.is_float(x.dtype):
            return number, x.dtype
        return self.recorder.cast(number, element_ops.F64), element_ops.F64


def _product(a: Tensor, b: Tensor) -> DeviceOp[Tensor]:
    from numbasync_kernels import nn  # which is written with this package

    made = empty((a.shape[0], b.shape[1]), a.dtype)
    return made.then(lambda out: nn.gemm(out, a, b))


def _finite(name: str, parameter: str, number: Any) -> float:
    """The number, as a float of Python, which takes the other operand's type."""
    if not isinstance(number, int | float | np.number) or not math.isfinite(number):
        raise CallerError(f"{name}: {parameter}={shown(number)}; write a finite number.")
    return float(number)
