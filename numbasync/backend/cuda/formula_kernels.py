"""The kernels of formulas. They give the bits that `formulas` gives on the host.

Sums and products of floats are those of libdevice that name their rounding, which no compiler
contracts to `fma`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numbasync.backend.formulas import (
    BITS,
    Diagonal,
    Floats,
    Formula,
    Integers,
    Normal,
    Uniform,
    is_narrow,
)
from numbasync.backend.protocols import ArrayKey
from numbasync.backend.quantiles import FAR, MIDDLE, quantiles
from numbasync.dtypes import is_extension
from numbasync.kernel_names import cuda, float32, libdevice, types

if TYPE_CHECKING:
    from numbasync.backend.cuda.arrays import CudaArray
    from numbasync.backend.cuda.gpu import Gpu
    from numbasync.backend.cuda.kernels import CudaExecutable
    from numbasync.backend.cuda.stream import CudaStream

THREADS = 256

# --- numbers from positions ---


def _same(value: Any) -> Any:
    return value


def _truth(value: Any) -> Any:
    return value != 0


def _whole(value: Any) -> Any:
    return np.int64(value)


def _rounded(value: Any) -> Any:
    return float32(value)  # to `dtypes.EXTENSIONS` by way of float32, as ml_dtypes converts


def integers(convert: Any) -> Any:
    """A kernel for `Integers`; `convert` is a device function, applied before the store."""

    def arange(z, first, step):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < z.size:
            z[i] = convert(first + step * np.int64(i))

    return cuda.jit(arange)


def diagonal(convert: Any) -> Any:
    """A kernel for `Diagonal`."""

    def eye(z, stride, count):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < z.size:
            z[i] = convert(np.int64(i % stride == 0 and i // stride < count))

    return cuda.jit(eye)


def floats(convert: Any) -> Any:
    """A kernel for `Floats`; the element at `last_at` is `last`."""

    def evenly_spaced(z, first, step, last, last_at):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < z.size:
            value = libdevice.dadd_rn(libdevice.dmul_rn(np.float64(i), step), first)
            if i == last_at:
                value = last
            z[i] = convert(value)

    return cuda.jit(evenly_spaced)


# --- random numbers: Philox4x64-10 (`numbasync.random` names the source), with NumPy's counters ---

_M0, _M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_W0, _W1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_0, _1, _11 = np.uint64(0), np.uint64(1), np.uint64(11)
_8, _LOW, _HALF = np.uint64(8), np.uint64(0xFFFFFFFF), np.uint64(32)
_TO_24, _TO_53 = np.float32(2**-24), np.float64(2**-53)


@cuda.jit(device=True)
def words_of(block: Any, key0: Any, key1: Any) -> Any:
    """The four words of a block; NumPy's generator counts before it draws."""
    c0, c1, c2, c3 = np.uint64(block) + _1, _0, _0, _0
    for _ in range(10):
        high0, low0 = np.uint64(libdevice.umul64hi(_M0, c0)), _M0 * c0
        high1, low1 = np.uint64(libdevice.umul64hi(_M1, c2)), _M1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = key0 + _W0, key1 + _W1
    return c0, c1, c2, c3


@cuda.jit
def uniform_float64(z: Any, key0: Any, key1: Any) -> None:
    block = cuda.grid(1)
    if 4 * block < z.size:
        words = words_of(block, key0, key1)
        for k in range(4):
            if 4 * block + k < z.size:
                z[4 * block + k] = np.float64(words[k] >> _11) * _TO_53


