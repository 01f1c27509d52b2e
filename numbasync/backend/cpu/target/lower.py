"""A kernel, typed and lowered. What calls itself and reaches one of `_BARRIERS` is refused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import binding, ir
from numba.core import fastmathpass
from numba.core.target_extension import target_override
from numba.cuda.core.compiler_lock import (  # pyright: ignore[reportMissingImports]
    global_compiler_lock,
)

from numbasync.backend.bfloat16_type import register
from numbasync.backend.cpu.library.libdevice_rounding import IN_MODE
from numbasync.backend.cpu.record import Site
from numbasync.backend.cpu.target import (  # noqa: F401 - they register
    allocations,
    arrays,
    atomic_operations,
    collectives,
    elements,
    fp8_calls,
    group_calls,
    libdevice_calls,
    positions,
    small_float_calls,
    vector_accesses,
)
from numbasync.backend.cpu.target.builder import define
from numbasync.backend.cpu.target.context import TargetContext, target_data
from numbasync.backend.cpu.target.functions import (
    compile_function,
    compile_subroutine,
    dispatchers_of,
    flags_of,
)
from numbasync.backend.cpu.target.module import I32, KERNEL, Module, Options, types
from numbasync.backend.cpu.target.quick_passes import quick_passes
from numbasync.backend.cpu.target.session import Session
from numbasync.errors import UnsupportedKernelError

# What NVVM does with `fastmath`: it fuses products and sums, divides by reciprocals, and
# approximates. It does not take numbers for finite, nor sums in another order.
_FAST = ("contract", "arcp", "afn")
_SPACE = re.compile(r" addrspace\(\d+\)")
_DYNAMIC = re.compile(r'^(@"[^"]+") = external(?: global| addrspace\(3\) global) \[0 x .*$', re.M)
_BARRIERS = ("na.barrier", "na.warp_barrier", "na.grid_barrier")


def lower(kernel: Any, argument_types: Sequence[Any], options: Options | None = None) -> Module:
    """The code of a kernel for arguments of these types.

    Args:
        kernel: what `cuda.jit` made of a function, or the function.
        argument_types: Numba's types of the arguments, as on a GPU.

    Raises:
        NumbaError, and other errors of numba-cuda's compiler: what it refuses.
        UnsupportedKernelError: it uses something that only a GPU has.
    """
    function = getattr(kernel, "py_func", kernel)
    options = options or Options()
    session = Session(options)
    code = function.__code__
    session.kernel = Site(code.co_name, code.co_filename, code.co_firstlineno, "")
    register()
    with _compiler_of(session) as context:
        flags = flags_of({"fastmath": options.fastmath}, options.debug)
        result = compile_function(context, function, tuple(argument_types), types.void, flags)
        name = result.fndesc.llvm_func_name
        _define_rest(context, name)
        _refuse_unknown(session)
        if "barrier" in session.uses:
            _refuse_meetings_in_recursion(session)
        arguments = _add_kernel(session, name, code)
    if session.refused:
        raise UnsupportedKernelError(f"kernel {function.__name__} uses {session.refused}.")
    text = _finished(session)
    return Module(
        text=text,
        name=KERNEL,
        argument_types=tuple(argument_types),
        arguments=arguments,
        sites=session.sites,
        exceptions=session.exceptions,
        lines=list(session.lines),
        is_cooperative="grid" in session.uses,
        has_atomics="atomic" in session.uses,
        has_fences="fence" in session.uses,
        is_straight=_is_straight(session),
    )


@contextlib.contextmanager
def _compiler_of(session: Session) -> Iterator[TargetContext]:
    with (
        global_compiler_lock,
        target_override("cuda"),
        quick_passes(),
        _context_of(session) as context,
    ):
        yield context


@contextlib.contextmanager
def _context_of(session: Session) -> Iterator[TargetContext]:
    context = TargetContext(session, compile_subroutine)
    with dispatchers_of(context):
        yield context


def _define_rest(context: TargetContext, name: str) -> None:
    """Define the functions of GPUs that Numba calls without our builder, in its own functions; and
    drop functions that the kernel does not call: typing compiles some for which there is an
    emission of the target.
    """
    session = context.session
    reached: set[Any] = set()
    waiting = [session.module.globals[name]]
    while waiting:
        function = waiting.pop()
        if function in reached:
            continue
        reached.add(function)
        if not function.blocks:
            define(function, context)
        waiting += _called(function)
    for function in session.module.functions:
        if function not in reached:
            del session.module.globals[function.name]


def _called(function: Any) -> list[Any]:
    """The functions that one calls."""
    return [
        instruction.callee
        for block in function.blocks
        for instruction in block.instructions
        if isinstance(instruction, ir.CallInstr) and isinstance(instruction.callee, ir.Function)
    ]


def _refuse_meetings_in_recursion(session: Session) -> None:
    """Refuse a barrier in a function that calls itself, which cannot be written out."""
    for dispatcher, results in session.compiled.items():
        for result in results.values():
            own = session.module.globals.get(result.fndesc.llvm_func_name)
            reached: set[Any] = set()
            waiting = [] if own is None else _called(own)
            while waiting:
                function = waiting.pop()
                if function not in reached:
                    reached.add(function)
                    waiting += _called(function)
            if own in reached and any(f.name in _BARRIERS for f in reached):
                name = dispatcher.py_func.__name__
                session.refused = f"a barrier in {name}, which calls itself"


def _refuse_unknown(session: Session) -> None:
    """Refuse a kernel that calls a function which is nowhere."""
    for function in session.module.functions:
        name = function.name
        is_known = function.blocks or name in session.linked or name.startswith(("na.", "llvm."))
        if not is_known and not binding.address_of_symbol(name):
            session.refuse(f"a call of {name}")


def _add_kernel(session: Session, name: str, code: Any) -> tuple[str, ...]:
    """The kernel's function, which calls that of this name; types of its arguments."""
    module = session.module
    inner = module.globals[name]
    parameters = inner.ftype.args
    outer = ir.Function(module, ir.FunctionType(I32, parameters[1:]), KERNEL)
    for new, old in zip(outer.args, inner.args[1:], strict=True):
        new.name = old.name
    builder = ir.IRBuilder(outer.append_basic_block())
    place = builder.alloca(parameters[0].pointee)
    builder.ret(builder.call(inner, [place, *outer.args]))
    for function in module.functions:
        if function.blocks and function is not outer:
            function.linkage = "internal"
            if not function.name.startswith(IN_MODE):
                function.attributes.discard("noinline")
                function.attributes.add("alwaysinline")
    return tuple("ptr" if isinstance(t, ir.PointerType) else str(t) for t in parameters[1:])


