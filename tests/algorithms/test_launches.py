"""What a run of an algorithm enqueues, once its kernels are compiled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms.operation import Algorithm
from tests.common import host


def test_known_kernels_take_the_fast_path(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = na.from_host(np.arange(12.0).reshape(3, 4)).sync()
    assert host(algorithms.sum(x, axis=1)).tolist() == [6, 22, 38]
    assert host(algorithms.sum(x[1:], axis=1)).tolist() == [22, 38]
    even = na.from_host(np.ones((3, 2))).sync()
    assert host(algorithms.sum(even, axis=1)).tolist() == [2, 2, 2]

    def steps(self: Any, ctx: Any) -> Any:
        raise AssertionError(f"{self} took steps")

    monkeypatch.setattr(Algorithm, "steps", steps)
    assert host(algorithms.sum(x, axis=1)).tolist() == [6, 22, 38]
    assert host(algorithms.sum(x[1:], axis=1)).tolist() == [22, 38]
    with pytest.raises(AssertionError, match=r"sum\(\(3, 2\)\) took steps"):
        algorithms.sum(x[:, ::2], axis=1).sync()  # is copied first


def test_several_launches_take_the_fast_path(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of memory that is filled, uploaded, and seen in parts; the results are the first run's."""
    x = na.from_host(np.arange(9000) % 7).sync()
    mask = na.from_host(np.arange(9000) % 2 == 0).sync()
    operations: list[Callable[[], na.DeviceOp[Any]]] = [
        lambda: algorithms.select(x, mask, on_device=True),
        lambda: algorithms.histogram(x, 5, (0, 5)),
        lambda: algorithms.topk(x, 3),
    ]
    first = [[host(t) for t in operation().sync()] for operation in operations]
    assert first[0][1].tolist() == [4500]
    assert first[1][0].tolist() == np.histogram(np.arange(9000) % 7, 5, (0, 5))[0].tolist()

    def steps(self: Any, ctx: Any) -> Any:
        raise AssertionError(f"{self} took steps")

    monkeypatch.setattr(Algorithm, "steps", steps)
    for operation, expected in zip(operations, first, strict=True):
        again = [host(t) for t in operation().sync()]
        n = 4500 if len(expected[0]) == 9000 else None  # nothing is written behind these
        for one, other in zip(again, expected, strict=True):
            np.testing.assert_array_equal(one[:n], other[:n])


def test_an_operation_is_pickled_without_its_launches(device: na.Device) -> None:
    x = na.from_host(np.arange(12.0).reshape(3, 4)).sync()
    for make in (
        lambda: algorithms.sum(x, axis=1),
        lambda: algorithms.sum(na.from_host(np.arange(12.0).reshape(3, 4)), axis=1),
    ):
        assert host(make()).tolist() == [6, 22, 38]
        copied = pickle.loads(pickle.dumps(make()))
        assert host(copied).tolist() == [6, 22, 38]


def test_arguments_that_equal_known_ones_are_checked() -> None:
    x = np.arange(6).reshape(2, 3)
    assert algorithms.sum(x, axis=1).sync().shape == (2,)
    with pytest.raises(na.errors.ShapeError, match="axis=True"):
        algorithms.sum(x, axis=True)


def test_another_devices_stream_is_refused(device: na.Device) -> None:
    kind = na.devices(device.kind) if len(na.devices(device.kind)) > 1 else na.devices("cpu")
    far = next(d for d in kind if d is not device)
    x = na.ones((2, 3)).sync()
    assert host(algorithms.sum(x, axis=1)).tolist() == [3, 3]
    for _ in range(2):
        with pytest.raises(na.errors.DeviceMismatchError, match=rf"float32 on {device.label}>"):
            algorithms.sum(x, axis=1).sync_on(far.new_stream())
