"""Compares a result with the expected values within a tolerance, and measures the difference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from numbasync.arguments import shown
from numbasync.dtypes import has_nan, is_float, limits_of, row_of
from numbasync.errors import CallerError

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed difference of an element from its expected value: `atol + rtol * |expected|`,
    or `ulp` spacings of its own type, whichever is more. All None: the `rtol` of its type in
    `dtypes.TABLE`, and a tenth of that relative to the largest value, for terms that have cancelled
    each other; integers are exact.
    """

    rtol: float | None = None
    atol: float | None = None
    ulp: float | None = None

    def __post_init__(self) -> None:
        for name, value in self._named():
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not value >= 0:
                raise CallerError(
                    f"check_kernel: {name}={shown(value)}: a number of at least 0, or None."
                )

    @property
    def is_default(self) -> bool:
        return self.rtol is None and self.atol is None and self.ulp is None

    def allowed(self, dtype: np.dtype[Any], want: Array) -> Array:
        """The largest allowed difference of each element."""
        size = np.abs(np.where(np.isfinite(want), want, 0))
        if self.is_default:
            rtol = row_of(dtype).rtol
            return np.asarray(rtol * size + rtol / 10 * size.max(initial=0))
        bound = (self.atol or 0) + (self.rtol or 0) * size
        return np.asarray(np.maximum(bound, (self.ulp or 0) * _spacing(dtype, want)))

    def __str__(self) -> str:
        if self.is_default:
            return "default tolerance"
        return ", ".join(f"{name}={value:g}" for name, value in self._named())

    def _named(self) -> list[tuple[str, float]]:
        values = (("rtol", self.rtol), ("atol", self.atol), ("ulp", self.ulp))
        return [(name, value) for name, value in values if value is not None]


@dataclass(frozen=True, slots=True, eq=False)
class Mismatch:
    """The wrong elements of a result.

    Attributes:
        bad: an array of bools, True for wrong elements.
        index: of the first wrong element, in C order.
        got, want: the values of that element.
        off: its difference, as a value and in spacings of the result's type; None for types
            without spacings.
    """

    bad: Array
    index: tuple[int, ...]
    got: Any
    want: Any
    off: tuple[float, float] | None

    @property
    def count(self) -> int:
        return int(self.bad.sum())

    def __str__(self) -> str:
        comparison = f"got {self.got!r}, want {self.want!r}"
        if self.off is None or math.isnan(self.off[0]):
            return comparison
        off, ulp = self.off
        return f"{comparison}: off by {off:.4g}, {ulp:.3g} ulp"


def compare(got: Array, want: Array, tolerance: Tolerance) -> Mismatch | None:
    """The elements where `got` differs from `want`; None if there are none.

    Args:
        want: of the same shape; numbers are of a type with at least as many digits.
    """
    with np.errstate(all="ignore"):
        bad, off = _compared(got, want, tolerance)
        if not bad.any():
            return None
        differences = None if off is None else (off, off / _spacing(got.dtype, want))
        return _mismatch(bad, got, want, differences)


def _compared(got: Array, want: Array, tolerance: Tolerance) -> tuple[Array, Array | None]:
    """Which elements are wrong, and the differences; None for types without differences."""
    if got.dtype.names is not None:
        bad = np.zeros(got.shape, np.bool_)
        for name in got.dtype.names:
            of_field, _ = _compared(got[name], want[name], tolerance)
            bad |= of_field.any(axis=tuple(range(got.ndim, of_field.ndim)))
        return bad, None
    if got.dtype.kind in "biu":
        exact = tolerance.is_default
        return (_not_equal(got, want) if exact else _too_far(got, want, tolerance)), None
    return _floats_too_far(got, want, tolerance)


def _not_equal(got: Array, want: Array) -> Array:
    """Which elements differ, for integers or bools compared exactly."""
    if want.dtype.kind != "f":
        return np.asarray(got != want)
    whole = want.astype(got.dtype)  # float64 has fewer digits than int64
    return np.asarray((got != whole) | (whole.astype(want.dtype) != want))


def _too_far(got: Array, want: Array, tolerance: Tolerance) -> Array:
    """Which elements exceed the tolerance, for integers or bools."""
    if want.dtype.kind == "f":
        difference = np.abs(got.astype(np.float64) - want)
    else:  # the larger less the smaller, which fits
        got_bits, want_bits = got.astype(np.uint64), want.astype(np.uint64)
        difference = np.where(got > want, got_bits - want_bits, want_bits - got_bits)
    return np.asarray(~(difference <= tolerance.allowed(np.dtype(np.float64), want)))


def _floats_too_far(got: Array, want: Array, tolerance: Tolerance) -> tuple[Array, Array]:
    """Which elements exceed the tolerance, and the differences, for floats or complex numbers."""
    allowed = tolerance.allowed(got.dtype, want)
    rounded = want.astype(got.dtype)
    difference = np.abs(np.subtract(got, want, dtype=np.result_type(want, got, np.float64)))
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    far = ~(same | (difference <= allowed))
    if got.dtype.kind == "c":  # where a part is infinite, each part is judged by itself
        real, _ = _floats_too_far(got.real, want.real, tolerance)
        imag, _ = _floats_too_far(got.imag, want.imag, tolerance)
        far = np.where(np.isfinite(want), far, real | imag)
    return np.asarray(far), np.asarray(difference)


def _mismatch(bad: Array, got: Array, want: Array, off: tuple[Array, Array] | None) -> Mismatch:
    index = tuple(int(k) for k in np.argwhere(bad)[0])
    return Mismatch(
        bad, index, _number(got[index]), _number(want[index]),
        None if off is None else (float(off[0][index]), float(off[1][index])),
    )  # fmt: skip


def _number(value: Any) -> Any:
    """The value with a `repr` that omits the type, and that gives a float32 in its own digits."""
    text = str(value)
    return _Shown(text) if has_nan(value.dtype) else value.item()


class _Shown(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _part(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of the parts of a complex type; any other type itself."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _spacing(dtype: np.dtype[Any], want: Array) -> Array:
    part = _part(dtype)
    with np.errstate(all="ignore"):
        size = np.minimum(np.abs(want), float(limits_of(part).max)).astype(part)
        return np.asarray(np.spacing(size), np.float64)


def wider(value: Any) -> Any:
    """A copy in higher precision, for a reference: float32 as float64, complex64 as complex128."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return value
    wider_type: Any = np.complex128 if dtype.char == "F" else None
    if is_float(dtype) and dtype.itemsize < 8:
        wider_type = np.float64
    if isinstance(value, np.ndarray):
        return value.copy() if wider_type is None else value.astype(wider_type)
    return value if wider_type is None else wider_type(value)
