"""Kernels that raise, with `debug=True`; what a program sees of it."""

import numpy as np
from numba import cuda
from numba.core.errors import TypingError


class OutOfRange(Exception):
    pass


@cuda.jit(debug=True, opt=False)
def checked_division(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        if b[i] == 0:
            raise ZeroDivisionError("b is zero")
        out[i] = a[i] / b[i]


@cuda.jit(debug=True, opt=False)
def own_error(a):
    if a[cuda.grid(1)] > 5:
        raise OutOfRange("too large", 5)


@cuda.jit
def not_typed(a):
    a[0] = no_such_name  # noqa: F821


@cuda.jit(debug=True, opt=False)
def asserted(a):
    i = cuda.grid(1)
    assert a[i] >= 0


a, b, out = np.ones(8), np.arange(1.0, 9.0), np.zeros(8)
checked_division[1, 32](a, b, out)
np.testing.assert_allclose(out, a / b)
b[3] = 0
try:
    checked_division[1, 32](a, b, out)
except ZeroDivisionError as error:
    assert "b is zero" in str(error)
else:
    raise SystemExit("not raised")
try:
    own_error[1, 8](np.arange(8))
except OutOfRange as error:
    assert "too large" in str(error)
else:
    raise SystemExit("not raised")
try:
    asserted[1, 4](np.array([0, 1, -1, 2]))
except AssertionError:
    pass
else:
    raise SystemExit("not raised")
try:
    not_typed[1, 1](a)
except TypingError as error:
    assert "no_such_name" in str(error)
else:
    raise SystemExit("not raised")
try:
    checked_division(a, b, out)
except (ValueError, TypeError) as error:
    assert "launch" in str(error).lower() or "config" in str(error).lower()
else:
    raise SystemExit("a launch without a grid")
