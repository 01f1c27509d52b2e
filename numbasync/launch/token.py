"""What a kernel is, for caches of other processes: the same for the same source and options.

Dask asks a launcher for it (`__dask_tokenize__`), to name tasks that compute the same alike.
"""

from __future__ import annotations

import ast
import types
from typing import Any

import numpy as np

from numbasync.facts.source import captured, find_definition, nested_codes

Normalize = Any  # a function: of any object, a value that is the same in every process


class Tokenized:
    """The method of launchers for Dask."""

    __slots__ = ()

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """A launcher's source, options, and what its kernel uses of its surroundings."""
        from dask.tokenize import normalize_token

        launcher: Any = self
        dispatcher, *options = launcher.Result._made_of
        return "numbasync.Launcher", *_of_dispatcher(dispatcher, normalize_token, ()), repr(options)


def _of_dispatcher(dispatcher: Any, normalize: Normalize, above: tuple[Any, ...]) -> Any:
    """A kernel or a device function. `above` are the functions whose tokens it is a part of."""
    function: types.FunctionType = dispatcher.py_func
    if function in above:
        return ("recursive", function.__qualname__)
    options = sorted((k, repr(v)) for k, v in dispatcher.targetoptions.items())
    used = {**_globals(function), **captured(function)}
    values = [(n, _value(v, normalize, (*above, function))) for n, v in sorted(used.items())]
    return (
        function.__module__, function.__qualname__, _text(function), repr(function.__defaults__),
        repr(function.__kwdefaults__), options, values,
    )  # fmt: skip


def _value(value: Any, normalize: Normalize, above: tuple[Any, ...]) -> Any:
    if hasattr(value, "py_func") and hasattr(value, "targetoptions"):
        return _of_dispatcher(value, normalize, above)
    if isinstance(value, Tokenized):
        launcher: Any = value
        return _of_dispatcher(launcher.kernel, normalize, above)
    return normalize(value)


def _text(function: types.FunctionType) -> Any:
    """The source; where there is none, the compiled code."""
    found = find_definition(function)
    if found is None:
        return _codes(function.__code__)
    definition = found[1]
    return ast.unparse(ast.Module([*definition.body], [])), ast.unparse(definition.args)


def _codes(code: types.CodeType) -> tuple[Any, ...]:
    constants = [_codes(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return code.co_code.hex(), code.co_names, code.co_varnames, constants


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """The global constants and device functions that a kernel uses: Numba compiles them in."""
    used = _names(function.__code__)
    return {
        name: value for name, value in function.__globals__.items()
        if name in used and (
            isinstance(value, int | float | complex | str | tuple | np.ndarray | np.generic)
            or hasattr(value, "py_func")
        )
    }  # fmt: skip


def _names(code: types.CodeType) -> set[str]:
    return {name for inner in nested_codes(code) for name in inner.co_names}
