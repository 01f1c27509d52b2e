"""Functions of `libdevice` that round as their names say: `fadd_rd`, `double2int_rz` and so on.

`_rn` rounds to the nearest number, `_rd` down, `_ru` up, `_rz` towards zero. What is not rounded to
the nearest is computed in the processor's rounding mode, by a function of its own: LLVM moves
operations that know of no mode past a change of it, and so the mode must not be changed where a
kernel's own operations are.
"""

from __future__ import annotations

import re
from typing import Any

from llvmlite import ir

from numbasync.backend.cpu.library.entry_points import types
from numbasync.backend.cpu.library.float16 import emitted

_NAME = re.compile(r"(?:[fd](add|sub|mul|div|sqrt|rcp)|(fma)f?|(\w+)2(\w+))_(rn|rd|ru|rz)")
_MODES = {"rz": 0, "rn": 1, "ru": 2, "rd": 3}  # as `llvm.set.rounding` numbers them
_WHOLE = {"rz": "llvm.trunc", "rn": "llvm.rint", "ru": "llvm.ceil", "rd": "llvm.floor"}
_UNSIGNED = ("uint", "ull")


def function(name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    """The function of this name and these Numba types; None if its name tells of no rounding."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    operation, fma, source, target, mode = match.groups()
    if source is None:
        emit = _operation(name, operation or fma, mode)
    elif result in (types.float32, types.float64):
        of_integer = "uitofp" if source in _UNSIGNED else "sitofp"
        emit = _operation(name, "fptrunc" if source == "double" else of_integer, mode, result)
    else:
        emit = _to_integer("fptoui" if target in _UNSIGNED else "fptosi", mode, result)
    return emitted(result, arguments, emit)


def _llvm(kind: Any) -> Any:
    """The LLVM type of a Numba number."""
    floats = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
    return floats.get(kind) or ir.IntType(kind.bitwidth)


def _operation(name: str, operation: str, mode: str, result: Any = None) -> Any:
    """What emits an operation of floats, or a conversion to the float type `result`."""

    def emit(builder: Any, *args: Any) -> Any:
        if operation == "rcp":
            args = (args[0].type(1), *args)
        instruction = {"sqrt": "sqrt", "fma": "fma", "rcp": "fdiv"}.get(
            operation, operation if result else f"f{operation}"
        )
        kind = _llvm(result) if result else args[0].type
        if mode != "rn":
            return builder.call(_in_mode(builder.module, name, instruction, mode, kind, args), args)
        if instruction == "sqrt":
            return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [kind]), args)
        return getattr(builder, instruction)(*args, *([kind] if result else []))

    return emit


def _in_mode(
    module: Any, name: str, instruction: str, mode: str, result: Any, args: tuple[Any, ...]
) -> Any:
    """The function of a module that changes the mode, computes, and changes it back."""
    kinds = [a.type for a in args]
    text, word = ir.MetaDataType(), ir.IntType(32)
    suffix = [result, *kinds] if instruction.endswith(("fp", "trunc")) else [result]
    operation = module.declare_intrinsic(
        f"llvm.experimental.constrained.{instruction}",
        suffix,
        ir.FunctionType(result, [*kinds, text, text]),
    )
    change = module.declare_intrinsic(
        "llvm.set.rounding", (), ir.FunctionType(ir.VoidType(), [word])
    )
    made = ir.Function(module, ir.FunctionType(result, kinds), f"numbasync_{name}")
    made.linkage = "linkonce_odr"
    made.attributes.add("noinline")
    builder = ir.IRBuilder(made.append_basic_block())
    # Strict: with fewer rules LLVM 15 moves the operation before the change on ARM.
    how = [ir.MetaDataString(module, w) for w in ("round.dynamic", "fpexcept.strict")]
    builder.call(change, [word(_MODES[mode])])
    value = builder.call(operation, [*made.args, *how])
    builder.call(change, [word(_MODES["rn"])])
    builder.ret(value)
    return made


def _to_integer(convert: str, mode: str, result: Any) -> Any:
    """What emits a conversion to a whole number, or to the end of the type that is nearest. NaN
    gives 0, and in 64 bits the number whose first bit alone is set.
    """
    bits = result.bitwidth
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if convert == "fptoui":
        least, most = 0, 2**bits - 1

    def emit(builder: Any, value: Any) -> Any:
        kind, target = value.type, _llvm(result)
        rounding = builder.module.declare_intrinsic(_WHOLE[mode], [kind])
        whole = builder.call(rounding, [value])
        number = getattr(builder, convert)(whole, target)  # undefined outside of the type
        for sign, end in ((">", least), ("<", most)):
            fits = builder.fcmp_ordered(sign, whole, kind(float(end)))
            number = builder.select(fits, number, target(end))
        of_nan = target(0 if target.width == 32 else -(2**63))
        return builder.select(builder.fcmp_unordered("uno", value, value), of_nan, number)

    return emit
