"""bfloat16: arithmetic that is rounded after every operation, and casts."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda import bf16

import numbasync as na
from numbasync import vectors
from numbasync.backend.cpu.interpreter.kernel import Interpreted
from numbasync.backend.cpu.runtime.array import CpuArray
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.errors import KernelCompileError
from numbasync.testing import checked
from tests.backend_cpu.bfloat16_values import BF16, TENTH, every, number, same
from tests.common import host, mostly_full

# ml_dtypes warns of NaN.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

bfloat16: Any = cuda.types.bfloat16

TABLE: Any = np.array([0.5, -2, 3.3e38, 1e-40], BF16)


def narrow(values: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of float64 numbers, in one rounding: that of ml_dtypes has two."""
    near = values.astype(np.float32).astype(BF16)
    candidates = np.stack([near, *(np.nextafter(near, number(s)) for s in (-math.inf, math.inf))])
    with np.errstate(all="ignore"):
        errors = np.abs(candidates.astype(np.float64) - values)
        odd = candidates.view(np.uint16) & 1
    errors[~np.isfinite(errors)] = math.inf
    best = np.lexsort((odd, errors), axis=0)[0]
    chosen = np.take_along_axis(candidates, best[None], 0)[0]
    return np.where(np.isfinite(near.astype(np.float64)), chosen, near)


