"""Races that checked kernels of the CPU device find, and what they let pass; `find_race`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32

import numbasync as na
from numbasync import testing
from numbasync.backend.cpu.runtime import choose_engine
from numbasync.errors import (
    CallerError,
    DataRaceError,
)

pytestmark = [
    pytest.mark.usefixtures("cpu"),
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]
DEVICE = na.devices("cpu")[0]


def line_of(kernel: na.Launcher, text: str) -> str:
    """`file:line` of a line of a kernel."""
    import inspect

    lines, first = inspect.getsourcelines(kernel.kernel.py_func)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return f"{Path(__file__).name}:{number}"


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
        cuda.threadfence()
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


@na.launcher
@cuda.jit
def who_comes(z: na.KernelOutput, count: na.KernelOutput):
    z[cuda.atomic.add(count, 0, 1)] = cuda.grid(1)


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


def test_a_result_depending_on_the_order_of_atomics() -> None:
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


def test_meeting_blocks_go_on_in_the_asked_order() -> None:
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
