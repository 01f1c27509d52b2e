"""Array-like objects of a program as NumPy arrays that describe their elements completely.

Times become 64-bit integers, in their own unit; NaT is the smallest of them. Properties that NumPy
would drop or change silently are refused: masks, nulls, and types that NumPy does not have. Objects
are recognised by their attributes, so that none of their libraries has to be imported.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from numbasync import dtypes
from numbasync.arguments import with_type
from numbasync.backend import array_protocols
from numbasync.errors import CallerError, DTypeError, OperationError

T = TypeVar("T")
TIMES = (np.datetime64, np.timedelta64)


def _has_masked(array: np.ndarray[Any, Any]) -> bool:
    mask = np.ma.getmask(array)  # of a structured array, a mask with the same fields
    return mask is not np.ma.nomask and bool(np.ascontiguousarray(mask).view(np.bool_).any())


def plain(x: T) -> T:
    """A NumPy array without a mask, with times as integers, in the same memory.

    Objects that are no NumPy arrays are returned unchanged.

    Raises:
        OperationError: some elements are masked.
        DTypeError: the elements have more than 64 bits.
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
    """Refuse an array that cannot be the destination of a copy.

    Raises:
        OperationError: the array is read-only, or some elements are masked.
    """
    if not array.flags.writeable:
        raise OperationError(f"memcpy into a read-only array of shape {array.shape}.")
    if _has_masked(array):
        raise OperationError(
            f"memcpy into a masked array of shape {array.shape}: its masked elements would be "
            "written, too, and stay masked.\nWrite array.data."
        )


def number(value: np.generic) -> np.generic:
    """A NumPy scalar as a kernel argument: a time becomes an integer.

    Raises:
        DTypeError: the scalar has more than 64 bits.
    """
    if value.dtype.char in "gG":
        raise DTypeError(_too_long(value.dtype, "{}(x)"))
    return value.view(np.int64) if isinstance(value, TIMES) else value


def _too_long(dtype: np.dtype[Any], write: str) -> str:
    instead = write.format("np.complex128" if dtype.kind == "c" else "np.float64")
    return f"device memory cannot hold {dtype}, with which no device computes.\nWrite {instead}."


def is_arrow(x: object) -> bool:
    """Whether `x` is an Arrow column: an object that counts its nulls."""
    return isinstance(getattr(x, "null_count", None), int)


def place(x: object) -> tuple[int, int] | None:
    """The DLPack device of another library's array, as `array_protocols.place`; None without one.

    Raises:
        OperationError: the library refuses to lend the array. Arrow columns give None instead:
            they have more types than DLPack, and are copied.
    """
    try:
        return array_protocols.place(x)
    except OperationError:
        if is_arrow(x):
            return None
        raise


def column(x: Any, copy: bool | None = None) -> np.ndarray[Any, Any] | None:
    """The numbers of a pandas or Arrow column, of a buffer such as `array.array`, or of any other
    array with a NumPy dtype; None if `x` is none of these.

    Args:
        copy: False: only without a copy; None: with a copy if one is needed.

    Raises:
        DTypeError: `x` has nulls, or elements without a NumPy dtype.
        ValueError: a copy is needed and `copy` is False.
    """
    cls = type(x)
    if isinstance(x, str | bytes | np.generic | type):
        return None
    name = f"{cls.__module__.partition('.')[0]}.{cls.__name__}"
    if is_arrow(x):
        if x.null_count:
            raise DTypeError(
                f"{name} has {x.null_count} nulls, and device memory has none.\n"
                "Write x.fill_null(value) or x.drop_null()."
            )
    elif hasattr(cls, "__array__"):
        dtype = getattr(x, "dtype", None)
        if dtype is None:
            return None  # a table, or an object that may become an array of any dtype
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
        array: np.ndarray[Any, Any] = plain(np.asarray(x, copy=copy))
    except (TypeError, ValueError) as error:
        if isinstance(error, CallerError) or (copy is False and isinstance(error, ValueError)):
            raise
        raise DTypeError(f"{name} is no array of numbers: {error}") from error
    return array


def host_array(x: Any) -> np.ndarray[Any, Any]:
    """`np.asarray` of what a program has as an array: a list, a column of pandas or Arrow, or
    a buffer. Times become integers.

    Raises:
        OperationError: some elements are masked.
        DTypeError: it is no array of numbers, or has nulls, or elements of more than 64 bits.

    Examples:
        >>> from numbasync.extending import host_array
        >>> host_array([1, 2, 3])
        array([1, 2, 3])
    """
    if type(x) is np.ndarray and x.dtype.char in dtypes.CHARS:
        return x  # the usual case
    array = plain(x) if isinstance(x, np.ndarray) else column(x)
    if isinstance(x, list | tuple):
        for part in x:
            if isinstance(part, np.ma.MaskedArray):
                plain(part)  # NumPy would drop its mask
    if array is not None:
        return np.asarray(array)
    try:
        made = np.asarray(x)
    except CallerError:  # of a tensor or an operation
        raise
    except (TypeError, ValueError, RecursionError) as error:  # ragged, or too deep
        raise DTypeError(f"{with_type(x)} is no array of numbers: {error}") from None
    return np.asarray(plain(made))
