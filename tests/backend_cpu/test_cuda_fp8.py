"""The floats of 8 bits of CUDA, of which ml_dtypes has the numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda
from numba.cuda import float32, float64, int8, int64, uint8, uint64

from numbasync.errors import KernelCompileError, UnsupportedKernelError
from tests.backend_cpu.engines import run_on

fp8: Any = pytest.importorskip("numba.cuda._internal.cuda_fp8")
modes: Any = pytest.importorskip("cuda.bindings.runtime").cudaRoundMode

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NaN, from ml_dtypes
float16, bfloat16 = cuda.types.float16, cuda.types.bfloat16
DTYPES: dict[str, Any] = {
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e8m0": ml_dtypes.float8_e8m0fnu,
}
FLOATS = ("fp8_e5m2", "fp8_e4m3")
Saturation, Kind = fp8.saturation_t, fp8.fp8_interpretation_t


def every(name: str) -> np.ndarray:
    """All numbers of a format, as float64."""
    return np.arange(256).astype(np.uint8).view(DTYPES[name]).astype(np.float64)


def beside(name: str) -> np.ndarray:
    """All numbers of a format, those in the middle of two, and those beside each."""
    numbers = np.unique(np.abs(every(name)[np.isfinite(every(name))]))
    largest = numbers[-1]
    both = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, largest * np.r_[1.03, 1.07]])
    with np.errstate(over="ignore"):
        near = [both, *(np.nextafter(both.astype(np.float32), np.float32(s)) for s in (0, np.inf))]
    values = np.concatenate(near)
    return np.concatenate([values, -values, [np.inf, -np.inf, np.nan]])


def bits_of(values: np.ndarray, name: str) -> np.ndarray:
    """The bits of the nearest numbers, of which the largest stands for all larger ones."""
    most = float(ml_dtypes.finfo(DTYPES[name]).max)
    return np.clip(values, -most, most).astype(DTYPES[name]).view(np.uint8)


def run(kernel: Any, *arguments: np.ndarray) -> list[np.ndarray]:
    blocks = -(-len(arguments[0]) // 64)
    return run_on("compiled", cuda.jit(kernel), (blocks, 1, 1), (64, 1, 1), arguments)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_numbers_become_the_nearest(name: str, source: Any) -> None:
    convert = fp8.cvt_float_to_fp8 if source is np.float32 else fp8.cvt_double_to_fp8
    kind = Kind.E5M2 if name == "fp8_e5m2" else Kind.E4M3

    def kernel(x, z):
        i = cuda.grid(1)
        if i < len(x):
            z[i] = convert(x[i], Saturation.SATFINITE, kind)

    x = beside(name).astype(source)
    got = run(kernel, x, np.zeros(len(x), np.uint8))[1]
    there = ~np.isnan(x)
    np.testing.assert_array_equal(got[there], bits_of(x, name)[there])
    assert np.isnan(got[~there].view(DTYPES[name]).astype(np.float32)).all()


@pytest.mark.parametrize(
    ("name", "end", "beyond"), [("fp8_e5m2", 61439.0, np.inf), ("fp8_e4m3", 464.0, np.nan)]
)
def test_without_saturation_too_large_is_no_number(name: str, end: float, beyond: float) -> None:
    kind = Kind.E5M2 if name == "fp8_e5m2" else Kind.E4M3

    def kernel(x, z):
        i = cuda.grid(1)
        if i < len(x):
            z[i] = fp8.cvt_float_to_fp8(x[i], Saturation.NOSAT, kind)

    x = beside(name).astype(np.float32)
    got = run(kernel, x, np.zeros(len(x), np.uint8))[1]
    is_beyond = np.abs(x) > end
    values = np.abs(got[is_beyond].view(DTYPES[name]).astype(np.float64))
    np.testing.assert_array_equal(values, beyond)
    inside = np.abs(x) <= end
    np.testing.assert_array_equal(got[inside], bits_of(x, name)[inside])


@pytest.mark.parametrize("name", DTYPES)
def test_numbers_become_wider_ones_and_integers(name: str) -> None:
    number = getattr(fp8, name)

    def kernel(x, floats, integers):
        i = cuda.grid(1)
        if i < len(x):
            value = number(x[i])
            floats[i, 0] = float32(value)
            floats[i, 1] = float64(value)
            floats[i, 2] = float64(float16(value))
            floats[i, 3] = float64(float32(bfloat16(value)))
            integers[i, 0] = int64(int8(value))
            integers[i, 1] = int64(uint8(value))
            integers[i, 2] = int64(value)
            integers[i, 3] = cuda.types.boolean(value)

    x = every(name)
    x = x[~np.isinf(x)]
    shapes = np.zeros((len(x), 4)), np.zeros((len(x), 4), np.int64)
    _, floats, integers = run(kernel, x, *shapes)
    for k in (0, 1, 3):
        np.testing.assert_array_equal(floats[:, k], x)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(floats[:, 2], x.astype(np.float16))
    there = ~np.isnan(x)
    for k, dtype in enumerate((np.int8, np.uint8)):
        info = np.iinfo(dtype)
        want = np.trunc(np.clip(x[there], info.min, info.max))
        np.testing.assert_array_equal(integers[there, k], want)
        assert not integers[~there, k].any()
    np.testing.assert_array_equal(integers[:, 3], x != 0)
    small = np.abs(x) < 2**62
    np.testing.assert_array_equal(integers[small, 2], np.trunc(x[small]))


def test_exponents_are_those_of_the_next_power() -> None:
    def kernel(x, z):
        i = cuda.grid(1)
        if i < len(x):
            z[i, 0] = fp8.cvt_double_to_e8m0(x[i], Saturation.NOSAT, modes.cudaRoundZero)
            z[i, 1] = fp8.cvt_double_to_e8m0(x[i], Saturation.NOSAT, modes.cudaRoundPosInf)
            z[i, 2] = fp8.cvt_float_to_e8m0(
                float32(x[i]), Saturation.SATFINITE, modes.cudaRoundPosInf
            )

    powers = 2.0 ** np.arange(-127, 128)
    x = np.concatenate([powers, -powers, powers * 1.25, [0, 7e-39, np.inf, np.nan]])
    z = run(kernel, x, np.zeros((len(x), 3), np.uint8))[1]
    same, larger = np.arange(255), np.arange(1, 256)
    np.testing.assert_array_equal(z[:, 0], [*same, *same, *same, 0, 0, 255, 255])
    np.testing.assert_array_equal(z[:, 1], [*same, *same, *larger, 0, 1, 255, 255])
    larger[-1] = 254
    np.testing.assert_array_equal(z[:, 2], [*same, *same, *larger, 0, 1, 254, 255])


def test_integers_become_the_nearest_once() -> None:
    def kernel(x, z):
        i = cuda.grid(1)
        if i < len(x):
            z[i, 0] = float64(fp8.fp8_e4m3(x[i]))
            z[i, 1] = float64(fp8.fp8_e8m0(x[i]))
            z[i, 2] = float64(fp8.fp8_e8m0(uint64(x[i])))

    x = np.array([0, 1, -3, 17, -449, 2**40, 2**40 + 1, -(2**62) - 1, 2**53 + 1], np.int64)
    z = run(kernel, x, np.zeros((len(x), 3)))[1]
    np.testing.assert_array_equal(z[:, 0], [0, 1, -3, 16, -448, 448, 448, -448, 448])
    powers = [2.0**-127, 1, 4, 32, 512, 2.0**40, 2.0**41, 2.0**63, 2.0**54]
    np.testing.assert_array_equal(z[:, 1], powers)
    powers[2] = powers[4] = 2.0**64
    np.testing.assert_array_equal(np.delete(z[:, 2], 7), np.delete(powers, 7))


def test_two_numbers_are_packed_in_one() -> None:
    def kernel(x, z):
        i = cuda.grid(1)
        if i < len(z):
            a, b = cuda.float32x2(x[2 * i], x[2 * i + 1]), cuda.float64x2(x[2 * i], x[2 * i + 1])
            z[i, 0] = fp8.cvt_float2_to_fp8x2(a, Saturation.SATFINITE, Kind.E4M3)
            z[i, 1] = fp8.cvt_double2_to_fp8x2(b, Saturation.SATFINITE, Kind.E4M3)
            z[i, 2] = fp8.cvt_float2_to_e8m0x2(a, Saturation.NOSAT, modes.cudaRoundZero)
            z[i, 3] = fp8.cvt_double2_to_e8m0x2(b, Saturation.NOSAT, modes.cudaRoundZero)

    x = every("fp8_e4m3")[:126].astype(np.float32)
    z = run(kernel, x, np.zeros((63, 4), np.uint16))[1]
    words = x.astype(DTYPES["fp8_e4m3"]).view(np.uint16)
    exponents = (np.maximum(x.view(np.uint32) >> 23, 0)).astype(np.uint8).view(np.uint16)
    np.testing.assert_array_equal(z, np.stack([words, words, exponents, exponents], 1))


def test_what_nothing_can_read_is_refused() -> None:
    def of_two(x):
        fp8.fp8x2_e5m2(cuda.float32x2(x[0], x[1]))

    with pytest.raises(UnsupportedKernelError, match="fp8x2"):
        run(of_two, np.zeros(2, np.float32))

    def field(x):
        x[0] = fp8.fp8x2_e5m2(cuda.float32x2(x[0], x[1])).__x

    with pytest.raises(KernelCompileError, match="__x"):
        run(field, np.zeros(2, np.float32))


def test_bits_of_a_bfloat16_in_a_structure() -> None:
    def kernel(x, z):
        i = cuda.grid(1)
        raw = fp8.cvt_e8m0_to_bf16raw(x[i])
        z[i, 0] = raw.x
        z[i, 1] = fp8.cvt_bfloat16raw_to_e8m0(raw, Saturation.NOSAT, modes.cudaRoundZero)
        z[i, 2] = fp8.cvt_bfloat16raw_to_fp8(raw, Saturation.SATFINITE, Kind.E5M2)

    x = np.arange(256).astype(np.uint8)
    z = run(kernel, x, np.zeros((256, 3), np.uint16))[1]
    got = np.ascontiguousarray(z[:, 0]).view(ml_dtypes.bfloat16).astype(np.float64)
    np.testing.assert_array_equal(got, every("fp8_e8m0"))
    np.testing.assert_array_equal(z[:, 1], x)
    there = x < 255
    np.testing.assert_array_equal(z[there, 2], bits_of(every("fp8_e8m0"), "fp8_e5m2")[there])
