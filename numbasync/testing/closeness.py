"""Whether a result is close enough to what was expected, and by how much it is not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

# Relative differences at which results count as right if nobody says otherwise: some ten
# roundings, and a tenth of it of the largest value, where terms have cancelled each other.
RTOL = {2: 5e-3, 4: 1e-5, 8: 1e-12}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an element may be from what is expected: `atol + rtol * |expected|`, or `ulp`
    spacings of its own type, whichever is more. All None: see `RTOL`; integers are exact.
    """

    rtol: float | None = None
    atol: float | None = None
    ulp: float | None = None

    @property
    def is_default(self) -> bool:
        return self.rtol is None and self.atol is None and self.ulp is None

    def allowed(self, dtype: np.dtype[Any], want: Array) -> Array:
        """The largest difference of each element."""
        size = np.abs(np.where(np.isfinite(want), want, 0))
        if self.is_default:
            rtol = RTOL[_part(dtype).itemsize]
            return np.asarray(rtol * size + rtol / 10 * size.max(initial=0))
        bound = (self.atol or 0) + (self.rtol or 0) * size
        return np.asarray(np.maximum(bound, (self.ulp or 0) * _spacing(dtype, want)))

    def __str__(self) -> str:
        if self.is_default:
            return "default tolerance"
        named = (("rtol", self.rtol), ("atol", self.atol), ("ulp", self.ulp))
        return ", ".join(f"{name}={value:g}" for name, value in named if value is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Mismatch:
    """Where a result is wrong.

    Attributes:
        bad: the elements that are, as an array of bools.
        index: the first of them, in C order.
        got, want: there.
        off: the difference there, and in spacings of the result's type; None if it has none.
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
        told = f"got {self.got!r}, want {self.want!r}"
        if self.off is None or math.isnan(self.off[0]):
            return told
        off, ulp = self.off
        return f"{told}: off by {off:.4g}, {ulp:.3g} ulp"


def compare(got: Array, want: Array, tolerance: Tolerance) -> Mismatch | None:
    """Where `got` is not `want`; None if it is everywhere.

    Args:
        want: of the same shape; numbers are of a type with at least as many digits.
    """
    if got.dtype.names is not None or (got.dtype.kind in "biu" and tolerance.is_default):
        bad = np.asarray(got != want)
        return None if not bad.any() else _mismatch(bad, got, want, None)
    if got.dtype.kind in "biu":
        difference = np.abs(got.astype(np.float64) - want)
        bad = ~(difference <= tolerance.allowed(np.dtype(np.float64), want))
        return None if not bad.any() else _mismatch(bad, got, want, None)
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        difference = np.abs(got - want)
        bad = ~(same | (difference <= tolerance.allowed(got.dtype, want)))
        if not bad.any():
            return None
        return _mismatch(bad, got, want, (difference, difference / _spacing(got.dtype, want)))


def _mismatch(bad: Array, got: Array, want: Array, off: tuple[Array, Array] | None) -> Mismatch:
    index = tuple(int(k) for k in np.argwhere(bad)[0])
    return Mismatch(
        bad, index, _number(got[index]), _number(want[index]),
        None if off is None else (float(off[0][index]), float(off[1][index])),
    )  # fmt: skip


def _number(value: Any) -> Any:
    """Without its type in its `repr`; a float32 in its own digits."""
    text = str(value)
    return value.item() if value.dtype.kind not in "fc" else _Shown(text)


class _Shown(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _part(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Of a complex type, that of its parts."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _spacing(dtype: np.dtype[Any], want: Array) -> Array:
    part = _part(dtype)
    with np.errstate(all="ignore"):
        size = np.minimum(np.abs(want), np.finfo(part).max).astype(part)
        return np.asarray(np.spacing(size), np.float64)


def wider(value: Any) -> Any:
    """The same in more digits, for a reference: float32 as float64, complex64 as complex128."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return value
    to = {"e": np.float64, "f": np.float64, "F": np.complex128}.get(dtype.char)
    if isinstance(value, np.ndarray):
        return value.copy() if to is None else value.astype(to)
    return value if to is None else to(value)
