"""Numba's context of the target: that of `numba.cuda`, with the processor's data layout, one module
for all functions of a kernel, and our own code where a GPU's would not do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
from llvmlite import binding
from numba.cuda import cgutils, config, target
from numba.cuda.core import callconv, codegen, imputils
from numba.cuda.core import errors as _errors
from numba.cuda.core.base import (  # pyright: ignore[reportMissingImports]
    OverloadSelector,
    _wrap_impl,
)
from numba.cuda.descriptor import cuda_target
from numba.cuda.np import ufunc_db
from numba.cuda.typing import templates

from numbasync.backend.cpu.target.module import I8, I16, types
from numbasync.backend.cpu.target.session import Session

errors: Any = _errors  # pyright knows the numba.cuda that is a part of Numba
# What the target does otherwise than `numba.cuda`: by Numba's keys, or by the functions of a
# program's source.
OWN: Any = imputils.Registry("numbasync")
Emit: TypeAlias = Callable[..., Any]
# Casts that the target has: whether one is of two types, and what is emitted for it.
CASTS: list[tuple[Callable[[Any, Any], bool], Emit]] = []
_SHARED = (
    "_registries", "_defns", "_getattrs", "_setattrs", "_casts", "_get_constants", "_generators",
    "special_ops", "data_model_manager",
)  # fmt: skip


def emits(key: Any, *argument_types: Any) -> Callable[[Emit], Emit]:
    """Say that a function emits what the target has for a key and types of arguments."""
    return OWN.lower(key, *argument_types)  # type: ignore[no-any-return]


def call_own(context: Any, builder: Any, key: Any, signature: Any, args: Any) -> Any:
    """The result of a function that `numba.cuda` has for a key."""
    typing = context.typing_context
    function = typing.resolve_value_type(key)
    own = function.get_call_type(typing, signature.args, {})
    return context.get_function(function, own)(builder, args)


@cache
def target_data() -> Any:
    """LLVM's layout of data for this processor."""
    binding.initialize_native_target()  # Numba does not, where NUMBA_DISABLE_JIT is set
    machine = binding.Target.from_default_triple().create_target_machine()
    return machine.target_data


class Library(codegen.CodeLibrary):  # type: ignore[misc, unused-ignore]
    """A function of the session's module: nothing to be linked or finished."""

    use_cooperative = False

    def __init__(self, of: Any, name: str, **options: Any) -> None:
        super().__init__(of, name)
        self.referenced_objects: dict[int, Any] = {}

    def create_ir_module(self, name: str) -> Any:
        return self._codegen.session.module

    def add_ir_module(self, ir_module: Any) -> None: ...
    def add_linking_library(self, library: Any) -> None: ...
    def add_linking_file(self, path: Any) -> None: ...
    def finalize(self) -> None: ...
    def get_function(self, name: str) -> Any:
        return self._codegen.session.module.globals[name]

    def get_llvm_str(self) -> str:
        return str(self._codegen.session.module)

    def get_asm_str(self) -> str:
        raise NotImplementedError("assembly of code that is not compiled yet")


class _Codegen(codegen.Codegen):  # type: ignore[misc, unused-ignore]
    _library_class = Library

    def __init__(self, session: Session) -> None:
        self.session = session
        self._target_data = target_data()

    def _create_empty_module(self, name: str) -> Any:
        return self.session.module

    def _add_module(self, module: Any) -> None: ...


class CallConv(callconv.CUDACallConv):  # type: ignore[misc, unused-ignore]
    """Numba's for GPUs. What is raised is noted, with the thread and the line."""

    def return_user_exc(
        self,
        builder: Any,
        exc: Any,
        exc_args: Any = None,
        loc: Any = None,
        func_name: str | None = None,
    ) -> None:
        lower = getattr(builder, "lower", None)
        location = loc if loc is not None else getattr(lower, "loc", None)
        name = func_name or (lower.func_ir.func_id.func_name if lower else "")
        self.context.session.raise_(builder, exc, exc_args, location, name)


