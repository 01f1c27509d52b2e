"""Kernels for tensor cores run on the CPU device, and give the products that NumPy gives."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.backend.cpu.runtime import choose_engine
from numbasync.errors import KernelCompileError, OutOfBoundsError
from numbasync.testing import check_kernel
from tests.backend_cpu import tensor_core_kernels as kernels

pytestmark = pytest.mark.usefixtures("cpu")
RNG = np.random.default_rng(1)


def integers(*shape: int) -> np.ndarray[Any, Any]:
    """Small integers, whose products have exact sums."""
    return RNG.integers(-3, 4, shape).astype(np.float16)


def product(a: Any, b: Any) -> Any:
    return a.astype(np.float32) @ b.astype(np.float32).T


def test_a_pipeline_of_a_producer_and_two_consumers() -> None:
    a, b = integers(256, 192), integers(128, 192)
    ta, tb = (
        na.tensor_map(na.from_host(x).sync(), (rows, kernels.DEPTH))
        for x, rows in ((a, kernels.ROWS), (b, kernels.COLUMNS))
    )
    out = na.zeros((256, 128)).sync()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is no fallback, and says nothing
        kernels.pipelined_matmul[3, 384](out, ta, tb, 192).sync()
    np.testing.assert_array_equal(out.to_host().sync(), product(a, b))


@pytest.mark.parametrize("depth", [64, 136])
def test_stages_of_asynchronous_copies(depth: int) -> None:
    a, b = integers(32, depth), integers(32, depth)
    out = na.zeros((32, 32)).sync()
    kernels.copied_matmul[1, 64](out, a, b).sync()
    np.testing.assert_array_equal(out.to_host().sync(), product(a, b))


def test_the_engine_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine.uses_tensor_cores(kernels.copied_matmul.kernel.py_func)

    def inner(x):
        return tc.accumulator(16, 8)

    def outer(x):
        calls_inner(x)

    def plain(x):
        cuda.syncthreads()

    calls_inner = cuda.jit(device=True)(inner)
    assert choose_engine.uses_tensor_cores(outer)
    assert not choose_engine.uses_tensor_cores(plain)


def test_check_kernel_runs_them_in_several_orders() -> None:
    a, b = integers(32, 128), integers(32, 128)
    check_kernel(
        kernels.copied_matmul, [np.zeros((32, 32), np.float32), a, b],
        lambda out, a, b: product(a, b), grid=1, block=64,
    )  # fmt: skip


SCRATCH = na.shared_layout(sums=(np.float32, 64), tile=tc.tile(np.float16, (16, 64)))


@cuda.jit(device=True)
def plus_place(x, row, column, more):
    return x + float32(row * 100 + column) + more


@na.launcher
@cuda.jit
def uses_much_besides(out: na.KernelOutput, counts: na.KernelOutput):
    tid = cuda.threadIdx.x
    acc = tc.apply(plus_place, tc.accumulator(16, 16), (0, 0), float32(1000))
    tc.store(out, (0, 0), acc)
    held = cuda.shared.array(32, float32)
    held[tid] = cuda.shfl_xor_sync(0xFFFFFFFF, float32(tid), 1)
    SCRATCH.sums[tid] = cuda.laneid
    cuda.syncwarp()
    up = cuda.shfl_up_sync(0xFFFFFFFF, held[tid], 2)
    votes = cuda.ballot_sync(0xFFFFFFFF, tid % 2 == 0)
    cuda.syncthreads()
    cuda.atomic.add(counts, 0, up + SCRATCH.sums[31 - tid])
    if tid == 0:
        counts[1] = votes & 0xFFFF


def test_what_such_kernels_use_besides() -> None:
    out, counts = na.zeros((16, 16)).sync(), na.zeros(2).sync()
    uses_much_besides[1, 32](out, counts).sync()
    rows, columns = np.indices((16, 16))
    np.testing.assert_array_equal(out.to_host().sync(), 1000 + rows * 100 + columns)
    pairs = np.arange(32) ^ 1
    total = pairs[:30].sum() + pairs[:2].sum() + np.arange(32).sum()
    assert counts.to_host().sync().tolist() == [total, 0x5555]


@na.launcher
@cuda.jit
def reads_beyond(out: na.KernelOutput):
    tc.store(out, (0, 0), tc.accumulator(16, 8))
    out[cuda.threadIdx.x, 0] = 1


def test_an_outside_index_names_its_line() -> None:
    with pytest.raises(OutOfBoundsError, match=r"test_tensor_cores_kernels.py:\d+"):
        reads_beyond[1, 32](na.zeros((16, 8))).sync()


@na.launcher
@cuda.jit
def has_wrong_types(out: na.KernelOutput):
    tc.store(out, (0, 0), tc.accumulator(15, 8))


@na.launcher
@cuda.jit
def prefetches_an_array(out: na.KernelOutput):
    tc.prefetch_map(out)


def test_an_operations_definition_refuses_as_on_gpus() -> None:
    with pytest.raises(KernelCompileError, match=r"accumulator\(15, 8\).*multiple of 16"):
        has_wrong_types[1, 32](na.zeros((16, 8))).sync()
    with pytest.raises(KernelCompileError, match="pass na.tensor_map"):
        prefetches_an_array[1, 32](na.zeros((16, 8))).sync()
