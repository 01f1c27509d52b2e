"""How long operations take on the device: what is measured, and how two are compared."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import AlreadySubmittedError, CallerError, OperationError
from numbasync.testing import counters, device_ms, do_bench, do_bench_paired
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


def test_what_is_measured_runs_as_often_as_it_says(device: na.Device) -> None:
    z = na.zeros(8).sync()
    timing = do_bench(lambda: add_one(z), repeats=6, flush=0)
    assert (z.to_host().sync() == 6 + 2).all()  # two to warm up
    assert timing.low <= timing.ms <= timing.high
    assert timing.ms == np.median(timing.samples)
    assert timing.gbps(3e6) == pytest.approx(3 / timing.ms)
    for repeats in (1, 2.5):
        with pytest.raises(CallerError, match=f"repeats={repeats}: a whole number"):
            do_bench(lambda: add_one(z), repeats=repeats)  # type: ignore[arg-type]


def test_what_is_compiled_first_is_not_counted(device: na.Device) -> None:
    z = na.zeros(8).sync()
    kernel = fresh()
    before, began = counters(), time.perf_counter()
    first = device_ms(kernel(z))
    whole = (time.perf_counter() - began) * 1e3
    assert (counters() - before).compiles == 1
    assert first < whole / 3
    assert (z.to_host().sync() == 1).all()


def test_device_ms_takes_operations(device: na.Device) -> None:
    stream = device.new_stream()
    z = na.zeros(8).sync()
    assert device_ms(add_one[1, 8, stream](z)) >= 0
    with pytest.raises(OperationError, match="must be an operation, not Tensor"):
        device_ms(z)  # type: ignore[arg-type]


async def test_inside_a_loop(device: na.Device) -> None:
    assert device_ms(filled(8)) >= 0


def test_a_refused_operation_gives_no_warning_of_its_own(device: na.Device) -> None:
    op = na.value(1)
    op.sync()
    with pytest.raises(AlreadySubmittedError):
        device_ms(op)
    gc.collect()  # an operation that was never awaited would warn here, which is an error
