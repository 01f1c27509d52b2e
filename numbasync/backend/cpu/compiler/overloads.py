"""Overloads that a program registers with `numba.cuda`, registered with the CPU compiler, too."""

from __future__ import annotations

import importlib
import threading
from types import FunctionType
from typing import Any

from numba.extending import overload

from numbasync.backend.cpu.compiler.extensions import OVERLOAD_OPTIONS
from numbasync.backend.cpu.library.entry_points import OPTIONS, types

_templates_of_cuda: Any = importlib.import_module("numba.cuda.typing.templates")
_overload: Any = overload
# Only typed by itself, for which it may give an array that it has not been given; its code is a
# part of what calls it, where no references are counted.
_inlined: Any = {**OPTIONS, "_nrt": True}
_known: dict[FunctionType, bool] = {}
_lock = threading.Lock()


def is_overloaded(function: FunctionType) -> bool:
    """Whether `@overload` says what a function is in kernels; then Numba's compiler for the
    processor is told, too. What it is made of is compiled as it is: what it says of `cuda` is
    not replaced, and is refused by that compiler.
    """
    with _lock:
        if function not in _known:
            templates = list(_templates(function))
            for template in templates:
                first = template.prefer_literal
                options = _inlined if _is_inlined(template) else OVERLOAD_OPTIONS
                how = "always" if _is_inlined(template) else "never"
                say = _overload(
                    function, options, strict=template._strict, prefer_literal=first, inline=how
                )
                say(template._overload_func)
            if templates:
                _known[function] = True
        return _known.get(function, False)


def is_inlined(function: Any) -> bool:
    """Whether an overload is inlined, so that its indices are those of the kernel."""
    return isinstance(function, FunctionType) and any(map(_is_inlined, _templates(function)))


def _is_inlined(template: Any) -> bool:
    return bool(template._inline.is_always_inline)


def _templates(function: FunctionType) -> Any:
    for key, numba_type in _templates_of_cuda.builtin_registry.globals:
        if key is function and isinstance(numba_type, types.Function):
            yield from (t for t in numba_type.templates if hasattr(t, "_overload_func"))
