"""Functions of a program in command batches: `na.elementwise`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.batch import Elementwise, Tuning
from numbasync.errors import (
    BatchStateError,
    CallerError,
    DTypeError,
    LauncherError,
    OperationError,
    ShapeError,
)
from numbasync.testing import counters
from tests.batch.computing import F32, X, Y
from tests.common import full, host


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


# Units in the last place, of a libdevice's functions and of NumPy's, which have up to 4 each.
@pytest.mark.parametrize("dtype", [full(np.float16), np.float32, full(np.float64)])
def test_functions_of_numpy(device: na.Device, dtype: Any) -> None:
    x = np.concatenate((X, X * 1e-3, np.array([0, -0.0, 1e4]))).astype(dtype)
    high = np.abs(x).astype(dtype)
    cases = {"expm1": x.clip(-80, 8), "log1p": high, "sin": x, "cos": x}
    b = na.CommandBatch()
    ids = {name: getattr(b, name)(b.upload(a)) for name, a in cases.items()}
    b.execute_sync()
    for name, a in cases.items():
        want = getattr(np, name)(a)
        room = np.maximum(np.abs(want), np.finfo(dtype).tiny * 8)
        assert (np.abs(b.read_sync(ids[name]) - want) <= 8 * np.finfo(dtype).eps * room).all(), name
        assert b.read_sync(ids[name]).dtype == dtype


@pytest.mark.full
def test_units_of_a_network(device: na.Device) -> None:
    b = na.CommandBatch()
    cases = []
    for given_type, dtype in ((F32, F32), (np.float16, np.float16), (np.int32, np.float64)):
        a = np.array([-2, -1, 0, 1, 3]).astype(given_type)
        x, wide = b.upload(a), a.astype(np.float64)
        cases.append((b.leaky_relu(x, 0.25), np.where(wide >= 0, wide, wide * 0.25), dtype))
        cases.append((b.elu(x, 2.0), np.where(wide > 0, wide, 2 * np.expm1(wide)), dtype))
    with pytest.raises(CallerError, match="write a finite number"):
        b.elu(x, math.inf)
    b.execute_sync()
    for unit, want, dtype in cases:
        assert unit.dtype == dtype
        np.testing.assert_allclose(b.read_sync(unit), want, rtol=4 * float(np.finfo(dtype).eps))


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


def test_functions_of_tensors_are_operations(device: na.Device) -> None:
    x, row = na.from_host(X.reshape(-1, 1)).sync(), na.arange(5)
    got = host(soft_clip(x, na.elementwise("add")(row, 1.0)))
    limit = np.arange(1, 6, dtype=F32)
    np.testing.assert_allclose(got, limit * np.tanh(X[:, None] / limit), rtol=1e-6, atol=1e-6)
    assert host(is_near(x.T, X)).dtype == np.bool_
    np.testing.assert_array_equal(host(na.elementwise("leaky_relu")(x, 0.5)),
                                  np.where(X > 0, X, X / 2)[:, None])  # fmt: skip
    before = counters().launches
    strided = na.elementwise("where")(is_near(x[::3], 0.0), x[::3], -1)
    want = np.where(abs(X[::3]) < 0.5, X[::3], F32(-1))[:, None]
    np.testing.assert_array_equal(host(strided), want)
    assert counters().launches == before + 2


def test_operations_of_tensors_that_are_refused(device: na.Device) -> None:
    x = na.zeros((2, 3)).sync()
    with pytest.raises(ShapeError, match="do not broadcast"):
        soft_clip(x, x.T)
    with pytest.raises(DTypeError, match="^soft_clip: .* not uint8"):
        soft_clip(x, np.ones(3, np.uint8))
    with pytest.raises(OperationError, match="takes 2 operands, not 1"):
        soft_clip(x)
    with pytest.raises(OperationError, match="pass at least one"):
        soft_clip(1.0, 2.0)
    with pytest.raises(LauncherError, match="one of abs, add"):
        na.elementwise("relux")
    id: Any = na.CommandBatch().upload(X)
    with pytest.raises(OperationError, match=r"write b.relu"):
        na.elementwise("relu")(id)