@cuda.jit
def uniform_float32(z: Any, key0: Any, key1: Any) -> None:
    block = cuda.grid(1)
    if 8 * block < z.size:
        words = words_of(block, key0, key1)
        for k in range(8):
            if 8 * block + k < z.size:
                word = words[k // 2]
                half = (word >> _HALF if k % 2 else word) & _LOW
                z[8 * block + k] = np.float32(half >> _8) * _TO_24


@cuda.jit(device=True)
def _term(y: Any, x: Any, c: Any) -> Any:
    return libdevice.dadd_rn(libdevice.dmul_rn(y, x), c)


_middle, _root, _near, _far = quantiles(
    libdevice.dadd_rn, libdevice.dmul_rn, _term, libdevice.ddiv_rn, libdevice.dsqrt_rn,
    cuda.jit(device=True),
)  # fmt: skip
_MANTISSA, _EXPONENT, _52 = np.int64(2**52 - 1), np.int64(1022 << 52), np.int64(52)
_1022, _ROOT_HALF = np.int64(1022), 0.5**0.5


@cuda.jit(device=True)
def quantile_of(word: Any) -> Any:
    s = np.float64(np.int64(word) >> np.int64(11))
    q = libdevice.dmul_rn(libdevice.dadd_rn(s, 0.5), _TO_53)
    distance = abs(q)
    if distance <= MIDDLE:
        return _middle(q)
    bits = libdevice.double_as_longlong(libdevice.dadd_rn(0.5, -distance))
    m = libdevice.longlong_as_double((bits & _MANTISSA) | _EXPONENT)
    e = np.float64((bits >> _52) - _1022)
    if m < _ROOT_HALF:
        m *= 2.0
        e -= 1.0
    r = _root(m, e)
    tail = _near(r) if r <= FAR else _far(r)
    return -tail if q < 0 else tail


@cuda.jit
def normal(z: Any, key0: Any, key1: Any, mean: Any, std: Any) -> None:
    block = cuda.grid(1)
    if 4 * block < z.size:
        words = words_of(block, key0, key1)
        for k in range(4):
            if 4 * block + k < z.size:
                scaled = libdevice.dmul_rn(quantile_of(words[k]), std)
                z[4 * block + k] = libdevice.dadd_rn(scaled, mean)


# --- their launches ---


class Call(NamedTuple):
    """The launch of a formula's kernel.

    Attributes:
        kernel: what is compiled, or the function that makes it of a conversion.
        types: of the arguments behind the array.
        arguments: the same.
        per_thread: elements that a thread computes.
    """

    kernel: Any
    types: tuple[Any, ...]
    arguments: tuple[Any, ...]
    per_thread: int


_KEYS = (types.uint64, types.uint64)


def call_of(formula: Any, dtype: np.dtype[Any], size: int) -> Call:
    """The launch that computes `size` elements."""
    if isinstance(formula, Integers):
        first, step = (_signed(n) for n in (formula.first, formula.step))
        return Call(integers, (types.int64,) * 2, (first, step), 1)
    if isinstance(formula, Diagonal):
        return Call(diagonal, (types.int64,) * 2, (formula.stride, formula.count), 1)
    if isinstance(formula, Floats):
        last_at, last = (-1, 0.0) if formula.last is None else (size - 1, formula.last)
        arguments = formula.first, formula.step, last, last_at
        return Call(floats, (*(types.float64,) * 3, types.int64), arguments, 1)
    if isinstance(formula, Normal):
        moments = formula.mean, formula.std
        return Call(normal, (*_KEYS, *(types.float64,) * 2), (*formula.key, *moments), 4)
    assert isinstance(formula, Uniform)  # there are no others
    if dtype.itemsize == 4:
        return Call(uniform_float32, _KEYS, formula.key, 8)
    return Call(uniform_float64, _KEYS, formula.key, 4)


def _signed(number: int) -> int:
    """The int64 of the lowest 64 bits."""
    return ((number + 2**63) & BITS) - 2**63


def kernel_of(call: Call, dtype: np.dtype[Any]) -> Any:
    """The dispatcher of a call that writes elements of `dtype`."""
    if call.kernel not in (integers, diagonal, floats):
        return call.kernel
    convert = _same
    if dtype.kind == "b":
        convert = _truth
    elif is_extension(dtype):
        convert = _rounded
    elif call.kernel is floats and is_narrow(dtype):
        convert = _whole
    return call.kernel(cuda.jit(device=True)(convert))


class FormulaCompilation:
    """The prerequisite of a formula whose kernel is not compiled yet."""

    def __init__(self, kernels: FormulaKernels, call: Call, key: ArrayKey) -> None:
        self._kernels = kernels
        self._call = call
        self._key = key

    def run(self) -> None:
        self._kernels.compile(self._call, self._key)


class FormulaKernels:
    """The compiled kernels of formulas on one GPU, by kernel and dtype."""

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._compiled: dict[tuple[Any, ArrayKey], CudaExecutable] = {}
        self._lock = threading.Lock()

    def needs(self, dst: CudaArray, formula: Formula) -> FormulaCompilation | None:
        """The compilation that the formula needs; None if its kernel is compiled."""
        call, key = call_of(formula, dst.dtype, 0), dst.key()
        return None if (call.kernel, key) in self._compiled else FormulaCompilation(self, call, key)

    def compile(self, call: Call, key: ArrayKey) -> CudaExecutable:
        """The compiled kernel; compiled now if it is new."""
        with self._lock:
            compiled = self._compiled.get((call.kernel, key))
            if compiled is None:
                dispatcher = kernel_of(call, np.dtype(key.dtype))
                compiled = self._device.compile(dispatcher, (key, *call.types))
                self._compiled[call.kernel, key] = compiled
            return compiled

    def launch(self, stream: CudaStream, dst: CudaArray, formula: Formula) -> None:
        """Enqueue the kernel that writes all elements of a contiguous array of one axis."""
        size = dst.nbytes // dst.dtype.itemsize
        call = call_of(formula, dst.dtype, size)
        blocks = -(-size // (THREADS * call.per_thread))
        kernel = self.compile(call, dst.key())
        kernel.launch(stream, (blocks, 1, 1), (THREADS, 1, 1), 0, (dst, *call.arguments))
