"""What `cuda.` and `math.` mean inside an interpreted kernel.

One `Intrinsics` serves one worker thread. Its `threadIdx` and `blockIdx` are those of the
CUDA thread that runs at the moment; the interpreter moves them on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.backend.cpu.arrays import raw, typed, wrap
from numbasync.errors import InternalError, UnsupportedKernelError

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

        real = getattr(cuda, name, None)
        if hasattr(real, "cast_python_value"):
            return strict(real)  # a type
        raise UnsupportedKernelError(
            f"cuda.{name} is not available in interpreted kernels of the CPU device."
        )

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
        return np.cbrt(_floating(x))

    @staticmethod
    def popc(x: Any) -> int:
        return (int(x) & _mask(x)).bit_count()

    @staticmethod
    def clz(x: Any) -> int:
        mask = _mask(x)
        return mask.bit_length() - (int(x) & mask).bit_length()

    @staticmethod
    def ffs(x: Any) -> int:
        low = int(x) & _mask(x)
        return (low & -low).bit_length()

    @staticmethod
    def brev(x: Any) -> int:
        mask = _mask(x)
        width = mask.bit_length()
        return int(f"{int(x) & mask:0{width}b}"[::-1], 2)


def _mask(x: Any) -> int:
    # Integers have 64 bits once they have been loaded, except those that were cast.
    bits = x.dtype.itemsize * 8 if isinstance(x, np.integer) else 64
    return (1 << bits) - 1


class _Shared:
    """`cuda.shared`: one array a block for each place in the code that makes one."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, int], Any] = {}
        self._dynamic: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)

    def begin(self, dynamic_bytes: int) -> None:
        """Forget the arrays of the last launch."""
        self._arrays.clear()
        self._dynamic = np.empty(dynamic_bytes, np.uint8)

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        frame = sys._getframe(1)
        # The instruction, not the line: two arrays made on one line are two arrays.
        place = (frame.f_code, frame.f_lasti)
        found = self._arrays.get(place)
        if found is None:
            element = to_dtype(dtype)
            if shape in (0, (0,)):
                usable = len(self._dynamic) // element.itemsize * element.itemsize
                found = typed(self._dynamic[:usable].view(element))
            else:
                found = typed(np.empty(shape, element))
            self._arrays[place] = found
        return found


class _Local:
    @staticmethod
    def array(shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        return typed(np.empty(shape, to_dtype(dtype)))


class _Const:
    @staticmethod
    def array_like(array: Any) -> Any:
        view = raw(array).view()
        view.flags.writeable = False
        return typed(view)


class _Atomic:
    """`cuda.atomic`. Only one CUDA thread of a launch runs at a time, so a plain
    read and write is atomic; launches that share an array are ordered by their submission.
    """

    @staticmethod
    def _update(array: Any, index: Any, combine: Callable[[Any], Any]) -> Any:
        old = array[index]
        array[index] = combine(old)
        return old

    def add(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: old + value)

    def sub(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: old - value)

    def and_(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: old & value)

    def or_(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: old | value)

    def xor(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: old ^ value)

    def exch(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda _: value)

    def inc(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: 0 if old >= value else old + 1)

    def dec(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: value if old == 0 or old > value else old - 1)

    # A NaN in memory wins, one in the argument loses: what the compiled forms do.
    def max(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: value if value > old else old)

    def min(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: value if value < old else old)

    def nanmax(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: value if old != old or value > old else old)

    def nanmin(self, array: Any, index: Any, value: Any) -> Any:
        return self._update(array, index, lambda old: value if old != old or value < old else old)

    def compare_and_swap(self, array: Any, old: Any, value: Any) -> Any:
        return self.cas(array, 0, old, value)

    def cas(self, array: Any, index: Any, old: Any, value: Any) -> Any:
        return self._update(array, index, lambda now: value if now == old else now)


def to_dtype(dtype: Any) -> np.dtype[Any]:
    """A NumPy dtype of a NumPy dtype or of a Numba type."""
    own = getattr(dtype, "dtype", None)
    if isinstance(own, np.dtype):  # a record type
        found: np.dtype[Any] = own
        return found
    name = getattr(dtype, "name", None)
    if isinstance(name, str) and not isinstance(dtype, (type, np.dtype)):
        return np.dtype("bool" if name.startswith("bool") else name)
    made: np.dtype[Any] = np.dtype(dtype)
    return made


class Cast:
    """An integer or boolean type called as a function: reduces, as the compiled cast does."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    def __call__(self, value: Any) -> Any:
        return bool(value) if self.dtype.kind == "b" else wrap(int(value), self.dtype)


class Module:
    """The stand-in for `numpy` and `numba`: the same names, strictly typed."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = strict(getattr(self._module, name))
        self.__dict__[name] = value
        return value


def strict(value: Any) -> Any:
    """A constant or a type, so that arithmetic with it gives Numba's type.

    NumPy lets a float32 absorb a Python float; Numba computes with float64.
    """
    if type(value) is float:
        return np.float64(value)
    if type(value) is tuple:
        return tuple(strict(v) for v in value)
    if isinstance(value, type):
        kept = not issubclass(value, (np.integer, np.bool_))
        return value if kept else Cast(np.dtype(value))
    if hasattr(value, "cast_python_value"):
        dtype = to_dtype(value)
        return Cast(dtype) if dtype.kind in "iub" else value
    return value


def _floating(x: Any) -> Any:
    return x if isinstance(x, (np.floating, np.complexfloating)) else np.float64(x)


def _elementary(function: Any) -> Callable[..., Any]:
    """A NumPy function with Numba's result type: float32 stays, integers become float64."""
    return lambda *args: function(*(_floating(a) for a in args))


def _returning(kind: type, function: Any) -> Callable[[Any], Any]:
    return lambda x: kind(function(x))


def _host(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that only `math` has, with the result in the argument's precision."""

    def call(x: Any) -> Any:
        value = _floating(x)
        try:
            return type(value)(function(float(value)))
        except (OverflowError, ValueError):
            return type(value)(math.inf if value > 0 else math.nan)

    return call


class Math:
    """The stand-in for the module `math`: Numba's types, and no exceptions."""

    pi, e, tau, inf, nan = (np.float64(getattr(math, n)) for n in ("pi", "e", "tau", "inf", "nan"))

    def __init__(self) -> None:
        same = "sqrt exp expm1 log log2 log10 log1p sin cos tan sinh cosh tanh hypot fmod copysign"
        for name in same.split():
            setattr(self, name, _elementary(getattr(np, name)))
        other = {
            "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
            "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
            "pow": np.power, "fabs": np.absolute, "degrees": np.degrees, "radians": np.radians,
            "ldexp": lambda x, n: np.ldexp(x, int(n)),
        }  # fmt: skip
        for name, function in other.items():
            setattr(self, name, _elementary(function))
        for name in ("erf", "erfc", "gamma", "lgamma"):
            setattr(self, name, _host(getattr(math, name)))
        for name in ("isnan", "isinf", "isfinite"):
            setattr(self, name, _returning(bool, getattr(np, name)))
        for name in ("floor", "ceil", "trunc"):
            setattr(self, name, _returning(int, getattr(np, name)))
        for name in ("modf", "frexp"):
            setattr(self, name, _elementary(getattr(np, name)))

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedKernelError(
            f"math.{name} is not available in interpreted kernels of the CPU device."
        )
