"""numba-cuda-mlir, or where it is not installed, a package of its shape that compiles nothing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import pytest

PACKAGE = "numba_cuda_mlir"
IS_INSTALLED = importlib.util.find_spec(PACKAGE) is not None


class MLIRDispatcher:
    """What `jit` returns."""

    def __init__(self, function: FunctionType, targetoptions: dict[str, Any]) -> None:
        self.py_func, self.targetoptions = function, targetoptions

    def __getitem__(self, grid: object) -> Callable[..., None]:
        raise AssertionError("the switch is off: its own launch")

    __call__ = configure = forall = __getitem__


MLIRDispatcher.__module__ = f"{PACKAGE}.descriptor"


class _Named:
    """An object of the package, known by its identity."""


_Named.__module__ = f"{PACKAGE}.numba_cuda"


def _jit(function: Any = None, **options: Any) -> Any:
    if isinstance(function, FunctionType):
        return MLIRDispatcher(function, options)
    return lambda function: MLIRDispatcher(function, options)


def _decorator(*of: Any, **options: Any) -> Any:
    return lambda function: function


def _module(name: str, **held: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(held)
    return made


def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, which can be imported until the test ends."""
    if IS_INSTALLED:
        for name in ("cuda", "extending", "types"):
            importlib.import_module(f"{PACKAGE}.{name}")
        return importlib.import_module(PACKAGE)
    types = _module(f"{PACKAGE}.types", float32=_Named())
    names = (
        "atomic", "blockDim", "grid", "inline_ptx", "stream", "syncthreads", "threadIdx",
        "to_device", "DeviceNDArray",
    )  # fmt: skip
    cuda = _module(
        f"{PACKAGE}.cuda", jit=_jit, float32=types.float32,
        shared=_module(f"{PACKAGE}.cuda.shared", array=_Named()),
        **{name: _Named() for name in names},
    )  # fmt: skip
    descriptor = _module(f"{PACKAGE}.descriptor", MLIRDispatcher=MLIRDispatcher)
    names = ("overload", "overload_attribute", "overload_method", "register_jitable")
    extending = _module(f"{PACKAGE}.extending", **dict.fromkeys(names, _decorator))
    package = _module(PACKAGE, cuda=cuda, types=types, descriptor=descriptor, extending=extending)
    for made in (package, cuda, types, descriptor, extending):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    return package