def test_operators_round_after_each(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def operators(z: na.KernelOutput, t: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i = cuda.grid(1)
        a, b = x[i], y[i]
        z[0, i] = a + b
        z[1, i] = a - b
        z[2, i] = a * b
        z[3, i] = a / b
        z[4, i] = -a
        z[5, i] = abs(a)
        z[6, i] = (a + b) * b  # no product that is added to: a GPU would fuse that
        z[7, i] = a
        z[7, i] += b
        t[0, i] = a < b
        t[1, i] = a <= b
        t[2, i] = a == b
        t[3, i] = a != b
        t[4, i] = a > b
        t[5, i] = a >= b
        t[6, i] = bool(a)
        t[7, i] = not a

    x, y = every(), np.roll(every(seed=4), 7)
    y[:512] = x[:512]
    z, t = na.zeros((8, 4096), BF16).sync(), na.zeros((8, 4096), np.bool_).sync()
    operators[16, 256](z, t, x, y).sync()
    with np.errstate(all="ignore"):
        want = [x + y, x - y, x * y, x / y, -x, abs(x), (x + y) * y, x + y]
    for k, (got, right) in enumerate(zip(host(z), want, strict=True)):
        if k == 3:  # a GPU's quotient may be the number beside
            close = np.abs(got.view(np.int16).astype(int) - right.view(np.int16)) <= 1
            assert (close | (np.isnan(got) & np.isnan(right)) | (np.abs(y) > 1e38)).all()
        if k != 3 or device.kind == "cpu":
            same(got, right)
    names = ("lt", "le", "eq", "ne", "gt", "ge")
    wanted = [getattr(operator, n)(x, y) for n in names] + [x != 0, x == 0]
    np.testing.assert_array_equal(host(t), wanted)


def test_bfloat16_meets_other_types(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def mixed(
        z: na.KernelOutput, x: na.KernelInput, f: na.KernelInput, h: na.KernelInput,
        i8: na.KernelInput, u8: na.KernelInput, i16: na.KernelInput, i32: na.KernelInput,
    ):  # fmt: skip
        i = cuda.grid(1)
        z[0, i] = x[i] + f[i]
        z[1, i] = x[i] + i8[i]
        z[2, i] = x[i] + u8[i]
        z[3, i] = x[i] + i16[i]
        z[4, i] = x[i] + i32[i]
        z[5, i] = x[i] * 3
        z[6, i] = x[i] * 0.1
        z[7, i] = x[i] * TENTH
        z[8, i] = 1 if x[i] < f[i] else 0
        z[9, i] = x[i] + h[i]
        z[10, i] = 2.0 if x[i] and f[i] else 1.0

    rng = np.random.default_rng(5)
    x, f = rng.standard_normal((2, 64)).astype(BF16), rng.standard_normal(64)
    f, h = f.astype(np.float32), rng.standard_normal(64).astype(np.float16)
    i8, i16, i32 = (rng.integers(-100, 100, 64).astype(t) for t in (np.int8, np.int16, np.int32))
    u8 = rng.integers(0, 255, 64).astype(np.uint8)
    z = na.zeros((11, 64), np.float64).sync()
    mixed[2, 32](z, x[0], f, h, i8, u8, i16, i32).sync()
    b, single = x[0], x[0].astype(np.float32)
    want = [
        single + f, b + i8.astype(BF16), b + u8.astype(BF16), single + i16,
        b.astype(np.float64) + i32, b.astype(np.float64) * 3, b.astype(np.float64) * 0.1,
        b * TENTH, single < f, single + h.astype(np.float32), np.full(64, 2),
    ]  # fmt: skip
    for got, right in zip(host(z), want, strict=True):
        np.testing.assert_array_equal(got, right.astype(np.float64))


def test_floats_and_integers_become_bfloat16_in_one_rounding(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def narrowed(
        z: na.KernelOutput, d: na.KernelInput, f: na.KernelInput, n: na.KernelInput,
        u: na.KernelInput,
    ):  # fmt: skip
        i = cuda.grid(1)
        z[0, i] = d[i]
        z[1, i] = f[i]
        z[2, i] = bf16.bfloat16(n[i])
        z[3, i] = bfloat16(d[i])
        z[4, i] = number(f[i])
        z[5, i] = u[i]

    rng = np.random.default_rng(6)
    numbers = every(1024, seed=8)
    values = numbers.astype(np.float64)
    with np.errstate(all="ignore"):
        middle = (values + np.nextafter(numbers, number(math.inf)).astype(np.float64)) / 2
        d = np.nextafter(middle, rng.choice([-math.inf, math.inf], 1024))
        d[::3] = middle[::3]
        f = d.astype(np.float32)
    n = rng.integers(-(2**40), 2**40, 1024) * rng.integers(0, 2**22, 1024)
    n[:6] = [2**62 + 2**54, 2**62 + 2**54 + 1, -(2**62) - 2**54 - 1, 257, 259, -3]
    u = n.astype(np.uint64)
    z = na.zeros((6, 1024), BF16).sync()
    narrowed[4, 256](z, d, f, n, u).sync()
    got = host(z)
    once = narrow(d)
    for row, right in ((0, once), (1, f.astype(BF16)), (3, once), (4, f.astype(BF16))):
        same(got[row], right)

    def exactly(whole: np.ndarray) -> np.ndarray:
        """The nearest bfloat16 of integers, computed with integers."""
        rounded = []
        for k in whole.tolist():
            step = 2 ** max(abs(k).bit_length() - 8, 0)
            low, rest = divmod(abs(k), step)
            low += 2 * rest > step or (2 * rest == step and low % 2)
            rounded.append(math.copysign(float(low * step), k))
        return np.array(rounded).astype(BF16)

    if device.kind == "cpu":  # a GPU's conversion of 64 bits may go by a float32
        same(got[2], exactly(n))
        same(got[5], exactly(u))
    np.testing.assert_allclose(got[2].astype(float), n.astype(float), rtol=2**-7)


def test_bfloat16_becomes_an_integer_towards_zero(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def whole(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = np.int32(x[i])
        z[i, 1] = np.int64(x[i])
        z[i, 2] = x[i]
        z[i, 3] = np.int32(float32(x[i]))

    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 12.3, -12.75, 2040.0], BF16)
    z = na.zeros((8, 4), np.int32).sync()
    whole[1, 8](z, x).sync()
    for column in host(z).T:
        np.testing.assert_array_equal(column, np.trunc(x.astype(np.float64)))


def test_bfloat16_in_memory_that_threads_share(device: na.Device) -> None:
    @cuda.jit(device=True)
    def scaled(a, by):
        return a * by

    layout = na.shared_layout(again=(BF16, (2, 64)), plain=(np.float32, 2))

    @na.launcher
    @cuda.jit
    def sums(z: na.KernelOutput, x: na.KernelInput, by):
        t = cuda.threadIdx.x
        own = cuda.shared.array(64, bfloat16)
        pair = cuda.local.array(2, BF16)
        one = cuda.local.array((1, 1), number)
        table = cuda.const.array_like(TABLE)
        layout.again[1, t] = x[cuda.grid(1)]
        own[t] = layout.again[1, t]
        kept = scaled(own[t], by)
        cuda.syncthreads()
        step = 32
        while step > 0:
            if t < step:
                own[t] += own[t + step]
            cuda.syncthreads()
            step //= 2
        pair[0] = own[0]
        pair[1] = kept
        one[0, 0] = TABLE[t % 4]
        z[cuda.grid(1), 0] = pair[0]
        z[cuda.grid(1), 1] = pair[1] * table[t % 4]  # a sum would be fused on a GPU
        z[cuda.grid(1), 2] = one[0, 0]

    x = np.random.default_rng(9).standard_normal(128).astype(BF16)
    z = na.zeros((128, 3), BF16).sync()
    sums[2, 64](z, x, number(1.1)).sync()
    part = x.reshape(2, 64)
    while part.shape[1] > 1:
        half = part.shape[1] // 2
        part = part[:, :half] + part[:, half:]
    same(host(z)[:, 0].copy(), np.repeat(part[:, 0], 64))
    with np.errstate(over="ignore"):
        same(host(z)[:, 1].copy(), x * number(1.1) * np.tile(TABLE, 32))
    same(host(z)[:, 2].copy(), np.tile(TABLE, 32))


def test_what_a_gpu_refuses_the_cpu_device_refuses(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def as_python(z: na.KernelOutput, x: na.KernelInput):
        z[0] = float(x[0])

    @na.launcher
    @cuda.jit
    def added(z: na.KernelOutput, x: na.KernelInput):
        cuda.atomic.add(z, 0, x[0])

    for kernel in (as_python, added):
        with pytest.raises(KernelCompileError):
            kernel[1, 1](na.zeros(1, BF16).sync(), np.ones(1, BF16)).sync()


OTHERS: list[Any] = [np.float16, np.float64, np.int8, np.uint8, np.int32, np.int64]


@pytest.mark.parametrize(
    "other", mostly_full(OTHERS, OTHERS[0], OTHERS[-1]), ids=lambda d: d.__name__
)
def test_stored_and_loaded_as_any_type(device: na.Device, other: Any) -> None:
    @na.launcher
    @cuda.jit
    def copy(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.size:
            z[i] = x[i]

    x = np.array([0, 1, 2, 100, 7, 3], BF16)
    z = na.zeros(6, other).sync()
    copy[1, 8](z, x).sync()
    np.testing.assert_array_equal(host(z), x.astype(other))
    back = na.zeros(6, BF16).sync()
    copy[1, 8](back, host(z)).sync()
    same(host(back), x)


def test_vector_accesses(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def doubled(z: na.KernelOutput, x: na.KernelInput):
        i = 8 * cuda.grid(1)
        if i + 8 <= z.shape[0]:
            a = vectors.load(x, i, 8)
            b = vectors.load(x, i + 4, 2)
            vectors.store(z, i, (a[0] + a[0], a[1], a[2], a[3], b[0], b[1] + b[1], a[6], a[7]))

    x = every()
    z = na.zeros(4096, BF16).sync()
    doubled[4, 128](z, x).sync()
    want = x.copy().reshape(-1, 8)
    with np.errstate(all="ignore"):
        want[:, 0] += want[:, 0]
        want[:, 5] += want[:, 5]
    same(host(z), want.reshape(-1))


def test_checked_and_run_as_python() -> None:
    """The code for the race finder, and kernels as Python, know the type, too."""

    def sums(z: Any, x: Any) -> None:
        own = cuda.shared.array(32, bfloat16)
        t = cuda.threadIdx.x
        own[t] = x[t] + number(1)
        cuda.syncthreads()
        z[t] = own[31 - t] * bfloat16(2.0)

    @na.launcher
    @cuda.jit
    def launched(z: na.KernelOutput, x: na.KernelInput):
        own = cuda.shared.array(32, bfloat16)
        t = cuda.threadIdx.x
        own[t] = x[t] + number(1)
        cuda.syncthreads()
        z[t] = own[31 - t] * bfloat16(2.0)

    x, z = np.arange(32).astype(BF16), np.zeros(32, BF16)
    Interpreted(cuda.jit(sums), 1024).run(
        (1, 1, 1), (32, 1, 1), 0, [CpuArray(z), CpuArray(x)], Engine("test", 1), None
    )
    want = (x[::-1] + number(1)) * number(2)
    same(z, want)
    (device, *_) = na.devices("cpu")
    with na.use_device(device), checked(device):
        result = na.zeros(32, BF16).sync()
        launched[1, 32](result, x).sync()
        same(host(result), want)
