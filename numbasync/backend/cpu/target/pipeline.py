"""numba-cuda's compiler, with our lowering, and without passes that only describe the code."""

from __future__ import annotations

from typing import Any

from numba.cuda import compiler, lowering
from numba.cuda.core import (
    callconv,
    compiler_machinery,
    errors,
    postproc,
    typed_passes,
)
from numba.cuda.core import ir as _numba_ir
from numba.cuda.core.compiler_machinery import register_pass  # pyright: ignore[reportMissingImports]

from numbasync.backend.cpu.target import narrow_indices
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.lines import Lines, NoLines
from numbasync.backend.cpu.target.module import types
from numbasync.backend.cpu.target.session import is_numbas
from numbasync.backend.cpu.target.source_text import text_of

_compiler: Any = compiler
_lowering: Any = lowering
_passes: Any = typed_passes
_machinery: Any = compiler_machinery
_errors: Any = errors
_ir: Any = _numba_ir
# They describe the code.
_DROPPED = (_passes.AnnotateTypes, _compiler.CreateLibrary)
# It says where the life of each variable ends: there is something to be released only where kernels
# allocate arrays.
_OF_REFERENCES = _passes.IRLegalization
# Types of arguments that are no functions, for which more may be compiled.
_PLAIN = (types.Number, types.Boolean, types.Array)
_SIGNATURES: dict[tuple[Any, tuple[Any, ...]], Any] = {}  # that hold for all kernels


def _signature(context: Any, function: Any, arguments: tuple[Any, ...]) -> Any:
    """The signature of a call of one of Numba's functions: resolved once a process, where nothing
    is compiled for it. Numba tries up to a hundred templates.

    A function of which more templates are registered later has another type, and is resolved anew.
    """
    key = function, arguments
    known = _SIGNATURES.get(key)
    if known is None:
        known = context.resolve_function_type(function, arguments, {})
        # What an overload compiles belongs to the module of the kernel that calls it.
        is_plain = known is not None and function.get_impl_key(known) is function.typing_key
        if is_plain and all(isinstance(argument, _PLAIN) for argument in arguments):
            _SIGNATURES[key] = known
    return known


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

    def storevar(self, value: Any, name: str, argidx: Any = None) -> None:
        """A plain store: nothing is described to a debugger, and nothing released where kernels
        allocate nothing.
        """
        if self.context.enable_nrt:
            super().storevar(value, name, argidx)
            return
        self._alloca_var(name, self.typeof(name))
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def lower_block(self, block: Any) -> None:
        self._lines.begin()
        super().lower_block(block)

    def lower_inst(self, inst: Any) -> None:
        self.statement, self.expression = inst, None
        self._lines.reach(inst)
        super().lower_inst(inst)

    def pre_lower(self) -> None:
        super().pre_lower()
        has_lines = self.context.session.options.lines and not self.is_numbas
        self._lines = Lines(self) if has_lines else NoLines()
        is_checked = self.context.session.options.checked and not self.is_numbas
        self._narrowing = narrow_indices.conversions(self.func_ir) if is_checked else set()

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        before, self.expression = self.expression, expr
        if expr in self._narrowing:
            self._check_width(expr)
        try:
            return super().lower_expr(resty, expr)
        finally:
            self.expression = before

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        """Numba's, which resolves each operation of the same types anew."""
        function = self.context.typing_context.resolve_value_type(op)
        if not isinstance(function, types.Function):
            return super().lower_binop(resty, expr, op)
        signature = self.fndesc.calltypes[expr]
        left, right = (self.loadvar(v.name) for v in (expr.lhs, expr.rhs))
        left_type, right_type = (self.typeof(v.name) for v in (expr.lhs, expr.rhs))
        left = self.context.cast(self.builder, left, left_type, signature.args[0])
        right = self.context.cast(self.builder, right, right_type, signature.args[1])
        statics = expr.static_lhs, expr.static_rhs
        known_left, known_right = (_lowering._lit_or_omitted(s) for s in statics)
        result = None
        for arguments, values in (
            ((known_left, known_right), statics),
            ((known_left, right_type), (statics[0], right)),
            ((left_type, known_right), (left, statics[1])),
        ):
            if result is None and not any(v is _ir.UNDEFINED for v in values):
                result = self._static(function, arguments, values)
        if result is None:
            arguments = signature.args
            result = self._operation(function, arguments)(self.builder, (left, right))
        return self.context.cast(self.builder, result, signature.return_type, resty)

    def _static(self, function: Any, arguments: Any, values: Any) -> Any:
        """The result of an operation on values of which some are known; None if there is none."""
        try:
            return self._operation(function, arguments)(self.builder, values)
        except (_errors.TypingError, NotImplementedError):
            return None

    def _operation(self, function: Any, arguments: Any) -> Any:
        """What is emitted for an operation of these types."""
        known = self.context.session.operations
        key = function, tuple(arguments)
        if key not in known:
            try:
                resolved = _signature(self.context.typing_context, function, tuple(arguments))
                known[key] = resolved, self.context.get_function(function, resolved)
            except (_errors.TypingError, NotImplementedError) as error:
                known[key] = error
        if isinstance(known[key], Exception):
            raise known[key]
        return self.context.get_function(function, known[key][0])

    def _check_width(self, call: Any) -> None:
        (argument,) = call.args
        integer = types.unliteral(self.typeof(argument.name))
        if isinstance(integer, types.Integer):
            what = text_of(self.func_ir, call.func)
            narrow_indices.check(self.builder, self.loadvar(argument.name), integer, what)

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
    _name = "cuda_native_lowering"

    @property
    def lowering_class(self) -> Any:
        return Lower


class _Typing:
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
            self._known[key] = _signature(self._context, function, tuple(args))
        return self._known[key]


@register_pass(mutates_CFG=True, analysis_only=False)
class _Inference(_passes.NopythonTypeInference):  # type: ignore[misc, unused-ignore]
    _name = "nopython_type_inference"

    def run_pass(self, state: Any) -> bool:
        context, state.typingctx = state.typingctx, _Typing(state.typingctx)
        try:
            done: bool = super().run_pass(state)
        finally:
            state.typingctx = context
        return done


_OWN = {_compiler.CUDANativeLowering: _Lowering, _passes.NopythonTypeInference: _Inference}


class _PassManager(_machinery.PassManager):  # type: ignore[misc, unused-ignore]
    """Numba's, without timings and checks of its own."""

    def _runPass(self, index: int, pss: Any, internal_state: Any) -> None:
        pss.analysis = self._analysis
        with _errors.new_error_context(f"Pass {pss.name()}"):
            is_changed = pss.run_initialization(internal_state)
            is_changed |= pss.run_pass(internal_state)
            is_changed |= pss.run_finalizer(internal_state)
        if is_changed and _machinery._pass_registry.get(type(pss)).mutates_CFG:
            postproc.PostProcessor(internal_state.func_ir).run()


class Compiler(_compiler.CUDACompiler):  # type: ignore[misc, unused-ignore]
    """numba-cuda's compiler of one function."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        target = self.state.targetctx
        target.error_model = callconv.create_error_model(
            self.state.flags.error_model, self.state.call_conv
        )

    def define_pipelines(self) -> list[Any]:
        (numbas,) = super().define_pipelines()
        passes = _PassManager("cuda")  # the name is in the texts of errors
        for each, why in numbas.passes:
            keeps = each is not _OF_REFERENCES or self.state.targetctx.enable_nrt
            if each not in _DROPPED and keeps:
                passes.add_pass(_OWN.get(each, each), why)
        passes.finalize()
        return [passes]
