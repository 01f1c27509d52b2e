"""Parts of numba-cuda's compiler that take long for what they give, while a kernel is compiled for
the processor. Each gives what Numba's gives: the code of kernels is the same, bit by bit.

They are lent to Numba for the time of one compilation, by whoever holds its lock, as `functions`
lends what dispatchers do: nobody else compiles by them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

from numba.cuda import lowering, target
from numba.cuda.core import analysis as _analysis
from numba.cuda.core import base as _base
from numba.cuda.core import errors as _errors
from numba.cuda.core import ir as _numba_ir
from numba.cuda.core import postproc as _postproc
from numba.cuda.core import ssa as _ssa
from numba.cuda.core import transforms, untyped_passes

from numbasync.facts import assigned_once

base: Any = _base
ir: Any = _numba_ir
analysis: Any = _analysis
postproc: Any = _postproc
ssa: Any = _ssa
_Typing: Any = target.CUDATypingContext

_describe = postproc.PostProcessor.run
_uses_and_definitions = analysis.compute_use_defs
_takes_location = getattr(base, "_has_loc", None)
_type_of_value = _Typing.resolve_value_type


@contextlib.contextmanager
def quick_passes() -> Iterator[None]:
    """Let Numba use what is quick. The caller holds the compiler's lock."""
    # What a later version has no more takes as long as it takes there.
    lent = [quick for quick in _QUICK if hasattr(quick[0], quick[1])]
    held = [(owner, name, getattr(owner, name)) for owner, name, _ in lent]
    for owner, name, value in lent:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in held:
            setattr(owner, name, value)


# --- what a function's variables are ---


def describe(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """`PostProcessor.run`, which computes the lives of all variables, and with which of them each
    block begins, ten times a function. Only generators ask for the latter, and few passes for the
    former: `VariableLifetime` computes it then.
    """
    code = self.func_ir
    if code.is_generator:
        _describe(self, emit_dels, extend_lifetimes)
        return
    code.blocks = transforms.canonicalize_cfg(code.blocks)
    code.variable_lifetime = postproc.VariableLifetime(code.blocks)
    code.generator_info = None
    if emit_dels:
        self._insert_var_dels(extend_lifetimes=extend_lifetimes)


def variables_of(self: Any, value: Any) -> list[Any]:
    """`Inst._rec_list_vars`, which makes a list of each part of a statement."""
    found: list[Any] = []
    _collect((value,), found)
    return found


_OTHER, _VARIABLE, _INSTRUCTION, _SEQUENCE, _MAPPING = range(5)
_kinds: dict[type, int] = {}


def _collect(values: Iterable[Any], found: list[Any]) -> None:
    for value in values:
        cls = type(value)
        kind = _kinds[cls] if cls in _kinds else _kinds.setdefault(cls, _kind_of(cls))
        if kind == _OTHER:
            continue
        if kind == _VARIABLE:
            found.append(value)
        elif kind == _INSTRUCTION:
            found.extend(value.list_vars())
        elif kind == _SEQUENCE:
            _collect(value, found)
        else:
            _collect(value.values(), found)


def _kind_of(cls: type) -> int:
    for kind, classes in (
        (_VARIABLE, ir.var_types),
        (_INSTRUCTION, ir.inst_types),
        (_SEQUENCE, (list, tuple)),
        (_MAPPING, (dict,)),
    ):
        if issubclass(cls, classes):
            return kind
    return _OTHER


def uses_and_definitions(blocks: dict[int, Any]) -> Any:
    """`compute_use_defs`, which asks each statement for its variables twice."""
    if analysis.ir_extension_usedefs:
        return _uses_and_definitions(blocks)
    uses_of: dict[int, set[str]] = {}
    definitions_of: dict[int, set[str]] = {}
    for label, block in blocks.items():
        uses = uses_of[label] = set()
        definitions = definitions_of[label] = set()
        for statement in block.body:
            if isinstance(statement, ir.assign_types):
                found: list[Any] = []
                _collect((statement.value,), found)
                names = [v.name for v in found]
                target_name = statement.target.name
                if target_name not in names:
                    definitions.add(target_name)
                names.append(target_name)
            else:
                names = [v.name for v in statement.list_vars()]
            uses.update([name for name in names if name not in definitions])
    return analysis._use_defs_result(usemap=uses_of, defmap=definitions_of)


def define_in_scopes(blocks: dict[int, Any]) -> None:
    """`fixup_var_define_in_scope`, which looks at each variable once a block, although the blocks
    of a function have the same scope.
    """
    used: dict[str, Any] = {}
    for block in blocks.values():
        for statement in block.body:
            for variable in statement.list_vars():
                used.setdefault(variable.name, variable)
    for scope in {id(block.scope): block.scope for block in blocks.values()}.values():
        for name, variable in used.items():
            if name not in scope.localvars:
                scope.localvars.define(name, variable)


def assign_once(blocks: dict[int, Any]) -> dict[int, Any]:
    """`_run_ssa`; `facts.assigned_once` says how."""
    return assigned_once.assign_once(blocks, ssa)


# --- types of values ---


def type_of_value(self: Any, value: Any) -> Any:
    """`resolve_value_type`, which first finds for each operator that it is no number, and writes
    the text of an error that nobody reads.
    """
    if type(value) is BuiltinFunctionType:
        known = self._lookup_global(value)
        if known is not None:
            return known
    return _type_of_value(self, value)


# --- how functions that emit code are called ---


def takes_location(function: Any) -> bool:
    """`_has_loc`, which makes a signature of each function that it asks about."""
    if type(function) is not FunctionType or vars(function).keys() & {
        "__wrapped__",
        "__signature__",
    }:
        return bool(_takes_location and _takes_location(function))
    code = function.__code__
    return "loc" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


_QUICK: list[tuple[Any, str, Any]] = [
    (postproc.PostProcessor, "run", describe),
    (ir.Inst, "_rec_list_vars", variables_of),
    (analysis, "compute_use_defs", uses_and_definitions),
    (lowering, "compute_use_defs", uses_and_definitions),
    (untyped_passes, "fixup_var_define_in_scope", define_in_scopes),
    (ssa, "_run_ssa", assign_once),
    (_Typing, "resolve_value_type", type_of_value),
    (base, "_has_loc", takes_location),
    # For each colour of an error's text Numba turns the program's output into one that knows
    # colours, and back. A call that fits only the tenth of an operator's overloads writes nine such
    # texts. It is there only where colorama is installed.
    *(
        (module, "ColorShell", contextlib.nullcontext)
        for module in (_errors,)
        if hasattr(module, "ColorShell")
    ),
]
