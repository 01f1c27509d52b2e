"""The types of elements that device memory can hold: one table, and what other modules ask of it.

Invariant: no other module names a type to learn what this table says of it: how DLPack, the driver,
NCCL and PTX call it, or how far two results of it may differ. Whoever adds a type adds a row, and
the code that computes with it: Numba's in `backend/bfloat16_type.py`, the CPU device's in
`backend/cpu/target/small_float_calls.py`.

NumPy has the types of `EXTENSIONS` from the package ml_dtypes, as types of its kind "V", like
structures. Programs without them do not import it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from numbasync.arguments import shown
from numbasync.errors import DTypeError


@dataclass(frozen=True, slots=True)
class ElementType:
    """A row of the table.

    Attributes:
        name: NumPy's.
        nbytes: of an element.
        dlpack: DLPack's number of its kind.
        packed: the codes of `struct` for a number in a kernel's argument buffer.
        nccl: NCCL's number, of a bool as a byte, of a complex number as two floats; None without.
        tensor_map: the end of the driver's name for it in a tensor map; "" without.
        ptx: PTX's name for it as an operand of tensor cores; "" without.
        rtol: the default relative tolerance of a result: some ten roundings; 0 of integers.
        rtol_reordered: of two sums in another order, whose last digits differ.
    """

    name: str
    nbytes: int
    dlpack: int
    packed: str
    nccl: int | None = None
    tensor_map: str = ""
    ptx: str = ""
    rtol: float = 0.0
    rtol_reordered: float = 0.0


_SIGNED, _UNSIGNED, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6  # DLPack's kinds

TABLE = {
    row.name: row
    for row in (
        ElementType("bool", 1, _BOOL, "?", nccl=1),
        ElementType("int8", 1, _SIGNED, "b", nccl=0, tensor_map="UINT8", ptx="s8"),
        ElementType("uint8", 1, _UNSIGNED, "B", nccl=1, tensor_map="UINT8", ptx="u8"),
        ElementType("int16", 2, _SIGNED, "h"),
        ElementType("uint16", 2, _UNSIGNED, "H"),
        ElementType("int32", 4, _SIGNED, "i", nccl=2),
        ElementType("uint32", 4, _UNSIGNED, "I", nccl=3),
        ElementType("int64", 8, _SIGNED, "q", nccl=4),
        ElementType("uint64", 8, _UNSIGNED, "Q", nccl=5),
        ElementType(
            "float16", 2, _FLOAT, "e", nccl=6, tensor_map="FLOAT16", ptx="f16",
            rtol=5e-3, rtol_reordered=1e-2,
        ),
        ElementType(
            "bfloat16", 2, _BFLOAT, "H", nccl=9, tensor_map="BFLOAT16", ptx="bf16",
            rtol=4e-2, rtol_reordered=8e-2,
        ),
        ElementType(
            "float32", 4, _FLOAT, "f", nccl=7, tensor_map="FLOAT32", ptx="tf32",
            rtol=1e-5, rtol_reordered=1e-4,
        ),
        ElementType("float64", 8, _FLOAT, "d", nccl=8, rtol=1e-12, rtol_reordered=1e-10),
        ElementType("complex64", 8, _COMPLEX, "ff", nccl=7, rtol=1e-5, rtol_reordered=1e-4),
        ElementType("complex128", 16, _COMPLEX, "dd", nccl=8, rtol=1e-12, rtol_reordered=1e-10),
    )
}  # fmt: skip

EXTENSIONS = frozenset({"bfloat16"})
# NumPy's codes of the others; some have several, as int64 has.
CHARS = frozenset("?bBhHiIlLqQefdFD")
_BY_CHAR = {char: TABLE[np.dtype(char).name] for char in CHARS}
_BY_DLPACK = {(row.dlpack, 8 * row.nbytes): row for row in TABLE.values()}
SMALL = tuple(name for name in TABLE if "float" in name and TABLE[name].nbytes < 4)
"""Names of the floats that are computed in float32 and rounded."""


@cache
def of_name(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name in `TABLE`."""
    if name not in EXTENSIONS:
        return np.dtype(name)
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def row_of(dtype: np.dtype[Any]) -> ElementType:
    """The row of a type that `is_element`, in any byte order."""
    return TABLE[dtype.type.__name__] if dtype.kind == "V" else _BY_CHAR[dtype.char]


def of_dlpack(kind: int, bits: int) -> np.dtype[Any] | None:
    """The dtype of DLPack's kind and width; None if there is none here."""
    row = _BY_DLPACK.get((kind, bits))
    return None if row is None else of_name(row.name)


def numba_type(dtype: np.dtype[Any]) -> Any:
    """Numba's type of elements, in the compiler for GPUs and in that of the CPU device.

    Raises:
        DTypeError: this version of Numba does not have it.
    """
    if not is_extension(dtype):
        from numbasync.kernel_names import from_dtype

        return from_dtype(dtype)
    found = extension_types().get(dtype.type.__name__)
    if found is None:
        raise DTypeError(
            f"a kernel of {dtype} is compiled by numba-cuda 0.30 or later, which is not installed."
        )
    return found


