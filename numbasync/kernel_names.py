"""The names with which kernels of this package are written, and by which it reads the kernels of
programs: those of the compiler that is installed.

They are numba-cuda's, where it is there, else those of its successor numba-cuda-mlir, which are
called the same and mean the same. What only one of the two compilers has is named where that
compiler is driven: `backend/cuda/numba_cuda_compiler.py`, `backend/cuda/mlir_compiler.py`, and the
CPU device, which is made of numba-cuda's lowering.

A program imports the names from the package that it is written for, with `from numba import cuda`
or `from numba_cuda_mlir import cuda`.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from numbasync.compilers import ONLY_MLIR

Dispatcher: Any  # what `cuda.jit` makes of a function

if TYPE_CHECKING or not ONLY_MLIR:
    from numba import cuda as cuda
    from numba import float32 as float32
    from numba import float64 as float64
    from numba import int32 as int32
    from numba import int64 as int64
    from numba import uint8 as uint8
    from numba import uint16 as uint16
    from numba import uint32 as uint32
    from numba import uint64 as uint64
    from numba.cuda import cgutils as cgutils
    from numba.cuda import extending as extending
    from numba.cuda import libdevice as libdevice
    from numba.cuda import types as types
    from numba.cuda.core import targetconfig as targetconfig
    from numba.cuda.core.errors import NumbaError as NumbaError
    from numba.cuda.core.errors import TypingError as TypingError
    from numba.cuda.typing.typeof import typeof as typeof
    from numba.np.numpy_support import as_dtype as as_dtype
    from numba.np.numpy_support import from_dtype as from_dtype

    Dispatcher = cuda.dispatcher.CUDADispatcher
else:
    from numba_cuda_mlir import cuda as cuda
    from numba_cuda_mlir import descriptor as _descriptor
    from numba_cuda_mlir import extending as _extending
    from numba_cuda_mlir.cuda import libdevice as libdevice
    from numba_cuda_mlir.numba_cuda import cgutils as cgutils
    from numba_cuda_mlir.numba_cuda import extending as _shared
    from numba_cuda_mlir.numba_cuda import types as types
    from numba_cuda_mlir.numba_cuda.core import targetconfig as targetconfig
    from numba_cuda_mlir.numba_cuda.core.errors import NumbaError as NumbaError
    from numba_cuda_mlir.numba_cuda.core.errors import TypingError as TypingError
    from numba_cuda_mlir.numba_cuda.np.numpy_support import as_dtype as as_dtype
    from numba_cuda_mlir.numba_cuda.np.numpy_support import from_dtype as from_dtype
    from numba_cuda_mlir.numba_cuda.types import float32 as float32
    from numba_cuda_mlir.numba_cuda.types import float64 as float64
    from numba_cuda_mlir.numba_cuda.types import int32 as int32
    from numba_cuda_mlir.numba_cuda.types import int64 as int64
    from numba_cuda_mlir.numba_cuda.types import uint8 as uint8
    from numba_cuda_mlir.numba_cuda.types import uint16 as uint16
    from numba_cuda_mlir.numba_cuda.types import uint32 as uint32
    from numba_cuda_mlir.numba_cuda.types import uint64 as uint64
    from numba_cuda_mlir.numba_cuda.typing.typeof import typeof as typeof

    from numbasync import mlir_models as mlir_models

    Dispatcher = _descriptor.MLIRDispatcher
    extending = SimpleNamespace(**(vars(_shared) | vars(_extending)))
    extending.overload = partial(  # which asks where, as a package has registries of its own there
        _extending.overload, typing_registry=_extending.typing_registry
    )
