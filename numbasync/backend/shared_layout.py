"""Shared layouts: several named arrays in the dynamic shared memory of a block.

Every `cuda.shared.array(0, dtype)` of a kernel starts at the same address. A layout gives each
array an offset, computed once outside the kernel, and refuses arrays that overlap.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from numbasync.arguments import shown, with_type
from numbasync.dtypes import check_dtype
from numbasync.errors import CallerError, LauncherError, ShapeError
from numbasync.layout import check_shape

MOST_ALIGNED = 1024  # bytes; what copies by tensor maps ask for, at most


@runtime_checkable
class Declared(Protocol):
    """The declaration of something in shared memory that is no plain array: of tiles, or barriers.

    Attributes:
        alignment: in bytes.
    """

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def alignment(self) -> int: ...
    def numba_type(self) -> Any:
        """The type of the attribute in kernels, whose values are addresses in shared memory."""
        ...


class SharedArray(NamedTuple):
    """One array of a layout: its name, element type and shape, its offset in bytes, and its
    declaration, if it is no plain array.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    declared: Declared | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True, repr=False)
class SharedLayout:
    """Named arrays in dynamic shared memory; created by `shared_layout`.

    In a kernel, `LAYOUT.name` is the array of that name. Elsewhere there is no such array, and the
    attribute is an error.

    Attributes:
        arrays: name, dtype, shape, and offset in bytes of each array, in the order of declaration.
        align: alignment of dynamic shared memory, in bytes.

    Examples:
        >>> layout = na.shared_layout(a=(np.float32, 32), b=(np.float16, (8, 8)))
        >>> [(array.name, array.shape, array.offset) for array in layout.arrays]
        [('a', (32,), 0), ('b', (8, 8), 128)]
    """

    arrays: tuple[SharedArray, ...]
    align: int

    def __post_init__(self) -> None:
        known = isinstance(self.arrays, tuple) and self.arrays
        if not known or not all(isinstance(array, SharedArray) for array in self.arrays):
            raise CallerError(
                f"a SharedLayout is of arrays, not of {with_type(self.arrays)}: write "
                "na.shared_layout(a=(dtype, shape))."
            )
        # Before a kernel is compiled that uses the layout: Numba looks for new types only then.
        from numbasync.backend import shared_layout_types  # noqa: F401

    @property
    def nbytes(self) -> int:
        """The dynamic shared memory that a launch needs, in bytes."""
        return max(array.end for array in self.arrays)

    @property
    def offsets(self) -> Mapping[str, int]:
        """The offset of each array from the start of dynamic shared memory, in bytes."""
        return MappingProxyType({array.name: array.offset for array in self.arrays})

    def find(self, name: str) -> SharedArray | None:
        """The array of this name, or None."""
        return next((array for array in self.arrays if array.name == name), None)

    @property
    def _numba_type_(self) -> Any:
        from numbasync.backend.shared_layout_types import SharedLayoutType

        return SharedLayoutType(self)

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` ask for special names before there are any attributes.
        if name.startswith("_") or self.find(name) is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            f"{name} is an array of a block's shared memory, which exists in kernels only. "
            f"Its offset is offsets[{name!r}]."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedLayout, (self.arrays, self.align)

    def __repr__(self) -> str:
        rows = [("name", "dtype", "shape", "offset", "bytes")]
        rows += [
            (a.name, str(a.dtype), str(a.shape), f"{a.offset:,}", f"{a.nbytes:,}")
            for a in self.arrays
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"SharedLayout of {self.nbytes:,} bytes, align={self.align}"]
        for row in rows:
            cells = zip(row, widths, "<<<>>", strict=True)
            lines.append("  ".join(f"{cell:{side}{width}}" for cell, width, side in cells).rstrip())
        return "\n".join(lines)


def shared_layout(
    *,
    align: int = 16,
    offsets: Mapping[str, int] | None = None,
    union: bool = False,
    **arrays: tuple[Any, Any] | Declared,
) -> SharedLayout:
    """Lay out several named arrays in the dynamic shared memory of a block.

    Write `LAYOUT = na.shared_layout(a=(np.float32, (32, 33)), b=(np.float16, 1024))` outside the
    kernel, and `a, b = LAYOUT.a, LAYOUT.b` in it or in its device functions. A launch that requests
    no dynamic shared memory gets `LAYOUT.nbytes`; one that requests less is refused.

    Args:
        align: alignment of each array, in bytes: a power of two, at most 1024. At least that of the
            array's dtype is kept.
        offsets: offsets in bytes of the arrays that are placed by hand. The others follow the array
            declared before them.
        union: permit arrays that overlap, for kernels that use them one after the other.
        arrays: dtype and shape of each array; or what `tensor_cores.tile` or
            `tensor_cores.barriers` declares.

    Raises:
        LauncherError: arrays overlap, a name is taken, or an array is not declared as a pair.
        ShapeError, DTypeError: shared memory holds no array of that shape or dtype.

    Examples:
        >>> LAYOUT = na.shared_layout(rows=(np.float32, (4, 5)), counts=(np.int32, 4))
        >>> dict(LAYOUT.offsets), LAYOUT.nbytes
        ({'rows': 0, 'counts': 80}, 96)
        >>> @na.launcher
        ... @cuda.jit
        ... def reverse(z: na.KernelOutput):
        ...     counts = LAYOUT.counts
        ...     i = cuda.threadIdx.x
        ...     counts[i] = z[i]
        ...     cuda.syncthreads()
        ...     z[i] = counts[3 - i]
        >>> result = await reverse[1, 4](na.arange(4, dtype=np.int32))
        >>> await result.z.to_host()
        array([3, 2, 1, 0], dtype=int32)
    """
    if not arrays:
        raise LauncherError(
            f"shared_layout(align={shown(align)}) has no arrays; write a=(dtype, shape)."
        )
    _check_power_of_two(align)
    by_hand = dict(offsets or {})
    unknown = sorted(by_hand.keys() - arrays.keys())
    if unknown:
        raise LauncherError(f"offsets= names {', '.join(unknown)}, which the layout does not have.")
    laid: list[SharedArray] = []
    most_aligned = align
    for name, declared in arrays.items():
        if hasattr(SharedLayout, name) or name.startswith("_") or name in ("arrays", "align"):
            raise LauncherError(f"a shared layout has an attribute {name}: rename the array.")
        dtype, shape = _dtype_and_shape(name, declared)
        special = declared if isinstance(declared, Declared) else None
        aligned = special.alignment if special else dtype.alignment
        step = max(align, aligned)
        behind = -(-(laid[-1].end if laid else 0) // step) * step
        offset = _offset(name, by_hand[name], dtype, aligned) if name in by_hand else behind
        laid.append(SharedArray(name, dtype, shape, offset, special))
        most_aligned = max(most_aligned, aligned)
    if not union:
        _check_apart(laid)
    return SharedLayout(tuple(laid), most_aligned)


def _check_power_of_two(align: Any) -> None:
    if type(align) is not int or not 1 <= align <= MOST_ALIGNED or align & (align - 1):
        raise CallerError(f"align={shown(align)}: write a power of two from 1 to {MOST_ALIGNED}.")


def _dtype_and_shape(name: str, declared: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if isinstance(declared, Declared):
        return declared.dtype, declared.shape
    if not isinstance(declared, tuple) or len(declared) != 2:
        raise LauncherError(
            f"shared array {name} is declared by {shown(declared)}; write {name}=(dtype, shape), "
            f"such as {name}=(np.float32, (32, 33))."
        )
    dtype, extents = declared
    if type(dtype).__module__.startswith("numba."):
        from numba.core.errors import NumbaError

        from numbasync.kernel_names import as_dtype

        with contextlib.suppress(NumbaError):  # of no NumPy type: refused below
            dtype = as_dtype(dtype)
    shape = check_shape(extents)
    if not math.prod(shape) or not shape:
        raise ShapeError(f"shared array {name} of shape {shape}: write at least one axis, all > 0.")
    return check_dtype(dtype, records=True), shape


def _offset(name: str, value: Any, dtype: np.dtype[Any], alignment: int) -> int:
    if not isinstance(value, int) or value < 0 or value % alignment:
        raise LauncherError(
            f"offset {shown(value)} of shared array {name}: write 0 or a multiple of "
            f"{alignment}, the alignment of {dtype}."
        )
    return value


def _check_apart(arrays: list[SharedArray]) -> None:
    in_order = sorted(arrays, key=lambda array: array.offset)
    for array, following in itertools.pairwise(in_order):
        if following.offset < array.end:
            raise LauncherError(
                f"shared arrays {array.name} and {following.name} overlap: {array.name} has the "
                f"bytes {array.offset} to {array.end}, and {following.name} begins at "
                f"{following.offset}.\n"
                "Leave its offset out, or write union=True if the kernel uses them one after the "
                "other, with a barrier between."
            )
