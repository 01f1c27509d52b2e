"""The two compilers of kernels for GPUs, numba-cuda and numba-cuda-mlir, and which makes a kernel.

A kernel that is written for numba-cuda-mlir has a counterpart of `numba.cuda`, which is what every
subpackage reads, and what the CPU device compiles; a GPU's code is made by the kernel's own
compiler.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

from numbasync.arguments import shown
from numbasync.errors import CallerError

Compiler: TypeAlias = Literal["numba-cuda", "numba-cuda-mlir"]
COMPILERS: tuple[Compiler, ...] = ("numba-cuda", "numba-cuda-mlir")
NAME = "NUMBASYNC_COMPILER"
MLIR = "numba_cuda_mlir"  # the package's module
# Whether numba-cuda-mlir types and compiles all kernels, because numba-cuda is not installed. Such
# a kernel is its own counterpart.
ONLY_MLIR = find_spec("numba_cuda") is None and find_spec(MLIR) is not None
# An attribute of a kernel of `numba.cuda`: the one of numba-cuda-mlir whose counterpart it is.
WRITTEN_AS = "_numbasync_written_as"
# Of one that is written for `numba.cuda`: the other kernel was made from it.
IS_TRANSLATED = "_numbasync_is_translated"


def own_kernel(dispatcher: Any) -> Any:
    """The kernel of numba-cuda-mlir that its own compiler makes for a GPU; None: numba-cuda makes
    the code of `dispatcher`.
    """
    if ONLY_MLIR:
        return dispatcher
    written = getattr(dispatcher, WRITTEN_AS, None)
    return None if written is None or chosen() == "numba-cuda" else written


@cache
def chosen() -> Compiler | None:
    """The compiler of all kernels, by the environment variable; None: each kernel's own.

    Raises:
        CallerError: the variable names none.
    """
    value = os.environ.get(NAME, "")
    for compiler in COMPILERS:
        if value == compiler:
            return compiler
    if value in ("", "auto"):
        return None
    raise CallerError(
        f"{NAME} is {shown(value)}. Write numba-cuda or numba-cuda-mlir, which then compiles all "
        "kernels, or auto: each kernel's own compiler, by the package whose cuda.jit decorates it."
    )