@cache
def extension_types() -> dict[str, Any]:
    """Numba's types of `EXTENSIONS`, by their names; without those that this Numba lacks."""
    from numbasync.kernel_names import types

    found = {name: getattr(types, name, None) for name in EXTENSIONS}
    return {name: numba_type for name, numba_type in found.items() if numba_type is not None}


@cache
def small_types() -> dict[Any, ElementType]:
    """The rows of `SMALL`, by Numba's types; without those that this Numba lacks."""
    known = [n for n in SMALL if n not in EXTENSIONS or n in extension_types()]
    return {numba_type(of_name(name)): TABLE[name] for name in known}


def numpy_dtype(numba_type: Any) -> np.dtype[Any]:
    """NumPy's dtype of Numba's type of elements."""
    from numbasync.kernel_names import as_dtype

    for name, extension in extension_types().items():
        if numba_type == extension:
            return of_name(name)
    dtype: np.dtype[Any] = as_dtype(numba_type)
    return dtype


def check_dtype(dtype: Any, records: bool = False) -> np.dtype[Any]:
    """A dtype that device memory can hold: one of `TABLE`. Of times it is int64, which counts
    their units.

    Args:
        records: also accept structures of these, without `EXTENSIONS`, and of times, bytes and
            text.

    Raises:
        DTypeError: `dtype` is another type, no dtype, or not in this machine's byte order.
    """
    try:
        # NumPy takes None for float64, which is no caller's intention here.
        checked: np.dtype[Any] = np.dtype("None" if dtype is None else dtype)
    except Exception:  # TypeError, and whatever an attribute `dtype` raises
        if isinstance(dtype, str) and dtype in EXTENSIONS:  # which NumPy may not know yet
            return of_name(dtype)
        raise DTypeError(
            f"{shown(dtype)} is not a NumPy dtype; write np.float32, 'int32' ..."
        ) from None
    if checked.type in (np.datetime64, np.timedelta64) and checked.isnative:
        return np.dtype(np.int64)
    if not (records and checked.names):
        if not is_element(checked):
            raise DTypeError(f"device memory cannot hold {checked}{_advice(checked)}")
    elif (wrong := _wrong_field(checked)) is not None:
        name, field = wrong
        raise DTypeError(
            f"device memory cannot hold records with the field {name!r} of {field}{_advice(field)}"
        )
    return checked


def _advice(dtype: np.dtype[Any]) -> str:
    """What to write instead of a dtype that a tensor, or a field of one, cannot have."""
    if dtype.names:
        return " here: records are made, uploaded and copied. A kernel computes with x[i].field."
    if is_extension(dtype):
        return f".\nWrite a field of {dtype} as np.{bits_of(dtype)}, its bits."
    if dtype.shape:
        return ".\nWrite a field of it for each element."
    if dtype.kind in "SVU":
        return ", as no kernel reads it.\nWrite its bytes: array.view(np.uint8), dtype=np.uint8."
    return (
        "; use bool, an integer, a float of at most 64 bits or a complex number of two such, in "
        "native byte order."
    )


def is_element(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` is one of `TABLE`, in this machine's byte order."""
    return _is_plain(dtype) or (is_extension(dtype) and dtype.isnative)


def is_extension(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` is one of `EXTENSIONS`, in any byte order. Imports nothing."""
    return dtype.type.__name__ in EXTENSIONS


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether elements are real floats, also those that NumPy counts as no kind "f"."""
    return dtype.kind == "f" or is_extension(dtype)


def is_small(dtype: np.dtype[Any]) -> bool:
    """Whether elements are floats that are computed in float32 and rounded."""
    return dtype.itemsize < 4 and is_float(dtype)


def has_nan(dtype: np.dtype[Any]) -> bool:
    """Whether elements are floats or complex numbers."""
    return dtype.kind == "c" or is_float(dtype)


def limits_of(dtype: np.dtype[Any]) -> Any:
    """`np.finfo` of a float or complex type."""
    if is_extension(dtype):
        import ml_dtypes

        return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return np.finfo(dtype)


def bits_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type itself; of one of `EXTENSIONS` the unsigned integers that have its bits, for readers
    that have no name for it.
    """
    return np.dtype(f"u{dtype.itemsize}") if is_extension(dtype) else dtype


def in_words(names: Iterable[str]) -> str:
    """Names of types in a sentence: "float16, bfloat16 or float32"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def dtype_key(dtype: np.dtype[Any]) -> str | np.dtype[Any]:
    """A key from which `np.dtype` makes the dtype again, and which is fast to compare."""
    return dtype.str if dtype.kind != "V" else dtype  # of an extension, `str` is that of its bytes


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.char in CHARS and dtype.isnative


def _wrong_field(dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any]] | None:
    """The first field, with its dtype, that no record in device memory may have; else None. A field
    is a number, an array of numbers, a time, bytes, text, or another such record: Numba has types
    for no others.
    """
    for name in dtype.names or ():
        whole = dtype[name]
        field = whole.base
        if field.names:
            inner = _wrong_field(field)
            if inner is not None:
                return f"{name}.{inner[0]}", inner[1]
        elif not _is_plain(field):
            kinds = "" if whole.shape else "mMSU"
            if field.kind not in kinds or not field.isnative:
                return name, whole
    return None
