"""The builder of LLVM code: where numba-cuda calls something of a GPU by its name, it puts what the
processor does instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from numbasync.backend.cpu.target.module import I32, I64, VOID

# What is emitted instead of a call, by the name of the function, or the beginning of it, and by
# the beginning of an assembly text. Each takes the builder, the function and the arguments.
Emit = Callable[["Builder", Any, list[Any]], Any]
NAMES: dict[str, Emit] = {}
PREFIXES: dict[str, Emit] = {}
ASSEMBLY: dict[str, Emit] = {}
_OF_GPUS = ("llvm.nvvm.", "__nv", "___numba_atomic", "cudaCG")


class Builder(ir.IRBuilder):  # type: ignore[misc, unused-ignore]
    """A builder of code of one function.

    Attributes:
        lower: Numba's lowering of the function.
        stop_block: where the function goes when an index is out of range, if it has such a place.
    """

    stop_block: Any = None

    def __init__(self, block: Any, lower: Any) -> None:
        super().__init__(block)
        self.lower = lower

    @property
    def session(self) -> Any:
        return self.lower.context.session

    def call(self, fn: Any, args: Any, *rest: Any, **options: Any) -> Any:
        emit = self.instead(fn)
        if emit is not None:
            return emit(self, fn, list(args))
        return super().call(fn, args, *rest, **options)

    def instead(self, function: Any) -> Emit | None:
        """What is emitted in the place of a call of a function; None if it is called."""
        if isinstance(function, ir.InlineAsm):
            emit = _longest(ASSEMBLY, function.asm.startswith)
            if emit is None:
                self.refuse(f"the assembly {function.asm!r:.40}")
            return emit
        name = getattr(function, "name", "")
        emit = NAMES.get(name) or _longest(PREFIXES, name.startswith)
        if emit is None and name.startswith(_OF_GPUS):
            self.refuse(f"a call of {name}")
        return emit

    def of_a_gpu(self, function: Any, args: list[Any]) -> Any:
        """The call of something that only a GPU has, of which a note is made."""
        is_assembly = isinstance(function, ir.InlineAsm)
        what = f"the assembly {function.asm!r:.40}" if is_assembly else f"a call of {function.name}"
        self.refuse(what)
        return super().call(function, args)

    def refuse(self, what: str) -> None:
        """Note something that only a GPU has."""
        location = self.lower.loc
        where = "" if location is None else f" ({location.filename}:{location.line})"
        self.session.refuse(what, where)

    def inttoptr(self, value: Any, typ: Any, name: str = "") -> Any:
        if getattr(typ, "addrspace", 0):
            self.refuse(f"a pointer into address space {typ.addrspace}")
        return super().inttoptr(value, typ, name)

    # --- what the code of the processor is made of ---

    def alloca(self, typ: Any, size: Any = None, name: str = "") -> Any:
        """Memory of the thread, given when the function begins: elsewhere it would be more with
        each turn of a loop.
        """
        if isinstance(size, ir.Instruction) or self.block is self.function.entry_basic_block:
            return super().alloca(typ, size, name)
        with self.goto_entry_block():
            return super().alloca(typ, size, name)

    def atomic_rmw(self, op: Any, ptr: Any, val: Any, ordering: Any, name: str = "") -> Any:
        self.session.uses.add("atomic")
        return super().atomic_rmw(op, ptr, val, ordering, name)

    def cmpxchg(self, *args: Any, **options: Any) -> Any:
        self.session.uses.add("atomic")
        return super().cmpxchg(*args, **options)

    def thread(self) -> Any:
        """The number of the thread in its block."""
        return super().call(self.session.function("na.tid", I64), [])

    def coordinate(self, name: str) -> Any:
        return super().call(self.session.function(f"na.{name}", I32), [])

    def meet(self, what: str, package: str = "cuda") -> None:
        """Wait for the threads of the block."""
        self.session.uses.add("barrier")
        barrier = self.session.function("na.barrier", VOID, I32)
        super().call(barrier, [self.lower.site(f"{package}.{what}")])

    def meet_warp(self, what: str, mask: Any, package: str = "cuda") -> None:
        """Wait for the threads of the warp that are in the mask."""
        self.session.uses.add("barrier")
        barrier = self.session.function("na.warp_barrier", VOID, I32, I32)
        super().call(barrier, [self.lower.site(f"{package}.{what}"), mask])


class _Nowhere:
    """In the place of Numba's lowering, for code that is of no source."""

    loc = None

    def __init__(self, context: Any) -> None:
        self.context = context

    def site(self, what: str) -> Any:
        return self.context.session.site(None, "", what)


def define(function: Any, context: Any) -> None:
    """Give a function of a GPU a body, if there is something to be in its place."""
    probe = Builder(None, _Nowhere(context))
    emit = probe.instead(function)
    if emit is None:
        return
    builder = Builder(function.append_basic_block("entry"), probe.lower)
    result = emit(builder, function, list(function.args))
    if isinstance(function.ftype.return_type, ir.VoidType):
        builder.ret_void()
    else:
        builder.ret(result)


def _longest(table: dict[str, Emit], matches: Callable[[str], bool]) -> Emit | None:
    found = [key for key in table if matches(key)]
    return table[max(found, key=len)] if found else None


def instead_of(*names: str, table: dict[str, Emit] = NAMES) -> Callable[[Emit], Emit]:
    """Say what is emitted in the place of calls of these names."""

    def add(emit: Emit) -> Emit:
        for name in names:
            table[name] = emit
        return emit

    return add
