"""Kernels that Numba refuses: which line it is, and which parameters that line depends on."""

from __future__ import annotations

import dis
import linecache
import math
import os
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numba.core import compiler, ir
from numba.core.errors import NumbaError

from numbasync.errors import KernelCompileError

_PLACE = re.compile(r'(?:File "([^"]+)", line (\d+))|(?: at (\S+) \((\d+)\))')
_HOST_FUNCTION = re.compile(r"Untyped global name '.*': .*<class 'function'>")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # Numba's, where colorama is installed
_NAME = re.compile(r"[A-Za-z_]\w*")


def compile_error(
    function: types.FunctionType, kinds: Sequence[object], error: BaseException
) -> KernelCompileError:
    """A `KernelCompileError` of what Numba's compiler raised. Raise it from that.

    Its message names the line, the parameters whose values it uses, and the types of all.

    Args:
        kinds: Numba's types of the arguments.
    """
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    typed = dict(zip(names, map(str, kinds), strict=False))
    given = ", ".join(f"{name}: {kind}" for name, kind in typed.items())
    head = f"kernel {function.__name__} cannot be compiled for ({given})"
    text = _COLOUR.sub("", str(error)) or type(error).__name__
    if not isinstance(error, NumbaError):  # of whose classes the text says enough
        text = f"{type(error).__name__}: {text}"
    if isinstance(error, KeyError) and isinstance(error.args[0], np.ufunc):
        name = error.args[0].__name__
        text = f"numba.cuda does not have np.{name}"
        text += f"; write math.{name}" if hasattr(math, name) else ""
    if _HOST_FUNCTION.search(text):
        text += "\nDecorate it with @cuda.jit(device=True)."
    line = line_of(function, error)
    if line is None:
        return KernelCompileError(f"{head}: {text}")
    file = function.__code__.co_filename
    where = f"{os.path.basename(file)}, line {line}: {linecache.getline(file, line).strip()}"
    used = [f"{n}: {typed[n]}" for n in parameters_of(function, line) if n in typed]
    of = f"\n  which uses {', '.join(used)}" if used else ""
    return KernelCompileError(f"{head}\n  {where.rstrip(': ')}{of}\n{text}")


# --- the line ---


def line_of(function: types.FunctionType, error: BaseException) -> int | None:
    """The line of a function that Numba was at; None if nothing tells."""
    code = function.__code__
    known = {line for _, _, line in code.co_lines() if line}
    places = [*_named(str(error)), *_attached(error), *_at_work(error)]
    for file, line in places:
        if line in known and os.path.basename(file) == os.path.basename(code.co_filename):
            return line
    return _line_of_name(code, str(error))


def _named(text: str) -> Iterator[tuple[str, int]]:
    """Places that a message of Numba's names."""
    for a, line, b, number in _PLACE.findall(text):
        yield a or b, int(line or number)


def _attached(error: BaseException) -> Iterator[tuple[str, int]]:
    at = getattr(error, "loc", None)
    if at is not None:
        yield str(at.filename), int(at.line or 0)


def _at_work(error: BaseException) -> Iterator[tuple[str, int]]:
    """Places of the statements that Numba's compiler was at, the innermost first."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        for name in ("inst", "constraint", "self"):
            at: Any = getattr(frame.f_locals.get(name), "loc", None)
            if isinstance(getattr(at, "line", None), int):
                yield str(at.filename), at.line


def _line_of_name(code: types.CodeType, text: str) -> int | None:
    """Where a function uses a name that a message of one line holds: of names that do not exist,
    Numba gives no line.
    """
    named = [n for n in _NAME.findall(text) if n in code.co_names]
    names = set(named[-1:])  # "module 'math' has no attribute 'sinn'"
    for instruction in dis.get_instructions(code):
        if instruction.argval in names and instruction.opname.startswith("LOAD"):
            return instruction.positions.lineno if instruction.positions else None
    return None


# --- the parameters ---


def parameters_of(function: types.FunctionType, line: int) -> list[str]:
    """The parameters of a function that a line of it uses, also by way of variables."""
    try:
        blocks: Any = compiler.run_frontend(function).blocks
    except Exception:  # Numba has many, and it does not read all code
        return []
    statements = [s for block in blocks.values() for s in block.body]
    made: dict[str, list[Any]] = {}
    for s in statements:
        if isinstance(s, ir.Assign):
            made.setdefault(s.target.name, []).append(s.value)
    left = [v.name for s in statements if s.loc.line == line for v in s.list_vars()]
    seen, found = set(left), set()
    while left:
        for value in made.get(left.pop(), []):
            if isinstance(value, ir.Arg):
                found.add(value.name)
            used = [value] if isinstance(value, ir.Var) else getattr(value, "list_vars", list)()
            new = {v.name for v in used} - seen
            seen |= new
            left += new
    return [n for n in function.__code__.co_varnames if n in found]
