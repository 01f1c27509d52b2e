"""Extents of arrays for which the preconditions of a launcher hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numbasync.errors import LaunchError
from numbasync.launch.launcher import Launcher
from numbasync.layout import Layout, contiguous_strides
from numbasync.tensors.tensor import Tensor

# The search starts from these fractions of the drawn extents: conditions that tie one extent to
# another may have no solution where both are large.
_FROM = (1.0, 0.5, 0.25, 0.0)
_TURNS = 3  # how often each extent is changed


def _like(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """A tensor without memory, for the properties that preconditions examine."""
    return Tensor(None, None, Layout(0, shape, strides), dtype)


def _failing(launcher: Launcher, values: Mapping[str, Any]) -> int:
    count = 0
    for condition in launcher.preconditions:
        try:
            condition.check(values)
        except LaunchError:
            count += 1
    return count


def hold(launcher: Launcher, made: Mapping[str, Any]) -> bool:
    """Whether the launcher's preconditions hold for these arguments, given by name."""
    arrays = {
        n: _like(a.shape, a.strides, a.dtype) for n, a in made.items() if isinstance(a, np.ndarray)
    }
    return not _failing(launcher, {**made, **arrays})


def lengthen(
    launcher: Launcher, made: Mapping[str, Any], axes: Mapping[str, Sequence[str | int]],
    long: dict[str, int], most: int,
) -> bool:  # fmt: skip
    """Change extents as little as possible, so that the launcher's preconditions hold.

    Args:
        made: arguments for which the preconditions do not hold.
        axes: of the arrays whose extents may change: names, or numbers that stay.
        long: the extent of each name; changed in place.
        most: the largest allowed extent.

    Returns:
        Whether such extents were found. The search is not exhaustive.
    """

    def failing(tried: Mapping[str, int]) -> int:
        values = dict(made)
        for name, axes_of in axes.items():
            shape = tuple(a if isinstance(a, int) else tried[a] for a in axes_of)
            dtype = made[name].dtype
            values[name] = _like(shape, contiguous_strides(shape, dtype.itemsize), dtype)
        return _failing(launcher, values)

    for part in _FROM:
        tried = {name: max(1, int(n * part)) for name, n in long.items()}
        for name in [*tried] * _TURNS:
            near = sorted(range(1, most + 1), key=lambda n, at=tried[name]: abs(n - at))  # type: ignore[misc]
            tried[name] = min(near, key=lambda n, name=name: failing({**tried, name: n}))  # type: ignore[misc]
            if not failing(tried):
                long.update(tried)
                return True
    return False
