"""Integers that know their width, where a Python integer would give another number.

Numba computes with 64 bits: signed if an operand is, unsigned if none is. `Int64` and `UInt64`
do the same, and what is computed with one of them is one of them. They cost several times what
Python's integers cost, so they stand only where they are needed: `typed` and `tag` say where.
Everywhere else a Python integer stands for an int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.errors import KernelError

MASK = (1 << 64) - 1
TOP = 1 << 63
# Python integers below this magnitude are left as they are: they need not be wrapped soon.
SMALL = 1 << 31


def _signed(value: int) -> Int64:
    if not -TOP <= value < TOP:
        value = ((value + TOP) & MASK) - TOP
    made: Int64 = _new(Int64, value)
    return made


def _unsigned(value: int) -> UInt64:
    made: UInt64 = _new(UInt64, value & MASK)
    return made


def _binary(operate: Callable[[int, int], int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The method and the reflected method of an operation that keeps the low 64 bits."""
    name = operate.__name__
    reflected = f"__r{name.strip('_')}__"

    def forward(a: Any, b: Any) -> Any:
        if not isinstance(b, int):
            return getattr(_float(a), name)(_float(b)) if isinstance(b, _FLOATS) else NotImplemented
        if isinstance(a, UInt64) and isinstance(b, UInt64):
            return _unsigned(operate(a, b))
        return _signed(operate(a, b))

    def backward(b: Any, a: Any) -> Any:
        if isinstance(a, int):
            return _signed(operate(a, b))  # `a` is a Python integer, and so signed
        return (
            getattr(_float(b), reflected)(_float(a)) if isinstance(a, _FLOATS) else NotImplemented
        )

    return forward, backward


