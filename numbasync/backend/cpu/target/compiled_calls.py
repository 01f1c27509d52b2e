"""Calls of functions that Numba's compiler for the processor has compiled: those of `library`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import sigutils
from numba.core.compiler import Flags
from numba.core.registry import cpu_target
from numba.core.target_extension import target_override
from numba.core.targetconfig import ConfigStack

from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.module import BYTES, I32


def call_compiled(
    builder: Builder, dispatcher: Any, argument_types: tuple[Any, ...], args: list[Any]
) -> tuple[Any, Any]:
    """Numba's type of the result of a function, and the result.

    Args:
        dispatcher: what `njit` made of it.
    """
    # The flags of the kernel would be inherited.
    with target_override("cpu"), ConfigStack().enter(Flags()):
        dispatcher.compile(sigutils.normalize_signature(argument_types)[0])
        result = dispatcher.overloads[argument_types]
    session, descriptor = builder.session, result.fndesc
    name = descriptor.llvm_func_name
    if name not in session.linked:
        session.linked[name] = result.library.get_llvm_str()
    context: Any = cpu_target.target_context
    returned = context.get_value_type(result.signature.return_type)
    stored = context.data_model_manager[result.signature.return_type].get_return_type()
    model = [context.data_model_manager[t] for t in argument_types]
    values = [m.as_argument(builder, a) for m, a in zip(model, args, strict=True)]
    parameters = [stored.as_pointer(), BYTES, *(v.type for v in values)]
    function = session.function(name, I32, *parameters)
    with builder.goto_entry_block():
        place = builder.alloca(stored)
    builder.call(function, [place, ir.Constant(BYTES, None), *values])
    value = context.data_model_manager[result.signature.return_type].from_return(
        builder, builder.load(place)
    )
    assert value.type == returned  # of both compilers
    return result.signature.return_type, value
