"""Functions that a program has given to `numba.cuda` by `@overload`, for the processor."""

from __future__ import annotations

import importlib
import threading
from types import FunctionType
from typing import Any

from numba.extending import overload

from numbasync.backend.cpu.native import OPTIONS, types

_templates_of_cuda: Any = importlib.import_module("numba.cuda.typing.templates")
_overload: Any = overload
# Its indices are not those that `translate` has checked; Numba's check does not say where.
_options: Any = {**OPTIONS, "boundscheck": True}
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
                say = _overload(function, _options, strict=template._strict, prefer_literal=first)
                say(template._overload_func)
            if templates:
                _known[function] = True
        return _known.get(function, False)


def _templates(function: FunctionType) -> Any:
    for key, kind in _templates_of_cuda.builtin_registry.globals:
        if key is function and isinstance(kind, types.Function):
            yield from (t for t in kind.templates if hasattr(t, "_overload_func"))
