"""Kernels run on an engine of the CPU device by its name, without a launcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import numbasync as na
from numbasync.backend.cpu.runtime.choose_engine import prepare_kernel
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.backend.protocols import ArgumentAccess, ArrayKey, Checks, Dim3

INPUT, OUTPUT = ArgumentAccess(False), ArgumentAccess(True)


class _Handle:
    """An array as launches pass it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def key_of(argument: Any) -> Any:
    """The part of a variant's key for an argument."""
    if isinstance(argument, np.ndarray):
        order = "C" if argument.flags.c_contiguous else "A"
        structured = argument.dtype.names is not None
        return ArrayKey(argument.dtype if structured else argument.dtype.str, argument.ndim, order)
    if type(argument) is tuple:
        return tuple(key_of(part) for part in argument)
    return na.devices("cpu")[0].backend.scalar_key(argument)


def _passed(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return _Handle(argument)
    if type(argument) is tuple:
        return tuple(_passed(part) for part in argument)
    return argument


def run_on(
    engine: str,
    kernel: Any,
    grid: Dim3,
    block: Dim3,
    arguments: Sequence[Any],
    shared_bytes: int = 0,
    checks: Checks | None = None,
    access: Sequence[ArgumentAccess | None] = (),
) -> list[np.ndarray]:
    """The arrays among the arguments, which the kernel has changed; those passed stay as they are.

    Args:
        engine: `compiled` or `interpreted`.
        kernel: made by `cuda.jit`.
    """
    own = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    keys = tuple(key_of(a) for a in own)
    executable: Any = prepare_kernel(kernel, keys, 1024, engine, checks is not None)
    passed = [_passed(a) for a in own]
    executable.run(grid, block, shared_bytes, passed, Engine("test", 1), checks, access)
    return [a for a in own if isinstance(a, np.ndarray)]
