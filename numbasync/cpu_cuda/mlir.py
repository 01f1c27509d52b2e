"""Programs for numba-cuda-mlir on the CPU device: its `cuda` has the names of `numba.cuda`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import FunctionType
from typing import Any

from numbasync.cpu_cuda.host import module, refuse
from numbasync.launch import mlir_kernels
from numbasync.launch.mlir_kernels import PACKAGE, as_numba_cuda, declared

_ITS_OWN = ("libdevicefuncs",)  # of which its compiler asks more than numba-cuda's has
# How a kernel that was declared before the switch is launched, and what is asked of it.
_OF_A_KERNEL = ("configure", "forall", "__getitem__", "__call__")
# What its kernels tell of the code that was compiled for a GPU.
_OF_THE_CODE = (
    "inspect_mlir", "inspect_mlir_optimized", "inspect_ptx", "inspect_transformed_source",
    "launch_config_overloads", "launch_config_stats",
)  # fmt: skip


def jit(func_or_sig: Any = None, **options: Any) -> Any:
    """`numba_cuda_mlir.cuda.jit`, which makes a kernel of numba.cuda."""
    kept = {name: value for name, value in options.items() if value is not None}
    if isinstance(func_or_sig, FunctionType):
        return declared(func_or_sig, (), kept)
    if mlir_kernels.is_kernel(func_or_sig):
        return as_numba_cuda(func_or_sig)
    return lambda function: declared(function, func_or_sig or (), kept)


def _registering(own: Callable[..., Any]) -> Callable[..., Any]:
    """`numba_cuda_mlir.extending.register_jitable`, of functions that kernels call here, too."""

    def known(function: Any) -> Any:
        is_its_own = mlir_kernels.belongs(function)  # the package registers some itself
        return function if is_its_own else mlir_kernels.call_in_kernels(function)

    def register(*functions: Any, **options: Any) -> Any:
        if functions:
            return own(*map(known, functions), **options)
        return lambda function: own(**options)(known(function))

    return register


def _overloading(own: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A decorator of `numba_cuda_mlir.extending` that registers with numba.cuda, too."""
    ours = getattr(module("extending"), name)

    def register(*of: Any, **options: Any) -> Any:
        def decorate(function: Any) -> Any:
            meant = tuple(map(mlir_kernels.meaning, of))
            # No value has a type of the program's own for the other package.
            is_its_own = name != "overload" and not _is_type(meant[0])
            if not (mlir_kernels.belongs(function) or is_its_own):
                ours(*meant, target="cuda")(mlir_kernels.with_meaning(function))
            return own(*of, **options)(function)

        return decorate

    return register


def _is_type(value: Any) -> bool:
    kind = module("types").Type
    return isinstance(value, kind) or (isinstance(value, type) and issubclass(value, kind))


def _resolver(template: Any) -> Callable[[Any, Any], Any]:
    return lambda context, of: module("types").Function(template)


def _of_numba_cuda(name: str) -> Callable[..., Any]:
    def method(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(as_numba_cuda(kernel), name)(*args, **kwargs)

    return method


def replacements() -> list[tuple[Any, str, Any]]:
    """What numba-cuda-mlir has in the place of its own, as (module or class, name, value).
    `numba.cuda` uses the CPU device already.
    """
    other, ours = importlib.import_module(f"{PACKAGE}.cuda"), module("")
    found = mlir_kernels.counterparts()  # of its own names, before they are replaced
    made = [
        (other, name, getattr(ours, name, found[id(value)]))
        for name, value in vars(other).items()
        if id(value) in found and not name.startswith("_") and name not in _ITS_OWN
    ]
    kind = importlib.import_module(f"{PACKAGE}.descriptor").MLIRDispatcher
    made += [(kind, name, _of_numba_cuda(name)) for name in _OF_A_KERNEL]
    made += [
        (module("dispatcher").CUDADispatcher, name, refuse(f"code for GPUs: {name}"))
        for name in _OF_THE_CODE
    ]
    typing = module("cudadecl")
    for name in ("shared", "local"):  # names that only its `cuda` has
        resolver = _resolver(getattr(typing, f"Cuda_{name}_array"))
        made.append((ours, f"{name}_array", getattr(ours, name).array))
        made.append((typing.CudaModuleTemplate, f"resolve_{name}_array", resolver))
    extending = importlib.import_module(f"{PACKAGE}.extending")
    made.append((extending, "register_jitable", _registering(extending.register_jitable)))
    for name in ("overload", "overload_attribute", "overload_method"):
        made.append((extending, name, _overloading(getattr(extending, name), name)))
    return [*made, (other, "jit", jit)]
