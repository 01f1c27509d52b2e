"""Kernels for numba-cuda-mlir, the successor of numba-cuda: `from numba_cuda_mlir import cuda`.

Its names mean what those of `numba.cuda` mean, but they are objects of its own. So a kernel of it
becomes a kernel of `numba.cuda` of the same code, which looks its names up where the program has
them, and sees in the place of each object of numba-cuda-mlir the one of numba-cuda that is called
the same.

Example, of a program (on the left) and of what its kernel sees:

    cuda                      numba_cuda_mlir.cuda         ->  numba.cuda
    syncthreads               numba_cuda_mlir.cuda's       ->  numba.cuda.syncthreads
    helper                    a device function of it      ->  one of numba.cuda, made likewise
    N                         4                                4
"""

from __future__ import annotations

import dis
import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType, ModuleType
from typing import Any, TypeAlias

from numbasync.backend.protocols import MAY_ALLOCATE
from numbasync.compilers import IS_TRANSLATED, MLIR, ONLY_MLIR, WRITTEN_AS
from numbasync.errors import UnsupportedKernelError

PACKAGE = MLIR
_Meaning: TypeAlias = Callable[[Any], Any]
_MADE = "_numbasync_numba_cuda"  # an attribute of a kernel or function: the one of numba.cuda
# The options of its `jit` that are those of numba.cuda's.
_OPTIONS = (
    "cache", "debug", "device", "extensions", "fastmath", "launch_bounds", "lineinfo", "link",
    "max_registers",
)  # fmt: skip
# Modules that numba.cuda has, but does not import; and names that only numba-cuda-mlir has.
_MODULES = ("random", "cg", "libdevice")
_ALIASES = {
    "local_array": "local.array", "shared_array": "shared.array",
    "DeviceNDArray": "cudadrv.devicearray.DeviceNDArray",
}  # fmt: skip


def belongs(value: object) -> bool:
    """Whether an object is one of numba-cuda-mlir: a module, function, class or instance of it."""
    if isinstance(value, ModuleType):
        home: object = value.__name__
    else:
        home = type(value).__module__
        if isinstance(value, type | FunctionType):
            home = value.__module__
    return isinstance(home, str) and home.partition(".")[0] == PACKAGE


def is_kernel(value: object) -> bool:
    """Whether an object is what the `jit` of numba-cuda-mlir returns."""
    return belongs(value) and isinstance(getattr(value, "py_func", None), FunctionType)


def as_numba_cuda(kernel: Any) -> Any:
    """The kernel or device function of `numba.cuda` that a kernel of numba-cuda-mlir stands for;
    each has one.
    """
    if ONLY_MLIR:
        return kernel
    made = vars(kernel).get(_MADE)
    if made is None:
        options = {k: v for k, v in kernel.targetoptions.items() if k in _OPTIONS and v}
        if kernel.targetoptions.get("opt") is False:
            options["opt"] = False
        made = declared(kernel.py_func, (), options, lambda new: setattr(kernel, _MADE, new))
        setattr(made, WRITTEN_AS, kernel)
    return made


def declared(
    function: FunctionType, signatures: Any, options: Mapping[str, Any], note: Any = None
) -> Any:
    """`numba.cuda.jit` of a function that is written for numba-cuda-mlir.

    Args:
        function: the function.
        signatures: what is declared: a signature or several, of either package; empty: nothing.
        options: what `numba.cuda.jit` is given.
        note: is called with the result before the function's captured variables are looked at,
            one of which may be the function itself.
    """
    cuda: Any = importlib.import_module("numba.cuda")
    _check_names(function)
    new = _with_meaning(function, meaning)
    made = None if signatures else cuda.jit(**options)(new)
    if note is not None:
        note(made)
    _fill_cells(new, function, meaning)
    if signatures:
        made = cuda.jit(meaning(signatures), **options)(new)
    setattr(made, MAY_ALLOCATE, True)  # as kernels of numba-cuda-mlir do
    return made


def _with_meaning(function: FunctionType, meaning: _Meaning) -> FunctionType:
    """The same function, with names that have their meaning; its captured variables are empty."""
    cells = [cell if cell == CellType() else CellType() for cell in function.__closure__ or ()]
    new = FunctionType(
        function.__code__, _Names(function.__globals__, meaning), function.__name__,
        function.__defaults__, tuple(cells),
    )  # fmt: skip
    functools.update_wrapper(new, function)
    del vars(new)["__wrapped__"]
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def _fill_cells(new: FunctionType, function: FunctionType, meaning: _Meaning) -> None:
    for cell, given in zip(new.__closure__ or (), function.__closure__ or (), strict=True):
        if cell is not given:  # else it is not assigned yet
            cell.cell_contents = meaning(given.cell_contents)


