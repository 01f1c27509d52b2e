"""libdevice: by LLVM's intrinsics, by the C library, and by the functions of `library`."""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba.cuda import libdevice, libdevicefuncs

from numbasync.backend.cpu.target.builder import NAMES, PREFIXES, Builder, instead_of
from numbasync.backend.cpu.target.compiled_calls import call_compiled
from numbasync.backend.cpu.target.module import I1, I32, I64

_signatures: Any = libdevicefuncs.functions
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
# Intrinsics of LLVM, by the name for float64; with an f behind it they are for float32.
_INTRINSICS = {
    **{
        name: name
        for name in (
            "fabs", "floor", "ceil", "trunc", "sqrt", "rint", "round", "fma", "copysign", "sin",
            "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "exp", "exp2",
            "exp10", "log", "log2", "log10", "pow",
        )
    },
    "nearbyint": "rint", "fmax": "maxnum", "fmin": "minnum",
}  # fmt: skip
_TESTS = {"isnan": "uno", "isinf": "inf", "isfinite": "finite", "finite": "finite"}


def _intrinsic(name: str) -> Any:
    def emit(builder: Builder, function: Any, args: list[Any]) -> Any:
        kind = function.ftype.return_type
        return builder.call(
            builder.module.declare_intrinsic(f"llvm.{name}", [kind], function.ftype), args
        )

    return emit


for _name, _of_llvm in _INTRINSICS.items():
    for _suffix in ("", "f"):
        NAMES[f"__nv_{_name}{_suffix}"] = NAMES[f"__nv_fast_{_name}{_suffix}"] = _intrinsic(
            _of_llvm
        )


def _test(kind: str) -> Any:
    def emit(builder: Builder, function: Any, args: list[Any]) -> Any:
        (x,) = args
        if kind == "uno":
            found = builder.fcmp_unordered("uno", x, x)
        else:
            size = builder.call(builder.module.declare_intrinsic("llvm.fabs", [x.type]), [x])
            sign = "==" if kind == "inf" else "<"
            found = builder.fcmp_ordered(sign, size, ir.Constant(x.type, float("inf")))
        return builder.zext(found, I32)

    return emit


for _name, _kind in _TESTS.items():
    NAMES[f"__nv_{_name}d"] = NAMES[f"__nv_{_name}f"] = _test(_kind)


@instead_of("__nv_llrint", "__nv_llrintf")
def _nearest(builder: Builder, function: Any, args: list[Any]) -> Any:
    near = builder.call(builder.module.declare_intrinsic("llvm.rint", [args[0].type]), args)
    return builder.fptosi(near, I64)


def _in_32_bits(builder: Builder, value: Any) -> Any:
    return builder.trunc(value, I32) if value.type.width > 32 else value


@instead_of("__nv_popc", "__nv_popcll")
def _popc(builder: Builder, function: Any, args: list[Any]) -> Any:
    return _in_32_bits(builder, builder.ctpop(args[0]))


@instead_of("__nv_clz", "__nv_clzll")
def _clz(builder: Builder, function: Any, args: list[Any]) -> Any:
    return _in_32_bits(builder, builder.ctlz(args[0], I1(0)))


@instead_of("__nv_ffs", "__nv_ffsll")
def _ffs(builder: Builder, function: Any, args: list[Any]) -> Any:
    (x,) = args
    count = _in_32_bits(builder, builder.add(builder.cttz(x, I1(0)), x.type(1)))
    return builder.select(builder.icmp_unsigned("==", x, x.type(0)), I32(0), count)


@instead_of("__nv_brev", "__nv_brevll")
def _brev(builder: Builder, function: Any, args: list[Any]) -> Any:
    return builder.bitreverse(args[0])


@instead_of("__nv_fast_fdividef", "__nv_fdividef")
def _divide(builder: Builder, function: Any, args: list[Any]) -> Any:
    return builder.fdiv(*args)


@instead_of("__nv_", table=PREFIXES)
def _other(builder: Builder, function: Any, args: list[Any]) -> Any:
    """A function of the C library, or one of ours."""
    name = function.name.removeprefix("__nv_")
    _, parameters = _signatures.get(function.name, (None, ()))
    from numbasync.backend.cpu.library import libdevice as compiled_libdevice  # takes a while

    compiled = compiled_libdevice.FUNCTIONS.get(getattr(libdevice, name, None))
    if hasattr(compiled, "py_func"):
        return _compiled(builder, function, parameters, compiled, args)
    of_c = name.removeprefix("fast_")
    if compiled is None or not binding.address_of_symbol(of_c):
        return builder.of_a_gpu(function, args)
    outer = builder.session.pure(of_c, function.ftype.return_type, *function.ftype.args)
    return builder.call(outer, args)


def _compiled(
    builder: Builder, function: Any, parameters: Any, compiled: Any, args: list[Any]
) -> Any:
    """Call a compiled function; of several results all but the first go where the pointers say."""
    given = [(p.ty, a) for p, a in zip(parameters, args, strict=True) if not p.is_ptr]
    places = [a for p, a in zip(parameters, args, strict=True) if p.is_ptr]
    types_of_call = tuple(t for t, _ in given)
    _, value = call_compiled(builder, compiled, types_of_call, [a for _, a in given])
    if not places:
        return value
    parts = [builder.extract_value(value, k) for k in range(_count(value.type))]
    for place, part in zip(reversed(places), reversed(parts), strict=False):
        builder.store(part, place)
    return parts[0] if len(parts) > len(places) else None


def _count(aggregate: Any) -> int:
    return aggregate.count if isinstance(aggregate, ir.ArrayType) else len(aggregate.elements)
