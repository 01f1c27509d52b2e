"""Numba's compiler for GPUs, where there is none: what it refuses, the CPU device refuses.

Numba infers types and writes LLVM's code in Python; only what comes after that, NVVM and the
driver, needs more. So the compiler is run that far, with the capability of some GPU and NVVM's
layout of data, and what it made is dropped.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import math
import types
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import cuda
from numba.core.errors import NumbaError
from numba.core.target_extension import target_override
from numba.cuda import compiler
from numba.cuda.cudadrv import nvvm
from numba.cuda.descriptor import cuda_target

from numbasync.backend.bfloat16_type import from_dtype, register
from numbasync.backend.compile_errors import compile_error
from numbasync.backend.cpu.compiler.array_rules import advice_on_arrays
from numbasync.backend.cpu.compiler.names import MISSING, device_function, is_array_function
from numbasync.backend.cpu.compiler.pipeline import Typing
from numbasync.backend.cpu.library.entry_points import types as numba_types
from numbasync.backend.protocols import SOURCE_ATTR, ArrayKey
from numbasync.errors import KernelCompileError, UnsupportedKernelError

# Type checkers do not know all of their names.
_compiler: Any = compiler
_nvvm: Any = nvvm
_dispatchers: Any = cuda.dispatcher.CUDADispatcher
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_WIDER = (
    cuda.atomic, *vars(cuda.atomic).values(), cuda.selp, cuda.ffs, math.gcd,
    cuda.all_sync, cuda.any_sync, cuda.eq_sync, cuda.ballot_sync,
    cuda.syncthreads_count, cuda.syncthreads_and, cuda.syncthreads_or,
)  # fmt: skip
_CAPABILITY = (9, 0)
_LAYOUT = (
    "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64-"
    "v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
)


class FrontEnd:
    """numba-cuda's compiler up to NVVM, for a kernel and the types of its arguments on a GPU. It is
    run once, when something is first asked.
    """

    def __init__(self, kernel: types.FunctionType, argument_types: Sequence[Any]) -> None:
        self._kernel = kernel
        self._kinds = tuple(argument_types)

    @cached_property
    def _outcome(self) -> _Outcome:
        return _run(self._kernel, self._kinds)

    @cached_property
    def refusal(self) -> Exception | None:
        """What numba-cuda raises for the kernel; None if it compiles."""
        error = self._outcome.error
        if isinstance(error, Warning):  # a program has turned warnings into errors
            return None
        if isinstance(error, NumbaError) or error is None:
            return error
        # Numba raises other classes, too, for constructs that it does not support. If this
        # version has other internals, the plain kernel fails as well: nothing is refused then.
        return error if _run(_plain, (numba_types.float32[:],)).error is None else None

    def check(self) -> None:
        """Refuse a kernel that numba-cuda refuses.

        Raises:
            KernelCompileError: with the line, the parameters, and advice on arrays in that line.
        """
        error = self.refusal
        if error is None:
            return
        raise refused(self._kernel, self._kinds, error) from error

    def shape_at(self, function: types.FunctionType, line: int) -> Any:
        """The shape of the shared or local arrays that a line of a function creates: an int or a
        tuple of ints. MISSING if there are several shapes, or numba-cuda knows none.
        """
        shapes = self._outcome.shapes.get((function.__code__.co_filename, line), set())
        return next(iter(shapes)) if len(shapes) == 1 else MISSING

    def types_of_call(
        self, caller: types.FunctionType, line: int, called: types.FunctionType
    ) -> Any:
        """The types of the arguments with which a line of a function calls a device function.
        MISSING if it calls it with several, or numba-cuda knows none.
        """
        calls = self._outcome.calls.get((caller.__code__.co_filename, line, called), set())
        return next(iter(calls)) if len(calls) == 1 else MISSING

    def has_several_types(self, called: types.FunctionType) -> bool:
        """Whether a device function is called with arguments of several types."""
        known = [c for (*_, f), calls in self._outcome.calls.items() if f is called for c in calls]
        return len(set(known)) > 1


def refused(
    kernel: types.FunctionType, kinds: Sequence[Any], error: Exception
) -> KernelCompileError | UnsupportedKernelError:
    """The error to raise for a kernel that numba-cuda has refused with `error`: with the line, the
    parameters, and advice on arrays in that line.
    """
    told = compile_error(kernel, kinds, error)
    lines = [told.args[0], *advice_on_arrays(kernel, kinds, str(told))]
    return type(told)("\n".join(lines))


def check(dispatcher: Any, keys: Sequence[Hashable]) -> None:
    """Refuse a kernel that numba-cuda refuses for arguments of these keys of a variant.

    Raises:
        KernelCompileError: see `FrontEnd.check`.
    """
    FrontEnd(dispatcher.py_func, [type_on_gpu(k) for k in keys]).check()


def may_be_refused(function: types.FunctionType, argument_types: Sequence[Any]) -> bool:
    """Whether a kernel uses something that is compiled for the processor with more types than for
    a GPU: an operation in place on a whole array, a function of NumPy, or of `_WIDER`.

    Args:
        argument_types: Numba's types of its arguments.
    """
    arrays = {
        name
        for name, numba_type in zip(function.__code__.co_varnames, argument_types, strict=False)
        if isinstance(numba_type, numba_types.Array)
    }
    stores = (i.argval for i in dis.get_instructions(function) if i.opname.startswith("STORE_FAST"))
    names = {n for stored in stores for n in (stored if type(stored) is tuple else (stored,))}
    return bool(arrays & names) or any(map(_is_wider, used_values(function)))


def _is_wider(value: Any) -> bool:
    if isinstance(value, np.ufunc):
        return True
    is_of_numpy = str(getattr(value, "__module__", None)).split(".")[0] == "numpy"
    is_function = is_of_numpy and callable(value) and not isinstance(value, type | np.generic)
    return is_function or any(value is each for each in _WIDER)


def used_values(function: types.FunctionType) -> Iterator[Any]:
    """The values of names in a function, and in the device functions that it calls."""
    return _used(function, set())


def _used(function: types.FunctionType, seen: set[types.FunctionType]) -> Iterator[Any]:
    """The values of names in a function, and in those that it calls. In a function that was written
    for a program, only the names of the program's functions.
    """
    if function in seen:
        return
    seen.add(function)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    held = {n: c.cell_contents for n, c in cells.items() if c != types.CellType()}
    known = {**vars(builtins), **function.__globals__, **held}
    for value in _named(function.__code__, known):
        inner = device_function(value)
        if inner is not None:
            yield from _used(inner, seen)
        elif not (hasattr(function, SOURCE_ATTR) or SOURCE_ATTR in function.__globals__):
            yield value


def _named(code: types.CodeType, known: dict[str, Any]) -> Iterator[Any]:
    value: Any = None  # the module that the last instruction has loaded
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            value = known.get(name)
        elif isinstance(value, types.ModuleType) and instruction.opname in _ATTRIBUTE:
            value = getattr(value, name, None)
        elif instruction.opname != "CACHE":
            value = None
        if value is not None and not isinstance(value, types.ModuleType):
            yield value
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _named(inner, known)


def type_on_gpu(key: Hashable) -> Any:
    """Numba's type of an argument on a GPU, by its part of a variant's key."""
    if isinstance(key, ArrayKey):
        return numba_types.Array(from_dtype(np.dtype(key.dtype)), key.ndim, key.order)
    if isinstance(key, tuple):
        return numba_types.BaseTuple.from_types([type_on_gpu(k) for k in key])
    return key


def _plus_one(x: Any) -> Any:
    return x + 1


_device: Any = cuda.jit(device=True)
_called = _device(_plus_one)


def _store(z: Any) -> None:
    z[cuda.grid(1)] = _called(z[0])


_plain: Any = _store


@dataclass(frozen=True)
class _Outcome:
    error: Exception | None
    shapes: dict[tuple[str, int], set[Any]]  # by file and line
    # Types of arguments, by file, line and called function.
    calls: dict[tuple[str, int, types.FunctionType], set[tuple[Any, ...]]]


def _run(function: types.FunctionType, arguments: tuple[Any, ...]) -> _Outcome:
    try:
        with _compiler.global_compiler_lock, target_override("cuda"), _for_any_gpu() as compiled:
            results = [_compiled(function, arguments, numba_types.void)]
            results += [result for known in compiled.values() for result in known.values()]
    except Exception as error:
        return _Outcome(error, {}, {})
    outcome = _Outcome(None, {}, {})
    for result in results:
        _read_calls(result.type_annotation, outcome)
    return outcome


def _read_calls(typed: Any, outcome: _Outcome) -> None:
    """Read the shapes of arrays, and the arguments of device functions, from numba-cuda's types of
    a function's calls.
    """
    shapes = outcome.shapes
    for call, signature in typed.calltypes.items():
        function = typed.typemap[call.func.name] if getattr(call, "op", "") == "call" else None
        called = device_function(getattr(function, "dispatcher", None))
        if called is not None:
            place = call.loc.filename, call.loc.line, called
            outcome.calls.setdefault(place, set()).add(tuple(signature.args))
        if is_array_function(getattr(function, "typing_key", None)):
            shape = signature.args[0]
            extents = getattr(shape, "types", [shape])
            values = tuple(getattr(extent, "literal_value", MISSING) for extent in extents)
            if MISSING not in values:
                value = values if hasattr(shape, "types") else values[0]
                shapes.setdefault((call.loc.filename, call.loc.line), set()).add(value)


def _compiled(function: types.FunctionType, arguments: tuple[Any, ...], result: Any) -> Any:
    flags = _compiler.CUDAFlags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.compute_capability = _CAPABILITY
    contexts = Typing(cuda_target.typing_context), cuda_target.target_context
    pipeline = _compiler.CUDACompiler(*contexts, None, arguments, result, flags, {})
    return pipeline.compile_extra(function)


class _Layout:
    """The part of NVVM that Numba uses while it generates LLVM code."""

    data_layout = _LAYOUT

    def get_ir_version(self) -> tuple[int, ...]:
        return 2, 0, 3, 2


@contextlib.contextmanager
def _for_any_gpu() -> Iterator[dict[Any, dict[tuple[Any, ...], Any]]]:
    """Let dispatchers compile the functions that a kernel calls for no GPU, and keep nothing.
    The caller holds the compiler's lock: nobody else compiles meanwhile.
    """
    compiled: dict[Any, dict[tuple[Any, ...], Any]] = {}

    def get_call_template(self: Any, args: Any, kws: Any) -> Any:
        signature, folded = self.fold_argument_types(args, kws)
        known = compiled.setdefault(self, {})
        if self._can_compile and tuple(folded) not in known:
            result = known[tuple(folded)] = _compiled(self.py_func, tuple(folded), None)
            context.insert_user_function(result.entry_point, result.fndesc, [result.library])
        declared = [] if self._can_compile else self.nopython_signatures
        name = self.py_func.__name__
        template = _compiler.typing.make_concrete_template(
            name, key=name, signatures=[*declared, *(f.signature for f in known.values())]
        )
        return template, signature, folded, {}

    def get_overload(self: Any, signature: Any) -> Any:
        types_of_call = tuple(signature)
        if types_of_call not in compiled.get(self, {}) and types_of_call not in self.overloads:
            # An intrinsic has resolved the call before, and its answer is kept: that of `apply`.
            get_call_template(self, types_of_call, {})
        result = compiled.get(self, {}).get(types_of_call) or self.overloads[types_of_call]
        return result.entry_point

    register()
    held = _nvvm.NVVM, _dispatchers.get_call_template, _dispatchers.get_overload
    context: Any = cuda_target.target_context
    _nvvm.NVVM = _Layout
    _dispatchers.get_call_template = get_call_template
    _dispatchers.get_overload = get_overload
    try:
        yield compiled
    finally:
        _nvvm.NVVM, _dispatchers.get_call_template, _dispatchers.get_overload = held
        for result in (f for known in compiled.values() for f in known.values()):
            context.remove_user_function(result.entry_point)
