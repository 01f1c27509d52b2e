"""libdevice: by LLVM's intrinsics, by the C library, and by the functions of `library`."""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba.cuda import libdevicefuncs

from numbasync.backend.cpu.library import libdevice_rounding
from numbasync.backend.cpu.library.small_float_bits import Format
from numbasync.backend.cpu.target.builder import NAMES, PREFIXES, Builder, instead_of
from numbasync.backend.cpu.target.compiled_calls import call_compiled
from numbasync.backend.cpu.target.module import I1, I32, I64

_signatures: Any = libdevicefuncs.functions
_FLOATS = (ir.FloatType(), ir.DoubleType())
_half = Format(10)
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


def _high_half(extend: str) -> Any:
    """The upper 64 bits of a product of two 64-bit integers."""
    wide = ir.IntType(128)

    def emit(builder: Builder, function: Any, args: list[Any]) -> Any:
        product = builder.mul(*(getattr(builder, extend)(x, wide) for x in args))
        return builder.trunc(builder.lshr(product, wide(64)), I64)

    return emit


NAMES["__nv_mul64hi"], NAMES["__nv_umul64hi"] = _high_half("sext"), _high_half("zext")


@instead_of("__nv_float2half_rn")
def _to_half(builder: Builder, function: Any, args: list[Any]) -> Any:
    return _half.write(builder, _half.rounded(builder, args[0]))


@instead_of("__nv_half2float")
def _of_half(builder: Builder, function: Any, args: list[Any]) -> Any:
    return _half.read(builder, args[0])


@instead_of("__nv_", table=PREFIXES)
def _other(builder: Builder, function: Any, args: list[Any]) -> Any:
    """A function with a rounding mode, one that is compiled, or one of the C library."""
    # To import them takes a while.
    from numbasync.backend.cpu.library import libdevice_bits, libdevice_special

    name, kind = function.name.removeprefix("__nv_"), function.ftype
    _, parameters = _signatures.get(function.name, (None, ()))
    compiled = libdevice_bits.FUNCTIONS.get(name) or libdevice_special.FUNCTIONS.get(name)
    if compiled is not None:
        return _compiled(builder, function, parameters, compiled, args)
    rounding = libdevice_rounding.emission(name, kind.return_type)
    if rounding is not None:
        return rounding(builder, *args)
    of_c = name.removeprefix("fast_")
    # C's function of that name, such as `abs`, may take integers of another width.
    is_of_floats = any(t in _FLOATS for t in kind.args) and not any(p.is_ptr for p in parameters)
    if not (parameters and is_of_floats and binding.address_of_symbol(of_c)):
        return builder.of_a_gpu(function, args)
    outer = builder.session.function(of_c, kind.return_type, *kind.args)
    outer.attributes.add("readnone")
    outer.attributes.add("nounwind")
    return builder.call(outer, args)


def _compiled(
    builder: Builder, function: Any, parameters: Any, compiled: Any, args: list[Any]
) -> Any:
    """Call a compiled function; of several results all but the first go where the pointers say."""
    given = [(p.ty, a) for p, a in zip(parameters, args, strict=True) if not p.is_ptr]
    places = [a for p, a in zip(parameters, args, strict=True) if p.is_ptr]
    types_of_call = tuple(t for t, _ in given)
    _, value = call_compiled(builder, compiled, types_of_call, [a for _, a in given])
    returned = function.ftype.return_type
    if not places:
        return _of_type(builder, value, returned)
    parts = [builder.extract_value(value, k) for k in range(_count(value.type))]
    for place, part in zip(reversed(places), reversed(parts), strict=False):
        builder.store(_of_type(builder, part, place.type.pointee), place)
    return _of_type(builder, parts[0], returned) if len(parts) > len(places) else None


def _of_type(builder: Builder, value: Any, kind: Any) -> Any:
    """A number that the compiled function may have computed in more bits."""
    if value.type == kind:
        return value
    return (builder.trunc if isinstance(kind, ir.IntType) else builder.fptrunc)(value, kind)


def _count(aggregate: Any) -> int:
    return aggregate.count if isinstance(aggregate, ir.ArrayType) else len(aggregate.elements)
