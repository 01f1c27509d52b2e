"""The quantile function of the normal distribution, with the same bits on every device.

Logarithms and cosines of a device have last bits of their own, and compilers for GPUs contract
`a * b + c`, which rounds once instead of twice. So the function is computed by sums, products,
quotients and square roots alone, each of which the standard of floats (IEEE 754) rounds in one way;
each device passes its own, which are not contracted.

The approximation is algorithm AS 241, PPND16: M. Wichura, "The percentage points of the normal
distribution", Applied Statistics 37 (1988). Its relative error is about 1e-16.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

# Coefficients of numerators and denominators, the constant ones first.
_MIDDLE = (
    (
        3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
        1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
        3.3430575583588128105e4, 2.5090809287301226727e3,
    ),
    (
        1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
        2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
        5.2264952788528545610e3,
    ),
)  # fmt: skip
_NEAR = (
    (
        1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
        3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
        2.27238449892691845833e-2, 7.74545014278341407640e-4,
    ),
    (
        1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
        1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)  # fmt: skip
_FAR = (
    (
        6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
        2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
        2.71155556874348757815e-5, 2.01033439929228813265e-7,
    ),
    (
        1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
        7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
        2.04426310338993978564e-15,
    ),
)  # fmt: skip
_LOG = tuple(2.0 / (2 * k + 1) for k in range(11))  # of the series of log((1 + s) / (1 - s))
_LOG_2 = math.log(2)

MIDDLE = 0.425  # up to this distance from 1/2, `middle` is the quantile
FAR = 5.0  # the least root of `far`

Function = Callable[..., Any]


class Quantiles(NamedTuple):
    """The parts of the function; see `quantiles`.

    Attributes:
        middle: of q, the quantile of q + 1/2; |q| is at most `MIDDLE`.
        root: of m and e, sqrt(-log(m * 2**e)), for m in [sqrt(1/2), sqrt(2)] and e at most -1.
        near: of the root of a probability, minus its quantile; the root is at most `FAR`.
        far: the same for greater roots.
    """

    middle: Function
    root: Function
    near: Function
    far: Function


def quantiles(
    add: Function, multiply: Function, term: Function, divide: Function, sqrt: Function,
    made: Function,
) -> Quantiles:  # fmt: skip
    """The parts of the function, of a device's operations on float64.

    Args:
        term: `y * x + c`, rounded twice; may change `y`.
        made: makes a function of such operations one of the device's.
    """

    @made
    def polynomial(x: Any, c: Any) -> Any:
        y = add(multiply(c[7], x), c[6])
        y = term(y, x, c[5])
        y = term(y, x, c[4])
        y = term(y, x, c[3])
        y = term(y, x, c[2])
        y = term(y, x, c[1])
        return term(y, x, c[0])

    @made
    def middle(q: Any) -> Any:
        r = add(0.180625, multiply(multiply(q, -1.0), q))
        numerator = multiply(q, polynomial(r, _MIDDLE[0]))
        return divide(numerator, polynomial(r, _MIDDLE[1]))

    @made
    def root(m: Any, e: Any) -> Any:
        s = divide(add(m, -1.0), add(m, 1.0))
        t = multiply(s, s)
        y = add(multiply(_LOG[10], t), _LOG[9])
        y = term(y, t, _LOG[8])
        y = term(y, t, _LOG[7])
        y = term(y, t, _LOG[6])
        y = term(y, t, _LOG[5])
        y = term(y, t, _LOG[4])
        y = term(y, t, _LOG[3])
        y = term(y, t, _LOG[2])
        y = term(y, t, _LOG[1])
        y = term(y, t, _LOG[0])
        logarithm = add(multiply(y, s), multiply(e, _LOG_2))
        return sqrt(multiply(logarithm, -1.0))

    @made
    def near(r: Any) -> Any:
        x = add(r, -1.6)
        return divide(polynomial(x, _NEAR[0]), polynomial(x, _NEAR[1]))

    @made
    def far(r: Any) -> Any:
        x = add(r, -5.0)
        return divide(polynomial(x, _FAR[0]), polynomial(x, _FAR[1]))

    return Quantiles(middle, root, near, far)
