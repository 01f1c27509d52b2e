"""The switch: replaces parts of `numba.cuda` while programs for it run on the CPU device.

What is replaced stands in the `replacements()` of the other modules: the driver's calls in `host`,
arrays in `arrays`, kernels and their launches in `launches`, numba-cuda-mlir in `mlir`, `cuda.coop`
in `launch/cccl_twins.py`. `cuda.to_device` is made of such calls, and stays Numba's own.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numbasync.cpu_cuda import host, launches, mlir
from numbasync.errors import StateError
from numbasync.launch import cccl_twins

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
            for of in (host, launches, mlir, cccl_twins):
                for home, name, value in of.replacements():
                    _replaced.append((home, name, vars(home).get(name, _MISSING)))
                    setattr(home, name, value)
        except BaseException:
            _put_back()
            raise


def _put_back() -> None:
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
