"""What `cuda.` means inside an interpreted kernel.

One `Intrinsics` serves one worker thread. Its `threadIdx` and `blockIdx` are those of the
CUDA thread that runs at the moment; the interpreter moves them on.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.backend.cpu.interpreter.arrays import IntArray, element, typed, wrap
from numbasync.backend.cpu.interpreter.constants import numba_name, to_dtype
from numbasync.backend.cpu.interpreter.integers import UInt64, maker
from numbasync.backend.cpu.interpreter.math_module import floating
from numbasync.errors import InternalError, KernelError, UnsupportedKernelError

# Calls at which the threads of a block wait for each other.
BARRIERS = frozenset({"syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or"})

# Parts of `numba.cuda` that hold intrinsics of their own, and names that every
# `Intrinsics` has as attributes of the instance.
NESTED = ("shared", "local", "const", "atomic")
INSTANCE_NAMES = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim", *NESTED})


class Dim:
    """`x`, `y`, `z` of an index or an extent."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x: int = 0, y: int = 0, z: int = 0) -> None:
        self.x, self.y, self.z = x, y, z


class Intrinsics:
    """The stand-in for the module `numba.cuda`."""

    warpsize = 32

    def __init__(self) -> None:
        self.threadIdx = Dim()
        self.blockIdx = Dim()
        self.blockDim = Dim()
        self.gridDim = Dim()
        self.origin = Dim()  # first global index of the running block, per axis
        self.shared = _Shared()
        self.local = _Local()
        self.const = _Const()
        self.atomic = _Atomic()
        self.wait_at_barrier: Callable[[tuple[Any, int], str, Any], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        from numba import cuda

        return numba_name(cuda, name)

    # --- where am I ---

    def grid(self, ndim: int) -> Any:
        origin, thread = self.origin, self.threadIdx
        if ndim == 1:
            return origin.x + thread.x
        if ndim == 2:
            return origin.x + thread.x, origin.y + thread.y
        return origin.x + thread.x, origin.y + thread.y, origin.z + thread.z

    def gridsize(self, ndim: int) -> Any:
        grid, block = self.gridDim, self.blockDim
        sizes = (grid.x * block.x, grid.y * block.y, grid.z * block.z)
        return sizes[0] if ndim == 1 else sizes[:ndim]

    @property
    def laneid(self) -> int:
        t, b = self.threadIdx, self.blockDim
        return (t.x + b.x * (t.y + b.y * t.z)) % 32

    # --- barriers ---

    def _barrier(self, kind: str, value: Any) -> Any:
        if self.wait_at_barrier is None:
            raise InternalError(f"cuda.{kind} was reached in a kernel that was taken to have none")
        frame = sys._getframe(2)
        return self.wait_at_barrier((frame.f_code, frame.f_lasti), kind, value)

    def syncthreads(self) -> None:
        self._barrier("syncthreads", None)

    def syncthreads_count(self, predicate: Any) -> int:
        return int(self._barrier("syncthreads_count", predicate))

    def syncthreads_and(self, predicate: Any) -> int:
        return int(self._barrier("syncthreads_and", predicate))

    def syncthreads_or(self, predicate: Any) -> int:
        return int(self._barrier("syncthreads_or", predicate))

    def threadfence(self) -> None:
        """Nothing to do: one thread of a block runs at a time."""

    threadfence_block = threadfence
    threadfence_system = threadfence

    # --- arithmetic ---

    @staticmethod
    def fma(a: Any, b: Any, c: Any) -> Any:
        if {type(a), type(b), type(c)} == {np.float32}:
            return np.float32(np.float64(a) * np.float64(b) + np.float64(c))
        return a * b + c

    @staticmethod
    def selp(condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b

    @staticmethod
    def cbrt(x: Any) -> Any:
        return np.cbrt(floating(x))

    @staticmethod
    def popc(x: Any) -> int:
        bits = 64 if x.__class__ is int and x >= 0 else _bits(x, "popc")
        return (int(x) & ((1 << bits) - 1)).bit_count()

    @staticmethod
    def clz(x: Any) -> int:
        bits = _bits(x, "clz")
        return bits - (int(x) & ((1 << bits) - 1)).bit_length()

    @staticmethod
    def ffs(x: Any) -> int:
        low = int(x)  # the lowest bit that is set does not depend on the width
        return (low & -low).bit_length()

    @staticmethod
    def brev(x: Any) -> int:
        bits = _bits(x, "brev")
        low = int(x) & ((1 << bits) - 1)
        result = np.dtype(f"{'u' if isinstance(x, UInt64) else 'i'}{bits // 8}")
        return maker(result)(wrap(int(f"{low:0{bits}b}"[::-1], 2), result))


def _bits(x: Any, name: str) -> int:
    """How many bits Numba's form of a bit function looks at: 32 or 64."""
    bits = getattr(x, "bits", None)
    if bits is None:
        raise UnsupportedKernelError(
            f"cuda.{name} of an integer whose width the interpreter does not know.\n"
            f"Say it: cuda.{name}(np.int32(x)), or np.int64, np.uint32, np.uint64."
        )
    return 32 if bits < 64 else 64


class _Shared:
    """`cuda.shared`: one array a block for each place in the code that makes one."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, int, Any, np.dtype[Any]], Any] = {}
        self._dynamic: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)
        self._used = self._limit = 0
        self._tags = ""

    def begin(self, dynamic_bytes: int, limit: int, tags: str) -> None:
        """Forget the arrays of the last launch."""
        self._arrays.clear()
        self._dynamic = np.empty(dynamic_bytes, np.uint8)
        self._used, self._limit, self._tags = dynamic_bytes, limit, tags

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        frame = sys._getframe(1)
        kind = to_dtype(dtype)
        # The instruction, not the line: two arrays made on one line are two arrays. And a device
        # function makes one of each kind that it is asked for.
        place = (frame.f_code, frame.f_lasti, shape, kind)
        found = self._arrays.get(place)
        if found is None:
            if shape in (0, (0,)):
                usable = len(self._dynamic) // kind.itemsize * kind.itemsize
                found = typed(self._dynamic[:usable].view(kind), self._tags)
            else:
                found = typed(self._make(shape, kind), self._tags)
            self._arrays[place] = found
        return found

    def _make(self, shape: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        made = np.empty(shape, dtype)
        self._used += made.nbytes
        if self._used > self._limit:
            raise KernelError(
                f"a block needs {self._used} bytes of shared memory, dynamic and static together; "
                f"the device has {self._limit}."
            )
        return made


class _Local:
    def __init__(self) -> None:
        self.tags = ""

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        return typed(np.empty(shape, to_dtype(dtype)), self.tags)


class _Const:
    @staticmethod
    def array_like(ndarray: Any) -> Any:
        """The array itself: as a global it was copied when the kernel was compiled."""
        return ndarray


class _Atomic:
    """`cuda.atomic`. Only one CUDA thread of a launch runs at a time, so a plain
    read and write is atomic; launches that share an array are ordered by their submission.
    """

    @staticmethod
    def _update(array: Any, index: Any, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
        value = _element(array, value)
        old = array[index]
        array[index] = combine(old, value)
        return old

    def add(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, value, operator.add)

    def sub(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, value, operator.sub)

    def and_(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, value, operator.and_)

    def or_(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, value, operator.or_)

    def xor(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, value, operator.xor)

    def exch(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, value, lambda _, new: new)

    def inc(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, value, lambda old, top: 0 if old >= top else old + 1)

    def dec(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(
            array, index, value, lambda old, top: top if old == 0 or old > top else old - 1
        )

    # A NaN in memory wins, one in the argument loses: what the compiled forms do.
    def max(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, value, lambda old, new: new if new > old else old)

    def min(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, value, lambda old, new: new if new < old else old)

    def nanmax(self, array: Any, index: Any, value: Any) -> Any:
        def larger(old: Any, new: Any) -> Any:
            return new if old != old or new > old else old

        return self._update(array, index, value, larger)

    def nanmin(self, array: Any, index: Any, value: Any) -> Any:
        def smaller(old: Any, new: Any) -> Any:
            return new if old != old or new < old else old

        return self._update(array, index, value, smaller)

    def compare_and_swap(self, array: Any, old: Any, value: Any) -> Any:
        return self.cas(array, 0, old, value)

    def cas(self, array: Any, index: Any, old: Any, value: Any) -> Any:
        expected = _element(array, old)
        return self._update(array, index, value, lambda now, new: new if now == expected else now)


def _element(array: Any, value: Any) -> Any:
    """`value` in the array's type, to which Numba casts it first."""
    if not isinstance(array, IntArray):
        kind = array.dtype.type
        return value if value.__class__ is kind else kind(value)
    if value.__class__ is int and 0 <= value < 128:
        return value  # every integer type holds it
    return (
        maker(array.dtype)(element(value, array.dtype))
        if array.itemsize == 8
        else element(value, array.dtype)
    )
