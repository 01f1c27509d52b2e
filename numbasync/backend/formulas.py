"""Formulas: arrays whose elements follow from their positions, with the same bits on every device.

`write` computes the elements by NumPy. A device with kernels of its own for formulas must give
these bits: so they use integers, and what `quantiles` does with floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from numbasync.backend.quantiles import FAR, MIDDLE, quantiles

Elements = np.ndarray[Any, np.dtype[Any]]
Key = tuple[int, int]  # of Philox4x64-10, as of `np.random.Philox(seed)`

PART = 1 << 14  # elements at a time, so that what is computed of them stays in the caches
BITS = 2**64 - 1


class Formula(Protocol):
    """How the elements of a new array follow from their positions in C order."""

    def write(self, out: Elements) -> None:
        """Compute all elements of an array of one axis."""
        ...


@dataclass(frozen=True)
class Integers:
    """`first + i * step` in integers, modulo 2**64; then converted to the dtype."""

    first: int
    step: int

    def write(self, out: Elements) -> None:
        for begin, part in _parts(out):
            values = np.arange(begin, begin + len(part), dtype=np.uint64)
            values *= np.uint64(self.step & BITS)
            values += np.uint64(self.first & BITS)
            part[...] = values.view(np.int64)


@dataclass(frozen=True)
class Diagonal:
    """1 at the first `count` multiples of `stride`, 0 elsewhere."""

    stride: int
    count: int

    def write(self, out: Elements) -> None:
        out[...] = 0
        out[: self.stride * self.count : self.stride] = 1


@dataclass(frozen=True)
class Floats:
    """`first + i * step` in float64; then converted to the dtype.

    Attributes:
        last: the last element, if it is not to be computed; else None.
    """

    first: float
    step: float
    last: float | None = None

    def write(self, out: Elements) -> None:
        with np.errstate(all="ignore"):
            for begin, part in _parts(out):
                values = np.arange(begin, begin + len(part), dtype=np.float64)
                if self.step != 1:  # one pass less where it changes nothing
                    values *= self.step
                if self.first != 0:
                    values += self.first
                # As integers first: NumPy and GPUs wrap those alike.
                part[...] = values.astype(np.int64) if is_narrow(part.dtype) else values
            if self.last is not None:
                out[-1:] = np.float64(self.last).astype(np.int64 if is_narrow(out.dtype) else float)


@dataclass(frozen=True)
class Uniform:
    """Float32 or float64 in [0, 1), as `np.random.Generator(np.random.Philox(seed)).random` gives
    them: of 24 bits of a 32-bit word, or of 53 bits of a 64-bit word.
    """

    key: Key

    def write(self, out: Elements) -> None:
        _generator(self.key).random(dtype=out.dtype, out=out)


@dataclass(frozen=True)
class Normal:
    """Normally distributed float32 or float64: the quantile of a 64-bit word, computed in float64.

    The upper 53 bits of the word are a signed number s; the probability is 1/2 + (s + 1/2) / 2**53.
    """

    key: Key
    mean: float
    std: float

    def write(self, out: Elements) -> None:
        generator = _generator(self.key)
        for _, part in _parts(out):
            words = generator.integers(0, BITS, len(part), np.uint64, endpoint=True)
            values = quantile(words)
            values *= self.std
            values += self.mean
            with np.errstate(over="ignore"):
                part[...] = values


def _parts(out: Elements) -> Iterator[tuple[int, Elements]]:
    for begin in range(0, len(out), PART):
        yield begin, out[begin : begin + PART]


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether elements are integers of less than 64 bits."""
    return dtype.kind in "iu" and dtype.itemsize < 8


def _generator(key: Key) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array(key, np.uint64)))


def _term(y: Elements, x: Elements, c: float) -> Elements:
    y *= x
    y += c
    return y


_OF_NUMPY = quantiles(np.add, np.multiply, _term, np.divide, np.sqrt, lambda function: function)
_MANTISSA, _ROOT_HALF = np.int64(2**52 - 1), 0.5**0.5


def quantile(words: np.ndarray[Any, np.dtype[np.uint64]]) -> Elements:
    """The normal quantiles of 64-bit words; see `Normal`."""
    q = (words.view(np.int64) >> 11).astype(np.float64)
    q += 0.5
    q *= 2.0**-53
    values: Elements = _OF_NUMPY.middle(q)
    distance = np.abs(q)
    outer = np.flatnonzero(distance > MIDDLE)
    r = _root(0.5 - distance[outer])
    tails = _OF_NUMPY.near(r)
    is_far = r > FAR
    if is_far.any():
        tails[is_far] = _OF_NUMPY.far(r[is_far])
    values[outer] = np.copysign(tails, q[outer])
    return values


def _root(p: Elements) -> Elements:
    bits = p.view(np.int64)
    m = ((bits & _MANTISSA) | np.int64(1022 << 52)).view(np.float64)
    e = ((bits >> 52) - 1022).astype(np.float64)
    is_low = m < _ROOT_HALF
    m[is_low] *= 2.0
    e[is_low] -= 1.0
    root: Elements = _OF_NUMPY.root(m, e)
    return root
