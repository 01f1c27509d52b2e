"""Extents of arrays for which the preconditions of a launcher hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numbasync.errors import LaunchError
from numbasync.launch.launcher import Launcher
from numbasync.layout import Layout, contiguous_strides
from numbasync.tensors.tensor import Tensor

# Parts of the extents that were drawn, from which others are looked for: conditions that tie one
# extent to another may have no answer where both are large.
_FROM = (1.0, 0.5, 0.25, 0.0)
_TURNS = 3  # of changing each extent


def _like(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """What preconditions ask of an array, which is not made."""
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
    """Whether the launcher's preconditions do, for arguments by name."""
    arrays = {
        n: _like(a.shape, a.strides, a.dtype) for n, a in made.items() if isinstance(a, np.ndarray)
    }
    return not _failing(launcher, {**made, **arrays})


def lengthen(
    launcher: Launcher, made: Mapping[str, Any], axes: Mapping[str, Sequence[str | int]],
    long: dict[str, int], most: int,
) -> bool:  # fmt: skip
    """Change extents so that the launcher's preconditions hold, by little.

    Args:
        made: arguments for which they do not.
        axes: of the arrays whose extents may change: names, or numbers that stay.
        long: the extent of each name; changed.
        most: the largest one.

    Returns:
        Whether such extents were found. Nobody looks everywhere.
    """

    def failing(tried: Mapping[str, int]) -> int:
        values = dict(made)
        for name, of in axes.items():
            shape = tuple(a if isinstance(a, int) else tried[a] for a in of)
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
