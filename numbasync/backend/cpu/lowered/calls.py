"""The way from Python into machine code: a function for each list of argument types.

It takes five integers and the kernel's arguments, unpacks these as Numba does, and calls the code
without the interpreter lock. The code reads them from slots of 8 bytes, in the order in which Numba
flattens them. One function serves all kernels of the same argument types.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.funcdesc import FunctionDescriptor
from numba.core.lowering import Environment
from numba.core.registry import cpu_target

from numbasync.backend.cpu.library.entry_points import types
from numbasync.backend.cpu.library.small_floats import SmallFloat
from numbasync.backend.cpu.races.words import STATE, THREAD_ORDER
from numbasync.backend.protocols import Dim3
from numbasync.errors import UnsupportedKernelError

# What the function takes before the kernel's arguments: address of a `launch_of`, first block, end,
# address of the block's memory, bytes of dynamic shared memory.
LEADING = 5
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = _I8.as_pointer()
_CODE = ir.FunctionType(
    _I32,
    [_POINTER, _POINTER, _I64, _I64, *[_I32] * 6, _I64, _POINTER, _POINTER],
)


def launch_of(address: int, block: Dim3, grid: Dim3) -> Any:
    """What is the same for all parts of a launch: the address of the code, and extents."""
    return (ctypes.c_int64 * 7)(address, *block, *grid)


class Call:
    """A function that calls machine code.

    Attributes:
        run: the function; it raises IndexError if a block has stopped, whose record says why.
    """

    def __init__(self, library: Any, description: Any, environment: Any) -> None:
        self._library = library
        self.run: Callable[..., None] = _context().get_executable(library, description, environment)

    def serialized(self) -> Any:
        """The code, in a form that can be pickled."""
        with global_compiler_lock:
            return self._library.serialize_using_object_code()


class _Library(JITCodeLibrary):  # type: ignore[misc, unused-ignore]
    """Code that is short, and calls Python's functions: few of LLVM's passes find something."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        builder = self._codegen._pass_builder(opt=1)
        passes = binding.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.run(self._final_module, builder)


_known: dict[tuple[Any, ...], Call] = {}
_making = threading.Lock()


def call_of(argument_types: tuple[Any, ...], kept: Any = None) -> Call:
    """The function for arguments of these types.

    Args:
        kept: its code, as an earlier process has serialized it.

    Raises:
        UnsupportedKernelError: an argument has no form in which compiled code takes it.
    """
    argument_types = tuple(types.unliteral(t) for t in argument_types)
    with _making:
        if argument_types not in _known:
            description = _described(argument_types)
            environment = Environment.from_fndesc(description)
            with global_compiler_lock:
                if kept is None:
                    library = _compiled(description, environment)
                else:
                    library = _context().codegen().unserialize_library(kept)
                _known[argument_types] = Call(library, description, environment)
        return _known[argument_types]


def _context() -> Any:
    context: Any = cpu_target.target_context
    return context.subtarget(enable_nrt=False)


def _described(argument_types: tuple[Any, ...]) -> Any:
    every = (*[types.int64] * LEADING, *argument_types)
    names = tuple(f"a{i}" for i in range(len(every)))
    return FunctionDescriptor(
        native=True, modname=__name__, qualname="call", unique_name="call", doc="", typemap={},
        restype=types.void, calltypes={}, args=names, kws=(), argtypes=every,
    )  # fmt: skip


def _compiled(description: Any, environment: Any) -> Any:
    cpu_target.target_context.refresh()
    context = _context()
    library = _Library(context.codegen(), "numbasync.call")
    library.enable_object_caching()
    module = library.create_ir_module("numbasync.call")
    function = context.declare_function(module, description)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    _write(context, builder, function, description.argtypes)
    context.declare_env_global(module, context.get_env_name(description))
    library.add_ir_module(module)
    context.create_cpython_wrapper(
        library, description, environment, call_helper=None, release_gil=True
    )
    library.finalize()
    return library


def _flattened(context: Any, builder: Any, kinds: tuple[Any, ...], values: Any) -> list[Any]:
    """The parts of arguments, as kernels take them: as a GPU's, of which a small float has 16 bits
    everywhere.
    """
    flattened: list[Any] = []
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(kind, types.BaseTuple):
            parts = cgutils.unpack_tuple(builder, value, len(kind))
            flattened += _flattened(context, builder, tuple(kind), parts)
        elif isinstance(kind, SmallFloat):
            flattened.append(kind.format.write(builder, value))
        else:
            packer = context.get_arg_packer([kind])
            flattened += packer.as_arguments(builder, [value])
    return flattened


def _write(context: Any, builder: Any, function: Any, function_types: tuple[Any, ...]) -> None:
    """Store the arguments, call the code, and return what Numba's callers expect."""
    values = context.call_conv.get_arguments(function)
    launch, first, end, memory, dynamic = values[:LEADING]
    words = builder.inttoptr(launch, _I64.as_pointer())
    address, *extents = (builder.load(builder.gep(words, [_I64(i)])) for i in range(7))
    kinds = function_types[LEADING:]
    arguments = context.get_arg_packer(kinds).from_arguments(builder, values[LEADING:])
    flattened = _flattened(context, builder, kinds, arguments)
    slots = builder.alloca(ir.ArrayType(_I64, max(len(flattened), 1)))
    for i, value in enumerate(flattened):
        if context.get_abi_sizeof(value.type) > 8:
            raise UnsupportedKernelError(
                f"an argument has a part of {context.get_abi_sizeof(value.type)} bytes, and "
                "compiled kernels of the CPU device take parts of at most 8."
            )
        slot = builder.gep(slots, [_I32(0), _I32(i)])
        builder.store(value, builder.bitcast(slot, value.type.as_pointer()))
    state = builder.load(builder.inttoptr(builder.add(memory, _I64(8 * STATE)), _I64.as_pointer()))
    code = builder.inttoptr(address, _CODE.as_pointer())
    status = builder.call(
        code,
        [
            builder.bitcast(slots, _POINTER),
            builder.inttoptr(memory, _POINTER),
            first,
            end,
            *[builder.trunc(extent, _I32) for extent in extents],
            dynamic,
            _POINTER(None),
            # Only checked code reads it, and only then there is a state.
            builder.inttoptr(builder.add(state, _I64(8 * THREAD_ORDER)), _POINTER),
        ],
    )
    with builder.if_then(cgutils.is_not_null(builder, status), likely=False):
        context.call_conv.return_user_exc(builder, IndexError, ("stopped",))
    context.call_conv.return_value(builder, context.get_dummy_value())
