"""What kernels do with the elements of accumulators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbasync.backend.cpu.interpreter.tensor_cores.calls import WARP, Call
from numbasync.backend.cpu.interpreter.tensor_cores.fragments import (
    Accumulator,
    Registers,
    check_same,
    matrix,
    places,
)
from numbasync.backend.cpu.interpreter.tensor_cores.shared_tiles import encoded
from numbasync.dtypes import is_extension, row_of
from numbasync.errors import OutOfBoundsError


def _corner(corner: Any) -> tuple[int, int]:
    row, column = corner
    return int(row), int(column)


def apply(
    function: Callable[..., Any], accumulators: Accumulator, corner: Any, *extra: Any
) -> Accumulator:
    call = Call("apply")
    values = accumulators.settled(call)
    first_row, first_column = _corner(corner)
    rows, columns = places(accumulators.row_blocks, accumulators.column_blocks)
    lane = call.number % WARP
    results = [
        function(value, np.int64(first_row + row), np.int64(first_column + column), *extra)
        for value, row, column in zip(
            values, rows[lane].tolist(), columns[lane].tolist(), strict=True
        )
    ]
    return accumulators.like(np.array(results).astype(values.dtype))


def _by_rows(held: Sequence[Accumulator], values: Sequence[Registers]) -> Registers:
    """For each lane and each of its rows, the elements."""
    kind = held[0]
    parts = np.stack(values).reshape(WARP, kind.row_blocks, kind.column_blocks, 2, 2)
    return parts.transpose(0, 1, 3, 2, 4).reshape(WARP, 2 * kind.row_blocks, -1)


def _of_lanes(combine: Callable[..., Any], elements: Registers) -> Registers:
    """Combine the elements of a row that a lane has, two by two, as a GPU does."""
    values = [elements[:, :, i] for i in range(elements.shape[2])]
    while len(values) > 1:
        pairs = [combine(*values[i : i + 2]) for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(values) - len(values) % 2 :]
    return values[0]


def _over_rows(combine: Callable[..., Any], elements: Registers) -> Registers:
    """Combine the elements of a row: those of a lane, then those of four lanes, as a GPU does."""
    total = _of_lanes(combine, elements)
    for distance in (1, 2):
        total = combine(total, total[np.arange(WARP) ^ distance])
    return total


def row_max(accumulators: Accumulator, least: Any) -> tuple[Any, ...]:
    call = Call("row_max")

    def combine(numbers: list[int], given: list[Any]) -> Sequence[Any]:
        held = [acc for acc, _ in given]
        total = _over_rows(np.fmax, _by_rows(held, [acc.values for acc in held]))
        bounds = np.array([bound for _, bound in given], np.float32)
        return [tuple(row) for row in np.fmax(bounds, total)]

    accumulators.settled(call)
    result: tuple[Any, ...] = call.with_warp((accumulators, least), combine)
    return result


def row_sum(accumulators: Accumulator, whole: bool = True) -> tuple[Any, ...]:
    call = Call("row_sum")

    def combine(numbers: list[int], held: list[Any]) -> Sequence[Any]:
        rows = _by_rows(held, [acc.values for acc in held])
        total = _over_rows(np.add, rows) if whole else _of_lanes(np.add, rows)
        return [tuple(row) for row in total]

    accumulators.settled(call)
    result: tuple[Any, ...] = call.with_warp(accumulators, combine)
    return result


def sum_over_row(value: Any) -> Any:
    call = Call("sum_over_row")

    def combine(numbers: list[int], values: list[Any]) -> Sequence[Any]:
        total = np.array(values, np.float32)
        for distance in (1, 2):
            total = total + total[np.arange(WARP) ^ distance]
        return list(total)

    return call.with_warp(np.float32(value), combine)


def exp2(value: Any) -> Any:
    return np.exp2(np.float32(value))


def _of_elements(accumulators: Accumulator, by_row: Any) -> Registers:
    """For each element of a lane the number of its row."""
    rows = np.array(by_row, np.float32).reshape(accumulators.row_blocks, 1, 2, 1)
    shape = accumulators.row_blocks, accumulators.column_blocks, 2, 2
    return np.broadcast_to(rows, shape).reshape(-1)


def scale_rows(accumulators: Accumulator, factors: Any) -> Accumulator:
    values = accumulators.settled(Call("scale_rows"))
    return accumulators.like(values * _of_elements(accumulators, factors))


def exp2_rows(accumulators: Accumulator, factor: Any, subtracted: Any) -> Accumulator:
    values = accumulators.settled(Call("exp2_rows"))
    scale = np.float32(factor)
    less = (_of_elements(accumulators, subtracted) * scale).astype(np.float64)
    powers = np.exp2((values.astype(np.float64) * np.float64(scale) - less).astype(np.float32))
    return accumulators.like(powers.astype(np.float32))


def store(array: Any, corner: Any, accumulators: Accumulator) -> None:
    call = Call("store")
    accumulators.settled(call)
    row, column = _corner(corner)
    if row < 0 or column < 0:
        raise OutOfBoundsError(f"{call}: the corner {(row, column)} lies outside of the matrix")

    def combine(numbers: list[int], given: list[Any]) -> Sequence[Any]:
        check_same(call, [where for _, where in given], "matrices or corners")
        kind = accumulators
        whole = matrix([acc.values for acc, _ in given], kind.row_blocks, kind.column_blocks)
        target = array[row : row + len(whole), column : column + whole.shape[1]]
        inside = whole[: target.shape[0], : target.shape[1]]
        if is_extension(array.dtype):
            target[...] = encoded(inside, row_of(array.dtype).ptx).view(array.dtype)
        else:
            target[...] = inside.astype(array.dtype)
        return [None] * len(given)

    where = array.__array_interface__["data"][0], row, column
    call.with_warp((accumulators, where), combine)