class TargetContext(target.CUDATargetContext):  # type: ignore[misc, unused-ignore]
    """The context of one session; what is registered is that of `numba.cuda`, and `OWN`."""

    @property
    def enable_nrt(self) -> bool:
        """Whether the kernel may allocate arrays: mostly by Numba's setting for GPUs."""
        return self.session.options.may_allocate or bool(getattr(config, "CUDA_ENABLE_NRT", False))

    def __init__(self, session: Session, compile_subroutine: Callable[..., Any]) -> None:
        """
        Args:
            compile_subroutine: compiles a function of Numba's own lowering, as
                `functions.compile_subroutine`.
        """
        self.session = session
        self._compile = compile_subroutine
        super().__init__(cuda_target.typing_context)
        gpu = cuda_target.target_context
        for name in _SHARED:
            setattr(self, name, getattr(gpu, name))

    def init(self) -> None:
        self._internal_codegen = _Codegen(self.session)
        self._target_data = target_data()

    @property
    def target_data(self) -> Any:
        return self._target_data

    def refresh(self) -> None:
        """See what was registered since, if something was."""
        count = sum(_size(r) for r in (*self._registries, templates.builtin_registry))
        if count != self.session.registered:
            super().refresh()
            self.session.registered = sum(
                _size(r) for r in (*self._registries, templates.builtin_registry)
            )

    def get_abi_sizeof(self, ty: Any) -> int:
        """Numba's, which has LLVM parse a module for each question."""
        if ty not in self.session.sizes:
            self.session.sizes[ty] = super().get_abi_sizeof(ty)
        return int(self.session.sizes[ty])

    @cached_property
    def conventions(self) -> CallConv:
        return CallConv(self)

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        signature = sig.as_function()
        emit = _found(getattr(fn, "typing_key", None), signature)
        if emit is None:
            key = fn.get_impl_key(signature) if isinstance(fn, types.Callable) else fn
            is_user = isinstance(key, int)
            emit = self.session.functions.get(key) if is_user else _found(key, signature)
        if emit is None:
            return super().get_function(fn, sig, _firstcall)
        return _wrap_impl(emit, self, signature)

    def get_ufunc_info(self, ufunc_key: Any) -> Any:
        """How a ufunc is computed for each of its types: of kernels for numba-cuda-mlir, which has
        them all, also those that `numba.cuda` types and does not compute.
        """
        try:
            return super().get_ufunc_info(ufunc_key)
        except KeyError:
            if not self.session.options.may_allocate:
                raise
            return ufunc_db.get_ufunc_info(ufunc_key)

    def numbas_function(self, fn: Any, sig: Any) -> Any:
        """What `numba.cuda` emits."""
        return super().get_function(fn, sig)

    def call_unresolved(self, builder: Any, name: str, sig: Any, args: Any) -> Any:
        """A call of a function that is being compiled: it will be in the same module."""
        convention = self.fndesc.call_conv
        kind = convention.get_function_type(sig.return_type, sig.args)
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        status, result = convention.call_function(
            builder, function, sig.return_type, sig.args, args
        )
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return imputils.fix_returning_optional(self, builder, sig, status, result)

    def get_constant_generic(self, builder: Any, ty: Any, val: Any) -> Any:
        if ty == types.float16:  # of which Numba takes the number for the bits
            return I16(int(np.float16(val).view(np.uint16)))
        return super().get_constant_generic(builder, ty, val)

    def cast(self, builder: Any, val: Any, fromty: Any, toty: Any) -> Any:
        for is_own, emit in CASTS if fromty != toty else ():
            if is_own(fromty, toty):
                return emit(builder, val, fromty, toty)
        return super().cast(builder, val, fromty, toty)

    def insert_const_string(self, mod: Any, string: str) -> Any:
        text = cgutils.make_bytearray(string.encode("utf-8") + b"\x00")
        name = f".string.{string}"
        known = mod.globals.get(name)
        if known is None:
            known = cgutils.add_global_variable(mod, text.type, name)
            known.linkage = "internal"
            known.global_constant = True
            known.initializer = text
        return known.bitcast(I8.as_pointer())

    def insert_string_const_addrspace(self, builder: Any, string: str) -> Any:
        return self.insert_const_string(builder.module, string)

    def _compile_subroutine_no_cache(
        self, builder: Any, impl: Any, sig: Any, locals: Any = None, flags: Any = None
    ) -> Any:
        return self._compile(self, impl, sig, locals or {}, flags)


def _size(registry: Any) -> int:
    """How many things are registered."""
    return sum(len(value) for value in vars(registry).values() if isinstance(value, list))


_selectors: dict[Any, OverloadSelector] = {}
_without: set[tuple[Any, Any]] = set()  # keys and types of arguments for which `OWN` has nothing
_seen = 0


def _found(key: Any, signature: Any) -> Any:
    """What of `OWN` is emitted for a key and types of arguments; None if nothing is."""
    selector = None if key is None else _own().get(key)
    # Numba's selector keeps what it finds, and writes the text of an error where it finds nothing.
    if selector is None or (key, signature.args) in _without:
        return None
    try:
        return selector.find(signature.args)
    except errors.NumbaNotImplementedError:
        _without.add((key, signature.args))
        return None


def _own() -> dict[Any, OverloadSelector]:
    global _seen
    if _seen < len(OWN.functions):
        _without.clear()
    for emit, key, signature in OWN.functions[_seen:]:
        _selectors.setdefault(key, OverloadSelector()).append(emit, signature)
    _seen = len(OWN.functions)
    return _selectors
