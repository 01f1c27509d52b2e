"""What `math.` means inside an interpreted kernel: Numba's types, and no exceptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.errors import UnsupportedKernelError


def floating(x: Any) -> Any:
    return x if isinstance(x, (np.floating, np.complexfloating)) else np.float64(x)


def _elementary(function: Any) -> Callable[..., Any]:
    """A NumPy function with Numba's result type: float32 stays, integers become float64."""
    return lambda *args: function(*(floating(a) for a in args))


def _predicate(function: Any) -> Callable[[Any], bool]:
    return lambda x: bool(function(floating(x)))


def _host(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that only `math` has, with the result in the argument's precision."""

    def call(x: Any) -> Any:
        value = floating(x)
        try:
            return type(value)(function(float(value)))
        except (OverflowError, ValueError):
            return type(value)(math.inf if value > 0 else math.nan)

    return call


def _frexp(x: Any) -> Any:
    mantissa, exponent = np.frexp(floating(x))
    return mantissa, int(exponent)


class Math:
    """The stand-in for the module `math`."""

    pi, e, tau, inf, nan = (np.float64(getattr(math, n)) for n in ("pi", "e", "tau", "inf", "nan"))

    def __init__(self) -> None:
        same = "sqrt exp expm1 log log2 log10 log1p sin cos tan sinh cosh tanh hypot fmod copysign"
        # On CUDA these are floats too, though Python's and the CPU target's are integers.
        same += " floor ceil trunc"
        for name in same.split():
            setattr(self, name, _elementary(getattr(np, name)))
        other = {
            "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
            "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
            "pow": np.power, "fabs": np.absolute, "degrees": np.degrees, "radians": np.radians,
            "ldexp": lambda x, n: np.ldexp(x, int(n)),
        }  # fmt: skip
        for name, function in other.items():
            setattr(self, name, _elementary(function))
        for name in ("erf", "erfc", "gamma", "lgamma"):
            setattr(self, name, _host(getattr(math, name)))
        for name in ("isnan", "isinf", "isfinite"):
            setattr(self, name, _predicate(getattr(np, name)))
        self.modf = _elementary(np.modf)
        self.frexp = _frexp

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedKernelError(
            f"math.{name} is not available in interpreted kernels of the CPU device."
        )


MATH = Math()
