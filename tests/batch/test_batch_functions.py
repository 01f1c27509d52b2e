"""Functions of a program in command batches: `na.elementwise`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.batch import Elementwise, Tuning
from numbasync.errors import BatchStateError
from numbasync.testing import counters
from tests.batch.computing import F32, X, Y


@na.elementwise
def soft_clip(x: Any, limit: Any) -> Any:
    """A function of a program."""
    return limit * math.tanh(x / limit)


@na.elementwise(dtype=np.bool_)
def is_near(a: Any, b: Any) -> Any:
    return abs(a - b) < 0.5


@na.elementwise
def no_such_thing(x: Any) -> Any:
    return x.there_is_no_such_method()


@na.elementwise
def of_itself(x: Any) -> Any:
    return of_itself(x - 1) if x > 0 else x


@na.elementwise
def remembering(x: Any) -> Any:
    global X
    X = x
    return x


@na.elementwise
def two_numbers(x: Any) -> Any:
    return x, x


def test_functions_of_a_program_fuse_like_the_others(device: na.Device) -> None:
    b = na.CommandBatch()
    x, y = b.upload(X), b.upload(Y)
    z = soft_clip(x * 2, 3.0) + y
    near = is_near(x, y)
    total = b.sum(b.where(near, 1, 0))
    b.execute_sync()
    assert b.kernels_launched == 1
    want = F32(3) * np.tanh(X * 2 / F32(3)) + Y
    assert z.dtype == F32
    np.testing.assert_allclose(b.read_sync(z), want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(b.read_sync(near), np.abs(X - Y) < 0.5)
    assert b.read_sync(total) == (np.abs(X - Y) < 0.5).sum()


def named(name: str, number: float) -> Elementwise:
    def function(x: Any) -> Any:
        return x + number

    function.__name__ = name
    return na.elementwise(function)


def test_functions_may_have_any_names(device: na.Device) -> None:
    # Of other functions, of what kernels are written with, and none; f_2 is no second f.
    names = ["f_2", "f", "f", "larger", "element", "a0", "v0", "np", "<lambda>", "f" * 300]
    b = na.CommandBatch(tuning=Tuning(elements=1))
    x = b.upload(X)
    ids = [named(name, k)(b.maximum(x, 0)) for k, name in enumerate(names)]
    b.execute_sync()
    for k, id in enumerate(ids):
        np.testing.assert_array_equal(b.read_sync(id), np.maximum(X, 0) + F32(k), names[k])
    sums = na.CommandBatch()
    total = sums.sum(named("j", 1)(sums.upload(np.zeros(9, F32))))
    sums.execute_sync()
    assert sums.read_sync(total) == 9


@pytest.mark.parametrize("wrong", [no_such_thing, of_itself, remembering, two_numbers], ids=repr)
async def test_a_function_that_does_not_compile_changes_nothing(
    device: na.Device, wrong: Elementwise
) -> None:
    b = na.CommandBatch()
    y = wrong(b.upload(X) * 2)
    before, bytes_before = counters(), device.memory_stats().used_current
    with pytest.raises(na.errors.KernelCompileError, match=wrong.name):
        await b.execute()
    after = counters()
    assert (after.launches, after.copies) == (before.launches, before.copies)
    assert device.memory_stats().used_current == bytes_before
    assert b.transfers.uploads == 0
    with pytest.raises(BatchStateError, match=r"failed, and .*record another one\.\n.*kernel"):
        b.read(y)
