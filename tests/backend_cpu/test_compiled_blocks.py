"""Blocks of compiled kernels: shared out among processors, beside Python, meeting each other."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int64

import numbasync as na
from numbasync.backend.cpu.kernel import compiled, printing, scheduling
from numbasync.backend.cpu.runtime import choose_engine
from numbasync.backend.protocols import ArrayKey
from numbasync.errors import (
    BarrierDivergenceError,
    KernelError,
)

pytestmark = [
    pytest.mark.usefixtures("cpu"),
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


@na.launcher
@cuda.jit
def halve_sums(z: na.KernelOutput, x: na.KernelInput):
    sums = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    sums[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            sums[t] += sums[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        z[cuda.blockIdx.x] = sums[0]


@na.launcher
@cuda.jit
def count_all(z: na.KernelOutput):
    cuda.atomic.add(z, cuda.grid(1) % 7, 1)


def test_a_large_launchs_blocks_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "workers", lambda: 3)
    seen = set()
    run = compiled.Compiled._run

    def note(self: Any, code: Any, first: int, end: int, *args: Any) -> None:
        seen.add((threading.current_thread().name.rpartition("_")[0], first, end))
        run(self, code, first, end, *args)

    monkeypatch.setattr(compiled.Compiled, "_run", note)
    z = na.zeros(7, np.int32).sync()
    n = scheduling.SPREAD_THREADS
    count_all[n // 64, 64](z).sync()
    assert z.to_host().sync().sum() == n
    bounds = sorted((first, end) for _, first, end in seen)
    assert len(bounds) == 3 * scheduling.PARTS
    assert [b for _, b in bounds[:-1]] == [a for a, _ in bounds[1:]]


@na.launcher
@cuda.jit
def put_places(z: na.KernelOutput):
    x, y, w = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    z[w, y, x, cuda.threadIdx.x] = x + 100 * y + 10_000 * w


def test_each_part_knows_its_blocks_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "workers", lambda: 3)
    threads = 128
    z = na.zeros((11, 5, 7, threads), np.int32).sync()
    assert z.size >= scheduling.SPREAD_THREADS
    put_places[(7, 5, 11), threads](z).sync()
    w, y, x, _ = np.indices(z.shape)
    np.testing.assert_array_equal(z.to_host().sync(), x + 100 * y + 10_000 * w)


def test_the_first_of_several_failing_parts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "workers", lambda: 3)

    @na.launcher
    @cuda.jit
    def fail(z: na.KernelOutput):
        z[cuda.grid(1) + 1_000_000] = 1

    with pytest.raises(KernelError, match="index 1"):
        fail[scheduling.SPREAD_THREADS // 64, 64](na.zeros(4).sync()).sync()


@na.launcher
@cuda.jit
def name_blocks(z: na.KernelOutput):
    if cuda.threadIdx.x == 1:
        print("block", cuda.blockIdx.x)  # noqa: T201 - what is tested


def test_text_is_in_the_order_of_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "workers", lambda: 2)
    others = threading.Semaphore(0)
    run = compiled.Compiled._run

    def first_is_last(self: Any, code: Any, first: int, end: int, *args: Any) -> None:
        for _ in range(2 * scheduling.PARTS - 1 if first == 0 else 0):
            others.acquire()
        run(self, code, first, end, *args)
        others.release()

    monkeypatch.setattr(compiled.Compiled, "_run", first_is_last)
    blocks = scheduling.SPREAD_THREADS // 128
    name_blocks[blocks, 128](na.zeros(1).sync()).sync()
    assert capsys.readouterr().out == "".join(f"block {i}\n" for i in range(blocks))

    monkeypatch.setattr(printing, "has_places", lambda: True)
    name_blocks[2, (2, 1)](na.zeros(1).sync()).sync()
    said = (f"block ({i}, 0, 0), thread (1, 0, 0): block {i}\n" for i in range(2))
    assert capsys.readouterr().out == "".join(said)


def test_shared_memory_is_of_a_block() -> None:
    x = np.random.default_rng(3).integers(0, 9, 64 * 700).astype(np.float32)
    z = na.zeros(700).sync()
    halve_sums[700, 64](z, x).sync()
    np.testing.assert_array_equal(z.to_host().sync(), x.reshape(700, 64).sum(1))


def test_kernels_run_beside_python() -> None:
    """Compiled code does not hold the interpreter: a thread goes on counting meanwhile."""

    @na.launcher
    @cuda.jit
    def spin(z: na.KernelOutput, n: int64):
        v = z[0]
        for k in range(n):
            v = (v * 6364136223846793005 + k) % 1000003
        z[0] = v

    z = na.zeros(1, np.int64).sync()
    spin[1, 1](z, 1).sync()
    device = na.devices("cpu")[0]
    stream = device.new_stream()
    steps, counted = 1 << 20, 0
    for _ in range(12):
        counted = 0
        future = na.spawn(spin[1, 1](z, steps), stream)
        while not future.done():
            counted += 1
        if counted > 1000:
            return
        steps *= 4
    pytest.fail(f"counted to {counted}")


@na.launcher
@cuda.jit
def some_blocks_come(z: na.KernelOutput, most):
    if cuda.blockIdx.x < most:
        cuda.cg.this_grid().sync()
    z[cuda.grid(1)] = 1


@na.launcher
@cuda.jit
def error_after_the_barrier(z: na.KernelOutput):
    cuda.cg.this_grid().sync()
    z[cuda.grid(1) + 3] = 1


def test_a_block_missing_at_the_grids_barrier() -> None:
    some_blocks_come[4, 8](na.zeros(32), 0).sync()
    some_blocks_come[4, 8](na.zeros(32), 4).sync()
    with pytest.raises(BarrierDivergenceError, match=r"block \(2, 0, 0\): 0 of 8 threads wait"):
        some_blocks_come[4, 8](na.zeros(32), 2).sync()


def test_errors_of_blocks_that_meet_say_which() -> None:
    with pytest.raises(KernelError, match=r"block \(3, 0, 0\), thread \(5, 0, 0\): IndexError"):
        error_after_the_barrier[4, 8](na.zeros(32)).sync()
    assert error_after_the_barrier.cpu_engine().name == "compiled"


def test_blocks_that_meet_are_not_too_many() -> None:
    with pytest.raises(KernelError, match="blocks that synchronise need"):
        error_after_the_barrier[2**24, 1](na.zeros(32)).sync()


def test_contending_blocks_are_shared_out_if_quicker() -> None:
    many = scheduling.SPREAD_THREADS
    for alone, shared in ((1.0, 2.0), (2.0, 1.0)):
        costs = scheduling.Costs(contend=True)
        assert costs.are_shared(many, 64)
        costs.took(True, shared)
        assert not costs.are_shared(many, 64)  # to know what it takes alone
        costs.took(False, alone)
        assert costs.are_shared(many, 64) is (shared < alone)
    others = scheduling.Costs(contend=False)
    others.took(True, 1.0)
    assert others.are_shared(many, 64)
    others.took(False, 1e-9)
    assert not others.are_shared(many, 64)  # a short one


def test_kernels_with_atomic_operations_contend() -> None:
    add_up[1, 1](na.zeros(1)).sync()
    engine: Any = choose_engine.prepare_kernel(
        add_up.kernel, (ArrayKey("<f4", 1, "C"),), 1024, "compiled"
    )
    assert engine._costs._contend
    other: Any = choose_engine.prepare_kernel(
        halve_sums.kernel, (ArrayKey("<f4", 1, "C"),) * 2, 1024, "compiled"
    )
    assert not other._costs._contend


@na.launcher
@cuda.jit
def add_up(z: na.KernelOutput):
    cuda.atomic.add(z, 0, 1)


def test_variables_have_any_names() -> None:
    """Also those that labels of the code around them have."""

    @na.launcher
    @cuda.jit
    def kernel(z: na.KernelOutput, blocks, done, apart, top, states):
        begin, memory, stop = done + blocks, apart + top, states
        i = cuda.grid(1)
        for met in range(blocks):
            z[i] += begin * met
            cuda.syncthreads()
            begin += memory + z[i ^ 1] - stop
            cuda.syncthreads()

    z = na.zeros(8, np.int64).sync()
    kernel[1, 8](z, 3, 4, 5, 6, 7).sync()
    want, begin = np.zeros(8, np.int64), np.full(8, 7)
    for met in range(3):
        want += begin * met
        begin = begin + 11 + want - 7
    assert (z.to_host().sync() == want).all()
