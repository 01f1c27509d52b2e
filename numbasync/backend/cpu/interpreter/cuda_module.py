"""The stand-in for `numba.cuda` in kernels that run as Python.

`CUDA` is one object for all threads of the process; the block and the thread that run at the moment
are those of `block_state.current`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda
from numba.core import types
from numba.np.numpy_support import as_dtype

from numbasync.backend.cpu.interpreter import waiting
from numbasync.backend.cpu.interpreter.block_state import (
    BlockState,
    current,
    unwritten,
    with_fields,
)
from numbasync.backend.cpu.interpreter.places import Index3, place_of_call
from numbasync.backend.cpu.interpreter.tensor_cores.plain_arrays import untracked
from numbasync.backend.cpu.limits import LIMITS
from numbasync.backend.shared_layout import SharedLayout
from numbasync.errors import KernelError, UnsupportedKernelError


class _Axes:
    """`cuda.threadIdx` and the like, for the thread that runs at the moment."""

    def __init__(self, attribute: str) -> None:
        self._index: Callable[[Any], Index3] = operator.attrgetter(attribute)

    @property
    def x(self) -> int:
        return self._index(current()).x

    @property
    def y(self) -> int:
        return self._index(current()).y

    @property
    def z(self) -> int:
        return self._index(current()).z

    def __repr__(self) -> str:
        return repr(self._index(current()))


class _Shared:
    """`cuda.shared`: one array of a block for each place in the code that creates one."""

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        state: BlockState = current()
        element = _dtype(dtype)
        key = place_of_call(), shape, element
        array = state.arrays.get(key)
        if array is None:
            if shape in (0, (0,)):
                whole = len(state.dynamic) // element.itemsize * element.itemsize
                array = with_fields(state.dynamic[:whole].view(element))
            else:
                array = _new_array(shape, element)
                state.static_bytes += array.nbytes
            static, dynamic = state.static_bytes, len(state.dynamic)
            if (
                static > LIMITS.max_shared_bytes
                or static + dynamic > LIMITS.max_dynamic_shared_bytes
            ):
                raise KernelError(
                    f"a block needs {static:,} bytes of static and {dynamic:,} bytes of dynamic "
                    f"shared memory; the device allows {LIMITS.max_shared_bytes:,} static, and "
                    f"{LIMITS.max_dynamic_shared_bytes:,} together."
                )
            state.arrays[key] = array
        return array


class LayoutArrays:
    """The stand-in for a shared layout: its arrays, in the block's dynamic shared memory."""

    def __init__(self, layout: SharedLayout) -> None:
        self._layout = layout

    def __getattr__(self, name: str) -> Any:
        array = self._layout.find(name)
        if array is None:
            raise AttributeError(f"the shared layout has no array {name!r}:\n{self._layout!r}")
        if array.declared is not None:
            return current().declared(array)
        memory = current().dynamic[array.offset : array.end]
        view = memory.view(array.dtype).reshape(array.shape)
        return current().plain(name, view, array.offset)


class _Local:
    """`cuda.local`."""

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        return _new_array(shape, _dtype(dtype))


class _Const:
    """`cuda.const`."""

    def array_like(self, ndarray: Any) -> Any:
        return with_fields(ndarray)


def _new_array(shape: Any, dtype: np.dtype[Any]) -> Any:
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    return with_fields(unwritten(count * dtype.itemsize).view(dtype).reshape(shape))


def _dtype(dtype: Any) -> np.dtype[Any]:
    element: np.dtype[Any] = as_dtype(dtype) if isinstance(dtype, types.Type) else np.dtype(dtype)
    return element


def _atomic(combine: Callable[[Any, Any], Any]) -> Any:
    """An atomic operation, which returns the old element. Only one CUDA thread of a launch runs at
    a time, and launches that share an array are ordered, so that a read and a write will do.
    """

    def update(array: Any, index: Any, value: Any) -> Any:
        array = untracked(array)
        old = array[index]
        array[index] = combine(old, _element(array, value))
        return old

    return staticmethod(update)


def _element(array: Any, value: Any) -> Any:
    """A number in the array's type, converted as C converts."""
    return np.asarray(value).astype(array.dtype)[()]


class _Atomic:
    """`cuda.atomic`."""

    add = _atomic(operator.add)
    sub = _atomic(operator.sub)
    and_ = _atomic(operator.and_)
    or_ = _atomic(operator.or_)
    xor = _atomic(operator.xor)
    exch = _atomic(lambda old, new: new)
    inc = _atomic(lambda old, top: 0 if old >= top else old + 1)
    dec = _atomic(lambda old, top: top if old == 0 or old > top else old - 1)
    # A NaN in memory stays, a NaN in the argument is ignored: as compiled kernels do.
    max = _atomic(lambda old, new: new if new > old else old)
    min = _atomic(lambda old, new: new if new < old else old)
    nanmax = _atomic(np.fmax)
    nanmin = _atomic(np.fmin)

    def cas(self, array: Any, index: Any, old: Any, value: Any) -> Any:
        array = untracked(array)
        current = array[index]
        if current == _element(array, old):
            array[index] = _element(array, value)
        return current

    def compare_and_swap(self, array: Any, old: Any, value: Any) -> Any:
        return self.cas(array, 0, old, value)


