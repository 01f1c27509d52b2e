"""Numba's compiler, less what generated code does not need.

Generated code has no reference counts, `with` statements or generators, and rarely a function
within a function. Numba's passes look for all of them, and its lowering empties every variable
where its life ends: most of a long kernel's compilation is about that.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from numba.core import codegen, lowering, typed_passes, untyped_passes
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass

_UNNEEDED = (untyped_passes.WithLifting, typed_passes.IRLegalization, typed_passes.NopythonRewrites)


class _Lower(lowering.Lower):  # type: ignore[misc, unused-ignore]
    """Variables are stores and loads: none holds a reference that would have to be let go."""

    def storevar(self, value: Any, name: str, argidx: Any = None) -> None:
        self._alloca_var(name, self.typeof(name))
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))


class _Library(codegen.JITCodeLibrary):  # type: ignore[misc, unused-ignore]
    """Code that is optimised once, as a whole, and not function by function before."""

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


class Pipeline(CompilerBase):  # type: ignore[misc, unused-ignore]
    """What `njit(pipeline_class=...)` is given for generated code."""

    def define_pipelines(self) -> list[Any]:
        passes: Any = DefaultPassBuilder.define_nopython_pipeline(self.state)
        code = self.state.func_id.code
        dropped = list(_UNNEEDED)
        if not any(isinstance(c, CodeType) for c in code.co_consts):
            dropped.append(untyped_passes.InlineClosureLikes)
        kept = [(p, why) for p, why in passes.passes if p not in dropped]
        lowers = [(_Lowering if p is typed_passes.NativeLowering else p, why) for p, why in kept]
        passes.passes = lowers
        passes.finalize()
        return [passes]