def _division(operate: Callable[[int, int], int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """As `_binary`, but a mixed pair is first reduced to int64: here the high bits matter."""
    plain_forward, plain_backward = _binary(operate)

    def forward(a: Any, b: Any) -> Any:
        if isinstance(b, int) and isinstance(a, UInt64) is not isinstance(b, UInt64):
            return _signed(operate(_signed(a), _signed(b)))
        return plain_forward(a, b)

    def backward(b: Any, a: Any) -> Any:
        if isinstance(a, int):
            return _signed(operate(_signed(a), _signed(b)))
        return plain_backward(b, a)

    return forward, backward


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    operate: Callable[[Any, Any], Any] = getattr(int, name)

    def compare(a: Any, b: Any) -> Any:
        if isinstance(b, int):
            if isinstance(a, UInt64) is not isinstance(b, UInt64):
                return getattr(float, name)(float(a), float(b))  # Numba compares as float64
            return operate(a, b)
        return getattr(_float(a), name)(_float(b)) if isinstance(b, _FLOATS) else NotImplemented

    return compare


def _shift_left(a: Any, b: Any) -> Any:
    if not isinstance(b, int):
        return NotImplemented
    # The left operand alone decides on the sign.
    value = int.__lshift__(a, b) if b < 64 else 0
    return _unsigned(value) if isinstance(a, UInt64) else _signed(value)


def _shift_right(a: Any, b: Any) -> Any:
    if not isinstance(b, int):
        return NotImplemented
    value = int.__rshift__(a, min(b, 63) if a < 0 else b)
    return _unsigned(value) if isinstance(a, UInt64) else _signed(value)


def _power(a: Any, b: Any) -> Any:
    if not isinstance(b, int):
        return _float(a) ** _float(b) if isinstance(b, _FLOATS) else NotImplemented
    if b < 0:
        raise KernelError(f"an integer to a negative power, {int(b)}: make it a float first")
    both = isinstance(a, UInt64) and isinstance(b, UInt64)
    value = pow(int(a), int(b), 1 << 64)
    return _unsigned(value) if both else _signed(value)


class Int64(int):
    """An int64: what leaves the range comes back at the other end."""

    __slots__ = ()
    bits = 64

    __add__, __radd__ = _binary(int.__add__)
    __sub__, __rsub__ = _binary(int.__sub__)
    __mul__, __rmul__ = _binary(int.__mul__)
    __and__, __rand__ = _binary(int.__and__)
    __or__, __ror__ = _binary(int.__or__)
    __xor__, __rxor__ = _binary(int.__xor__)
    __floordiv__, __rfloordiv__ = _division(int.__floordiv__)
    __mod__, __rmod__ = _division(int.__mod__)
    __lt__ = _comparison("__lt__")
    __le__ = _comparison("__le__")
    __gt__ = _comparison("__gt__")
    __ge__ = _comparison("__ge__")
    __eq__ = _comparison("__eq__")
    __ne__ = _comparison("__ne__")
    __hash__ = int.__hash__
    __lshift__ = _shift_left
    __rshift__ = _shift_right
    __pow__: Any = _power

    def __rlshift__(self, other: Any) -> Any:
        return _shift_left(other, self)

    def __rrshift__(self, other: Any) -> Any:
        return _shift_right(other, self)

    def __rpow__(self, other: Any, modulus: Any = None) -> Any:
        return _power(other, self)

    def __divmod__(self, other: Any) -> Any:
        if isinstance(other, int) and isinstance(self, UInt64) is isinstance(other, UInt64):
            return self // other, self % other
        return divmod(_float(self), _float(other))  # Numba has no mixed form

    def __rdivmod__(self, other: Any) -> Any:
        return divmod(tag_always(other), self)

    def __truediv__(self, other: Any) -> Any:
        return _float(self) / _float(other)

    def __rtruediv__(self, other: Any) -> Any:
        return _float(other) / _float(self)

    def __neg__(self) -> Any:
        return _signed(-int(self))

    def __pos__(self) -> Any:
        return _signed(int(self))

    def __abs__(self) -> Any:
        return _signed(abs(int(self)))

    def __invert__(self) -> Any:
        return _signed(~int(self))

    def __round__(self, digits: Any = None) -> Any:
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # NumPy would let a float32 absorb us, as it does Python's integers; not an int64.
        found = getattr(ufunc, method)(*(_numpy(i) for i in inputs), **options)
        return tag(found) if isinstance(found, np.integer) else found


class UInt64(Int64):
    """A uint64. A subclass, so that Python asks it first and `Int64` last."""

    __slots__ = ()

    def __neg__(self) -> Any:
        return _unsigned(-int(self) & ((1 << self.bits) - 1))  # in its own width, then widened

    def __pos__(self) -> Any:
        return _unsigned(int(self))

    def __abs__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return _unsigned(~int(self) & ((1 << self.bits) - 1))


class UInt32(UInt64):
    """A uint32 as it was loaded or cast; what is computed with it is a `UInt64`."""

    __slots__ = ()
    bits = 32


class UInt16(UInt64):
    """A uint16, likewise."""

    __slots__ = ()
    bits = 16


class UInt8(UInt64):
    """A uint8, likewise."""

    __slots__ = ()
    bits = 8


class Int32(int):
    """An int32 as it was loaded or cast; what is computed with it is a Python integer."""

    __slots__ = ()
    bits = 32


class Int16(int):
    """An int16, likewise."""

    __slots__ = ()
    bits = 16


class Int8(int):
    """An int8, likewise."""

    __slots__ = ()
    bits = 8


_new: Any = int.__new__
_FLOATS = (float, np.floating)
_CLASSES: dict[str, type[int]] = {
    f"{'u' if issubclass(c, UInt64) else 'i'}{c.bits // 8}": c
    for c in (Int64, Int32, Int16, Int8, UInt64, UInt32, UInt16, UInt8)
}
_BYTES = tuple(UInt8(i) for i in range(256))


def _float(value: Any) -> Any:
    return value if isinstance(value, np.float64) else np.float64(float(value))


def _numpy(value: Any) -> Any:
    if isinstance(value, UInt64):
        return np.uint64(int(value))
    return np.int64(int(value)) if isinstance(value, Int64) else value


def maker(dtype: np.dtype[Any]) -> Callable[[int], int]:
    """What turns a Python integer into an integer of this type, which must hold it."""
    if dtype == np.uint8:
        return _BYTES.__getitem__
    return _CLASSES[f"{dtype.kind}{dtype.itemsize}"]


def tag_always(value: Any) -> Any:
    """As `tag`, but small Python integers, which are int64 to Numba, know their width too."""
    return Int64(value) if type(value) is int and -SMALL <= value < SMALL else tag(value)


def fit(value: int) -> int:
    """A Python integer, which stands for an int64, as an int64."""
    return value if -SMALL <= value < SMALL else _signed(value)


def tag(value: Any) -> Any:
    """A number of Python's or NumPy's as an integer of its type; large ones know their width."""
    if isinstance(value, np.integer):
        return maker(value.dtype)(int(value))
    if type(value) is not int or -SMALL <= value < SMALL:
        return value
    if -TOP <= value < TOP:
        return Int64(value)
    if value <= MASK and value > 0:
        return UInt64(value)
    raise KernelError(f"{value} has more than 64 bits: Numba cannot hold it")
