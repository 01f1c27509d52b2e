"""Compiled kernels of the CPU device: which are, what their errors say, how blocks are spread."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int64

import numbasync as na
from numbasync.backend.cpu.compiler import block_scheduling
from numbasync.backend.cpu.compiler import kernel as compiled
from numbasync.backend.cpu.runtime import choose_engine
from numbasync.backend.protocols import ArrayKey
from numbasync.errors import (
    BarrierDivergenceError,
    CallerError,
    InterpretedKernelWarning,
    KernelError,
    UnsupportedKernelError,
)

overload: Any = importlib.import_module("numba.cuda.extending").overload
pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")


@pytest.fixture(autouse=True)
def on_the_cpu_device() -> Any:
    with na.use_device(na.devices("cpu")[0]):
        yield


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
def past_the_end(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    z[i] = x[i + 2]


@na.launcher
@cuda.jit
def rows(z: na.KernelOutput, j):
    z[1, j] = 1


@na.launcher
@cuda.jit
def refuse(z: na.KernelOutput):
    if cuda.grid(1) == 5:
        raise ValueError("no fives")


@na.launcher
@cuda.jit
def count_all(z: na.KernelOutput):
    cuda.atomic.add(z, cuda.grid(1) % 7, 1)


@na.launcher
@cuda.jit
def loop_with_an_end(z: na.KernelOutput, x: na.KernelInput):
    for _ in range(2):
        cuda.syncthreads()
    else:
        z[0] = x[0] + x[0]


# --- which engine ---


def test_a_kernel_tells_what_runs_it() -> None:
    kernel = na.launcher(halve_sums.kernel)
    assert kernel.cpu_engine() == ("none yet", "no call has needed it")
    kernel.compile(na.meta(4), na.meta(64)).sync()
    assert kernel.cpu_engine() == ("compiled", "")


def test_what_cannot_be_compiled_says_why_once() -> None:
    x, z = na.ones(1).sync(), na.zeros(1).sync()
    said = r"loop_with_an_end is interpreted on the CPU device, .*: an else of .*, line \d+"
    with pytest.warns(InterpretedKernelWarning, match=said) as warned:
        for _ in range(2):
            na.launcher(loop_with_an_end.kernel)[1, 1](z, x).sync()
    (warning,) = warned
    assert warning.filename == __file__ and "\n" not in str(warning.message)
    assert z.to_host().sync().tolist() == [2]


def test_one_engine_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = halve_sums.kernel
    keys = (ArrayKey("<f4", 1, "C"),) * 2
    assert choose_engine.prepared(dispatcher, keys, 1024, "auto").engine == "compiled"
    made = choose_engine.prepared(dispatcher, keys, 1024, "interpreted")
    assert (made.engine, made.why) == (
        "interpreted",
        "NUMBASYNC_CPU_ENGINE=interpreted asks for it",
    )
    with pytest.raises(
        UnsupportedKernelError, match=r"loop_with_an_end is not compiled.*: an else"
    ):
        choose_engine.prepared(loop_with_an_end.kernel, keys, 1024, "compiled")
    monkeypatch.setenv("NUMBASYNC_CPU_ENGINE", "warp")
    with pytest.raises(CallerError, match="write auto, compiled or interpreted"):
        choose_engine.wish()


# --- messages ---


def test_an_index_out_of_range_is_named() -> None:
    z = na.zeros(8).sync()
    with pytest.raises(KernelError) as caught:
        past_the_end[2, 4](z, na.ones(8).sync()).sync()
    line = past_the_end.py_func.__code__.co_firstlineno + 4
    assert (
        "kernel past_the_end, block (1, 0, 0), thread (2, 0, 0): IndexError: index 8 is out of "
        f"bounds for axis 0 of x, which has 8 ({__file__}:{line})"
    ) in str(caught.value)
    assert past_the_end.cpu_engine().name == "compiled"


@pytest.mark.parametrize(("j", "ok"), [(3, True), (-4, True), (4, False), (-5, False)])
def test_each_axis_is_checked_and_negative_indices_count_from_the_end(j: int, ok: bool) -> None:
    z = na.zeros((2, 4)).sync()
    if not ok:
        with pytest.raises(KernelError, match=f"index {j} is out of bounds for axis 1 of z"):
            rows[1, 1](z, j).sync()
    else:
        rows[1, 1](z, j).sync()
        assert z.to_host().sync()[1, j] == 1


def test_what_a_kernel_raises_names_the_thread() -> None:
    with pytest.raises(
        KernelError, match=r"block \(1, 0, 0\), thread \(1, 0, 0\): ValueError: no "
    ):
        refuse[2, 4](na.zeros(1).sync()).sync()
    assert refuse.cpu_engine().name == "compiled"


def test_after_an_error_the_same_kernel_works() -> None:
    z = na.zeros(8).sync()
    with pytest.raises(KernelError):
        past_the_end[1, 8](z, na.ones(8).sync()).sync()
    past_the_end[1, 8](z, na.ones(10).sync()).sync()
    assert z.to_host().sync().tolist() == [1] * 8


def test_a_thread_that_is_missing_at_a_barrier_is_named() -> None:
    @na.launcher
    @cuda.jit
    def leave(z: na.KernelOutput, n):
        i = cuda.grid(1)
        if i >= n:
            return
        cuda.syncthreads()
        z[i] = 1

    z = na.zeros(8).sync()
    with pytest.raises(BarrierDivergenceError, match=r"2 of 4 threads wait .* thread \(2, 0, 0\)"):
        leave[2, 4](z, 6).sync()
    leave[2, 4](z, 4).sync()  # the second block leaves as a whole
    assert z.to_host().sync().tolist() == [1] * 4 + [0] * 4


def test_too_much_shared_memory_is_refused() -> None:
    z, x = na.zeros(1).sync(), na.ones(64).sync()
    with pytest.raises(KernelError, match="needs 49408 bytes of shared memory"):
        halve_sums[1, 64, 0, 48 * 1024](z, x).sync()


def test_shared_memory_that_nobody_has_written_is_no_number() -> None:
    @na.launcher
    @cuda.jit
    def peek(z: na.KernelOutput, n: na.KernelOutput):
        first = cuda.shared.array(8, float32)
        second = cuda.shared.array(8, int64)
        rest = cuda.shared.array(0, float32)
        t = cuda.threadIdx.x
        z[t] = first[t] + 0 * rest[t]
        n[t] = second[t]
        cuda.syncthreads()
        first[t] = second[t] = rest[t] = t

    z, n = na.zeros(8).sync(), na.zeros(8, np.int64).sync()
    for _ in range(2):
        peek[1, 8, 0, 32](z, n).sync()
        assert np.isnan(z.to_host().sync()).all()
        assert (n.to_host().sync() == -1).all()


# --- all processors ---


def test_the_blocks_of_a_large_launch_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "workers", lambda: 3)
    seen = set()
    run = compiled.Compiled._run

    def note(self: Any, first: int, end: int, *args: Any) -> None:
        seen.add((threading.current_thread().name.rpartition("_")[0], first, end))
        run(self, first, end, *args)

    monkeypatch.setattr(compiled.Compiled, "_run", note)
    z = na.zeros(7, np.int32).sync()
    n = block_scheduling.SPREAD_THREADS
    count_all[n // 64, 64](z).sync()
    assert z.to_host().sync().sum() == n
    bounds = sorted((first, end) for _, first, end in seen)
    assert len(bounds) == 3 * block_scheduling.PARTS
    assert [b for _, b in bounds[:-1]] == [a for a, _ in bounds[1:]]


def test_of_several_parts_that_fail_the_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "workers", lambda: 3)

    @na.launcher
    @cuda.jit
    def fail(z: na.KernelOutput):
        z[cuda.grid(1) + 1_000_000] = 1

    with pytest.raises(KernelError, match="index 1"):
        fail[block_scheduling.SPREAD_THREADS // 64, 64](na.zeros(4).sync()).sync()


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


@cuda.jit(device=True)
def far(values, pair):
    return values[70_000_000] + pair[1]


@na.launcher
@cuda.jit
def literal_store(z: na.KernelOutput):
    z[100_000_000] = 1


@na.launcher
@cuda.jit
def literal_load_of_a_view(z: na.KernelOutput, x: na.KernelInput, pair):
    rest = x[2:]
    z[0] = far(rest, pair)


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (lambda: literal_store[1, 1](na.zeros(3)), "index 100000000 .* axis 0 of z, which has 3"),
        (
            lambda: literal_load_of_a_view[1, 1](na.zeros(3), na.ones(3), (1, 2.0)),
            "index 70000000 .* axis 0 of values, which has 1",
        ),
    ],
)
def test_literal_indices_are_checked_too(op: Any, said: str) -> None:
    with pytest.raises(KernelError, match=said):
        op().sync()


# --- blocks that meet ---


@na.launcher
@cuda.jit
def some_blocks_come(z: na.KernelOutput, most):
    if cuda.blockIdx.x < most:
        cuda.cg.this_grid().sync()
    z[cuda.grid(1)] = 1


@na.launcher
@cuda.jit
def error_behind_the_meeting(z: na.KernelOutput):
    cuda.cg.this_grid().sync()
    z[cuda.grid(1) + 3] = 1


def test_a_block_that_does_not_come_to_the_meeting_of_all() -> None:
    some_blocks_come[4, 8](na.zeros(32), 0).sync()
    some_blocks_come[4, 8](na.zeros(32), 4).sync()
    with pytest.raises(BarrierDivergenceError, match=r"block \(2, 0, 0\): 0 of 8 threads wait"):
        some_blocks_come[4, 8](na.zeros(32), 2).sync()


def test_errors_of_blocks_that_meet_say_which() -> None:
    with pytest.raises(KernelError, match=r"block \(3, 0, 0\), thread \(5, 0, 0\): IndexError"):
        error_behind_the_meeting[4, 8](na.zeros(32)).sync()
    assert error_behind_the_meeting.cpu_engine().name == "compiled"


def test_blocks_that_meet_are_not_too_many() -> None:
    with pytest.raises(KernelError, match="blocks that meet need"):
        error_behind_the_meeting[2**24, 1](na.zeros(32)).sync()


def test_blocks_that_contend_are_shared_out_if_that_is_quicker() -> None:
    many = block_scheduling.SPREAD_THREADS
    for alone, shared in ((1.0, 2.0), (2.0, 1.0)):
        costs = block_scheduling.Costs(contend=True)
        assert costs.are_shared(many, 64)
        costs.took(True, shared)
        assert not costs.are_shared(many, 64)  # to know what it takes alone
        costs.took(False, alone)
        assert costs.are_shared(many, 64) is (shared < alone)
    others = block_scheduling.Costs(contend=False)
    others.took(True, 1.0)
    assert others.are_shared(many, 64)
    others.took(False, 1e-9)
    assert not others.are_shared(many, 64)  # a short one


def test_kernels_with_atomic_operations_contend() -> None:
    add_up[1, 1](na.zeros(1)).sync()
    engine = choose_engine.prepared(add_up.kernel, (ArrayKey("<f4", 1, "C"),), 1024, "compiled")
    assert engine.program.has_atomics()  # type: ignore[union-attr]
    other = choose_engine.prepared(
        halve_sums.kernel, (ArrayKey("<f4", 1, "C"),) * 2, 1024, "compiled"
    )
    assert not other.program.has_atomics()  # type: ignore[union-attr]


@na.launcher
@cuda.jit
def add_up(z: na.KernelOutput):
    cuda.atomic.add(z, 0, 1)


@na.launcher
@cuda.jit
def rows_of_a_loop(z: na.KernelOutput, x: na.KernelInput):
    held = cuda.shared.array((2, 8), float32)
    t = cuda.threadIdx.x
    for k in range(2):
        held[k, t] = x[t] + k
    cuda.syncthreads()
    total = 0.0
    for row in held:
        total += row[7 - t]
    cuda.syncthreads()
    z[t] = total


def test_rows_that_a_loop_goes_through_between_two_meetings() -> None:
    x = np.arange(8, dtype=np.float32)
    z = rows_of_a_loop[1, 8](na.zeros(8), x).sync()[0]
    assert rows_of_a_loop.cpu_engine().name == "compiled"
    np.testing.assert_array_equal(z.to_host().sync(), 2 * x[::-1] + 1)


def test_constants_of_float16() -> None:
    third, table = np.float16(1 / 3), np.array([0.5, 65504, np.inf, 6e-8], np.float16)
    limit = np.float16(-np.inf)

    @na.launcher
    @cuda.jit
    def scaled(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i] = x[i] * third + table[i] if x[i] > limit else third

    x = np.array([1, 2, 3, -np.inf], np.float16)
    z = na.zeros(4, np.float16).sync()
    scaled[1, 4](z, x).sync()
    np.testing.assert_array_equal(z.to_host().sync(), [*(x * third + table)[:3], third])
    assert scaled.cpu_engine() == ("compiled", "")


def last_but(x, i):  # type: ignore[no-untyped-def]
    raise NotImplementedError("only in kernels")


@overload(last_but)
def _last_but(x, i):  # type: ignore[no-untyped-def]
    return lambda x, i: x[x.size - 1 + i]


def test_an_index_of_an_overload_is_checked() -> None:
    @na.launcher
    @cuda.jit
    def read(z: na.KernelOutput, x: na.KernelInput, i):
        z[0] = last_but(x, i)

    x, z = np.arange(4.0, dtype=np.float32), na.zeros(1).sync()
    read[1, 1](z, x, 0).sync()
    assert z.to_host().sync().tolist() == [3] and read.cpu_engine() == ("compiled", "")
    with pytest.raises(KernelError, match="index is out of bounds"):
        read[1, 1](z, x, 1).sync()
