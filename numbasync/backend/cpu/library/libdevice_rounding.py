"""Functions of `libdevice` with a rounding mode in their names, as `fadd_rd`, `double2int_rz`.

`_rn` rounds to the nearest number, `_rd` down, `_ru` up, `_rz` towards zero. Operations that do not
round to the nearest change the processor's rounding mode for their duration. Each is a function
that is not inlined: LLVM may move a kernel's other operations past a change of the mode.
"""

from __future__ import annotations

import re
from typing import Any

from llvmlite import ir

_NAME = re.compile(r"(?:[fd](add|sub|mul|div|sqrt|rcp)|(fma)f?|(\w+)2(\w+))_(rn|rd|ru|rz)")
_MODES = {"rz": 0, "rn": 1, "ru": 2, "rd": 3}  # as `llvm.set.rounding` numbers them
_WHOLE = {"rz": "llvm.trunc", "rn": "llvm.rint", "ru": "llvm.ceil", "rd": "llvm.floor"}
_UNSIGNED = ("uint", "ull")
IN_MODE = "numbasync_in_mode_"  # begins the names of functions that are not inlined


def emission(name: str, result: Any) -> Any:
    """What emits the function of this name, of which `result` is LLVM's type of the result; None if
    the name has no rounding mode.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    operation, fma, source, target, mode = match.groups()
    if source is None:
        return _operation(name, operation or fma, mode)
    if isinstance(result, ir.IntType):
        return to_integer("fptoui" if target in _UNSIGNED else "fptosi", mode, result.width)
    from_integer = "uitofp" if source in _UNSIGNED else "sitofp"
    return _operation(name, "fptrunc" if source == "double" else from_integer, mode, result)


def _operation(name: str, operation: str, mode: str, result: Any = None) -> Any:
    """A code generator for an operation on floats, or for a conversion to the type `result`."""

    def emit(builder: Any, *args: Any) -> Any:
        if operation == "rcp":
            args = (args[0].type(1), *args)
        instruction = {"sqrt": "sqrt", "fma": "fma", "rcp": "fdiv"}.get(
            operation, operation if result else f"f{operation}"
        )
        target = result or args[0].type
        if mode != "rn":
            return builder.call(
                _in_mode(builder.module, name, instruction, mode, target, args), args
            )
        if instruction == "sqrt":
            return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [target]), args)
        return getattr(builder, instruction)(*args, *([target] if result else []))

    return emit


def _in_mode(
    module: Any, name: str, instruction: str, mode: str, result: Any, args: tuple[Any, ...]
) -> Any:
    """Define the function in `module` that sets the mode, computes, and resets the mode."""
    inputs = [a.type for a in args]
    metadata, word = ir.MetaDataType(), ir.IntType(32)
    overloads = [result, *inputs] if instruction.endswith(("fp", "trunc")) else [result]
    operation = module.declare_intrinsic(
        f"llvm.experimental.constrained.{instruction}",
        overloads,
        ir.FunctionType(result, [*inputs, metadata, metadata]),
    )
    set_rounding = module.declare_intrinsic(
        "llvm.set.rounding", (), ir.FunctionType(ir.VoidType(), [word])
    )
    known: Any = module.globals.get(IN_MODE + name)
    if known is not None:
        return known
    function = ir.Function(module, ir.FunctionType(result, inputs), IN_MODE + name)
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    # Without fpexcept.strict, LLVM 15 moves the operation before the change of the mode on ARM.
    options = [ir.MetaDataString(module, w) for w in ("round.dynamic", "fpexcept.strict")]
    builder.call(set_rounding, [word(_MODES[mode])])
    value = builder.call(operation, [*function.args, *options])
    builder.call(set_rounding, [word(_MODES["rn"])])
    builder.ret(value)
    return function


def to_integer(convert: str, mode: str, bits: int) -> Any:
    """A code generator for a conversion to an integer. Numbers beyond an end of the type become
    that end. NaN becomes 0; in 64 bits, the number whose first bit alone is set.
    """
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if convert == "fptoui":
        least, most = 0, 2**bits - 1

    def emit(builder: Any, value: Any) -> Any:
        source, target = value.type, ir.IntType(bits)
        rounding = builder.module.declare_intrinsic(_WHOLE[mode], [source])
        whole = builder.call(rounding, [value])
        number = getattr(builder, convert)(whole, target)  # undefined outside of the type
        for sign, end in ((">", least), ("<", most)):
            fits = builder.fcmp_ordered(sign, whole, source(float(end)))
            number = builder.select(fits, number, target(end))
        of_nan = target(-(2**63) if bits == 64 else 0)
        return builder.select(builder.fcmp_unordered("uno", value, value), of_nan, number)

    return emit
