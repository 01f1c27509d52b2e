"""Which parameters are arrays, with how many axes, as far as their uses show."""

from __future__ import annotations

from typing import Any

import pytest
from numba import cuda

from numbasync.facts.arrays import axes_of
from numbasync.facts.positions import usage


@cuda.jit(device=True)
def corner(table: Any, k: Any) -> Any:
    return table[k, k]


@cuda.jit(device=True)
def again(table: Any, k: Any) -> Any:
    table[k] = again(table, k - 1)
    return k


def indexed(z: Any, x: Any, n: Any) -> None:
    i = cuda.grid(1)
    z[i] = x[i, n, 0] + n


def under_other_names(z: Any, x: Any, n: Any) -> None:
    place = cuda.grid(2)
    y = x
    z[place] = y[0, 1, n]


def by_their_extents(z: Any, x: Any, n: Any) -> None:
    rows, columns, depth = z.shape
    if n < x.shape[1] + rows + columns + depth:
        return


def by_attributes(z: Any, x: Any, n: Any) -> None:
    if cuda.grid(1) < z.size + len(x) + n:
        return


def by_atomics(z: Any, x: Any, n: Any) -> None:
    cuda.atomic.add(z, (0, n), x.ndim)


def by_device_functions(z: Any, x: Any, n: Any) -> None:
    again(z, n)
    corner(k=n, table=x)


def of_other_objects(z: Any, x: Any, n: Any) -> None:
    """A number, and what a tuple holds."""
    own = cuda.local.array(4, "f4")
    own[n] = (z, x)[0] + z


def unreadable(z: Any) -> None:
    class _Inside: ...

    z[0] = 1


@pytest.mark.parametrize(
    ("function", "axes"),
    [
        (indexed, {"z": 1, "x": 3}),
        (under_other_names, {"z": 1, "x": 3}),
        (by_their_extents, {"z": 3, "x": 2}),
        (by_attributes, {"z": 1, "x": 1}),
        (by_atomics, {"z": 2, "x": 1}),
        (by_device_functions, {"z": 1, "x": 2}),
        (of_other_objects, {}),
        (unreadable, {}),
    ],
)
def test_axes_are_those_of_the_uses(function: Any, axes: dict[str, int]) -> None:
    assert axes_of(function) == axes


def walks_over_rows(z: Any) -> None:
    for i in range(cuda.grid(1), z.shape[0], cuda.gridsize(1)):
        z[i] = 0


def asks_for_two(z: Any) -> None:
    z[cuda.grid(2)] = 0


@pytest.mark.parametrize(
    ("function", "rank", "walks"),
    [(walks_over_rows, 1, True), (asks_for_two, 2, False), (by_atomics, 1, False)],
)
def test_the_rank_of_a_grid(function: Any, rank: int, walks: bool) -> None:
    found = usage(function)
    assert (found.rank, found.walks) == (rank, walks)
