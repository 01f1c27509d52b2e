"""Generates a kernel's code, a loop over blocks, and compiles it with Numba."""

from __future__ import annotations

import ast
import copy
from collections.abc import Hashable
from typing import Any

import numpy as np
from numba import njit
from numba.core import compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target

from numbasync.backend.bfloat16_type import from_dtype
from numbasync.backend.cpu.compiler import checked_elements
from numbasync.backend.cpu.compiler.barrier_regions import BarrierRegions
from numbasync.backend.cpu.compiler.bounds_hoisting import BoundsHoisting
from numbasync.backend.cpu.compiler.control_flow import (
    alone,
    counted,
    plain,
    threads,
    with_own_parameters,
    with_seams,
)
from numbasync.backend.cpu.compiler.kept_types import KeptTypes, kept_types
from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.compiler.pipeline import Pipeline, inferred
from numbasync.backend.cpu.compiler.program import ALL, HIDDEN, Program
from numbasync.backend.cpu.compiler.uniformity import Uniform
from numbasync.backend.cpu.library import arithmetic, barriers_and_warps, libdevice
from numbasync.backend.cpu.library.disk_cache import Entry
from numbasync.backend.cpu.library.entry_points import UNWRAPPED, types
from numbasync.backend.cpu.library.small_floats import known
from numbasync.backend.protocols import ArrayKey

INNER = {**UNWRAPPED, "pipeline_class": Pipeline}

_KNOWN = types.UniTuple(types.int64, len(HIDDEN))  # the first argument of device functions
_SIZES = "_wx, _wy, _wz, _gx, _gy, _gz, _m, _d"
_BOX = "_last_x = _wx - 1; _last_y = _wy - 1; _last_z = _wz - 1"
# No literals, which would be types of their own to the functions that take them.
_ROW = "_last_x = _wx - 1; _ty = _tz = _natural(0); _wy = _wz = _natural(1)"
_WHERE = """
    _bx = _b % _gx
    _by = _b // _gx % _gy
    _bz = _b // _gx // _gy
"""


def type_of(key: Hashable) -> Any:
    """Numba's type of an argument, by its part of a variant's key."""
    if isinstance(key, ArrayKey):
        return types.Array(known(from_dtype(np.dtype(key.dtype))), key.ndim, key.order)
    if isinstance(key, types.Array):  # which is declared
        declared: Any = key
        return declared.copy(dtype=known(declared.dtype))
    if isinstance(key, tuple):
        return types.BaseTuple.from_types([type_of(k) for k in key])
    return known(key)


def compile_program(
    original: Program, argument_types: tuple[Any, ...], options: dict[str, Any], row: bool = False
) -> Entry:
    """The compiled code of a program, which stays unchanged.

    Args:
        row: generate code for blocks of one row alone.
    """
    program = original.copy(row)
    try:
        source, names = _generated(program, argument_types, options)
        signature = types.void(*[types.int64] * 10, *argument_types)
        dispatcher = njit(signature, **options, no_cfunc_wrapper=True, pipeline_class=Pipeline)(
            _defined(source, names, "_blocks")
        )
    except NumbaError as error:  # whose text is to name the arguments that the user wrote
        _add_line(error, program)
        error.patch_message(str(error).replace(f"{_KNOWN}, ", "").replace(f"{_KNOWN})", ")"))
        raise
    (result,) = dispatcher.overloads.values()
    return Entry(result, source, program.fixed_bytes)


