"""A kernel as LLVM code, and what the numbers in it mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir
from numba.cuda import types as _types

from numbasync.backend.cpu.record import Site

types: Any = _types  # type checkers do not know all of its names
KERNEL = "kernel"  # the name of the function
STOPPED = 3  # what it returns where a thread was stopped; there is a note then
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
VOID, BYTES = ir.VoidType(), ir.IntType(8).as_pointer()


@dataclass(frozen=True)
class Options:
    """How a kernel is compiled.

    Attributes:
        fastmath: as `cuda.jit(fastmath=True)`.
        debug: as `cuda.jit(debug=True)`: divisions by zero raise.
        checked: each access of an element calls `na.access` first.
        lines: each line calls `na.line` first, with the number of the line before it and its own.
        may_return: barriers do not wait for threads that have returned, as on a GPU; else these
            are reported.
        may_allocate: the kernel allocates arrays, also where Numba's setting does not say so.
    """

    fastmath: bool = False
    debug: bool = False
    checked: bool = False
    lines: bool = False
    may_return: bool = False
    may_allocate: bool = False


@dataclass
class Module:
    """The code of a kernel.

    Attributes:
        text: LLVM code, not optimised. What it calls of others begins with `na.`.
        name: of the kernel's function.
        argument_types: Numba's types of the arguments.
        arguments: LLVM's types of these, as they are passed.
        sites: places in the source, by their numbers in the code.
        lines: file and line of each of the numbers in calls of `na.line`. Where a function begins
            and ends there is a number of its own, whose line is the function's first, negated.
        exceptions: class and arguments of what the kernel raises, by the numbers in the code.
        is_cooperative: whether blocks meet.
        has_atomics: whether it has atomic operations.
        has_fences: whether a thread passes a fence (`cuda.threadfence`).
        is_straight: whether each thread takes a few steps: no loops, barriers, and calls that may
            take longer.
    """

    text: str
    name: str
    argument_types: tuple[Any, ...]
    arguments: tuple[str, ...]
    sites: list[Site] = field(default_factory=list)
    exceptions: list[tuple[type[BaseException], tuple[Any, ...]]] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)
    is_cooperative: bool = False
    has_atomics: bool = False
    has_fences: bool = False
    is_straight: bool = False
