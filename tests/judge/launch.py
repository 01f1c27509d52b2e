"""One launch by Numba's form, carried out by a queue of the CPU device."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import Any

import numpy as np
from numba import typeof

import numbasync as na
from numbasync.backend import base
from numbasync.backend.cpu.device import CpuArray
from numbasync.errors import KernelError
from numbasync.layout import dtype_key

# Engine, and why it is not the other one, of each launch since the last test began.
launched: list[tuple[str, str]] = []
attempts: list[str] = []


def engine_of(executable: Any) -> tuple[str, str]:
    """What runs a kernel, "compiled" or "interpreted", and why."""
    return (
        str(getattr(executable, "engine", "interpreted")),
        str(getattr(executable, "why", "") or ""),
    )


def compile(dispatcher: Any, signature: Any) -> None:
    """Remember a declared signature: the scalars of a call are converted to its types."""
    sigutils: Any = importlib.import_module("numba.cuda.core.sigutils")
    types, _ = sigutils.normalize_signature(signature)
    dispatcher.__dict__.setdefault("declared", []).append(types)


def call(dispatcher: Any, args: Sequence[Any], launch: Any) -> None:
    """Run the kernel to its end; arrays are used where they are."""
    from numba.cuda.args import ArgHint

    attempts.append(dispatcher.py_func.__name__)
    after: list[Callable[[], object]] = []
    for extension in reversed(dispatcher.extensions or ()):
        args = [extension.prepare_args(None, a, stream=0, retr=after)[1] for a in args]
    declared = dispatcher.__dict__.get("declared", ())
    if len(declared) == 1 and len(declared[0]) == len(args):
        args = [_converted(t, a) for t, a in zip(declared[0], args, strict=True)]
    plain = [_hinted(a) if isinstance(a, ArgHint) else a for a in args]
    _run(dispatcher, plain, launch.griddim, launch.blockdim, int(launch.sharedmem))
    for function in after:
        function()


def _run(dispatcher: Any, args: Sequence[Any], grid: Any, block: Any, shared: int) -> None:
    device = na.devices("cpu")[0].backend
    values, keys = [], []
    for argument in args:
        value, key = _passed(device, argument)
        values.append(value)
        keys.append(key)
    variants = dispatcher.__dict__.setdefault("judged", {})
    executable = variants.get(tuple(keys))
    if executable is None:
        executable = variants[tuple(keys)] = device.compile(dispatcher, tuple(keys))
    stream = device.new_stream(0)
    queue = stream.open()
    queue.launch(base.Work(executable, grid, block, shared), values)
    stream.synchronize()
    launched.append(engine_of(executable))
    error = queue.failure()
    if error is not None:
        # Numba's tests expect what the kernel raised, not what it is wrapped in.
        wrapped = isinstance(error, KernelError) and isinstance(error.__cause__, Exception)
        raise (error.__cause__ or error) if wrapped else error


def _passed(device: Any, argument: Any) -> tuple[Any, Hashable]:
    """An argument as the device takes it, and its part of a variant's key."""
    array = _array(argument)
    if array is not None:
        key = base.ArrayKey(dtype_key(array.dtype), array.ndim, _order(array))
        return CpuArray(array), key
    if type(argument) is tuple:
        parts = [_passed(device, a) for a in argument]
        return tuple(v for v, _ in parts), tuple(k for _, k in parts)
    if isinstance(argument, Enum):  # which no tensor has, and Numba knows
        return argument, typeof(argument)
    argument = getattr(argument, "_ary", argument)  # a structured scalar
    return argument, device.scalar_key(argument)


def _hinted(hint: Any) -> Any:
    """The argument of `cuda.In` is the kernel's own; those of `Out` and `InOut` come back."""
    from numba.cuda.args import In

    return copy.copy(hint.value) if isinstance(hint, In) else hint.value


def _array(argument: Any) -> np.ndarray[Any, Any] | None:
    """The NumPy array that an argument is, or is made of."""
    inner = getattr(argument, "_ary", argument)
    return inner if isinstance(inner, np.ndarray) else None


def _order(array: np.ndarray[Any, Any]) -> str:
    if array.flags.c_contiguous:
        return "C"
    return "F" if array.flags.f_contiguous else "A"


def _converted(kind: Any, argument: Any) -> Any:
    from numba.cuda import types

    if isinstance(kind, types.Number | types.Boolean) and np.isscalar(argument):
        dtype = np.dtype(bool if isinstance(kind, types.Boolean) else str(kind))
        return np.asarray(argument).astype(dtype)[()]
    return argument
