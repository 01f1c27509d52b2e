"""What programs have their numbers in, as NumPy arrays that say everything of their elements.

Times become the integers that they are: 64 bits, in their own unit; NaT is the least of them.
What NumPy would drop or change in silence is refused: masks, nulls, types that it does not have.
Objects are known by what they offer, so that no library of them has to be imported.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from numbasync import layout
from numbasync.backend import array_protocols
from numbasync.errors import DTypeError, OperationError

T = TypeVar("T")
TIMES = (np.datetime64, np.timedelta64)


def _has_masked(array: np.ndarray[Any, Any]) -> bool:
    mask = np.ma.getmask(array)  # of records, one with their fields
    return mask is not np.ma.nomask and bool(np.ascontiguousarray(mask).view(np.bool_).any())


def plain(x: T) -> T:
    """A NumPy array without a mask, times as integers, in the same memory; all else as it is.

    Raises:
        OperationError: some elements are masked.
        DTypeError: its elements are of more than 64 bits.
    """
    if not isinstance(x, np.ndarray):
        return x
    array: Any = x
    if isinstance(array, np.ma.MaskedArray):
        if _has_masked(array):
            raise OperationError(
                f"a masked array of shape {array.shape} has masked elements, and device memory has "
                "no masks.\nWrite array.filled(value)."
            )
        array = np.asarray(array.data)
    if array.dtype.char in "gG":
        raise DTypeError(_too_long(array.dtype, "array.astype({})"))
    if array.dtype.kind in "mM":
        array = array.view(np.dtype(np.int64).newbyteorder(array.dtype.byteorder))
    return array  # type: ignore[no-any-return]  # an array, too


def check_destination(array: np.ndarray[Any, Any]) -> None:
    """Refuse an array that nothing can be copied into.

    Raises:
        OperationError: it is read-only, or some elements are masked.
    """
    if not array.flags.writeable:
        raise OperationError(f"memcpy into a read-only array of shape {array.shape}.")
    if _has_masked(array):
        raise OperationError(
            f"memcpy into a masked array of shape {array.shape}: its masked elements would be "
            "written, too, and stay masked.\nWrite array.data."
        )


def number(value: np.generic) -> np.generic:
    """A NumPy number as kernels take it: a time as an integer.

    Raises:
        DTypeError: it has more than 64 bits.
    """
    if value.dtype.char in "gG":
        raise DTypeError(_too_long(value.dtype, "{}(x)"))
    return value.view(np.int64) if isinstance(value, TIMES) else value


def _too_long(dtype: np.dtype[Any], write: str) -> str:
    instead = write.format("np.complex128" if dtype.kind == "c" else "np.float64")
    return f"device memory cannot hold {dtype}, with which no device computes.\nWrite {instead}."


def is_arrow(x: object) -> bool:
    """Whether it is a column of Arrow, which counts its nulls."""
    return isinstance(getattr(x, "null_count", None), int)


def place(x: object) -> tuple[int, int] | None:
    """The memory that another library's array lends, as `interchange.place`; None if it lends none.

    Raises:
        OperationError: its library refuses to lend it. Not of Arrow's columns, which have more
            types than DLPack: they are copied.
    """
    try:
        return array_protocols.place(x)
    except OperationError:
        if is_arrow(x):
            return None
        raise


def column(x: Any, copy: bool | None = None) -> np.ndarray[Any, Any] | None:
    """The numbers of a column of pandas or Arrow, of a buffer such as `array.array`, or of what
    else is an array with a NumPy dtype; None if it is nothing of that.

    Args:
        copy: False: only if that takes no copy; None: if need be with one.

    Raises:
        DTypeError: it has nulls, or elements that no NumPy dtype stands for.
        ValueError: it takes a copy.
    """
    kind = type(x)
    if isinstance(x, str | bytes | np.generic | type):
        return None
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if is_arrow(x):
        if x.null_count:
            raise DTypeError(
                f"{name} has {x.null_count} nulls, and device memory has none.\n"
                "Write x.fill_null(value) or x.drop_null()."
            )
    elif hasattr(kind, "__array__"):
        dtype = getattr(x, "dtype", None)
        if dtype is None:
            return None  # a table, or something that may become an array of anything
        if not isinstance(dtype, np.dtype):
            raise DTypeError(
                f"{name} has elements of type {dtype}, which is none of NumPy's and may have "
                "missing values.\nWrite x.to_numpy(np.float64), or another dtype."
            )
    elif not hasattr(x, "__array_interface__"):
        try:
            x = memoryview(x)
        except (TypeError, ValueError, BufferError):
            return None
    try:
        found: np.ndarray[Any, Any] = plain(np.asarray(x, copy=copy))
    except ValueError as error:
        if copy is False:
            raise
        raise DTypeError(f"{name} is no array of numbers: {error}") from error
    return found


def host_array(x: Any) -> np.ndarray[Any, Any]:
    """What `np.asarray` makes of anything, as `column` and `plain` have it."""
    if type(x) is np.ndarray and x.dtype.char in layout.CHARS:
        return x  # the usual one
    found = plain(x) if isinstance(x, np.ndarray) else column(x)
    if isinstance(x, list | tuple):
        for part in x:
            if isinstance(part, np.ma.MaskedArray):
                plain(part)  # NumPy would drop its mask
    return np.asarray(plain(np.asarray(x)) if found is None else found)
