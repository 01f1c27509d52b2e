"""Arrays in kernels: axes, layouts, views made inside, and records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int64
from numba.cuda.np.numpy_support import from_dtype

import numbasync as na
from tests.common import host, mostly_full, put

PARTICLE = np.dtype([("mass", np.float32), ("charge", np.int8), ("at", np.float64)], align=True)
SAMPLE = np.dtype([("flag", np.uint8), ("value", np.float64), ("n", np.int16)], align=True)
particle, sample = from_dtype(PARTICLE), from_dtype(SAMPLE)
KNOWN: Any = np.array([(1.5, -3, 0.25), (2.5, 4, -8.5), (0.1, 0, 1e300)], PARTICLE)


def pattern(shape: Any, dtype: Any = np.int64) -> np.ndarray:
    return np.arange(1, np.prod(shape, dtype=int) + 1, dtype=dtype).reshape(shape)


# --- axes and layouts ---


def test_arrays_without_axes(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def scalar(z: na.KernelOutput, x: na.KernelInput):
        z[()] = x[()] * 2 + z[()] + x.ndim + x.size + len(x.shape)

    z = put(np.array(5, np.int64))
    scalar[1, 1](z, np.array(20, np.int16)).sync()
    assert host(z).shape == () and host(z) == 46


# Other tests have the others.
DTYPES = [np.bool_, np.int8, np.uint16, np.float16, np.complex64, np.complex128]


@pytest.mark.parametrize("dtype", mostly_full(DTYPES, np.bool_, np.float16))
def test_elements_of_every_type_are_copied(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def reverse(z: na.KernelOutput, x: na.KernelInput):
        i, j, k = cuda.grid(3)
        if i < x.shape[0] and j < x.shape[1] and k < x.shape[2]:
            z[z.shape[0] - 1 - i, -1 - j, k - x.shape[2]] = x[i, j, k]

    x = np.random.default_rng(1).integers(0, 100, (3, 4, 5)).astype(dtype)
    z = na.zeros((3, 4, 5), dtype).sync()
    reverse[(2, 2, 2), (2, 2, 3)](z, x).sync()
    np.testing.assert_array_equal(host(z), x[::-1, ::-1])


@na.launcher
@cuda.jit
def weigh(z: na.KernelOutput, x: na.KernelInput):
    """Adds to each element what `x` has there, and says where it is."""
    i, j = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] += 1000 * x[i, j] + 10 * i + j


VIEWS: list[tuple[str, Any]] = [
    ("every second row", np.s_[::2, :3]), ("columns", np.s_[1:5, 1::3]),
    ("one of three axes", np.s_[:, 2, :]), ("an inner block", np.s_[2:4, 3:6]),
    ("one row of every fourth", np.s_[3:4, ::4]),
]  # fmt: skip


@pytest.mark.parametrize("at", [at for _, at in VIEWS], ids=[name for name, _ in VIEWS])
def test_views_that_are_not_contiguous(device: na.Device, at: Any) -> None:
    axes = 3 if len(at) == 3 else 2
    start = pattern((6, 7, 5)[:axes])
    z, x = put(start), put(-start)
    i, j = np.indices(start[at].shape)
    want = start.copy()
    want[at] += 1000 * -start[at] + 10 * i + j
    weigh[(3, 3), (4, 4)](z[at], x[at]).sync()
    np.testing.assert_array_equal(host(z), want)


def test_inputs_in_fortran_order_and_reversed(device: na.Device) -> None:
    x = pattern((5, 6))
    i, j = np.indices(x.shape)
    for given in (
        np.asfortranarray(x),
        x[::-1, ::-1][::-1, ::-1],
        x[::-1],
        x.T.copy().T,
        x[:, ::-1],
    ):
        z = na.zeros((5, 6), np.int64).sync()
        weigh[(2, 2), (4, 4)](z, given).sync()
        np.testing.assert_array_equal(host(z), 1000 * given + 10 * i + j)


def test_one_launcher_serves_arrays_of_several_layouts(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def total(z: na.KernelOutput, x: na.KernelInput):
        cuda.atomic.add(z, 0, x[cuda.grid(1)])

    x = pattern(60)
    tensor = put(x)
    for at in (np.s_[:20], np.s_[::3], np.s_[40:], np.s_[5:45:2]):
        z = na.zeros(1, np.int64).sync()
        total[2, 10](z, tensor[at]).sync()
        assert host(z).tolist() == [x[at].sum()]


# --- views made in the kernel ---


def test_slices_rows_and_columns(device: na.Device) -> None:
    @cuda.jit(device=True)
    def dot(a, b):
        total = 0
        for k in range(a.shape[0]):
            total += a[k] * b[k]
        return total

    @na.launcher
    @cuda.jit
    def product(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i, j = cuda.grid(2)
        if i < z.shape[0] and j < z.shape[1]:
            row = z[i]
            row[j] = dot(x[i], y[:, j])
            z[i, j:][0] += dot(x[i, ::2], y[::2, j]) - dot(x[i, ::-1], y[::-1, j])

    x, y = pattern((5, 6)), pattern((6, 4))
    z = na.zeros((5, 4), np.int64).sync()
    product[(2, 2), (3, 3)](z, x, y).sync()
    np.testing.assert_array_equal(host(z), x[:, ::2] @ y[::2])


def test_properties_and_iteration(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def properties(z: na.KernelOutput, x):
        i = cuda.grid(1)
        rows, columns = x.shape
        z[i, 0] = rows * 100 + columns * 10 + x.ndim
        z[i, 1] = len(x[i]) + x.size
        total = 0
        for v in x[i]:
            total += v
        for row in x[1:3]:
            for v in row[::2]:
                total += 100 * v
        z[i, 2] = total
        z[i, 3] = x.T[2, i]
        z[i, 4] = x[i, -1] - x[-1, i - 1]

    x = pattern((4, 5))
    z = na.zeros((4, 5), np.int64).sync()
    properties[1, 4](z, x).sync()
    inner = 100 * x[1:3, ::2].sum()
    want = [[452, 25, x[i].sum() + inner, x[i, 2], x[i, -1] - x[-1, i - 1]] for i in range(4)]
    assert host(z).tolist() == want


def test_reshaped_and_reinterpreted_arrays(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def reshape(z: na.KernelOutput, x, data: na.KernelInput):
        i = cuda.grid(1)
        grid = x.reshape(3, 4)
        flat = grid.reshape(12)
        z[i, 0] = grid[i % 3, i % 4]
        z[i, 1] = flat[i]
        z[i, 2] = data[4 * i : 4 * i + 4].view(np.int32)[0]

    x, numbers = (
        pattern(12),
        np.random.default_rng(2).integers(-(2**31), 2**31, 12).astype(np.int32),
    )
    z = na.zeros((12, 3), np.int64).sync()
    reshape[1, 12](z, x, numbers.view(np.uint8)).sync()
    i = np.arange(12)
    np.testing.assert_array_equal(host(z).T, [x.reshape(3, 4)[i % 3, i % 4], x, numbers])


def test_views_of_shared_and_local_arrays(device: na.Device) -> None:
    @cuda.jit(device=True)
    def fill(part, value):
        for k in range(len(part)):
            part[k] = value + k

    @na.launcher
    @cuda.jit
    def views(z: na.KernelOutput):
        own = cuda.shared.array((8, 4), int64)
        mine = cuda.local.array((2, 3), float32)
        t = cuda.threadIdx.x
        fill(own[t], 10 * t)
        fill(mine[1], t)
        fill(mine[0, 1:], 0.5)
        cuda.syncthreads()
        total = 0
        for v in own[:, t % 4]:
            total += v
        z[t, 0] = total
        z[t, 1] = mine[1, 2] + mine[0, 2]

    z = na.zeros((8, 2), np.float64).sync()
    views[1, 8](z).sync()
    t = np.arange(8)
    np.testing.assert_array_equal(host(z).T, [280 + 8 * (t % 4), t + 2 + 1.5])


# --- records ---


def test_records_in_shared_memory(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def exchange(z: na.KernelOutput, mass: na.KernelInput):
        own = cuda.shared.array(16, particle)
        i, t = cuda.grid(1), cuda.threadIdx.x
        own[t].mass = mass[i]
        own[t].charge = 100 + t
        own[t]["at"] = mass[i] * 2.1
        cuda.syncthreads()
        other = own[15 - t]
        z[i, 0] = other.mass
        z[i, 1] = other["charge"]
        z[i, 2] = other.at
        z[i, 3] = other.charge + other.charge

    mass = np.random.default_rng(3).standard_normal(32).astype(np.float32)
    z = na.zeros((32, 4), np.float64).sync()
    exchange[2, 16](z, mass).sync()
    back = mass.reshape(2, 16)[:, ::-1].ravel()
    charge = np.tile(np.arange(115, 99, -1), 2)
    want = [back, charge, back.astype(np.float64) * 2.1, 2 * charge]
    np.testing.assert_array_equal(host(z).T, want)


def test_records_of_one_thread(device: na.Device) -> None:
    @cuda.jit(device=True)
    def grow(record, by):
        record.n += by
        record.value = record.value * by + record.flag

    @na.launcher
    @cuda.jit
    def records(z: na.KernelOutput):
        own = cuda.local.array(3, sample)
        i = cuda.grid(1)
        for k in range(3):
            own[k].flag = 254 + k
            own[k].value = 0.5
            own[k].n = i
        grow(own[1], 7)
        own[2] = own[1]
        grow(own[2], 2)
        z[i, 0] = own[0].flag + own[1].flag + own[2].flag
        z[i, 1] = own[1].value
        z[i, 2] = own[2].value
        z[i, 3] = own[2].n

    z = na.zeros((5, 4), np.float64).sync()
    records[1, 5](z).sync()
    once = 0.5 * 7 + 255
    assert host(z).tolist() == [[254 + 255 + 255, once, 2 * once + 255, i + 9] for i in range(5)]


def test_constant_records(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def read(z: na.KernelOutput):
        i = cuda.grid(1)
        z[i, 0] = KNOWN[i].mass
        z[i, 1] = KNOWN[i].charge
        z[i, 2] = KNOWN[i]["at"]

    z = na.zeros((3, 3), np.float64).sync()
    read[1, 3](z).sync()
    want = [[float(r["mass"]), int(r["charge"]), float(r["at"])] for r in KNOWN]
    assert host(z).tolist() == want
