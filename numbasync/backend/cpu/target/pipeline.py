"""numba-cuda's compiler, with our lowering, and without passes that only describe the code."""

from __future__ import annotations

from typing import Any

from numba.cuda import compiler, lowering
from numba.cuda.core import callconv, typed_passes
from numba.cuda.core.compiler_machinery import register_pass

from numbasync.backend.cpu.compiler.pipeline import Typing
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.session import is_numbas
from numbasync.backend.cpu.target.source_text import text_of

_compiler: Any = compiler
_lowering: Any = lowering
_passes: Any = typed_passes
_DROPPED = (_passes.AnnotateTypes, _compiler.CreateLibrary)


class Lower(_lowering.CUDALower):  # type: ignore[misc, unused-ignore]
    """Numba's lowering of a function, by our `Builder`.

    Attributes:
        statement: the one that is lowered.
        expression: the part of it that is.
    """

    statement: Any = None
    expression: Any = None

    @property
    def is_numbas(self) -> bool:
        """Whether the function is one of Numba's own."""
        return is_numbas(self.func_ir.loc.filename)

    def setup_function(self, fndesc: Any) -> None:
        super().setup_function(fndesc)
        self.builder = Builder(self.entry_block, self)
        self.call_helper = self.call_conv.init_call_helper(self.builder)

    def lower_inst(self, inst: Any) -> None:
        self.statement, self.expression = inst, None
        super().lower_inst(inst)

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        before, self.expression = self.expression, expr
        try:
            return super().lower_expr(resty, expr)
        finally:
            self.expression = before

    def site(self, what: str) -> Any:
        """The number of the place that is being lowered."""
        return self.context.session.site(self.loc, self.func_ir.func_id.func_name, what)

    def array_text(self) -> str:
        """How the source calls the array whose element is taken or set."""
        part = self.expression if self.expression is not None else self.statement
        array = getattr(part, "value" if self.expression is not None else "target", None)
        return text_of(self.func_ir, array)

    def argument_text(self, number: int) -> str:
        """How the source calls an argument of the call that is being lowered."""
        call = self.expression
        arguments = call.args if call is not None and call.op == "call" else ()
        return text_of(self.func_ir, arguments[number] if number < len(arguments) else None)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(_passes.BaseNativeLowering):  # type: ignore[misc, unused-ignore]
    _name = "numbasync_native_lowering"

    @property
    def lowering_class(self) -> Any:
        return Lower


@register_pass(mutates_CFG=True, analysis_only=False)
class _Inference(_passes.NopythonTypeInference):  # type: ignore[misc, unused-ignore]
    _name = "numbasync_cuda_type_inference"

    def run_pass(self, state: Any) -> bool:
        context, state.typingctx = state.typingctx, Typing(state.typingctx)
        try:
            done: bool = super().run_pass(state)
        finally:
            state.typingctx = context
        return done


_OWN = {_compiler.CUDANativeLowering: _Lowering, _passes.NopythonTypeInference: _Inference}


class Compiler(_compiler.CUDACompiler):  # type: ignore[misc, unused-ignore]
    """numba-cuda's compiler of one function."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        target = self.state.targetctx
        target.error_model = callconv.create_error_model(
            self.state.flags.error_model, self.state.call_conv
        )

    def define_pipelines(self) -> list[Any]:
        (passes,) = super().define_pipelines()
        kept = [(p, why) for p, why in passes.passes if p not in _DROPPED]
        passes.passes = [(_OWN.get(p, p), why) for p, why in kept]
        passes.finalize()
        return [passes]
