"""How the functions of this package are compiled by Numba, and how LLVM's code becomes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types as numba_types
from numba.extending import intrinsic

# Of type Any: type checkers do not know all of its names.
types: Any = numba_types

# Every function runs without the interpreter lock, exceptions for divisions and reference counts.
OPTIONS: dict[str, Any] = {
    "nogil": True, "error_model": "numpy", "_nrt": False,
    "forceinline": False,  # otherwise inherited from an inlined caller
}  # fmt: skip
# Only compiled code calls the functions: neither Python nor C needs a way into them.
UNWRAPPED: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
INLINED: Any = {**OPTIONS, **UNWRAPPED, "forceinline": True}
# Of type Any: the functions that it creates are called without the first parameter.
any_intrinsic: Any = intrinsic


def emitted(result: Any, arguments: tuple[Any, ...], emit: Callable[..., Any]) -> Any:
    """A function of one to three values of these types, by the instructions that `emit` builds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(builder, *args)

    typed_code = result(*arguments), codegen

    def one(tyctx: Any, a: Any):  # type: ignore[no-untyped-def]
        return typed_code

    def two(tyctx: Any, a: Any, b: Any):  # type: ignore[no-untyped-def]
        return typed_code

    def three(tyctx: Any, a: Any, b: Any, c: Any):  # type: ignore[no-untyped-def]
        return typed_code

    return any_intrinsic((one, two, three)[len(arguments) - 1])
