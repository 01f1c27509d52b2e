"""Checked kernels of the CPU device: what they find, and that they find nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from numba import complex64, cuda, float32, int32, int64

import numbasync as na
from numbasync import testing
from numbasync.backend.cpu.compiler import checked_kernel, generate
from numbasync.backend.cpu.compiler import kernel as compiled
from numbasync.backend.cpu.runtime import choose_engine
from numbasync.errors import (
    CallerError,
    DataRaceError,
    IndexOverflowError,
    InputModifiedError,
    OutOfBoundsError,
    TileOverrunError,
    UninitialisedReadError,
)

pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
DEVICE = na.devices("cpu")[0]


@pytest.fixture(autouse=True)
def on_the_cpu_device() -> Iterator[None]:
    with na.use_device(DEVICE):
        yield


def line_of(kernel: na.Launcher, text: str) -> str:
    """`file:line` of a line of a kernel."""
    import inspect

    lines, first = inspect.getsourcelines(kernel.kernel.py_func)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return f"test_checked.py:{number}"


# --- memory that nobody wrote ---


@na.launcher
@cuda.jit
def half_written(z: na.KernelOutput):
    held = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    if t < 4:
        held[t] = t
    cuda.syncthreads()
    z[cuda.grid(1)] = held[7 - t]


@na.launcher
@cuda.jit
def own_array(z: na.KernelOutput):
    own = cuda.local.array(4, int32)
    own[0] = 1
    z[cuda.grid(1)] = own[z.shape[0] % 2]


@na.launcher
@cuda.jit
def counts_from_nothing(z: na.KernelOutput):
    count = cuda.shared.array(1, int32)
    cuda.atomic.add(count, 0, 1)
    cuda.syncthreads()
    z[cuda.grid(1)] = count[0]


@na.launcher
@cuda.jit
def dynamic(z: na.KernelOutput):
    held = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    held[2 * t] = t
    cuda.syncthreads()
    z[t] = held[t]


def test_shared_memory_that_was_not_written() -> None:
    with (
        testing.checked(DEVICE),
        pytest.raises(UninitialisedReadError) as error,
    ):
        half_written[2, 8](na.zeros(16)).sync()
    said = str(error.value)
    assert (
        "kernel half_written, block (0, 0, 0), thread (0, 0, 0): reads an element of held" in said
    )
    assert line_of(half_written, "held[7 - t]") in said
    assert "cuda.syncthreads()" in said


def test_what_an_earlier_block_wrote_does_not_count() -> None:
    @na.launcher
    @cuda.jit
    def first_block_only(z: na.KernelOutput):
        held = cuda.shared.array(1, float32)
        if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
            held[0] = 1
        cuda.syncthreads()
        z[cuda.grid(1)] = held[0]

    with testing.checked(DEVICE), pytest.raises(UninitialisedReadError, match=r"block \(1, 0, 0\)"):
        first_block_only[2, 8](na.zeros(16)).sync()


@pytest.mark.parametrize(
    ("kernel", "said"),
    [(own_array, "element of own that no thread has"), (counts_from_nothing, "element of count")],
)
def test_other_memory_that_was_not_written(kernel: Any, said: str) -> None:
    with testing.checked(DEVICE), pytest.raises(UninitialisedReadError, match=said):
        kernel[1, 1](na.zeros(1)).sync()


def test_dynamic_shared_memory_that_was_not_written() -> None:
    with (
        testing.checked(DEVICE),
        pytest.raises(UninitialisedReadError, match=r"thread \(1, 0, 0\): reads .* held"),
    ):
        dynamic[1, 4, 0, 32](na.zeros(4)).sync()


# --- races ---


@na.launcher
@cuda.jit
def no_barrier(z: na.KernelOutput, x: na.KernelInput):
    held = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    held[t] = 0
    cuda.syncthreads()
    held[t] = x[t]
    z[t] = held[63 - t]


@na.launcher
@cuda.jit
def lost_update(z: na.KernelOutput, x: na.KernelInput):
    z[0] += x[cuda.grid(1)]


@na.launcher
@cuda.jit
def neighbour(z: na.KernelOutput):
    i = cuda.grid(1)
    if i + 1 < z.shape[0]:
        z[i] = z[i + 1] + 1


@na.launcher
@cuda.jit
def last_wins(z: na.KernelOutput):
    z[0] = cuda.grid(1)


@na.launcher
@cuda.jit
def all_say_so(z: na.KernelOutput, x: na.KernelInput):
    if x[cuda.grid(1)] > 0:
        z[0] = 1


@na.launcher
@cuda.jit
def warp_without_meeting(z: na.KernelOutput):
    held = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    held[t] = t + 1
    cuda.syncthreads()
    if t < 16:
        held[t] += held[t + 16]
    if t < 8:
        held[t] += held[t + 8]
    z[t] = held[t]


@na.launcher
@cuda.jit
def warp_that_meets(z: na.KernelOutput):
    held = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    held[t] = t + 1
    cuda.syncwarp()
    if t < 16:
        held[t] += held[t + 16]
    cuda.syncwarp()
    if t < 8:
        held[t] += held[t + 8]
    cuda.syncwarp()
    z[t] = held[t % 8]


@na.launcher
@cuda.jit
def counts_in_atomics(z: na.KernelOutput, x: na.KernelInput):
    cuda.atomic.add(z, x[cuda.grid(1)], 1)


@na.launcher
@cuda.jit
def atomic_beside_plain(z: na.KernelOutput):
    i = cuda.grid(1)
    cuda.atomic.add(z, 0, 1)
    if i == 3:
        z[0] = 7


@na.launcher
@cuda.jit
def last_block_adds(z: na.KernelOutput, parts: na.KernelOutput, done: na.KernelOutput):
    b = cuda.blockIdx.x
    parts[b] = b + 1
    cuda.threadfence()
    if cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1:
        total = 0.0
        for k in range(cuda.gridDim.x):
            total += parts[k]
        z[0] = total


def test_a_missing_barrier_names_both_accesses() -> None:
    x = np.random.default_rng(0).random(64).astype(np.float32)
    with testing.checked(DEVICE), pytest.raises(DataRaceError) as error:
        no_barrier[1, 64](na.zeros(64), x).sync()
    said = str(error.value)
    assert "thread (32, 0, 0)" in said or "thread (1, 0, 0)" in said
    assert line_of(no_barrier, "held[t] = x[t]") in said
    assert line_of(no_barrier, "z[t] = held[63 - t]") in said
    assert "cuda.syncthreads()" in said


@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (lost_update, (np.zeros(1, np.float32), np.arange(1, 65, dtype=np.float32))),
        (neighbour, (np.arange(64, dtype=np.float32),)),
        (last_wins, (np.zeros(1, np.float32),)),
        (warp_without_meeting, (np.zeros(32, np.int32),)),
        (atomic_beside_plain, (np.zeros(1, np.int32),)),
    ],
)
@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_races_are_found_in_every_order(kernel: Any, args: Any, order: Any) -> None:
    with testing.checked(DEVICE, order, seed=7), pytest.raises(DataRaceError):
        kernel[1 if kernel is warp_without_meeting else 2, 32](*map(na.from_host, args)).sync()


@pytest.mark.parametrize(
    ("kernel", "extents", "args"),
    [
        (all_say_so, (2, 32), (np.zeros(1, np.float32), np.ones(64, np.float32))),
        (warp_that_meets, (1, 32), (np.zeros(32, np.int32),)),
        (counts_in_atomics, (2, 32), (np.zeros(4, np.int32), np.arange(64) % 4)),
        (
            last_block_adds, (5, 1),
            (np.zeros(1, np.float32), np.zeros(5, np.float32), np.zeros(1, np.int32)),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_what_is_ordered_is_no_race(kernel: Any, extents: Any, args: Any, order: Any) -> None:
    plain = kernel[extents](*map(na.from_host, args)).sync()[0].to_host().sync()
    with testing.checked(DEVICE, order, seed=3):
        result = kernel[extents](*map(na.from_host, args)).sync()[0].to_host().sync()
    np.testing.assert_array_equal(result, plain)


def test_launches_are_ordered_by_themselves() -> None:
    with testing.checked(DEVICE):
        z = na.zeros(64).sync()
        for _ in range(3):
            z = neighbour_of_old(z, na.dup(z).sync()).sync()[0]
        assert z.to_host().sync()[0] == 3


@na.launcher
@cuda.jit
def neighbour_of_old(z: na.KernelOutput, old: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = old[(i + 1) % z.shape[0]] + 1


# --- what a launch may write ---


@cuda.jit(device=True)
def store(array, i, value):
    array[i] = value


@na.launcher(may_alias=True)
@cuda.jit
def through_a_view(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    z[i] = 1
    for array in (z, x):
        array[i] = 2


@na.launcher
@cuda.jit
def one_too_far(z: na.KernelOutput):
    i = cuda.grid(1)
    if i + 1 < z.shape[0]:
        z[i + 1] = 1


@na.launcher(axes=(1, 0))
@cuda.jit
def on_turned_axes(z: na.KernelOutput):
    j, i = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = 1


def test_an_input_that_is_written() -> None:
    with testing.checked(DEVICE), pytest.raises(InputModifiedError) as error:
        through_a_view[1, 4](na.zeros(4), na.ones(4)).sync()
    assert line_of(through_a_view, "array[i] = 2") in str(error.value)
    assert "na.KernelOutput" in str(error.value)


def test_memory_that_is_an_output_too_may_be_written() -> None:
    z = na.zeros(4).sync()
    with testing.checked(DEVICE):
        through_a_view[1, 4](z, z).sync()


def test_a_write_outside_the_tile() -> None:
    with testing.checked(DEVICE), pytest.raises(TileOverrunError) as error:
        one_too_far(na.zeros(64).sync().partition(16)).sync()
    assert "block (0, 0, 0), thread (15, 0, 0): writes an element of z" in str(error.value)
    with testing.checked(DEVICE):
        one_too_far[1, 64](na.zeros(64)).sync()  # no tiles, no overrun


def test_tiles_lie_on_the_axes_that_the_launcher_says() -> None:
    with testing.checked(DEVICE):
        on_turned_axes(na.zeros((40, 10)).sync().partition((8, 4))).sync()
        strided = na.zeros((40, 20)).sync()[:, ::2]
        on_turned_axes(strided.partition((8, 4))).sync()


# --- indices ---


@na.launcher
@cuda.jit
def cut_index(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    at = int32(x[i] * 3_000_000)
    z[at % z.shape[0]] = 1


@na.launcher
@cuda.jit
def cut_number(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    z[i] = int32(x[i] * 3_000_000)


def test_an_index_that_is_cut_to_32_bits() -> None:
    x = np.array([1, 700, 800], np.int64)
    with testing.checked(DEVICE), pytest.raises(IndexOverflowError) as error:
        cut_index[1, 3](na.zeros(5), x).sync()
    assert "thread (2, 0, 0): int32 of 2400000000, for an index" in str(error.value)
    assert line_of(cut_index, "int32(") in str(error.value)


def test_a_number_may_be_cut_to_32_bits() -> None:
    with testing.checked(DEVICE):
        cut_number[1, 3](na.zeros(3, dtype=np.int32), np.array([1, 700, 800])).sync()


def test_indices_are_checked_as_ever() -> None:
    with testing.checked(DEVICE), pytest.raises(OutOfBoundsError, match="held, which has 64"):
        no_barrier[1, 65](na.zeros(65), na.zeros(65)).sync()


# --- the same results ---


@na.launcher
@cuda.jit
def many_forms(z: na.KernelOutput, x: na.KernelInput, pair):
    own = cuda.local.array(6, complex64)
    held = cuda.shared.array((4, 8), int64)
    t = cuda.threadIdx.x
    own[:] = 1
    own[1], own[2] = own[0] + 2j, own[0] * 3
    own[1:3] = 5
    a = own[3] = 2
    for k in range(4):
        held[k, t] = x[k] + t
    cuda.syncthreads()
    row = held[t % 4]
    row[t] += pair[0] + a
    held[-1, t] *= 2
    cuda.syncthreads()
    flag = row[(t + 1) % 8] > 2 and own[1].real > 0
    z[t] = held[3, 7 - t] + own[2].real + own[5].real + (1 if flag else 0) + pair[1]


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_results_are_what_they_are_without_checks(order: Any) -> None:
    x = np.arange(4)
    op = (na.zeros(8), x, (1, 2.5))
    plain = many_forms[1, 8](*op).sync()[0].to_host().sync()
    with testing.checked(DEVICE, order, seed=1):
        result = many_forms[1, 8](na.zeros(8), x, (1, 2.5)).sync()[0].to_host().sync()
    assert many_forms.cpu_engine().name == "compiled"
    np.testing.assert_array_equal(result, plain)


@na.launcher
@cuda.jit
def who_comes(z: na.KernelOutput, count: na.KernelOutput):
    z[cuda.atomic.add(count, 0, 1)] = cuda.grid(1)


@pytest.mark.parametrize(
    ("order", "expected"),
    [("forward", [0, 1, 2, 3, 4, 5]), ("reverse", [5, 4, 3, 2, 1, 0]), ("shuffled", None)],
)
def test_threads_and_blocks_run_in_the_order_that_is_asked_for(order: Any, expected: Any) -> None:
    def run(seed: int) -> list[int]:
        with testing.checked(DEVICE, order, seed):
            z = who_comes[2, 3](na.zeros(6), na.zeros(1, dtype=np.int32)).sync()[0]
        return [int(v) for v in z.to_host().sync()]

    assert sorted(run(1)) == [0, 1, 2, 3, 4, 5]
    assert run(1) == run(1)
    if expected is None:
        assert len({tuple(run(seed)) for seed in range(6)}) > 2
    else:
        assert run(1) == expected


def test_another_order_is_refused() -> None:
    with pytest.raises(CallerError, match="order='backward': write one of forward, reverse"):
        testing.checked(DEVICE, "backward").__enter__()  # type: ignore[arg-type]


def test_checks_end_with_the_block() -> None:
    with testing.checked(DEVICE), testing.checked(DEVICE, "reverse"):
        pass
    lost_update[1, 2](na.zeros(1), na.ones(2)).sync()


# --- find_race ---


def test_no_race() -> None:
    x = np.random.default_rng(0).random(64).astype(np.float32)
    assert (
        testing.find_race(counts_in_atomics[2, 32], [np.zeros(4, int), np.arange(64) % 4]) is None
    )
    sums = np.zeros(1, np.float32)
    assert testing.find_race(add_all[2, 32], [sums, x]) is None  # but for rounding
    assert sums[0] == 0  # of the caller, and not touched


@na.launcher
@cuda.jit
def add_all(z: na.KernelOutput, x: na.KernelInput):
    cuda.atomic.add(z, 0, x[cuda.grid(1)])


def test_a_race_that_shows_in_the_result() -> None:
    race = testing.find_race(last_wins[2, 4], [np.zeros(1, np.float32)])
    assert race is not None and race.difference is not None
    assert race.difference.values == (7.0, 0.0)
    assert (race.difference.argument, race.difference.index, race.difference.count) == (0, (0,), 1)
    assert "element (0,) of argument 0 is 7.0 if threads run in forward order" in str(race)
    assert "writes an element of z" in race.accesses


def test_a_race_that_no_order_shows() -> None:
    race = testing.find_race(lost_update[1, 4], [np.zeros(1, np.float32), np.ones(4, np.float32)])
    assert race is not None and race.difference is None
    assert line_of(lost_update, "+=") in str(race)


def test_a_result_that_depends_on_the_order_of_atomic_operations() -> None:
    race = testing.find_race(who_comes[2, 3], [np.zeros(6), np.zeros(1, np.int32)])
    assert race is not None and race.difference is not None
    assert race.accesses == ""
    assert race.difference.orders == ("forward", "reverse")


def test_a_launch_that_is_none() -> None:
    with pytest.raises(CallerError, match=r"Pass the kernel, kernel\[grid, block\]"):
        testing.find_race(lambda z: z, [np.zeros(1)])  # type: ignore[arg-type]


def test_interpreted_kernels_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    @na.launcher
    @cuda.jit
    def last(z: na.KernelOutput, x: na.KernelInput):
        cuda.syncthreads()
        z[0] = x[cuda.grid(1)]

    monkeypatch.setattr(DEVICE.backend, "_engine_name", "interpreted")
    monkeypatch.setattr(choose_engine, "_has_warned", True)
    x = np.arange(4, dtype=np.float32)
    race = testing.find_race(last[2, 2], [np.zeros(1, np.float32), x])
    assert last.cpu_engine().name == "interpreted"
    assert repr(last).endswith(f", interpreted: {last.cpu_engine().why}>")
    assert race is not None and race.difference is not None
    assert race.difference.values == (3.0, 0.0)


@na.launcher
@cuda.jit
def neighbours_that_change(z: na.KernelOutput, arrived: na.KernelOutput):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    z[i] = i
    arrived[i] = cuda.atomic.add(arrived, z.shape[0], 1)
    grid.sync()
    z[i] += z[(i + 1) % z.shape[0]]


def test_blocks_that_meet_go_on_in_the_order_that_is_asked_for() -> None:
    with testing.checked(DEVICE):  # which is not watched, as the documents say
        op = neighbours_that_change[2, 3](na.zeros(6), na.zeros(7)).sync()
        z, arrived = (each.to_host().sync().tolist() for each in op)
    assert z == [1, 3, 5, 7, 9, 6] and arrived == [0, 1, 2, 3, 4, 5, 6]
    with testing.checked(DEVICE, "reverse"):
        op = neighbours_that_change[2, 3](na.zeros(6), na.zeros(7)).sync()
        z, arrived = (each.to_host().sync().tolist() for each in op)
    assert z == [15, 15, 14, 12, 9, 5] and arrived == [5, 4, 3, 2, 1, 0, 6]
    with testing.checked(DEVICE, "shuffled", 1):
        op = neighbours_that_change[2, 3](na.zeros(6), na.zeros(7)).sync()
    assert sorted(op[1].to_host().sync().tolist()) == [0, 1, 2, 3, 4, 5, 6]
    assert testing.find_race(neighbours_that_change[2, 3], [np.zeros(6), np.zeros(7)])


@na.launcher
@cuda.jit
def minus_one(z: na.KernelOutput):
    held = cuda.shared.array(4, float32)
    held[cuda.threadIdx.x] = z[cuda.grid(1)]
    z[cuda.grid(1)] = held[cuda.threadIdx.x] - 1


def test_who_watches_a_kernel_pays_for_that_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def compile_program(program: Any, *more: Any) -> Any:
        made.append((program.checked, threading.current_thread() is threading.main_thread()))
        return generate.compile_program(program, *more)

    for module in (checked_kernel, compiled):
        monkeypatch.setattr(module, "compile_program", compile_program)
    before = testing.counters()
    for watches in (True, True, False, False):
        with testing.checked(DEVICE) if watches else nullcontext():
            z = minus_one[1, 4](na.ones(4)).output().to_host().sync()
        assert z.tolist() == [0] * 4
    # What is compiled later does not keep the thread that submits it waiting.
    assert made == [(True, True), (False, False)]
    assert (testing.counters() - before).compiles == 1
