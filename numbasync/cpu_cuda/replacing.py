"""The switch: replaces parts of `numba.cuda` while programs for it run on the CPU device.

What is replaced stands in the `replacements()` of the other modules: the driver's calls in `host`,
arrays in `arrays`, kernels and their launches in `launches`, numba-cuda-mlir in `mlir`, `cuda.coop`
in `launch/cccl_twins.py`, `nvmath.device` in `launch/nvmath_twins.py`. `cuda.to_device` is made of
such calls, and stays Numba's own. Packages that not every program uses are not imported for that:
their parts are replaced when a program imports them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any

from numbasync.cpu_cuda import host, launches, mlir
from numbasync.errors import StateError
from numbasync.launch import cccl_twins, nvmath_twins
from numbasync.launch.mlir_kernels import PACKAGE

# What is replaced as soon as a module is imported.
_LATER: dict[str, Callable[[], list[tuple[Any, str, Any]]]] = {
    PACKAGE: mlir.replacements,
    "cuda.coop": cccl_twins.replacements,
    **nvmath_twins.REPLACEMENTS,
}
_MISSING = object()
_lock = threading.Lock()
_replaced: list[tuple[Any, str, Any]] = []  # what is put back, the latest last


def is_on() -> bool:
    """Whether `numba.cuda` of this process uses the CPU device.

    Example:
        >>> from numbasync import cpu_cuda
        >>> with na.cuda_on_cpu():
        ...     print(cpu_cuda.is_on())
        True
    """
    return bool(_replaced)


def switch(on: bool) -> None:
    """Let `numba.cuda` use the CPU device from now on, or a GPU again.

    A kernel is compiled for each of the two. One that is declared with signatures while the switch
    is on has no code for a GPU: declare it again behind that. Names that a module has taken from
    `numba.cuda` before (`from numba.cuda import to_device`) stay what they were, so switch on
    before the program is imported.

    Example:
        >>> from numbasync import cpu_cuda
        >>> cpu_cuda.switch(True)
        >>> len(cuda.gpus)
        1
        >>> cpu_cuda.switch(False)

    Raises:
        StateError: NUMBA_ENABLE_CUDASIM is set: Numba's simulator is in the place of the compiler.
    """
    with _lock:
        if on == is_on():
            return
        if not on:
            _put_back()
            return
        if importlib.import_module("numba.core.config").ENABLE_CUDASIM:
            raise StateError(
                "NUMBA_ENABLE_CUDASIM is set, and numba.cuda is Numba's simulator in this process."
                "\nUnset it: the CPU device takes its place."
            )
        try:
            for of in (host, launches):
                _replace(of.replacements())
            for name, replacements in _LATER.items():
                if name in sys.modules:
                    _replace(replacements())
            sys.meta_path.insert(0, _watcher)
        except BaseException:
            _put_back()
            raise


def _replace(replacements: list[tuple[Any, str, Any]]) -> None:
    for home, name, value in replacements:
        _replaced.append((home, name, vars(home).get(name, _MISSING)))
        setattr(home, name, value)


class _Watcher(importlib.abc.MetaPathFinder):
    """Has the other finders find a module of `_LATER`; when it is there, its parts are replaced."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _LATER:
            return None
        others = (f.find_spec(name, path, target) for f in sys.meta_path if f is not self)
        spec = next((found for found in others if found is not None), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            own = loader.exec_module

            def execute(module: Any) -> None:
                own(module)
                if module.__name__ == name and is_on():
                    _replace(_LATER[name]())

            loader.exec_module = execute
        return spec


_watcher = _Watcher()


def _put_back() -> None:
    if _watcher in sys.meta_path:
        sys.meta_path.remove(_watcher)
    while _replaced:
        home, name, value = _replaced.pop()
        if value is _MISSING:
            delattr(home, name)
        else:
            setattr(home, name, value)


@contextmanager
def cuda_on_cpu() -> Iterator[None]:
    """Inside the block, programs for `numba.cuda` use the CPU device: see `numbasync.cpu_cuda`.

    It holds for the whole process, all threads of it.

    Example:
        >>> @cuda.jit
        ... def double(a):
        ...     a[cuda.grid(1)] *= 2
        >>> with na.cuda_on_cpu():
        ...     a = cuda.to_device(np.arange(4))
        ...     double[1, 4](a)
        ...     print(a.copy_to_host())
        [0 2 4 6]
    """
    was_on = is_on()
    switch(True)
    try:
        yield
    finally:
        switch(was_on)
