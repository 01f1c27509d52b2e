"""An Interval with a width, a method and arithmetic in kernels: a type of one's own."""

import operator

import numpy as np
from numba import cuda
from numba.core import cgutils
from numba.cuda import types
from numba.cuda.extending import (
    lower_builtin,
    make_attribute_wrapper,
    models,
    overload,
    overload_attribute,
    overload_method,
    register_model,
    type_callable,
    typeof_impl,
)


class Interval:
    def __init__(self, lo, hi):
        self.lo, self.hi = lo, hi


class IntervalType(types.Type):
    def __init__(self):
        super().__init__(name="Interval")


interval_type = IntervalType()


@typeof_impl.register(Interval)
def type_of_interval(value, context):
    return interval_type


@type_callable(Interval)
def type_interval(context):
    def typer(lo, hi):
        if isinstance(lo, types.Float) and isinstance(hi, types.Float):
            return interval_type
        return None

    return typer


@register_model(IntervalType)
class IntervalModel(models.StructModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, [("lo", types.float64), ("hi", types.float64)])


make_attribute_wrapper(IntervalType, "lo", "lo")
make_attribute_wrapper(IntervalType, "hi", "hi")


@lower_builtin(Interval, types.Float, types.Float)
def make_interval(context, builder, signature, args):
    made = cgutils.create_struct_proxy(signature.return_type)(context, builder)
    made.lo, made.hi = args
    return made._getvalue()


@overload_attribute(IntervalType, "width")
def width(interval):
    return lambda interval: interval.hi - interval.lo


@overload_method(IntervalType, "holds")
def holds(interval, x):
    return lambda interval, x: interval.lo <= x <= interval.hi


@overload(operator.add)
def add(a, b):
    if isinstance(a, IntervalType) and isinstance(b, IntervalType):
        return lambda a, b: Interval(a.lo + b.lo, a.hi + b.hi)
    return None


def total_width(a, b): ...


@overload(total_width)
def total_width_of(a, b):
    return lambda a, b: (a + b).width


@cuda.jit
def inside_intervals(out, widths, x):
    i = cuda.grid(1)
    if i < x.size:
        here = Interval(x[i], x[i] + 1.0)
        unit = Interval(-0.5, 0.5)
        out[i] = unit.holds(x[i])
        widths[i] = total_width(here, unit)


x = np.random.default_rng(0).standard_normal(100)
out, widths = np.zeros(100, np.bool_), np.zeros(100)
inside_intervals[4, 32](out, widths, x)
np.testing.assert_array_equal(out, np.abs(x) <= 0.5)
np.testing.assert_allclose(widths, 2.0)