def _generated(
    program: Program, argument_types: tuple[Any, ...], options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The source of the loop over blocks, and what its names stand for."""
    if len(argument_types) != len(program.parameters):
        raise UntranslatableError("arguments that do not fit the parameters")
    names = program.names
    names.update(barriers_and_warps.NAMES)
    names["__name__"] = __name__  # the disk cache asks generated functions for it
    names.setdefault("_fixed", 0)  # of its type, until it is known
    _define_functions(program, names, options)
    parameters = "".join(f", {p}" for p in program.parameters)
    by_itself = None if program.has_barriers else alone(program, program.body)
    if by_itself is not None:
        _fix(program, names, options)
        if not program.checked:
            by_itself = _with_hoisted_checks(program, argument_types, by_itself)
        statements = by_itself
        body = _indented(_text(by_itself, 0), 2)
    elif not program.has_barriers:
        thread = f"def _thread({ALL}{parameters}):\n    {program.prologue}\n"
        _fix(program, names, options)
        own = copy.deepcopy(program.body)
        if not program.checked:
            own = checked_elements.shortened(own)
            own = [*checked_elements.where(own), *own]
        program.generated["_thread"] = thread + _text(own), own
        names["_thread"] = njit(**{**options, **INNER, "forceinline": True})(
            _defined(thread + _text(own), names, "_thread")
        )
        call = ast.parse(f"_thread({ALL}{parameters})").body
        statements = threads(call, program)
        body = _indented(_text(statements, 0), 2)
    else:
        program.body = with_own_parameters(program, program.body)
        uniform = Uniform(program)
        if counted(program, uniform):
            uniform = Uniform(program)
        kept = _types(program, argument_types, names, uniform)
        written = BarrierRegions(program, uniform, kept).write()
        _fix(program, names, options)
        statements = written
        body = _indented(_text(written, 0), 2)
    if program.cooperative:
        body = "        _base = _m\n        _block_bytes = (_fixed + _d + 63) // 64 * 64\n" + body
    where = _indented(_WHERE.strip("\n"))
    turn, begin = ("_turn_of_block(_m, _k)", "_begin(_m, _b)") if program.checked else ("_k", "")
    source = (
        f"def _blocks(_lo, _hi, {_SIZES}{parameters}):\n"
        f"    {_ROW if program.row else _BOX}\n"
        f"    for _k in range(_lo, _hi):\n        _b = {turn}\n{where}\n        {begin}\n{body}\n"
    )
    program.generated["_blocks"] = source, statements
    return source, names


def _define_functions(program: Program, names: dict[str, Any], options: dict[str, Any]) -> None:
    """Define the program's device functions."""
    for source in program.functions:
        name = source.split("(", 1)[0].removeprefix("def ").strip()
        names[name] = None
    for source in program.functions:
        name = source.split("(", 1)[0].removeprefix("def ").strip()
        function = _defined(source, names, name)
        signatures = [_with_hidden(s) for s in program.declared.get(name, ())]
        names[name] = njit(signatures or None, **options, **INNER)(function)


def _fix(program: Program, names: dict[str, Any], options: dict[str, Any]) -> None:
    """Set the offset of dynamic shared memory, once no more memory is taken before it. Device
    functions that use it may have been compiled for their types, with another offset.
    """
    names["_fixed"] = program.fixed_bytes
    if any("_fixed" in source for source in program.functions):
        _define_functions(program, names, options)


def _with_hidden(signature: tuple[tuple[Any, ...], Any]) -> Any:
    """A declared signature of a device function, with the hidden first argument."""
    argument_types, result = signature
    arguments = (_KNOWN, *map(type_of, argument_types))
    return arguments if result is None else type_of(result)(*arguments)


def _with_hoisted_checks(
    program: Program, argument_types: tuple[Any, ...], careful: list[ast.stmt]
) -> list[ast.stmt]:
    """Two loops over the threads, if a block can tell that no index of it is out of range."""
    hoisting = BoundsHoisting(program, argument_types)
    if hoisting.condition is None:
        return careful
    quick = alone(program, hoisting.body)
    return careful if quick is None else [ast.If(hoisting.condition, quick, careful)]


def _types(
    program: Program, argument_types: tuple[Any, ...], names: dict[str, Any], uniform: Uniform
) -> KeptTypes:
    """Numba's types of the variables."""
    parameters = "".join(f", {p}" for p in program.parameters)
    body = plain(with_seams(program.body, uniform))
    if not program.checked:
        body = checked_elements.shortened(body)
    source = f"def _plain({ALL}{parameters}):\n" + _text(body)
    program.generated["_plain"] = source, body
    function = _defined(source, names, "_plain")
    context: Any = cpu_target.typing_context
    target: Any = cpu_target.target_context
    arguments = (*[types.int64] * len(HIDDEN), *argument_types)
    with global_compiler_lock:
        context.refresh()
        target.refresh()
        code = compiler.run_frontend(function)
        seen = inferred(context, target, code, arguments)
    kept = kept_types(*seen, context, _are_widths_seen(program))
    if kept.has_clashes():
        generated = ast.parse(source).body[0].body  # type: ignore[attr-defined]
        kept.origins = {
            there.lineno: here
            for here, there in zip(_statements(body), _statements(generated), strict=True)
        }
    return kept


def _are_widths_seen(program: Program) -> bool:
    """Whether the program calls functions of bits, or some that it brings itself."""
    bits = arithmetic.popc, arithmetic.clz, arithmetic.ffs, arithmetic.brev
    return program.has_inlined or any(
        any(value is each for each in bits)
        or getattr(value, "__module__", "") == libdevice.__name__
        for value in program.names.values()
        if callable(value)
    )


def _add_line(error: Any, program: Program) -> None:
    """Give an error of Numba's the user's line that it is about, if that is known."""
    loc: Any = getattr(error, "loc", None)
    name = str(getattr(loc, "filename", "")).removeprefix("<numbasync ").removesuffix(">")
    source, statements = program.generated.get(name, ("", []))
    text = "".join(source.splitlines()[loc.line - 1 : loc.line]).strip() if source else ""
    for statement in _statements(statements):
        if text and ast.unparse(statement).splitlines()[0] == text:
            error.line, error.file = (
                getattr(statement, "lineno", 0), getattr(statement, "file", "")
            )  # fmt: skip


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    return [n for n in ast.walk(ast.Module(body, [])) if isinstance(n, ast.stmt)]


def _defined(source: str, names: dict[str, Any], name: str) -> Any:
    space = names if name in names else dict(names)
    held = names.get(name)
    # Generated from a syntax tree whose names have all been replaced.
    exec(compile(source, f"<numbasync {name}>", "exec"), names)  # noqa: S102
    function = names[name]
    if held is None and space is not names:
        names.pop(name)
    return function


def _text(statements: list[ast.stmt], levels: int = 1) -> str:
    tree = ast.fix_missing_locations(ast.Module(statements, []))
    return _indented(ast.unparse(tree), levels)


def _indented(text: str, levels: int = 1) -> str:
    pad = "    " * levels
    return "\n".join(pad + line if line else line for line in text.splitlines())
