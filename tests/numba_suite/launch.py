"""One launch by Numba's form, carried out by a queue of the CPU device."""

from __future__ import annotations

import copy
import importlib
import operator
import re
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import typeof
from numba.core import errors, types
from numba.np.numpy_support import as_dtype

import numbasync as na
from numbasync.backend import protocols
from numbasync.backend.cpu.runtime.device import CpuArray
from numbasync.backend.declared_signatures import type_of
from numbasync.errors import KernelCompileError, KernelError, UnsupportedKernelError
from numbasync.layout import dtype_key

# Names of the kernels since the last test began: launched to their end, asked for, and refused.
launched: list[str] = []
attempts: list[str] = []
refused: list[str] = []


def compile(dispatcher: Any, signature: Any, result: Any = None) -> None:
    """Remember a signature, as the dispatcher does whose code for it has been compiled."""
    sigutils: Any = importlib.import_module("numba.cuda.core.sigutils")
    types, declared = sigutils.normalize_signature(signature)
    result = declared or result
    made = SimpleNamespace(
        signature=None if result is None else result(*types), objectmode=False, entry_point=None
    )
    dispatcher.overloads.setdefault(types, made)


def call(dispatcher: Any, args: Sequence[Any], launch: Any) -> None:
    """Run the kernel to its end; arrays are used where they are."""
    from numba.cuda.args import ArgHint

    attempts.append(dispatcher.py_func.__name__)
    after: list[Callable[[], object]] = []
    for extension in reversed(dispatcher.extensions or ()):
        args = [extension.prepare_args(None, a, stream=0, retr=after)[1] for a in args]
    plain = [_hinted(a) if isinstance(a, ArgHint) else a for a in args]
    if dispatcher.specialized:
        (kinds,) = dispatcher.overloads
        plain = [_written(k, a) for k, a in zip(kinds, plain, strict=True)]
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
        executable = variants[tuple(keys)] = _compiled(device, dispatcher, tuple(keys))
    stream = device.new_stream(0)
    queue = stream.open()
    queue.launch(protocols.Work(executable, grid, block, shared), values)
    stream.synchronize()
    launched.append(dispatcher.py_func.__name__)
    error = queue.failure()
    if error is None:
        return
    if type(error) is not KernelError:  # nothing that the kernel itself has raised
        raise error.__cause__ or error if isinstance(error, KernelError) else error
    raised = error.__cause__ or error
    # Without debug=True a GPU drops what a kernel raises, and so do Numba's tests.
    if dispatcher.targetoptions.get("debug"):
        raised.args = (_as_on_a_gpu(dispatcher.py_func, str(error), str(raised)),)
        raise raised


def _as_on_a_gpu(function: Any, said: str, text: str) -> str:
    """Numba's text of an exception in a kernel, with the place that the device has named."""
    places = re.search(r"block (\(.*?\)), thread (\(.*?\)):", said)
    line = re.search(r"line (\d+)|:(\d+)\)", said)
    where = (
        ""
        if places is None
        else (
            f"tid={list(map(int, places[2].strip('()').split(',')))} "
            f"ctaid={list(map(int, places[1].strip('()').split(',')))}"
        )
    )
    number = "" if line is None else f", line {line[1] or line[2]}"
    file = function.__code__.co_filename
    begin = f"In function '{function.__name__}', file {file}{number}, {where}"
    return f"{begin}: {text}" if text else begin


def _compiled(device: Any, dispatcher: Any, keys: tuple[Hashable, ...]) -> Any:
    """The kernel; if it is refused, Numba's reason, which its tests expect as it is."""
    try:
        made = device.compile(dispatcher, keys)
    except (KernelCompileError, UnsupportedKernelError) as error:
        refused.append(dispatcher.py_func.__name__)
        raise _numbas(error) from error
    if dispatcher._can_compile:
        compile(dispatcher, tuple(map(type_of, keys)))
    return made


def _numbas(error: Exception) -> BaseException:
    """Numba's own error, which its tests catch by its class; `numba.cuda` has a copy of each."""
    cause: Any = error.__cause__
    if not isinstance(cause, errors.NumbaError):
        return cause or error
    copies: Any = importlib.import_module("numba.cuda.core.errors")
    ours = type(cause)
    theirs = getattr(copies, ours.__name__, ours)
    both: Any = ours if theirs is ours else type(ours.__name__, (ours, theirs), {})
    made: BaseException = both(str(cause))
    return made


def _passed(device: Any, argument: Any) -> tuple[Any, Hashable]:
    """An argument as the device takes it, and its part of a variant's key."""
    array = _array(argument)
    if array is not None:
        key = protocols.ArrayKey(dtype_key(array.dtype), array.ndim, _order(array))
        return CpuArray(array), key
    if isinstance(argument, tuple):
        parts = [_passed(device, a) for a in argument]
        values, keys = tuple(v for v, _ in parts), tuple(k for _, k in parts)
        kind: Any = type(argument)
        is_named = hasattr(argument, "_make")
        return (kind(*values), protocols.NamedTupleKey(kind, keys)) if is_named else (values, keys)
    if isinstance(argument, Enum):  # which no tensor has, and Numba knows
        return argument, typeof(argument)
    argument = getattr(argument, "_ary", argument)
    key = device.scalar_key(argument)
    comes_as_array = isinstance(argument, np.void | np.datetime64 | np.timedelta64)
    return CpuArray(np.asarray(argument)) if comes_as_array else argument, key


def _hinted(hint: Any) -> Any:
    """The argument of `cuda.In` is the kernel's own; those of `Out` and `InOut` come back."""
    from numba.cuda.args import In

    return copy.copy(hint.value) if isinstance(hint, In) else hint.value


def _written(kind: Any, argument: Any) -> Any:
    """An argument of a kernel of one signature: Numba takes its bits, and asks for no type."""
    if isinstance(kind, types.Integer):
        dtype = as_dtype(kind)
        low = operator.index(argument) % (1 << kind.bitwidth)
        return np.array(low, f"u{dtype.itemsize}").view(dtype)[()]
    array = _array(argument)
    if array is not None and isinstance(kind, types.Array):
        dtype = as_dtype(kind.dtype)
        same = array.dtype == dtype or array.dtype.itemsize != dtype.itemsize
        return argument if same else array.view(dtype)
    return argument


def _array(argument: Any) -> np.ndarray[Any, Any] | None:
    """The NumPy array that an argument is, or is made of."""
    inner = getattr(argument, "_ary", argument)
    return inner if isinstance(inner, np.ndarray) else None


def _order(array: np.ndarray[Any, Any]) -> str:
    if array.flags.c_contiguous:
        return "C"
    return "F" if array.flags.f_contiguous else "A"
