"""What the checks of a caller's arguments share: a short text of what came, and checks of the kinds
of argument that several subpackages take. `numbasync.layout` has those of shapes and dtypes.

An error names the function, the argument, what came and what to write. What came may be anything:
deeply nested, longer than memory, or of a class whose `repr`, `==` or `__index__` raises.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numbasync.errors import CallerError

LARGEST = 2**63 - 1  # of whole numbers that count something; kernels' numbers have limits of theirs
MOST_DIGITS = 40  # of an integer in a message


class _Short(reprlib.Repr):
    """`repr` of containers to some depth and length."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxtuple = self.maxlist = self.maxset = self.maxfrozenset = self.maxdict = 8

    def repr_int(self, x: int, level: int) -> str:
        digits = int(x.bit_length() * 0.30103)  # `str` refuses integers of many digits
        if digits <= MOST_DIGITS:
            return repr(x)
        return f"{'-' * (x < 0)}<an integer of about {digits} digits>"

    def repr_str(self, x: str, level: int) -> str:
        return repr(x[:200])

    def repr_function(self, x: Any, level: int) -> str:
        return str(x.__name__)  # the address says nothing to whoever wrote it

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            return repr(x)
        except Exception:  # the caller's own, or too deep
            return f"<{type(x).__name__}>"


_short = _Short()


def shown(value: object, most: int = 60) -> str:
    """What came, in a message: its `repr`, cut to about `most` characters. Raises nothing."""
    try:
        text = _short.repr(value)
    except Exception:  # a class of the caller's that is named like one of Python's
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else f"{text[:most]}..."


def with_type(value: object, most: int = 60) -> str:
    """What came, where its type was wrong: `int (3)`."""
    return f"{type(value).__name__} ({shown(value, most)})"


def is_whole(value: object) -> bool:
    """Whether `value` is an integer, Python's or another library's, and neither True nor False."""
    return as_whole(value) is not None


def as_whole(value: object) -> int | None:
    """`value` as Python's integer; None where it is none, or is True or False."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # NumPy's, too
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # an array of several elements, or the caller's own
        return None


def check_whole(
    value: object,
    what: str,
    least: int = -LARGEST,
    most: int = LARGEST,
    error: type[CallerError] = CallerError,
) -> int:
    """An integer from `least` to `most`, both included.

    Args:
        what: the function and the argument, as in `unzip(n)`.

    Raises:
        CallerError, or `error`, which is one: it is none, or is outside.
    """
    number = as_whole(value)
    if number is not None and least <= number <= most:
        return number
    limits = f" from {least:,} to {most:,}" if most != LARGEST else f" of at least {least:,}"
    if least == -LARGEST:
        limits = ""
    elif number is not None and number > most == LARGEST:
        limits += ", and less than 2**63"
    raise error(f"{what} is {shown(value)}: write a whole number{limits}.")


def as_wholes(value: object) -> tuple[int, ...] | None:
    """The integers of a tuple, a list or another sequence, or one integer as a tuple of it; None
    where `value` is neither. True and False count as 1 and 0, as NumPy has it.
    """
    if not isinstance(value, tuple | list):
        try:
            return (operator.index(value),)  # type: ignore[arg-type]
        except Exception:  # noqa: S110
            pass
    is_array = hasattr(type(value), "__array__") and getattr(value, "ndim", 0) == 1
    if isinstance(value, str | bytes | bytearray) or not (isinstance(value, Sequence) or is_array):
        return None
    try:
        return tuple(map(operator.index, value))  # type: ignore[call-overload]
    except Exception:  # of an element, or of a class that is no sequence after all
        return None


def as_items(value: object) -> tuple[Any, ...] | None:
    """The items of a list, a tuple or another iterable that is no text; None of anything else."""
    if isinstance(value, str | bytes | bytearray | Mapping):
        return None
    try:
        return tuple(value)  # type: ignore[arg-type]
    except Exception:  # TypeError, or the caller's own
        return None


def is_one_of(value: object, choices: Iterable[object]) -> bool:
    """Whether `value` equals one of `choices`, which are strings, numbers or None."""
    return any(value is c or (isinstance(value, type(c)) and value == c) for c in choices)


def is_number(value: object, is_complex: bool = False) -> bool:
    """Whether `value` is a real or complex number that float64 reaches, or an array of one and of
    no axes.

    Args:
        is_complex: whether complex numbers count.
    """
    if isinstance(value, str | bytes | bytearray) or getattr(value, "ndim", 0) != 0:
        return False
    try:
        (complex if is_complex else float)(value)  # type: ignore[arg-type, call-overload]
    except Exception:
        return False
    return True


def check_number(
    value: object, what: str, error: type[CallerError] = CallerError, is_complex: bool = False
) -> None:
    """Refuse what is no number; see `is_number`.

    Args:
        what: the function and the argument, as in `mean of randn`.
        error: the class of the error.
    """
    if not is_number(value, is_complex):
        raise error(f"{what} is {shown(value)}: write a number that float64 reaches.")


def check_bool(value: object, what: str, error: type[CallerError] = CallerError) -> bool:
    """A truth value, Python's or NumPy's.

    Args:
        what: the function and the argument, as in `timing of an event`.
        error: the class of the error.
    """
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):  # NumPy's
        raise error(f"{what} is {shown(value)}: write True or False.")
    return bool(value)
