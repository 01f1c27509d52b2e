"""numba-cuda-mlir as a compiler of kernels, of those that are written for it.

Its kernels take an array as a memref: the address twice, an offset, extents, and strides in
elements. Numbers are those of numba-cuda, type by type, and members of tuples are parameters.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numbasync.backend.compile_errors import compile_error
from numbasync.backend.cuda.compiled_kernel import AS_MLIR
from numbasync.backend.declared_signatures import resolved
from numbasync.backend.protocols import Dim3
from numbasync.compilers import IS_TRANSLATED, MLIR, NAME, ONLY_MLIR, own_kernel
from numbasync.errors import UnsupportedKernelError
from numbasync.kernel_names import types

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Handled

_turn = threading.Lock()  # its compiler and its dispatchers are used by one thread at a time


class MlirKernel:
    """A kernel that numba-cuda-mlir has compiled; see `CompiledKernel`."""

    passes, from_disk, report, why_not_packed = AS_MLIR, False, None, ""

    def __init__(self, result: Any, argument_types: tuple[Any, ...]) -> None:
        from cuda.core import ObjectCode

        metadata = result.cres.metadata
        self.argument_types = argument_types
        self._result = result
        self._cubin = bytes(metadata["cubin"])
        self._code = ObjectCode.from_cubin(self._cubin)
        # The name in the code has no part for None, which the name that is told has.
        entry = re.search(r"\.entry\s+([\w$.]+)", self.ptx())
        self.kernel = self._code.get_kernel(entry[1] if entry else metadata["func_name"])
        for prepare in metadata.get("setup_callbacks") or ():
            prepare(self._code)  # as its own launch does: the memory of arrays in kernels

    def expect_own_launches(self) -> None:
        raise UnsupportedKernelError(
            "this release of numba-cuda-mlir passes arguments otherwise than those that are known. "
            f"Set {NAME}=numba-cuda, which compiles the kernel."
        )

    def launch(
        self, stream: Handled, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any]
    ) -> None:
        self.expect_own_launches()

    def ptx(self) -> str:
        return str(self._result.ptx)

    def cubin(self) -> bytes:
        return self._cubin


def compiled(dispatcher: Any, actual: tuple[Any, ...]) -> MlirKernel | None:
    """The kernel that `dispatcher` is the counterpart of, compiled by its own compiler for
    arguments of these types, and loaded on the GPU whose context is current. None where numba-cuda
    compiles the counterpart: it is chosen, the kernel is for debugging or for cooperative launches,
    or an argument is neither an array of numbers nor a real number.
    """
    own = own_kernel(dispatcher)
    if own is None or any(own.targetoptions.get(o) for o in ("debug", "extensions")):
        return None
    try:
        actual = resolved(dispatcher, actual)
        theirs = list(map(type_of, actual))
        if None in theirs:
            return None
        with _turn:
            result = own.compile(tuple(theirs))
    except Exception as error:
        if hasattr(dispatcher, IS_TRANSLATED):  # of numba-cuda alone, as functions of this package
            return None
        raise compile_error(dispatcher.py_func, actual, error) from error
    if result.cres.metadata.get("use_cooperative"):
        return None
    return MlirKernel(result, actual)


def type_of(numba_type: Any) -> Any:
    """The type of numba-cuda-mlir for one of numba-cuda's; None where there is none, or where its
    kernels take such arguments otherwise than arrays, numbers and None.
    """
    if isinstance(numba_type, types.Array):
        element = _named(numba_type.dtype)
        kind: Any = importlib.import_module(f"{MLIR}.types").Array
        return element and kind(element, numba_type.ndim, numba_type.layout)
    # A complex number is one parameter there.
    return None if isinstance(numba_type, types.Complex) else _named(numba_type)


def _named(numba_type: Any) -> Any:
    if not isinstance(numba_type, types.Number | types.Boolean | types.NoneType):
        return None
    if ONLY_MLIR:
        return numba_type
    name = "boolean" if numba_type == types.boolean else numba_type.name
    found = getattr(importlib.import_module(f"{MLIR}.types"), name, None)
    return found if str(found) == str(numba_type) else None  # which no literal is
