"""Keys: which calls of a kernel share a choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from numbasync.arguments import as_items
from numbasync.errors import LauncherError
from numbasync.extending import describe
from numbasync.launch.arguments import holds_arrays
from numbasync.launch.launcher import Launcher
from numbasync.tensors.inout import InOut
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor

Key: TypeAlias = Callable[..., Any] | Sequence[str] | None

_PLAIN = (type(None), bool, int, float, str, np.generic, np.dtype)


def check_key(key: Key, name: str) -> Key:
    """`key`, which `autotune` was given.

    Raises:
        LauncherError: it is neither a function nor a sequence of names.
    """
    if key is None or callable(key):
        return key
    names = as_items(key)
    if names is None or not all(isinstance(part, str) for part in names):
        raise LauncherError(
            f"autotune of {name}: key is a function of the arguments, or a tuple of parameters' "
            f"names, such as ('x', 'n'); not {describe(key)}."
        )
    return names


def key_of(key: Key, launcher: Launcher, values: tuple[Any, ...]) -> str:
    """The key of a call as text.

    None: of each array the dtype, and its shape with each extent rounded up to a power of two; of
    a partition its tile, too; of each number its type. Names: the same of the named arrays, and the
    values of the named numbers.

    Raises:
        LauncherError: a name is no parameter's, or the value of a function is not plain.
    """
    names = [p.name for p in launcher.parameters]
    for name, value in zip(names, values, strict=True):
        holds_arrays(value, launcher.name, name)  # refuses tuples that are nested too deep
    if key is None:
        return ", ".join(f"{n}: {_described(v)}" for n, v in zip(names, values, strict=True))
    if callable(key):
        value = key(*as_arrays(values))
        if not _is_plain(value):
            raise LauncherError(
                f"autotune of {launcher.name}: key gives {describe(value)}; a key is kept on disk, "
                "so it is made of numbers, texts, dtypes and tuples of these."
            )
        return repr(value)
    unknown = [name for name in key if name not in names]
    if unknown:
        raise LauncherError(
            f"autotune of {launcher.name}: key names {', '.join(unknown)}; its parameters are "
            f"{', '.join(names)}."
        )
    by_name = dict(zip(names, values, strict=True))
    return ", ".join(f"{name}: {_described(by_name[name], exact=True)}" for name in key)


def as_arrays(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as functions of a call see them: partitions and `na.inout` as their arrays."""
    return tuple(
        v.tensor if isinstance(v, Partition) else v.array if isinstance(v, InOut) else v
        for v in values
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _described(value: Any, exact: bool = False) -> str:
    tiles = ""
    if isinstance(value, InOut):
        value = value.array if value.cut is None else value.cut
    if isinstance(value, Partition):
        mapped = "" if value.blocks is None else f" mapped to {value.blocks}"
        tiles, value = f" in {value.tile}{mapped}", value.tensor
    if isinstance(value, SharedTensor):
        value = value.tensor
    shape = getattr(value, "shape", None)
    if shape and isinstance(shape, tuple) and hasattr(value, "dtype"):
        extents = "x".join(str(_bucket(int(n))) for n in shape)
        return f"{value.dtype}[{extents}]{tiles}"
    if isinstance(value, tuple):
        return f"({', '.join(_described(v, exact) for v in value)})"
    return repr(value) if exact else type(value).__name__


def _bucket(extent: int) -> int:
    """The extent, rounded up to a power of two."""
    return 1 << (extent - 1).bit_length() if extent > 0 else 0
