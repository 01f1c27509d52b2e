"""Inspects the LLVM code that programs emit themselves, by `@intrinsic` and the like: the CPU's
code generator would crash at what only a GPU has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba.core.cpu import CPUContext
from numba.core.errors import LoweringError

# Prefixes of functions that Numba links with.
_NUMBAS = ("_ZN", "NRT_", "numba_", "PyErr_", "Py_")


def for_the_processor(name: str, emit: Callable[..., Any]) -> Callable[..., Any]:
    """`emit(context, builder, ...)`, which raises LoweringError if it has emitted something that
    the processor does not have. Compilers for GPUs may call it, too.
    """

    def emitting(context: Any, builder: Any, *rest: Any) -> Any:
        if not isinstance(context, CPUContext):  # Numba's compiler for GPUs reads the same registry
            return emit(context, builder, *rest)
        known = set(builder.module.globals)
        before = {id(i) for i in _instructions(builder)}
        value = emit(context, builder, *rest)
        declared = (v for n, v in builder.module.globals.items() if n not in known)
        new = (i for i in _instructions(builder) if id(i) not in before)
        for what in (*map(_foreign, declared), *map(_foreign, new)):
            if what:
                raise LoweringError(f"{name} emits {what}, which only a GPU has")
        return value

    return emitting


def _instructions(builder: Any) -> list[Any]:
    return [i for block in builder.function.blocks for i in block.instructions]


def _foreign(value: Any) -> str:
    """The part of an instruction, a function or a global that only a GPU has; empty if none."""
    space = getattr(getattr(value, "type", None), "addrspace", 0)
    if space:
        return f"a pointer into address space {space}"
    if isinstance(value, ir.CallInstr) and isinstance(value.callee, ir.InlineAsm):
        return f"the assembly {value.callee.asm!r:.40}"
    if isinstance(value, ir.Function) and value.is_declaration and not _is_there(value.name):
        return f"a call of {value.name}"
    return ""


def _is_there(name: str) -> bool:
    if name.startswith("llvm."):
        return not name.startswith(("llvm.nvvm.", "llvm.ptx."))
    return name.startswith(_NUMBAS) or binding.address_of_symbol(name) is not None
