"""Functions of `nvmath.device`, the Fourier transforms of cuFFTDx and the matrix products of
cuBLASDx, on the CPU device.

They are compiled code that a GPU links. What a program asks of them before, how many threads a
block has and how many elements a thread, is told by the package's own library, libmathdx, which
needs no GPU; it is the same as for a GPU of compute capability 9.0. What a block computes together
is made here of plain kernels' code: a barrier, each thread's results, a barrier.

A program for a GPU, which runs as it is:

    FFT = nvmath.device.FFT(128, np.float32, "c2c", "Block", direction="forward")

    @cuda.jit
    def transform(z, x):
        held = cuda.local.array(FFT.storage_size, FFT.value_type)
        room = cuda.shared.array(0, FFT.value_type)
        for i in range(FFT.elements_per_thread):
            held[i] = x[cuda.threadIdx.x + i * FFT.stride]
        FFT.execute(held, room)
        for i in range(FFT.elements_per_thread):
            z[cuda.threadIdx.x + i * FFT.stride] = held[i]
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.errors import UnsupportedKernelError
from numbasync.kernel_names import cuda, extending, types

PACKAGE = "nvmath"
BINDINGS = f"{PACKAGE}.bindings.mathdx"
_cuda: Any = cuda
_types: Any = types
_api: Any = extending
STATIC_BYTES = 48 * 1024  # of shared arrays that a kernel declares
# Functions of libmathdx that give numbers, and how many; they are the last parameters in C.
_GIVES = {
    "get_version_ex": 3, "cufftdx_create_descriptor": 1, "cufftdx_get_trait_int64": 1,
    "cufftdx_get_trait_commondx_data_type": 1, "cufftdx_get_knob_int64size": 1,
    "cublasdx_create_descriptor": 1, "cublasdx_create_tensor": 1, "cublasdx_make_tensor_like": 1,
    "cublasdx_get_tensor_trait_int64": 1,
}  # fmt: skip
_GIVES_NONE = (
    "cufftdx_destroy_descriptor", "cufftdx_set_operator_int64", "cufftdx_set_operator_int64s",
    "cufftdx_get_trait_int64s", "cufftdx_get_knob_int64s", "cublasdx_destroy_descriptor",
    "cublasdx_destroy_tensor", "cublasdx_finalize_tensors", "cublasdx_set_operator_int64",
    "cublasdx_set_operator_int64s", "cublasdx_get_trait_int64s", "cublasdx_set_tensor_option_int64",
)  # fmt: skip


def without_a_driver() -> list[tuple[Any, str, Any]]:
    """The functions of the package's bindings that ask libmathdx and compile nothing. Those of the
    package look for a GPU's driver first, which the library itself does not need.
    """
    bindings = importlib.import_module(BINDINGS)
    library: list[Any] = []

    def loaded() -> Any:
        if not library:
            finder = importlib.import_module("cuda.pathfinder")
            library.append(ctypes.CDLL(finder.load_nvidia_dynamic_lib("mathdx").abs_path))
        return library[0]

    made = [(bindings, name, _called(loaded, name)) for name in (*_GIVES, *_GIVES_NONE)]
    return [*made, (bindings, "commondx_create_code", _refuse_code)]


def _refuse_code() -> None:
    raise _refused("what libmathdx compiles, opaque tensors, pipelines and cuSOLVERDx among it,")


def _called(library: Callable[[], Any], name: str) -> Callable[..., Any]:
    words = re.sub("_([a-z])", lambda found: found[1].upper(), name).replace("size", "Size")
    in_c = words if name.startswith("cu") else f"mathdx{words[0].upper()}{words[1:]}"
    element = ctypes.c_int if "knob" in name else ctypes.c_longlong

    def call(*args: Any) -> Any:
        results = [ctypes.c_longlong(0) for _ in range(_GIVES.get(name, 0))]
        given = [
            (element * len(a))(*map(int, a))
            if isinstance(a, list | tuple)
            else ctypes.c_longlong(int(a))
            for a in args
        ]
        if getattr(library(), in_c)(*given, *map(ctypes.byref, results)):
            raise UnsupportedKernelError(f"{in_c}: {_last_error(library())}")
        numbers = tuple(result.value for result in results)
        return numbers if len(numbers) > 1 else numbers[0] if numbers else None

    return call


def _last_error(library: Any) -> str:
    nbytes = ctypes.c_size_t(0)
    library.commondxGetLastErrorStrSize(ctypes.byref(nbytes))
    text = ctypes.create_string_buffer(nbytes.value + 1)
    library.commondxGetLastErrorStr(ctypes.byref(ctypes.c_int(0)), nbytes, text)
    return text.value.decode(errors="replace").strip() or "libmathdx refuses it"


def _numba(of: Any) -> Any:
    """The type that kernels have for one that the package says."""
    return importlib.import_module(f"{PACKAGE}.device.common_numba").NUMBA_FE_TYPES_TO_NUMBA_IR[of]


class Transform:
    """A Fourier transform of complex numbers: the device functions that compute it.

    Attributes:
        element: ``(held, start, place)`` gives an element of the result, of what stands in `held`
            from `start` on.
    """

    def __init__(self, fft: Any) -> None:
        if fft.fft_type != "c2c":
            raise _refused("a transform of real numbers")
        if np.dtype(fft.precision).itemsize < 4:
            raise _refused("a transform of float16")
        self.fft, size = fft, fft.size
        self.make = _numba(fft.value_type).make
        self.kind = _types.complex64 if fft.precision == np.float32 else _types.complex128
        turns = np.arange(size) / size * (1 if fft.direction == "inverse" else -1)
        weights = np.exp(2j * np.pi * turns)

        @_cuda.jit(device=True)
        def element(held: Any, start: Any, place: Any) -> Any:
            total = 0j
            for i in range(size):
                total += held[start + i] * weights[(i * place) % size]
            return total

        self.element = element

    def in_registers(self) -> Any:
        """The function of a block whose threads have elements ``t, t + stride, ...`` each."""
        fft, element, make = self.fft, self.element, self.make
        size, stride, each = fft.size, fft.stride, fft.elements_per_thread
        kind, room = self.kind, _room(size * fft.ffts_per_block, self.kind)

        @_cuda.jit(device=True)
        def transform(data: Any) -> None:
            held = cuda.shared.array(room, kind)
            own, start = cuda.threadIdx.x, cuda.threadIdx.y * size
            cuda.syncthreads()
            for i in range(each):
                if own + i * stride < size:
                    held[start + own + i * stride] = complex(data[i].x, data[i].y)
            cuda.syncthreads()
            for i in range(each):
                if own + i * stride < size:
                    value = element(held, start, own + i * stride)
                    data[i] = make(value.real, value.imag)
            cuda.syncthreads()

        return transform

    def in_one_array(self, is_shared: bool) -> Any:
        """The function of elements that stand in order: of a thread's own array, or of the shared
        array of a block, one transform behind the other.
        """
        fft, element, make, kind = self.fft, self.element, self.make, self.kind
        size = fft.size
        room = _room(size * (fft.ffts_per_block if is_shared else 1), kind)

        @_cuda.jit(device=True)
        def transform_own(data: Any) -> None:
            held = cuda.local.array(room, kind)
            for i in range(size):
                held[i] = complex(data[i].x, data[i].y)
            for i in range(size):
                value = element(held, 0, i)
                data[i] = make(value.real, value.imag)

        @_cuda.jit(device=True)
        def transform_shared(data: Any) -> None:
            held = cuda.shared.array(room, kind)
            own, threads, start = cuda.threadIdx.x, cuda.blockDim.x, cuda.threadIdx.y * size
            cuda.syncthreads()
            for i in range(own, size, threads):
                held[start + i] = complex(data[start + i].x, data[start + i].y)
            cuda.syncthreads()
            for i in range(own, size, threads):
                value = element(held, start, i)
                data[start + i] = make(value.real, value.imag)
            cuda.syncthreads()

        return transform_shared if is_shared else transform_own


def execute_with_room(fft_type: Any, data: Any, room: Any) -> Any:
    """`FFT.execute(thread_data, shared_memory)` in a kernel, by the types of its arguments."""
    fft = fft_type.fft
    value = _numba(fft.value_type)
    if getattr(data, "dtype", None) != value or getattr(room, "dtype", None) != value:
        return None
    transform = Transform(fft).in_registers()
    return lambda _, _arg1, _arg2=None: transform(_arg1)


def execute_in_place(fft_type: Any, data: Any) -> Any:
    """`FFT.execute(array)`: the array of a thread, or of a block."""
    fft = fft_type.fft
    if getattr(data, "dtype", None) != _numba(fft.value_type):
        return None
    transform = Transform(fft).in_one_array(fft.execution == "Block")
    return lambda _, _arg1, _arg2=None: transform(_arg1)


class Product:
    """A product of matrices, ``c = alpha a b + beta c``: the device function that computes it."""

    def __init__(self, mm: Any) -> None:
        m, n, k = mm.size
        turned, order = mm._transpose_mode, mm.arrangement
        # A matrix that is stored transposed stands as one whose rows are contiguous.
        by_row = (
            [o == "row_major" for o in order] if order else [t[0] != "n" for t in (*turned, "n")]
        )
        conj_a, conj_b = (t.startswith("conj") for t in turned) if turned else (False, False)
        is_complex = mm.data_type == "complex"
        row_a, row_b, row_c = by_row
        self.value_types = tuple(_numba(t) for t in mm._traits.value_types)
        wide = _types.int64 if np.dtype(mm.precision.c).kind in "iu" else _types.float64
        wide = _types.complex128 if is_complex else wide
        make = getattr(self.value_types[2], "make", self.value_types[2])
        zero = wide.cast_python_value(0)

        @_cuda.jit(device=True)
        def number(matrix: Any, at: Any, is_conjugated: Any) -> Any:
            value = element_of(matrix, at)
            if is_complex:
                return complex(value.x, -value.y if is_conjugated else value.y)
            return wide(value)

        @_cuda.jit(device=True)
        def multiply(
            alpha: Any, a: Any, lda: Any, b: Any, ldb: Any, beta: Any, c: Any, ldc: Any
        ) -> None:
            own, size = cuda.threadIdx, cuda.blockDim
            rank = own.x + size.x * (own.y + size.y * own.z)
            cuda.syncthreads()
            for place in range(rank, m * n, size.x * size.y * size.z):
                i, j = place // n, place % n
                total = zero
                for p in range(k):
                    left = number(a, i * lda + p if row_a else i + p * lda, conj_a)
                    total += left * number(b, p * ldb + j if row_b else p + j * ldb, conj_b)
                at = i * ldc + j if row_c else i + j * ldc
                total *= wide(alpha)
                if wide(beta) != zero:
                    total += wide(beta) * number(c, at, False)
                if is_complex:
                    put_element(c, at, make(total.real, total.imag))
                else:
                    put_element(c, at, make(total))
            cuda.syncthreads()

        self.multiply = multiply


def element_of(matrix: Any, at: Any) -> Any: ...
def put_element(matrix: Any, at: Any, value: Any) -> None: ...


@_api.overload(element_of)
def _element_of(matrix, at):  # type: ignore[no-untyped-def]
    if matrix.ndim == 1:
        return lambda matrix, at: matrix[at]
    return lambda matrix, at: matrix[at // matrix.shape[1], at % matrix.shape[1]]


@_api.overload(put_element)
def _put_element(matrix, at, value):  # type: ignore[no-untyped-def]
    def put_in_row(matrix, at, value):  # type: ignore[no-untyped-def]
        matrix[at] = value

    def put_in_rows(matrix, at, value):  # type: ignore[no-untyped-def]
        matrix[at // matrix.shape[1], at % matrix.shape[1]] = value

    return put_in_row if matrix.ndim == 1 else put_in_rows


def _product(mm: Any, *matrices: Any) -> Any:
    if not all(isinstance(matrix, _types.Array) for matrix in matrices):
        return None
    product = Product(mm)
    if tuple(matrix.dtype for matrix in matrices) != product.value_types:
        return None
    for matrix in matrices:
        if matrix.layout != "C" or matrix.ndim > 2:
            raise _refused(
                f"a product of {matrix}, which is not contiguous or has more than 2 axes,"
            )
    return product.multiply


def execute_static(mm_type: Any, alpha: Any, a: Any, b: Any, beta: Any, c: Any) -> Any:
    """`MM.execute(alpha, a, b, beta, c)` in a kernel, by the types of its arguments."""
    multiply = _product(mm_type.blas, a, b, c)
    if multiply is None:
        return None
    lda, ldb, ldc = mm_type.blas.leading_dimension

    def impl(_, _arg1, _arg2, _arg3, _arg4=None, _arg5=None, _arg6=None, _arg7=None, _arg8=None):  # type: ignore[no-untyped-def]
        multiply(_arg1, _arg2, lda, _arg3, ldb, _arg4, _arg5, ldc)

    return impl


def execute_dynamic(
    mm_type: Any, alpha: Any, a: Any, lda: Any, b: Any, ldb: Any, beta: Any, c: Any, ldc: Any
) -> Any:
    """As `execute_static`, with leading dimensions that the kernel gives."""
    multiply = _product(mm_type.blas, a, b, c)
    if multiply is None:
        return None

    def impl(_, _arg1, _arg2, _arg3, _arg4=None, _arg5=None, _arg6=None, _arg7=None, _arg8=None):  # type: ignore[no-untyped-def]
        multiply(_arg1, _arg2, _arg3, _arg4, _arg5, _arg6, _arg7, _arg8)

    return impl


def _capability() -> list[tuple[Any, str, Any]]:
    common = importlib.import_module(f"{PACKAGE}.device.common_cuda")
    own = common.get_current_device_cc

    def capability() -> Any:
        try:
            return own()
        except RuntimeError:  # there is no driver
            return common.ComputeCapability(9, 0, "a")

    return [(common, "get_current_device_cc", capability)]


def _transforms() -> list[tuple[Any, str, Any]]:
    home = importlib.import_module(f"{PACKAGE}.device.cufftdx_numba")
    return [
        (home, "ol_fft_type_execute_smem", execute_with_room),
        (home, "ol_fft_type_execute_rmem", execute_in_place),
    ]


def _products() -> list[tuple[Any, str, Any]]:
    home = importlib.import_module(f"{PACKAGE}.device.cublasdx_numba")
    return [
        (home, "ol_blas_type_execute_basic", execute_static),
        (home, "ol_blas_type_execute_ldabc", execute_dynamic),
    ]


# What each module of the package, when it is imported, has in the place of its own, as (module,
# name, value).
REPLACEMENTS = {
    BINDINGS: without_a_driver,
    f"{PACKAGE}.device.common_cuda": _capability,
    f"{PACKAGE}.device.cufftdx_numba": _transforms,
    f"{PACKAGE}.device.cublasdx_numba": _products,
}


def _room(count: int, kind: Any) -> int:
    nbytes = count * kind.bitwidth // 8
    if nbytes > STATIC_BYTES:
        raise _refused(f"a block that holds {nbytes:,} bytes, of at most {STATIC_BYTES:,},")
    return count


def _refused(what: str) -> UnsupportedKernelError:
    return UnsupportedKernelError(
        f"nvmath.device on the CPU device: {what} is not there.\nRun this part on a GPU."
    )