def _called(value: object) -> Any:
    """The device function of `call_in_kernels`; None of any other object."""
    if not isinstance(value, FunctionType) or _MADE not in vars(value):
        return None
    if vars(value)[_MADE] is None:
        vars(value)[_MADE] = declared(value, (), {"device": True})
    return vars(value)[_MADE]


def with_meaning(function: FunctionType) -> FunctionType:
    """The same function, in which all names have their meaning, and in functions that it makes."""
    new = _with_meaning(function, meaning)
    _fill_cells(new, function, meaning)
    return new


def call_in_kernels(function: FunctionType) -> FunctionType:
    """Let a function of a program mean, in its kernels, a device function of `numba.cuda`, which is
    made when a kernel is first looked at that calls it. It is returned.
    """
    setattr(function, _MADE, None)
    return function


def _check_names(function: FunctionType) -> None:
    for step in dis.get_instructions(function.__code__):
        value = function.__globals__.get(step.argval) if step.opname == "LOAD_GLOBAL" else None
        if belongs(value) and belongs(meaning(value)):
            raise UnsupportedKernelError(
                f"kernel {function.__name__} uses {step.argval} of numba-cuda-mlir, and numba.cuda "
                "has nothing that is called the same, which compiles kernels of either here.\n"
                "Write it with names that both have."
            )


def meaning(value: Any) -> Any:
    """The object of numba-cuda for one of numba-cuda-mlir; any other object is itself."""
    found = counterparts().get(id(value))
    if found is not None:
        return found
    if is_kernel(value):
        return as_numba_cuda(value)
    called = _called(value)
    if called is not None:
        return called
    if type(value) in (tuple, list):
        return type(value)(map(meaning, value))
    if isinstance(value, ModuleType) and not belongs(value):
        held = [v for v in vars(value).values() if belongs(v)]
        return _Module(value, meaning) if held else value
    if belongs(value) and hasattr(value, "return_type"):
        typing = importlib.import_module("numba.cuda.typing")
        return typing.signature(meaning(value.return_type), *map(meaning, value.args))
    if belongs(value) and isinstance(value, ModuleType | FunctionType):
        return _same_named(value)
    if belongs(value) and ".types." in type(value).__module__ + ".":
        return _same_type(value)
    return value


def compile_by_mlir(kernel: Any) -> None:
    """Let numba-cuda-mlir compile a kernel of `numba.cuda` for GPUs, as far as it can."""
    if not (ONLY_MLIR or hasattr(kernel, WRITTEN_AS) or kernel.targetoptions.get("debug")):
        setattr(kernel, WRITTEN_AS, _as_mlir(kernel))
        setattr(kernel, IS_TRANSLATED, True)


def _as_mlir(kernel: Any) -> Any:
    """The kernel or device function of numba-cuda-mlir for one of `numba.cuda`."""
    other: Any = importlib.import_module(f"{PACKAGE}.cuda")
    function = kernel.py_func
    new = _with_meaning(function, _meaning_for_mlir)
    options = {k: v for k, v in kernel.targetoptions.items() if k in _OPTIONS and v}
    plain = other.jit(**options)(_nothing)  # which looks at all names of a function: not at these
    made = vars(kernel)[_MADE] = type(plain)(new, targetoptions=dict(plain.targetoptions))
    _fill_cells(new, function, _meaning_for_mlir)
    return made


def _nothing() -> None:
    return


def _meaning_for_mlir(value: Any) -> Any:
    """The object of numba-cuda-mlir for one of numba-cuda; any other object is itself."""
    found = _counterparts_of_numba_cuda().get(id(value))
    if found is not None:
        return found
    if _is_of_numba_cuda(value):
        return vars(value).get(_MADE) or _as_mlir(value)
    if type(value) in (tuple, list):
        return type(value)(map(_meaning_for_mlir, value))
    if isinstance(value, ModuleType) and not value.__name__.startswith("numba"):
        known = _counterparts_of_numba_cuda()
        held = [v for v in vars(value).values() if id(v) in known or _is_of_numba_cuda(v)]
        return _Module(value, _meaning_for_mlir) if held else value
    return value


def _is_of_numba_cuda(value: object) -> bool:
    return type(value).__name__ == "CUDADispatcher" and not belongs(value)


