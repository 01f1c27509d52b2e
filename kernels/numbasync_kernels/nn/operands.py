"""Operands of matrix products as kernels can read them: as they are, or copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numbasync as na

UNIT = 16  # bytes; of addresses and pitches that copies to shared memory take
Result: TypeAlias = na.DeviceOp[na.Tensor]


def check_are_tensors(function: str, optional: bool = False, /, **operands: object) -> None:
    """Refuse operands that are no tensors.

    Args:
        optional: whether an operand may be None.

    Raises:
        OperationError: an operand is something else.
    """
    for name, operand in operands.items():
        if not isinstance(operand, na.Tensor) and not (optional and operand is None):
            raise na.errors.OperationError(
                f"{function}: {name} is of type {type(operand).__name__}; write a tensor: of an "
                "array, await na.from_host(array); of an operation, await op."
            )


def is_transposed(t: na.Tensor) -> bool:
    """Whether the elements of a column, not those of a row, are neighbours."""
    size = t.dtype.itemsize
    return t.strides[-1] != size and t.strides[-2] == size


def with_copies(
    launch: Callable[[na.Tensor, na.Tensor], Result],
    operands: tuple[na.Tensor, na.Tensor],
    fits: Callable[[na.Tensor], bool],
    fitting: Callable[[na.Tensor], na.DeviceOp[na.Tensor]],
) -> Result:
    """`launch` of the operands, with copies in place of those that do not fit."""
    if all(map(fits, operands)):
        return launch(*operands)
    copies = (na.value(t) if fits(t) else fitting(t) for t in operands)
    return na.zip(*copies).then(lambda both: launch(*both))


def fits_a_map(t: na.Tensor) -> bool:
    """Whether a tensor map can be made of the matrix, or matrices."""
    size = t.dtype.itemsize
    return t.strides[-1] == size and t.is_aligned and not any(s % UNIT for s in t.strides[:-1])


def with_fitting_pitch(t: na.Tensor) -> na.DeviceOp[na.Tensor]:
    """A copy with rows at multiples of 16 bytes."""
    *outer, columns = t.shape
    unit = UNIT // t.dtype.itemsize
    wide = na.empty((*outer, -(-columns // unit) * unit), t.dtype)
    return wide.then(lambda w: w[..., :columns].copy_from(t))


def fits_copies(t: na.Tensor) -> bool:
    """Whether `copy_rows` can copy from the matrix."""
    return fits_a_map(t) and not t.shape[-1] * t.dtype.itemsize % UNIT


def with_zeros(t: na.Tensor) -> na.DeviceOp[na.Tensor]:
    """A copy whose rows go on, with zeros, to multiples of 16 bytes."""
    *outer, columns = t.shape
    unit = UNIT // t.dtype.itemsize
    wide = na.zeros((*outer, -(-columns // unit) * unit), t.dtype)
    return wide.then(lambda w: w[..., :columns].copy_from(t).map(lambda _: w))
