"""Twins: what functions of other languages mean on the CPU device, written for Numba."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from numba.cuda.compiler import ExternFunction

from numbasync.arguments import with_type
from numbasync.backend.cpu.target.context import emits
from numbasync.errors import LauncherError

F = TypeVar("F", bound=Callable[..., Any])
_twins: dict[Any, FunctionType] = {}


def twin_of(declared: Any) -> FunctionType | None:
    """The twin of a declared function; None if it has none."""
    return _twins.get(declared) if isinstance(declared, ExternFunction) else None


def cpu_twin(declared: Any) -> Callable[[F], F]:
    """Say what a function of C or C++ means on the CPU device, where it is not linked.

    The decorated function is compiled in its place, for the declared types, when a kernel that
    calls it is first launched on the CPU device; GPUs link the function itself. It may call what
    device functions call. A function that all threads of a block call together, as those of
    CUB, exchanges values by shared memory and `cuda.syncthreads`: the call is a barrier.

    Args:
        declared: what `cuda.declare_device` returned. It has one twin, the latest.

    Raises:
        LauncherError: the object is no declared function, or the twin has other parameters.

    Example:
        >>> cube = cuda.declare_device("cube", "float32(float32)", link="cube.cu")
        >>> @na.cpu_twin(cube)
        ... def _(x):
        ...     return x * x * x
        >>> @na.launcher
        ... @cuda.jit
        ... def cubes(z: na.KernelOutput, x: na.KernelInput):
        ...     i = cuda.grid(1)
        ...     if i < z.size:
        ...         z[i] = cube(x[i])
    """
    if not isinstance(declared, ExternFunction):
        raise LauncherError(
            f"{with_type(declared)} is no declared function. A twin is of what "
            'cuda.declare_device("name", "float32(float32)") returns.'
        )
    signature = declared.sig

    def decorate(function: F) -> F:
        twin: object = function
        if not isinstance(twin, FunctionType):
            raise LauncherError(
                f"{with_type(twin)} is no function. Write @na.cpu_twin above a plain function, "
                "without cuda.jit: it is compiled for the types of the declaration."
            )
        if twin.__code__.co_argcount != len(signature.args):
            raise LauncherError(
                f"{twin.__name__} has {twin.__code__.co_argcount} parameters, and "
                f"{declared.name} is declared with {len(signature.args)}, as {signature}. A twin "
                "has the same."
            )
        if declared not in _twins:
            emits(declared, *signature.args)(_call_of(declared))
        _twins[declared] = twin
        return function

    return decorate


def _call_of(declared: Any) -> Callable[..., Any]:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.compile_internal(builder, _twins[declared], sig, args)

    return emit
