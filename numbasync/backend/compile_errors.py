"""Errors for kernels that Numba refuses: the failing line, and the parameters it depends on."""

from __future__ import annotations

import contextlib
import dis
import linecache
import math
import os
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from numbasync.backend.array_advice import advice_on_arrays
from numbasync.errors import KernelCompileError, LauncherError, UnsupportedKernelError
from numbasync.facts.ir import read
from numbasync.tensor_cores.capabilities import missing

_PLACE = re.compile(r'(?:File "([^"]+)", line (\d+))|(?: at (\S+) \((\d+)\))')
# Of Numba's memory manager; and of functions that make an array, which then has no owner.
_ALLOCATES = re.compile(r"NRT required|'ol_np_\w+'(?s:.*)Only accept returning of array passed")
_HOST_FUNCTION = re.compile(r"Untyped global name '.*': .*<class 'function'>")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # in Numba's messages, where colorama is installed
_NAME = re.compile(r"[A-Za-z_]\w*")
_ONE_INDEX = re.compile(r"\b(([A-Za-z_]\w*)\[[^\[\],:]+\])(?!\[)")  # `x[i]`, not `x[i, j]`


def compile_error(
    function: types.FunctionType, kinds: Sequence[object], error: BaseException
) -> KernelCompileError | UnsupportedKernelError:
    """A `KernelCompileError` for an error of Numba's compiler, or an `UnsupportedKernelError` if
    the device lacks an operation that the kernel calls. The caller raises it from `error`.

    The message names the line, the parameters whose values the line uses, the types of all
    arguments, and what to write instead of an array in a line that Numba names.

    Args:
        kinds: Numba's types of the arguments.
    """
    lacking = missing(error)
    if lacking is not None:
        line = line_of(function, error)
        where = "" if line is None else f", line {line}"
        return UnsupportedKernelError(f"kernel {function.__name__}{where}: {lacking}")
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    types_by_name = dict(zip(names, map(str, kinds), strict=False))
    signature = ", ".join(f"{name}: {kind}" for name, kind in types_by_name.items())
    summary = f"kernel {function.__name__} cannot be compiled for ({signature})"
    text = _COLOUR.sub("", str(error)) or type(error).__name__
    if not isinstance(error, NumbaError):  # the text of a NumbaError needs no class name
        text = f"{type(error).__name__}: {text}"
    if isinstance(error, KeyError) and isinstance(error.args[0], np.ufunc):
        name = error.args[0].__name__
        text = f"numba.cuda does not have np.{name}"
        # `math.remainder` is another function: it takes the nearest quotient, NumPy the one below.
        instead = "a % b" if error.args[0] is np.mod else f"math.{name}"
        text += f"; write {instead}" if hasattr(math, name) else ""
    if _ALLOCATES.search(text):
        text = (
            "it allocates an array. Create it with cuda.local.array, or pass it; or say that "
            "kernels may: NUMBA_CUDA_ENABLE_NRT=1"
        )
    if _HOST_FUNCTION.search(text):
        text += "\nDecorate it with @cuda.jit(device=True)."
    line = line_of(function, error)
    text = "\n".join([text, *advice_on_arrays(function, f"{text}, line {line}")])
    if line is None:
        return KernelCompileError(f"{summary}: {text}")
    file = function.__code__.co_filename
    source = linecache.getline(file, line).strip()
    where = f"{os.path.basename(file)}, line {line}: {source}"
    used = [f"{n}: {types_by_name[n]}" for n in parameters_of(function, line) if n in types_by_name]
    of = f"\n  which uses {', '.join(used)}" if used else ""
    axes = {n: getattr(kind, "ndim", 0) for n, kind in zip(names, kinds, strict=False)}
    return KernelCompileError(
        f"{summary}\n  {where.rstrip(': ')}{of}\n{_about_rows(source, axes)}{text}"
    )


def _about_rows(source: str, axes: dict[str, int]) -> str:
    """What to write instead of the first `x[i]` of a line whose `x` has several axes, if any.
    Numba's own text is of the functions that it looks for then.
    """
    for taken, name in _ONE_INDEX.findall(source):
        if axes.get(name, 0) > 1:
            part = "row" if axes[name] == 2 else "part"
            return (
                f"{taken} is a {part} of {name}, which has {axes[name]} axes.\nIndex all axes, or "
                f"pass {name}.reshape(-1), for elements.\n"
            )
    return ""


# --- the line ---


def line_of(function: types.FunctionType, error: BaseException) -> int | None:
    """The line of the function that Numba was compiling; None if it cannot be determined."""
    code = function.__code__
    known = {line for _, _, line in code.co_lines() if line}
    places = [*_places_in_text(str(error)), *_place_of_error(error), *_places_in_frames(error)]
    for file, line in places:
        if line in known and os.path.basename(file) == os.path.basename(code.co_filename):
            return line
    return _line_of_name(code, str(error))


def _places_in_text(text: str) -> Iterator[tuple[str, int]]:
    """Places (file, line) named in a message of Numba's."""
    for a, line, b, number in _PLACE.findall(text):
        yield a or b, int(line or number)


def _place_of_error(error: BaseException) -> Iterator[tuple[str, int]]:
    loc = getattr(error, "loc", None)
    if loc is not None:
        yield str(loc.filename), int(loc.line or 0)


def _places_in_frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """Places of the statements that Numba's compiler was processing, the innermost first."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        for name in ("inst", "constraint", "self"):
            loc: Any = None
            with contextlib.suppress(KeyError):  # of a structure, which asks for its field
                loc = getattr(frame.f_locals.get(name), "loc", None)
            if isinstance(getattr(loc, "line", None), int):
                yield str(loc.filename), loc.line


def _line_of_name(code: types.CodeType, text: str) -> int | None:
    """The line that uses the last name of the code in `text`. Numba gives no line for names
    that do not exist.
    """
    mentioned = [n for n in _NAME.findall(text) if n in code.co_names]
    names = set(mentioned[-1:])  # "module 'math' has no attribute 'sinn'"
    for instruction in dis.get_instructions(code):
        if instruction.argval in names and instruction.opname.startswith("LOAD"):
            return instruction.positions.lineno if instruction.positions else None
    return None


# --- the parameters ---


def parameters_of(function: types.FunctionType, line: int) -> list[str]:
    """The parameters that a line of the function uses, directly or through variables."""
    try:
        names = read(function)
    except LauncherError:  # Numba cannot read all code
        return []
    used = [v for s in names.statements if s.loc.line == line for v in s.list_vars()]
    parameters = names.computed_from(used)
    return [n for n in function.__code__.co_varnames if n in parameters]
