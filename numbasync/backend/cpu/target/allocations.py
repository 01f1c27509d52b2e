"""Arrays that a kernel allocates, where `numba.config.CUDA_ENABLE_NRT` says that kernels may: their
memory is the C library's, and is given back with the last reference.

An allocation has a head of two words, the number of references and the address of the elements. It
belongs to one thread, so the references are counted without atomic operations.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbasync.backend.cpu.target.builder import Builder, instead_of
from numbasync.backend.cpu.target.module import BYTES, I64, VOID

_HEAD = 16  # bytes


def _function(builder: Builder, name: str, result: Any, *parameters: Any) -> Any:
    """A function of the C library."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, parameters), name)


def _words(builder: Builder, allocation: Any) -> list[Any]:
    """Where the words of a head are."""
    first = builder.bitcast(allocation, I64.as_pointer())
    return [first, builder.gep(first, [I64(1)])]


@instead_of("NRT_MemInfo_alloc_aligned")
def _allocated(builder: Builder, function: Any, args: list[Any]) -> Any:
    size, align = args[0], builder.zext(args[1], I64)
    nbytes = builder.add(builder.add(size, align), I64(_HEAD))
    made = builder.call(_function(builder, "malloc", BYTES, I64), [nbytes])
    is_there = builder.icmp_unsigned("!=", made, ir.Constant(BYTES, None))
    with builder.if_then(is_there):
        count, place = _words(builder, made)
        behind = builder.add(builder.ptrtoint(made, I64), I64(_HEAD))
        up = builder.add(behind, builder.sub(align, I64(1)))
        builder.store(I64(1), count)
        builder.store(builder.and_(up, builder.neg(align)), place)
    return made


@instead_of("NRT_MemInfo_data_fast")
def _elements(builder: Builder, function: Any, args: list[Any]) -> Any:
    _, place = _words(builder, args[0])
    return builder.inttoptr(builder.load(place), BYTES)


def _counted(builder: Builder, allocation: Any, by: int) -> None:
    """One reference more or less; arrays that no kernel has allocated have no count."""
    is_there = builder.icmp_unsigned("!=", allocation, ir.Constant(BYTES, None))
    with builder.if_then(is_there):
        count, _ = _words(builder, allocation)
        left = builder.add(builder.load(count), I64(by))
        builder.store(left, count)
        if by < 0:
            with builder.if_then(builder.icmp_unsigned("==", left, I64(0))):
                builder.call(_function(builder, "free", VOID, BYTES), [allocation])


@instead_of("NRT_incref")
def _referenced(builder: Builder, function: Any, args: list[Any]) -> None:
    _counted(builder, args[0], 1)


@instead_of("NRT_decref")
def _left(builder: Builder, function: Any, args: list[Any]) -> None:
    _counted(builder, args[0], -1)