class CudaModule:
    """The stand-in for the module `numba.cuda`."""

    warpsize = 32
    shared, local, const, atomic = _Shared(), _Local(), _Const(), _Atomic()
    syncthreads = staticmethod(waiting.barrier("syncthreads"))
    syncthreads_count = staticmethod(waiting.barrier("syncthreads_count"))
    syncthreads_and = staticmethod(waiting.barrier("syncthreads_and"))
    syncthreads_or = staticmethod(waiting.barrier("syncthreads_or"))

    syncwarp = staticmethod(waiting.syncwarp)
    activemask = staticmethod(waiting.activemask)
    shfl_sync, shfl_up_sync = staticmethod(waiting.shfl), staticmethod(waiting.shfl_up)
    shfl_down_sync, shfl_xor_sync = staticmethod(waiting.shfl_down), staticmethod(waiting.shfl_xor)
    all_sync, any_sync = staticmethod(waiting.all_), staticmethod(waiting.any_)
    eq_sync, ballot_sync = staticmethod(waiting.eq), staticmethod(waiting.ballot)
    match_any_sync = staticmethod(waiting.match_any)
    match_all_sync = staticmethod(waiting.match_all)

    def __init__(self) -> None:
        self.threadIdx, self.blockIdx = _Axes("thread"), _Axes("block")
        self.blockDim, self.gridDim = _Axes("block_extent"), _Axes("grid_extent")

    def __getattr__(self, name: str) -> Any:

        if not hasattr(cuda, name):
            raise UnsupportedKernelError(f"numba.cuda has no {name!r}: is cuda.{name} misspelt?")
        value = getattr(cuda, name)
        if isinstance(value, types.Type):
            return value
        raise unavailable(f"cuda.{name}")

    # --- indices ---

    def grid(self, ndim: int) -> Any:
        state: BlockState = current()
        block, extent, thread = state.block, state.block_extent, state.thread
        x = block.x * extent.x + thread.x
        if ndim == 1:
            return x
        index = x, block.y * extent.y + thread.y, block.z * extent.z + thread.z
        return index[:ndim]

    def gridsize(self, ndim: int) -> Any:
        state: BlockState = current()
        sizes = tuple(map(operator.mul, state.grid_extent, state.block_extent))
        return sizes[0] if ndim == 1 else sizes[:ndim]

    @property
    def laneid(self) -> int:
        x, y, z = current().thread
        extent = self.blockDim
        return int(x + extent.x * (y + extent.y * z)) % self.warpsize

    # --- memory order: one thread of a launch runs at a time ---

    def threadfence(self) -> None:
        """Nothing to do."""

    threadfence_block = threadfence
    threadfence_system = threadfence

    # --- arithmetic ---

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    def selp(self, condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b

    def cbrt(self, x: Any) -> Any:
        return np.cbrt(x)

    def ffs(self, x: Any) -> int:
        low = int(x)
        return (low & -low).bit_length()

    def popc(self, x: Any) -> int:
        return bin(_unsigned(x, "popc")[0]).count("1")

    def clz(self, x: Any) -> int:
        value, bits = _unsigned(x, "clz")
        return bits - value.bit_length()

    def brev(self, x: Any) -> Any:
        value, bits = _unsigned(x, "brev")
        reversed_bits = np.array(int(f"{value:0{bits}b}"[::-1], 2), f"u{bits // 8}")
        return reversed_bits.astype(f"{x.dtype.kind}{bits // 8}")[()]


def _unsigned(x: Any, name: str) -> tuple[int, int]:
    """The bits of an integer as a number, and how many there are: 32 or 64, as in Numba."""
    if not isinstance(x, np.integer):
        raise UnsupportedKernelError(
            f"cuda.{name} of {x!r}, a Python integer, which has no width. A kernel that runs as "
            f"Python needs one: cuda.{name}(np.int32(x)), or np.int64, np.uint32, np.uint64."
        )
    bits = 64 if x.dtype.itemsize == 8 else 32
    return int(x) & ((1 << bits) - 1), bits


def unavailable(name: str) -> UnsupportedKernelError:
    return UnsupportedKernelError(
        f"{name} is not available in kernels that run as Python on the CPU device: those that use "
        "numbasync.tensor_cores, and all of them with NUMBASYNC_CPU_ENGINE=interpreted."
    )


CUDA = CudaModule()
