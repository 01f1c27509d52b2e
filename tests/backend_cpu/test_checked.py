"""Checked kernels of the CPU device: memory, indices, tiles; and that they find nothing else."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import complex64, cuda, float32, int32, int64

import numbasync as na
from numbasync import testing
from numbasync.backend.cpu.kernel import artifact, compiled
from numbasync.errors import (
    CallerError,
    IndexOverflowError,
    InputModifiedError,
    OutOfBoundsError,
    TileOverrunError,
    UninitialisedReadError,
)

pytestmark = [
    pytest.mark.usefixtures("cpu"),
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]
DEVICE = na.devices("cpu")[0]


def line_of(kernel: na.Launcher, text: str) -> str:
    """`file:line` of a line of a kernel."""
    return line_of_function(kernel.kernel.py_func, text)


def line_of_function(function: Any, text: str) -> str:
    import inspect

    lines, first = inspect.getsourcelines(function)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return f"{Path(__file__).name}:{number}"


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


# --- what a launch may write ---


@cuda.jit(device=True)
def store_to_second(arrays, i):
    """The launcher does not know to which member of a tuple a function stores, and trusts what the
    kernel declares.
    """
    arrays[1][i] = 2


@na.launcher(may_alias=True)
@cuda.jit
def through_a_tuple(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    z[i] = 1
    store_to_second((z, x), i)


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
        through_a_tuple[1, 4](na.zeros(4), na.ones(4)).sync()
    assert line_of_function(store_to_second.py_func, "= 2") in str(error.value)
    assert "na.KernelOutput" in str(error.value)


def test_memory_that_is_also_an_output_is_writable() -> None:
    z = na.zeros(4).sync()
    with testing.checked(DEVICE):
        through_a_tuple[1, 4](z, z).sync()


def test_a_write_outside_the_tile() -> None:
    with testing.checked(DEVICE), pytest.raises(TileOverrunError) as error:
        one_too_far(na.zeros(64).sync().partition(16)).sync()
    assert "block (0, 0, 0), thread (15, 0, 0): writes an element of z" in str(error.value)
    with testing.checked(DEVICE):
        one_too_far[1, 64](na.zeros(64)).sync()  # no tiles, no overrun


def test_tiles_lie_on_the_launchers_axes() -> None:
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
    with testing.checked(DEVICE), pytest.raises(OutOfBoundsError, match="held, which has 8"):
        dynamic[1, 5, 0, 32](na.zeros(5)).sync()


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
def test_threads_and_blocks_run_in_the_asked_order(order: Any, expected: Any) -> None:
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
    half_written[2, 8](na.zeros(16)).sync()


# --- find_race ---


@na.launcher
@cuda.jit
def minus_one(z: na.KernelOutput):
    held = cuda.shared.array(4, float32)
    held[cuda.threadIdx.x] = z[cuda.grid(1)]
    z[cuda.grid(1)] = held[cuda.threadIdx.x] - 1


def test_who_watches_a_kernel_pays_for_that_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(function: Any, kinds: Any, options: Any, row: bool) -> Any:
        made.append((options.checked, threading.current_thread() is threading.main_thread()))
        return artifact.make(function, kinds, options, row)

    monkeypatch.setattr(compiled, "make", make)
    before = testing.counters()
    for watches in (True, True, False, False):
        with testing.checked(DEVICE) if watches else nullcontext():
            z = minus_one[1, 4](na.ones(4)).output().to_host().sync()
        assert z.tolist() == [0] * 4
    # What is compiled later does not keep the thread that submits it waiting.
    assert made == [(True, True), (False, False)]
    assert (testing.counters() - before).compiles == 1
