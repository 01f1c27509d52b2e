"""Numba's CPU compiler without the passes that generated code does not need.

Generated code has no reference counts, `with` statements or generators, and rarely a function
within a function. Numba's passes look for all of them, and its lowering empties every variable
where its life ends: most of a long kernel's compilation is about that.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from numba.core import (
    cgutils,
    codegen,
    ir_utils,
    lowering,
    postproc,
    ssa,
    typed_passes,
    untyped_passes,
)
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass

from numbasync.backend.cpu.library.entry_points import types

_UNNEEDED = (untyped_passes.WithLifting, typed_passes.IRLegalization, typed_passes.NopythonRewrites)


class _Lower(lowering.Lower):  # type: ignore[misc, unused-ignore]
    """Lowers variables as plain stores and loads: none holds a reference to be released, and none
    is described to a debugger, for which Numba has LLVM parse a module to know its size.
    """

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)

    def storevar(self, value: Any, name: str, argidx: Any = None) -> None:
        self._alloca_var(name, self.typeof(name))
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))


class _Library(codegen.JITCodeLibrary):  # type: ignore[misc, unused-ignore]
    """Code that is optimised once, as a whole, without a pass over each function before."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):  # type: ignore[misc, unused-ignore]
    _name = "numbasync_lowering"

    @property
    def lowering_class(self) -> Any:
        return _Lower

    def run_pass(self, state: Any) -> bool:
        if state.library is None:
            state.library = _Library(state.targetctx.codegen(), state.func_id.func_qualname)
            state.library.enable_object_caching()
        done: bool = super().run_pass(state)
        return done


class Typing:
    """Numba's typing of functions, which resolves a call of the same types once, not at every place
    of the code.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._known: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
        # Other functions may depend on the compilation in which they are resolved.
        if type(function) is not types.Function or kws:
            return self._context.resolve_function_type(function, args, kws)
        key = function, tuple(args)
        if key not in self._known:
            self._known[key] = self._context.resolve_function_type(function, args, kws)
        return self._known[key]


def inferred(context: Any, target: Any, code: Any, arguments: Any) -> tuple[Any, dict[str, Any]]:
    """A function's code with a name for each value, and Numba's type of every value."""
    code = _with_single_assignments(code)
    code._definitions = ir_utils.build_definitions(code.blocks)
    kinds, *_ = typed_passes.type_inference_stage(Typing(context), target, code, arguments, None)
    return code, dict(kinds)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Inference(typed_passes.NopythonTypeInference):  # type: ignore[misc, unused-ignore]
    _name = "numbasync_type_inference"

    def run_pass(self, state: Any) -> bool:
        context, state.typingctx = state.typingctx, Typing(state.typingctx)
        try:
            done: bool = super().run_pass(state)
        finally:
            state.typingctx = context
        return done


def _with_single_assignments(code: Any) -> Any:
    """What Numba's `reconstruct_ssa` does. For a variable it goes through all blocks; this, through
    those that name the variable or may join values of it.
    """
    blocks = code.blocks
    graph = compute_cfg_from_blocks(blocks)
    frontiers = ssa._iterated_domfronts(graph)
    listed = ssa._CacheListVars()
    users: dict[str, set[Any]] = {}
    for label, block in blocks.items():
        for name in {v.name for statement in block.body for v in statement.list_vars()}:
            users.setdefault(name, set()).add(label)
    for name in ssa._find_defs_violators(blocks, graph):
        some = {label: b for label, b in blocks.items() if label in users.get(name, ())}
        some, definitions = ssa._fresh_vars(some, name)
        blocks.update(some)
        joins = ssa._compute_phi_locations(frontiers, definitions)
        some = {label: b for label, b in blocks.items() if label in some or label in joins}
        blocks.update(ssa._fix_ssa_vars(some, name, definitions, graph, frontiers, listed))
    return code


@register_pass(mutates_CFG=True, analysis_only=False)
class _SingleAssignments(untyped_passes.ReconstructSSA):  # type: ignore[misc, unused-ignore]
    _name = "numbasync_single_assignments"

    def run_pass(self, state: Any) -> bool:
        state.func_ir = _with_single_assignments(state.func_ir)
        self._patch_locals(state)
        state.func_ir._definitions = ir_utils.build_definitions(state.func_ir.blocks)
        postproc.PostProcessor(state.func_ir).run(emit_dels=False)
        return True


_OWN = {
    typed_passes.NativeLowering: _Lowering,
    typed_passes.NopythonTypeInference: _Inference,
    untyped_passes.ReconstructSSA: _SingleAssignments,
}


class Pipeline(CompilerBase):  # type: ignore[misc, unused-ignore]
    """The `pipeline_class` of `njit` for generated code."""

    def define_pipelines(self) -> list[Any]:
        passes: Any = DefaultPassBuilder.define_nopython_pipeline(self.state)
        code = self.state.func_id.code
        dropped = list(_UNNEEDED)
        if not any(isinstance(c, CodeType) for c in code.co_consts):
            dropped.append(untyped_passes.InlineClosureLikes)
        kept = [(p, why) for p, why in passes.passes if p not in dropped]
        passes.passes = [(_OWN.get(p, p), why) for p, why in kept]
        passes.finalize()
        return [passes]
