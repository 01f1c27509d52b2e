"""Where a thread is, and what costs nothing on a processor."""

from __future__ import annotations

from typing import Any

from numba.cuda.types.ext_types import GridGroup  # pyright: ignore[reportMissingImports]

from numbasync.backend.cpu.races.words import FENCE, FENCE_BLOCK
from numbasync.backend.cpu.target import accesses
from numbasync.backend.cpu.target.builder import ASSEMBLY, NAMES, Builder, instead_of
from numbasync.backend.cpu.target.context import emits
from numbasync.backend.cpu.target.module import BYTES, I32, I64, VOID

_REGISTERS = {"tid": "t", "ctaid": "b", "ntid": "w", "nctaid": "g"}


def _position(name: str) -> Any:
    return lambda builder, function, args: builder.coordinate(name)


for _register, _letter in _REGISTERS.items():
    for _axis in "xyz":
        NAMES[f"llvm.nvvm.read.ptx.sreg.{_register}.{_axis}"] = _position(f"{_letter}{_axis}")


@instead_of("llvm.nvvm.read.ptx.sreg.warpsize")
def _warpsize(builder: Builder, function: Any, args: list[Any]) -> Any:
    return I32(32)


def lane(builder: Builder) -> Any:
    """The number of the thread in its warp."""
    return builder.and_(builder.trunc(builder.thread(), I32), I32(31))


@instead_of("mov.u32 $0, %laneid", table=ASSEMBLY)
@instead_of("llvm.nvvm.read.ptx.sreg.laneid")
def _lane(builder: Builder, function: Any, args: list[Any]) -> Any:
    return lane(builder)


@instead_of("mov.u32 $0, %lanemask_lt", table=ASSEMBLY)
def _lanes_before(builder: Builder, function: Any, args: list[Any]) -> Any:
    return builder.sub(builder.shl(I32(1), lane(builder)), I32(1))


@instead_of("mov.u32 $0, %dynamic_smem_size", table=ASSEMBLY)
def _dynamic_bytes(builder: Builder, function: Any, args: list[Any]) -> Any:
    return builder.trunc(dynamic_bytes(builder), I32)


def dynamic_bytes(builder: Builder) -> Any:
    """The bytes of dynamic shared memory of the launch."""
    return builder.call(builder.session.function("na.dynamic_bytes", I64), [])


def threads(builder: Builder) -> Any:
    """The number of threads of a block, an i64."""
    return builder.call(builder.session.function("na.threads", I64), [])


@instead_of("llvm.nvvm.membar.cta", "llvm.nvvm.membar.gl", "llvm.nvvm.membar.sys")
def _fence(builder: Builder, function: Any, args: list[Any]) -> Any:
    builder.session.uses.add("fence")
    if builder.session.options.checked:
        is_of_block = function.name.endswith("cta")
        name = {"cta": "threadfence_block", "gl": "threadfence"}.get(
            function.name.rpartition(".")[2], "threadfence_system"
        )
        mode = FENCE_BLOCK if is_of_block else FENCE
        accesses.fence(builder, mode, builder.lower.site(f"cuda.{name}"))
    return builder.fence("seq_cst")


@instead_of("nanosleep", "brkpt", table=ASSEMBLY)
def _nothing(builder: Builder, function: Any, args: list[Any]) -> Any:
    return None


@instead_of("ld.", table=ASSEMBLY)
def _load(builder: Builder, function: Any, args: list[Any]) -> Any:
    """A load with a hint for a GPU's cache."""
    if len(args) != 1:
        return builder.of_a_gpu(function, args)
    (place,) = args
    return builder.load(builder.bitcast(place, function.function_type.return_type.as_pointer()))


@instead_of("st.", table=ASSEMBLY)
def _store(builder: Builder, function: Any, args: list[Any]) -> Any:
    if len(args) != 2:
        return builder.of_a_gpu(function, args)
    place, value = args
    return builder.store(value, builder.bitcast(place, value.type.as_pointer()))


@instead_of("vprintf")
def _print(builder: Builder, function: Any, args: list[Any]) -> Any:
    builder.session.uses.add("print")
    places = [builder.coordinate(name) for name in ("bx", "by", "bz", "tx", "ty", "tz")]
    printer = builder.session.function("na.print", I32, BYTES, BYTES, *[I32] * len(places))
    return builder.call(printer, [*args, *places])


@instead_of("cudaCGGetIntrinsicHandle")
def _grid(builder: Builder, function: Any, args: list[Any]) -> Any:
    return I64(1)


def _meet_grid(builder: Builder) -> Any:
    """Wait for all threads of all blocks."""
    builder.session.uses |= {"barrier", "grid"}
    barrier = builder.session.function("na.grid_barrier", VOID, I32)
    builder.call(barrier, [builder.lower.site("sync of the grid")])
    return I32(0)


@instead_of("cudaCGSynchronize")
def _meet_grid_by_name(builder: Builder, function: Any, args: list[Any]) -> Any:
    return _meet_grid(builder)


@emits((GridGroup, "sync"), GridGroup)  # where the source calls it, not where numba-cuda does
def _sync(context: Any, builder: Builder, signature: Any, args: list[Any]) -> Any:
    return _meet_grid(builder)
