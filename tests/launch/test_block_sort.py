"""Elements that the threads of a block load, sort and store together, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.dtypes import of_name
from numbasync.errors import BarrierDivergenceError, CallerError, KernelCompileError
from tests.backend_cpu.test_interpreter import run
from tests.common import full, host, mostly_full, put

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
]  # fmt: skip


@na.launcher
@cuda.jit
def sort_tiles(z: na.KernelOutput, w: na.KernelOutput, x: na.KernelInput, y: na.KernelInput, last):
    first = cuda.blockIdx.x * (3 * cuda.blockDim.x * cuda.blockDim.y)
    keys = na.block.load(x, first, 3, last)
    values = na.block.load(y, first, 3)
    keys, values = na.block.sort(keys, values, threads=256)
    na.block.store(z, first, keys)
    na.block.store(w, first, values)


def keys_of(n: int, dtype: Any) -> np.ndarray:
    """Few numbers, many times each; of floats with both zeros and what has no order."""
    x = np.random.default_rng(n).integers(0, 2 if dtype == "bool" else 9, n)
    if np.dtype(dtype).kind == "f":
        special = np.array([-0.0, math.nan, math.inf, -math.inf, 0, 1, 2, 3, -1.5])
        return special[x].astype(dtype)
    return (x - (4 if np.dtype(dtype).kind == "i" else 0)).astype(dtype)


def check_sort(n: int, shape: Any, dtype: str) -> None:
    x, y = keys_of(n, dtype), np.arange(n, dtype=np.int16)
    tile = 3 * math.prod(shape if isinstance(shape, tuple) else (shape,))
    largest = np.inf if x.dtype.kind == "f" else 1 if dtype == "bool" else np.iinfo(dtype).max
    # What stands for elements behind the end must come last: behind NaN, too.
    last = np.nan if x.dtype.kind == "f" else largest
    outs = na.zeros(n, x.dtype), na.zeros(n, np.int16)
    result = sort_tiles[-(-n // tile), shape](*outs, put(x), put(y), x.dtype.type(last)).sync()
    z, w = host(result.z), host(result.w)
    for first in range(0, n, tile):
        part = slice(first, first + tile)
        order = np.argsort(x[part], kind="stable")
        np.testing.assert_array_equal(z[part], x[part][order])
        np.testing.assert_array_equal(w[part], y[part][order])


@pytest.mark.parametrize("shape", mostly_full([1, 31, 32, 33, 100, (10, 7), 256], 33))
def test_blocks_of_any_size(device: na.Device, shape: Any) -> None:
    check_sort(500, shape, "float32")


@pytest.mark.full
@pytest.mark.parametrize("dtype", mostly_full(DTYPES, "float32"))
def test_keys_of_any_type(device: na.Device, dtype: str) -> None:
    check_sort(1000, (10, 7), dtype)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_single_keys_descend(device: na.Device, dtype: str) -> None:
    @na.launcher
    @cuda.jit
    def sort_down(z: na.KernelOutput, w: na.KernelOutput, v: na.KernelOutput, x: na.KernelInput):
        i = cuda.threadIdx.x
        z[i], w[i] = na.block.sort(x[i], i, descending=True)
        v[i] = na.block.sort(x[i])

    x = keys_of(100, dtype)
    outs = na.zeros(100, dtype), na.zeros(100, np.int32), na.zeros(100, dtype)
    result = sort_down[1, 100](*outs, put(x)).sync()
    ranks = np.unique(x, return_inverse=True)[1]
    order = np.argsort(-ranks, kind="stable")
    np.testing.assert_array_equal(host(result.z), x[order])
    np.testing.assert_array_equal(host(result.w), order)
    np.testing.assert_array_equal(host(result.v), np.sort(x))


@na.launcher
@cuda.jit
def copy_both_ways(z: na.KernelOutput, y: na.KernelOutput, x: na.KernelInput, skipped):
    first = cuda.blockIdx.x * (4 * cuda.blockDim.x * cuda.blockDim.y)
    blocked = na.block.load(x[skipped:], first, 4, default=7)
    striped = na.block.load(x[skipped:], first, 4, 7, striped=True)
    na.block.store(z[skipped:], first, blocked)
    na.block.store(y[skipped:], first, striped, striped=True)


@pytest.mark.parametrize(
    "dtype", [full(d) for d in ("bool", "int8", "uint64", "float16", "complex64", "bfloat16")]
)
def test_elements_in_and_out(device: na.Device, dtype: str) -> None:
    for n in (1, 255, 256, 1001):
        kind = of_name(dtype)
        x = np.random.default_rng(n).integers(0, 2, n).astype(kind)
        for skipped in (0, 1) if n > 1 else (0,):  # the second: at no multiple of 16 bytes
            outs = na.zeros(n, kind), na.zeros(n, kind)
            result = copy_both_ways[-(-n // 256), (16, 4)](*outs, put(x), skipped).sync()
            for out in (result.z, result.y):
                np.testing.assert_array_equal(host(out)[skipped:], x[skipped:])
                assert not host(out)[:skipped].any()


def test_each_thread_has_its_elements(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def note(z: na.KernelOutput, y: na.KernelOutput, x: na.KernelInput):
        i = cuda.threadIdx.x
        for k, value in enumerate(na.block.load(x, 10, 2, default=-1)):
            z[i, k] = value
        for k, value in enumerate(na.block.load(x[::2], 10, 2, -1, striped=True)):
            y[i, k] = value

    outs = na.zeros((33, 2), np.int32), na.zeros((33, 2), np.int32)
    result = note[1, 33](*outs, put(np.arange(70))).sync()
    neighbours = 10 + np.arange(66).reshape(33, 2)
    np.testing.assert_array_equal(host(result.z), np.where(neighbours < 70, neighbours, -1))
    apart = 2 * (10 + np.arange(66).reshape(2, 33).T)
    np.testing.assert_array_equal(host(result.y), np.where(apart < 70, apart, -1))


def test_kernels_that_run_as_python() -> None:
    def kernel(z, w, x):
        keys = na.block.load(x, 0, 2, default=99, striped=True)
        keys, places = na.block.sort(keys, (cuda.threadIdx.x, cuda.threadIdx.x + 40))
        na.block.store(z, 0, keys)
        na.block.store(w, 0, places)
        x[cuda.threadIdx.x] = na.block.sort(x[cuda.threadIdx.x], descending=True)

    x = np.random.default_rng(1).integers(0, 9, 75).astype(np.int32)
    z, w, given = np.zeros(80, np.int32), np.zeros(80, np.int32), x.copy()
    run(kernel, z, w, x, block=(40, 1, 1))
    assert (z == np.sort(np.append(given, [99] * 5))).all()
    assert sorted(w) == list(range(80))
    assert (np.append(given, [99] * 5)[w] == z).all()
    assert (x[:40] == -np.sort(-given[:40])).all()


def test_an_output_is_what_a_block_stores_to() -> None:
    @na.launcher
    @cuda.jit
    def undeclared(z, x):
        na.block.store(z, 0, na.block.sort(na.block.load(x, 0, 2)))

    assert [p.is_output for p in undeclared.parameters] == [True, False]


def test_no_sorting_outside_of_kernels() -> None:
    calls = (
        lambda: na.block.sort(3),
        lambda: na.block.load(3, 3, 3),
        lambda: na.block.store(3, 3, (3,)),
    )
    for call in calls:
        with pytest.raises(CallerError, match="call it in a kernel"):
            call()


@pytest.mark.full
def test_what_is_no_key_is_refused(device: na.Device) -> None:
    def refused(words: str, body: Any) -> None:
        @na.launcher
        @cuda.jit
        def kernel(z: na.KernelOutput):
            body(z)

        with pytest.raises(KernelCompileError, match=words):
            kernel[1, 32](na.zeros(32)).sync()

    @cuda.jit(device=True)
    def sort_two_types(z):
        z[0] = na.block.sort((z[0], 1))[0]

    @cuda.jit(device=True)
    def sort_complex(z):
        z[0] = na.block.sort(z[0] + 1j).real

    @cuda.jit(device=True)
    def sort_too_many(z):
        z[0] = na.block.sort(na.block.load(z, 0, 16))[0]

    @cuda.jit(device=True)
    def sort_too_few_values(z):
        z[0] = na.block.sort((z[0], z[1]), (z[0],))[0][0]

    @cuda.jit(device=True)
    def load_some(z):
        z[0] = na.block.load(z, 0, z.shape[0])[0]

    @cuda.jit(device=True)
    def load_perhaps(z):
        z[0] = na.block.load(z, 0, 2, 0, z[0] > 1)[0]

    @cuda.jit(device=True)
    def store_a_number(z):
        na.block.store(z, 0, z[0])

    refused("numbers of one type", sort_two_types)
    refused("complex numbers have no order", sort_complex)
    refused("65,536 bytes of shared memory", sort_too_many)
    refused("write as many", sort_too_few_values)
    refused("write an int there, of 1 or more", load_some)
    refused("write True or False there", load_perhaps)
    refused("write a tuple of numbers", store_a_number)


def test_some_threads_that_sort(cpu: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def some(z: na.KernelOutput):
        if cuda.threadIdx.x < 20:
            z[cuda.threadIdx.x] = na.block.sort(z[cuda.threadIdx.x])

    with pytest.raises(BarrierDivergenceError, match="20 of 64 threads wait at na.block.sort"):
        some[1, 64](na.zeros(64)).sync()


@pytest.mark.full
def test_no_races_where_blocks_sort(device: na.Device) -> None:
    x, y = keys_of(210, "float32"), np.arange(210, dtype=np.int16)

    def expected(*args: Any) -> Any:
        order = np.argsort(x, kind="stable")
        return x[order], y[order]

    outs = np.zeros(210, np.float32), np.zeros(210, np.int16)
    args = (*outs, x, y, np.float32(np.nan))
    na.testing.check_kernel(sort_tiles, args, expected, grid=1, block=70)
