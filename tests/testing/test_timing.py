"""How long operations take on the device: what is measured, and how two are compared."""

from __future__ import annotations

import gc
import random
import time

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import AlreadySubmittedError, CallerError, OperationError
from numbasync.testing import counters, device_ms, do_bench, do_bench_paired
from numbasync.testing.timing.timer import Spread, Stopwatch, turns, without_garbage_collection
from tests.common import add_one, fresh

SMALL, LARGE = 1 << 12, 1 << 26


def filled(n: int) -> na.DeviceOp[na.Tensor]:
    return na.full(n, 1.0)


def test_more_work_takes_longer(device: na.Device) -> None:
    small, large = na.zeros(SMALL).sync(), na.zeros(LARGE).sync()
    paired = do_bench_paired(
        lambda: na.fill(large, 1), lambda: na.fill(small, 1), repeats=7, flush=1 << 20
    )
    assert paired.ratio > 2 and paired.low <= paired.ratio <= paired.high
    assert len(paired.first.samples) == len(paired.second.samples) == 7
    assert "7 pairs" in str(paired)


def test_measured_functions_run_as_often_as_said(device: na.Device) -> None:
    z = na.zeros(8).sync()
    timing = do_bench(lambda: add_one(z), repeats=6, flush=0)
    assert (z.to_host().sync() == 6 + 2).all()  # two to warm up
    assert timing.low <= timing.ms <= timing.high
    assert timing.ms == np.median(timing.samples)
    assert timing.gbps(3e6) == pytest.approx(3 / timing.ms)
    for repeats in (1, 2.5):
        with pytest.raises(CallerError, match=f"repeats .* is {repeats}: write a whole"):
            do_bench(lambda: add_one(z), repeats=repeats)  # type: ignore[arg-type]


def test_what_is_compiled_first_is_not_counted(device: na.Device) -> None:
    shares = []
    for _ in range(5):  # of which one, at least, is not interrupted by what else runs here
        z = na.zeros(8).sync()
        kernel = fresh()
        before, began = counters(), time.perf_counter()
        first = device_ms(kernel(z))
        shares.append(first / (time.perf_counter() - began) / 1e3)
        assert (counters() - before).compiles == 1
        assert (z.to_host().sync() == 1).all()
        if shares[-1] < 1 / 3:
            return
    pytest.fail(f"compilation counts: {shares}")


def test_device_ms_takes_operations(device: na.Device) -> None:
    stream = device.new_stream()
    z = na.zeros(8).sync()
    assert device_ms(add_one[1, 8, stream](z)) >= 0
    with pytest.raises(OperationError, match="must be an operation, not Tensor"):
        device_ms(z)  # type: ignore[arg-type]


async def test_inside_a_loop(device: na.Device) -> None:
    assert device_ms(filled(8)) >= 0


def test_a_refused_operation_adds_no_warning(device: na.Device) -> None:
    op = na.value(1)
    op.sync()
    with pytest.raises(AlreadySubmittedError):
        device_ms(op)
    gc.collect()  # an operation that was never awaited would warn here, which is an error


def test_contestants_take_turns_without_counting_warm_ups() -> None:
    assert list(turns("ab", 2)) == [
        ("a", False), ("b", False), ("a", True), ("b", True), ("a", True), ("b", True),
    ]  # fmt: skip
    drawn = list(turns("ab", 50, warm_up=0, draw=random.Random(0)))
    assert all(counts for _, counts in drawn)
    assert {drawn[i][0] + drawn[i + 1][0] for i in range(0, 100, 2)} == {"ab", "ba"}


def test_a_spread_is_the_median_and_the_quartiles() -> None:
    spread = Spread.of([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (spread.low, spread.median, spread.high) == (2, 3, 4)
    assert spread.samples == (5, 1, 2, 3, 4)


def test_a_stopwatch_adds_up_its_blocks() -> None:
    clock = iter([0.0, 1.0, 10.0, 12.5])
    watch = Stopwatch(lambda: next(clock))
    for _ in range(2):
        with watch:
            pass
    assert watch.seconds == 3.5


def test_garbage_collection_is_as_before_a_measurement() -> None:
    for enabled in (True, False):
        try:
            (gc.enable if enabled else gc.disable)()
            with without_garbage_collection():
                assert not gc.isenabled()
            assert gc.isenabled() is enabled
        finally:
            gc.enable()