def _finished(session: Session) -> str:
    """The module's text, in one address space."""
    if session.options.fastmath:
        fastmathpass.FastFloatBinOpVisitor(_FAST).visit(session.module)
        fastmathpass.FastFloatCallVisitor(_FAST).visit(session.module)
    if "vector" in session.uses:
        arrays.align_no_better(session)
    text = _SPACE.sub("", str(session.module)).replace("addrspacecast", "bitcast")
    for name in _DYNAMIC.findall(text):
        text = text.replace(name, "@na.dynamic")
    text = re.sub(r"^@na\.dynamic = .*\n", "", text, flags=re.M)
    if "@na.dynamic" in text:
        text += "\n@na.dynamic = external global [0 x i8], align 1024\n"
    text = text.replace('target datalayout = ""', f'target datalayout = "{target_data()}"')
    if not session.linked:
        return text
    whole = binding.parse_assembly(text)
    for other in session.linked.values():
        whole.link_in(binding.parse_assembly(other))
    return str(whole)


def _is_straight(session: Session) -> bool:
    """Whether no thread takes more than a few steps."""
    if session.linked or session.uses & {"barrier", "grid"}:
        return False
    return not any(_has_loop(f) for f in session.module.functions if f.blocks)


def _has_loop(function: Any) -> bool:
    """Whether a function's code may come to a block twice."""
    done: set[Any] = set()
    way: list[tuple[Any, Iterator[Any]]] = []
    entered: set[Any] = set()

    def enter(block: Any) -> None:
        entered.add(block)
        operands = block.terminator.operands if block.terminator is not None else ()
        way.append((block, iter([o for o in operands if isinstance(o, ir.Block)])))

    enter(function.entry_basic_block)
    while way:
        block, rest = way[-1]
        following = next(rest, None)
        if following is None:
            way.pop()
            entered.discard(block)
            done.add(block)
        elif following in entered:
            return True
        elif following not in done:
            enter(following)
    return False
