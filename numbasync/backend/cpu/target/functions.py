"""Device functions, and functions that Numba's own code is made of, as a kernel calls them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from numba.cuda import compiler
from numba.cuda.core import targetconfig
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.flags import CUDAFlags  # pyright: ignore[reportMissingImports]

from numbasync.backend.cpu.target.context import Library, TargetContext
from numbasync.backend.cpu.target.pipeline import Compiler
from numbasync.backend.declared_signatures import results

_compiler: Any = compiler
_dispatchers: Any = CUDADispatcher
_CAPABILITY = (9, 0)  # some GPU's: with atomic operations of float64


class _Flags(CUDAFlags):  # type: ignore[misc, unused-ignore]
    """Numba's flags, compared by those that are set: it looks up calls by them."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values)))

    def __eq__(self, other: object) -> bool:
        return type(other) is _Flags and self._values == other._values


def flags_of(options: dict[str, Any], debug: bool) -> Any:
    """Numba's flags for what `cuda.jit` was told."""
    flags = _Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "python" if debug or options.get("debug") else "numpy"
    flags.inline = options.get("inline", "never")
    if options.get("fastmath"):
        flags.fastmath = True
    flags.compute_capability = _CAPABILITY
    return flags


def compile_function(
    context: TargetContext, function: Any, arguments: tuple[Any, ...], result: Any, flags: Any,
    local_types: Any = None,
) -> Any:  # fmt: skip
    """The function in the module of the context's session; Numba's result.

    Args:
        result: Numba's type of what it returns; None: as Numba infers it.
    """
    library = Library(context.codegen(), function.__name__)
    known = set(context.session.module.globals)
    pipeline = Compiler(
        context.typing_context, context, library, arguments, result, flags, local_types or {},
        context.conventions, {},
    )  # fmt: skip
    try:
        return pipeline.compile_extra(function)
    except BaseException:
        _remove(context.session.module, known)
        raise


def _remove(module: Any, known: set[str]) -> None:
    """Take functions that are not complete out of a module."""
    for name, value in list(module.globals.items()):
        if name not in known and getattr(value, "blocks", None):
            if all(block.is_terminated for block in value.blocks):
                continue
            value.blocks.clear()


def compile_subroutine(
    context: TargetContext, function: Any, signature: Any, local_types: Any, flags: Any
) -> Any:
    """A function of Numba's own lowering."""
    if flags is None:
        flags = targetconfig.ConfigStack().top().copy()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    return compile_function(
        context, function, signature.args, signature.return_type, flags, local_types
    )


@contextlib.contextmanager
def dispatchers_of(context: TargetContext) -> Iterator[None]:
    """Let dispatchers of `cuda.jit` compile the functions that a kernel calls into its module, and
    keep nothing. The caller holds the compiler's lock: nobody else compiles meanwhile.
    """
    session = context.session
    lent: list[tuple[Any, Any, Any]] = []

    def compiled(dispatcher: Any, arguments: tuple[Any, ...], result: Any = None) -> Any:
        known = session.compiled.setdefault(dispatcher, {})
        if arguments not in known:
            calls_itself = bool(dispatcher._compiling_counter)
            with dispatcher._compiling_counter:
                flags = flags_of(dispatcher.targetoptions, session.options.debug)
                known[arguments] = compile_function(
                    context, dispatcher.py_func, arguments, result, flags
                )
            session.add(known[arguments])
            if calls_itself:  # with other types: Numba looks there for what it is called
                lent.append((dispatcher.overloads, arguments, dispatcher.overloads.get(arguments)))
                dispatcher.overloads[arguments] = known[arguments]
        return known[arguments]

    def get_call_template(self: Any, args: Any, kws: Any) -> Any:
        signature, folded = self.fold_argument_types(args, kws)
        if self._can_compile:
            compiled(self, tuple(folded))
        for arguments, result in results(self):
            compiled(self, arguments, result)
        known = session.compiled.get(self, {}).values()
        name = self.py_func.__name__
        template = _compiler.typing.make_concrete_template(
            name, key=name, signatures=[f.signature for f in known]
        )
        return template, signature, folded, {}

    def get_overload(self: Any, signature: Any) -> Any:
        return compiled(self, tuple(getattr(signature, "args", signature))).entry_point

    def signatures(self: Any) -> list[Any]:
        return [f.signature for f in session.compiled.get(self, {}).values()]

    own = {
        "get_call_template": get_call_template,
        "get_overload": get_overload,
        "nopython_signatures": property(signatures),
    }
    held = {name: vars(_dispatchers).get(name) for name in own}
    for name, value in own.items():
        setattr(_dispatchers, name, value)
    try:
        yield
    finally:
        for overloads, arguments, value in reversed(lent):
            del overloads[arguments]
            if value is not None:
                overloads[arguments] = value
        for name, value in held.items():
            if value is None:  # it is a base class's
                delattr(_dispatchers, name)
            else:
                setattr(_dispatchers, name, value)
