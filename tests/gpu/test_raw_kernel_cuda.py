"""Kernels in CUDA C++, compiled by NVRTC, and functions of other libraries, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import KernelCompileError, LaunchError
from numbasync.testing import counters, gate
from tests.common import host

SOURCE = """
#include <cuda_fp16.h>
extern "C" __global__ void axpy(float *z, const float *x, float a, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) z[i] += a * x[i];
}
__global__ void halves(__half *z, const bool *which, __half h, unsigned char k, int n) {
    extern __shared__ float scratch[];
    int i = threadIdx.x;
    scratch[i] = (float)k;
    __syncthreads();
    if (i < n && which[i]) z[i] = __hadd(h, __float2half(scratch[n - 1 - i]));
}
"""
pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("n", [1, 255, 256, 257, 10_000], ids="n={}".format)
async def test_a_launch_computes(device: na.Device, n: int) -> None:
    axpy = na.raw_kernel(SOURCE, "axpy")
    before = counters().compiles
    z = await axpy[-(-n // 256), 256](na.ones(n), na.arange(n), 0.5, n)
    np.testing.assert_array_equal(host(z), 1 + np.arange(n, dtype=np.float32) / 2)
    await axpy[1, 256](z, na.ones(n), 2, 1)
    assert host(z)[0] == 3 and counters().compiles == before + 1


async def test_all_kinds_of_arguments_arrive(device: na.Device) -> None:
    which = np.arange(32) % 2 == 0
    halves = na.raw_kernel(SOURCE, "halves", options=["--use_fast_math"])
    z = await na.zeros(32, np.float16)
    await halves[1, 32, 0, 60_000](z, na.from_host(which), 0.5, 200, 32)
    np.testing.assert_array_equal(host(z), np.where(which, 200.5, 0).astype(np.float16))


def test_a_launch_is_in_order_and_in_graphs(device: na.Device) -> None:
    axpy = na.raw_kernel(SOURCE, "axpy")
    z, x = na.zeros(64).sync(), na.zeros(64).sync()
    axpy[1, 64](z, x, 1, 64).sync()  # loading may wait for a held stream
    one, two = device.new_stream(), device.new_stream()
    with gate(one):
        na.fill(x, 3).async_on(one)
        axpy[1, 64](z, x, 1, 64).async_on(two)
        assert not two.query()
    two.synchronize()
    assert host(z).tolist() == [3] * 64
    graph = axpy[1, 64](z, x, 1, 64).graph()
    before = host(z)[0]
    graph.launch().sync()
    graph.launch().sync()
    assert host(z).tolist() == [before + 6] * 64


def test_errors_are_named(device: na.Device) -> None:
    with pytest.raises(KernelCompileError, match=r"(?s)kernel k: NVRTC refuses it:.*undefined"):
        na.raw_kernel("__global__ void k(float *z) { z[0] = gone; }", "k")[1, 1](na.ones(1)).sync()
    with pytest.raises(LaunchError, match="at most"):
        na.raw_kernel(SOURCE, "axpy")[1, (1024, 2)](na.ones(1), na.ones(1), 1, 1).sync()


def test_a_library_is_called_in_the_order_of_the_tensors(device: na.Device) -> None:
    cupy = pytest.importorskip("cupy")

    def add(stream: na.Stream, x: Any, z: Any) -> None:
        with cupy.cuda.ExternalStream(stream.number):
            cupy.add(cupy.asarray(z), cupy.asarray(x), out=cupy.asarray(z))

    x, z = na.ones(1000).sync(), na.zeros(1000).sync()
    na.external(add, [x], [z]).sync()  # CuPy compiles
    one, two = device.new_stream(), device.new_stream()
    with gate(one):
        na.fill(x, 3).async_on(one)
        na.external(add, [x], [z]).async_on(two)
        assert not two.query()
        na.fill(x, 9).async_on(one)
    assert (
        na.external(add, [x], [z]).then(lambda z: z.dup()).to_host().sync().tolist() == [13] * 1000
    )