@functools.cache
def _counterparts_of_numba_cuda() -> dict[int, Any]:
    """`counterparts`, the other way round; its names nearest to the top count."""
    other: Any = importlib.import_module(f"{PACKAGE}.cuda")
    cuda: Any = importlib.import_module("numba.cuda")
    types: Any = importlib.import_module(f"{PACKAGE}.types")
    found = {id(sys.modules["numba"]): sys.modules[PACKAGE], id(cuda): other, id(cuda.types): types}
    todo = [(cuda, other), (cuda.types, types)]
    for ours, theirs in todo:
        for name in list(vars(theirs)):
            value, there = getattr(ours, name, None), getattr(theirs, name)
            if name.startswith("_") or value is None or id(value) in found or value is there:
                continue
            if belongs(there):
                found[id(value)] = there
                if isinstance(there, type | ModuleType):
                    todo.append((value, there))
    return found


class _Names(dict[str, Any]):
    """The globals of a module as they are at each look, with the meaning of each object."""

    def __init__(self, of: dict[str, Any], meaning: _Meaning) -> None:
        # CPython reads these two from the dict itself.
        super().__init__({k: of[k] for k in ("__name__", "__builtins__") if k in of})
        self._of, self._meaning = of, meaning

    def __getitem__(self, name: str) -> Any:
        return self._meaning(self._of[name])

    def get(self, name: str, default: Any = None) -> Any:
        return self._meaning(self._of[name]) if name in self._of else default

    def __contains__(self, name: object) -> bool:
        return name in self._of

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def keys(self) -> Any:
        return self._of.keys()

    def values(self) -> Any:
        return self.copy().values()

    def items(self) -> Any:
        return self.copy().items()

    def copy(self) -> dict[str, Any]:
        return {name: self._meaning(value) for name, value in list(self._of.items())}

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        return self.copy() | other


class _Module(ModuleType):
    """A module of the program whose objects have their meaning."""

    def __init__(self, of: ModuleType, meaning: _Meaning) -> None:
        super().__init__(of.__name__)
        self.__dict__.update(_of=of, _meaning=meaning)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_meaning"](getattr(self.__dict__["_of"], name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Module) and other.__dict__["_of"] is self.__dict__["_of"]

    def __hash__(self) -> int:
        return hash(self.__dict__["_of"])


@functools.cache
def counterparts() -> dict[int, Any]:
    """What numba-cuda has in the place of each named object of numba-cuda-mlir, by identity."""
    cuda: Any = importlib.import_module("numba.cuda")
    for name in _MODULES:
        importlib.import_module(f"numba.cuda.{name}")
    package: Any = importlib.import_module(PACKAGE)
    other: Any = importlib.import_module(f"{PACKAGE}.cuda")
    found: dict[int, Any] = {id(package): sys.modules["numba"], id(other): cuda}
    for name, path in _ALIASES.items():
        if hasattr(other, name):
            found[id(getattr(other, name))] = functools.reduce(getattr, path.split("."), cuda)
    types: Any = importlib.import_module(f"{PACKAGE}.types")
    found[id(types)] = cuda.types
    todo = [(other, cuda), (types, cuda.types)]
    for theirs, ours in todo:  # which grows: names nearer to the top come first
        for name, value in list(vars(theirs).items()):
            if name.startswith("_") or not belongs(value) or id(value) in found:
                continue
            if hasattr(ours, name):
                found[id(value)] = getattr(ours, name)
                if isinstance(value, type | ModuleType):
                    todo.append((value, getattr(ours, name)))
    return found


def _same_named(value: Any) -> Any:
    """The module or function of numba-cuda of the same name; itself, if there is none."""
    is_module = isinstance(value, ModuleType)
    try:
        home = importlib.import_module(_home(value.__name__ if is_module else value.__module__))
    except ImportError:
        return value
    return home if is_module else getattr(home, value.__name__, value)


def _home(module: str) -> str:
    """The module of numba-cuda for one of numba-cuda-mlir, by its name."""
    for theirs in (f"{PACKAGE}.numba_cuda", PACKAGE):
        if module == theirs or module.startswith(f"{theirs}."):
            return f"numba.cuda{module.removeprefix(theirs)}"
    return module


class _Types(pickle.Unpickler):
    """Reads a pickled type of numba-cuda-mlir as the same type of numba-cuda."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(_home(module), name)


def _same_type(value: Any) -> Any:
    return _Types(io.BytesIO(pickle.dumps(value))).load()
