"""Transforms and products of `nvmath.device` by the switch, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na

pytest.importorskip("nvmath.bindings.mathdx")
# The package asks for names of its own that it has given up.
pytestmark = pytest.mark.filterwarnings("ignore:transpose_mode:DeprecationWarning")


@pytest.fixture(autouse=True)
def device_functions() -> Iterator[Any]:
    with na.cuda_on_cpu():
        yield pytest.importorskip("nvmath.device")


def _numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    made = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return made.astype(dtype) if np.dtype(dtype).kind == "c" else (4 * made.real).astype(dtype)


@pytest.mark.parametrize(("size", "per_block"), [(128, 2), (125, 1)])
@pytest.mark.parametrize("direction", ["forward", "inverse"])
def test_transforms(device_functions: Any, size: int, per_block: int, direction: str) -> None:
    fft = device_functions.FFT(
        size, np.float32, "c2c", "Block", direction=direction, ffts_per_block=per_block
    )
    stride, each, kind, held = fft.stride, fft.elements_per_thread, fft.value_type, fft.storage_size

    @cuda.jit
    def transform(z, x):  # type: ignore[no-untyped-def]
        data = cuda.local.array(held, kind)
        room = cuda.shared.array(0, kind)
        row, first = cuda.blockIdx.x * per_block + cuda.threadIdx.y, cuda.threadIdx.x
        for i in range(each):
            if first + i * stride < size:
                value = x[row, first + i * stride]
                data[i] = kind(value.real, value.imag)
        fft.execute(data, room)
        for i in range(each):
            if first + i * stride < size:
                z[row, first + i * stride] = data[i].x + 1j * data[i].y

    x = _numbers((2 * per_block, size), np.complex64)
    z = np.zeros_like(x)
    transform[2, tuple(fft.block_dim), 0, fft.shared_memory_size](z, x)
    wanted = np.fft.fft(x) if direction == "forward" else np.fft.ifft(x) * size
    # Sums are of float64; the result is rounded once.
    assert (np.abs(z - wanted) <= 1e-6 * np.abs(wanted).max()).all()


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, np.float16])
def test_products(device_functions: Any, dtype: Any) -> None:
    m, n, k = 16, 8, 24
    is_complex = np.dtype(dtype).kind == "c"
    mm = device_functions.Matmul(
        (m, n, k), np.float64 if is_complex else dtype, "complex" if is_complex else "real",
        arrangement=("row_major", "col_major", "row_major"),
    )  # fmt: skip
    size_a, size_b, size_c, kind = mm.a_size, mm.b_size, mm.c_size, mm.c_value_type
    lda, ldb, ldc = mm.leading_dimension

    @cuda.jit
    def multiply(c, a, b):  # type: ignore[no-untyped-def]
        left, right = cuda.shared.array(size_a, kind), cuda.shared.array(size_b, kind)
        out = cuda.shared.array(size_c, kind)
        if cuda.threadIdx.x == 0:
            for p in range(k):
                for i in range(m):
                    left[i * lda + p] = kind(a[i, p].real, a[i, p].imag) if is_complex else a[i, p]
                for j in range(n):
                    right[p + j * ldb] = kind(b[p, j].real, b[p, j].imag) if is_complex else b[p, j]
        mm.execute(2, left, right, 0, out)
        if cuda.threadIdx.x == 0:
            for i in range(m):
                for j in range(n):
                    value = out[i * ldc + j]
                    c[i, j] = value.x + 1j * value.y if is_complex else value

    a, b = _numbers((m, k), dtype), _numbers((k, n), dtype)
    c = np.zeros((m, n), dtype)
    multiply[1, tuple(mm.block_dim)](c, a, b)
    wide = np.complex128 if is_complex else np.float64
    wanted = 2 * (a.astype(wide) @ b.astype(wide))
    eps = np.finfo(dtype).eps
    assert (np.abs(c - wanted) <= eps * np.abs(wanted) + 1e-12).all()


def test_what_is_not_there_is_refused_by_name(device_functions: Any) -> None:
    fft = device_functions.FFT(64, np.float32, "r2c", "Block")
    assert fft.direction == "forward"
    with pytest.raises(na.errors.UnsupportedKernelError, match="libmathdx compiles"):
        device_functions.compile_fft_execute(fft, ("lto", (9, 0)))
