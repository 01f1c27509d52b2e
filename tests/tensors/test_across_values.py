"""Copies between two devices: every layout and dtype, sizes, memory, and what is refused."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    CallerError,
    DeviceMismatchError,
    DTypeError,
    MovedError,
    NotAGraphNodeError,
    OperationError,
    OutOfDeviceMemoryError,
    ShapeError,
    StateError,
)
from tests import sessions
from tests.common import fresh, full

Pair = tuple[na.Device, na.Device]

LAYOUTS: dict[str, Any] = {
    "whole": lambda t: t,
    "transposed": lambda t: t.T,
    "every second row": lambda t: t[::2],
    "a column": lambda t: t[:, 2],
    "backwards": lambda t: t[::-1, ::-1],
    "a block": lambda t: t[1:3, 2:5],
    "one element": lambda t: t[2, 3, ...],
    "nothing": lambda t: t[2:2],
    "a new axis": lambda t: t[:, None],
}


def on(device: na.Device, op: na.DeviceOp[Any]) -> Any:
    return op.sync_on(device.new_stream())


def host(t: na.Tensor) -> np.ndarray:
    assert t.device is not None
    array: np.ndarray = on(t.device, t.to_host())
    return array


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex128, np.bool_])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(pair: Pair, layout: str, dtype: Any) -> None:
    _, far = pair
    array = (np.arange(48).reshape(6, 8) % 50).astype(dtype)
    view, expected = LAYOUTS[layout](na.from_host(array).sync()), LAYOUTS[layout](array)
    moved = na.to_device(view, far).sync()
    assert moved.device is far and moved.is_contiguous
    assert moved.shape == expected.shape and moved.dtype == expected.dtype
    np.testing.assert_array_equal(host(moved), expected)
    # The destination of any layout, too: what lies beside it stays.
    whole, target = np.zeros((6, 8), dtype), on(far, na.zeros((6, 8), dtype))
    LAYOUTS[layout](target).copy_from(view).sync()
    LAYOUTS[layout](whole)[...] = expected
    np.testing.assert_array_equal(host(target), whole)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2**18 + 1,)])
def test_every_size(pair: Pair, shape: tuple[int, ...]) -> None:
    _, far = pair
    array = np.random.default_rng(1).random(shape, np.float32)
    moved = na.to_device(na.from_host(array).sync(), far).sync()
    np.testing.assert_array_equal(host(moved), array)
    np.testing.assert_array_equal(host(na.to_device(array, far).sync()), array)


def test_rows_at_a_pitch_and_structures(pair: Pair) -> None:
    _, far = pair
    array = np.arange(30, dtype=np.float32).reshape(5, 6)
    pitched = na.empty_pitched((5, 6)).sync()
    pitched.copy_from(array).sync()
    np.testing.assert_array_equal(host(na.to_device(pitched, far).sync()), array)
    records = np.zeros(5, [("a", np.int32), ("b", np.float64)])
    records["b"] = np.arange(5)
    np.testing.assert_array_equal(
        host(na.to_device(na.from_host(records).sync(), far).sync()), records
    )


def test_an_array_of_another_library_is_moved(pair: Pair) -> None:
    near, far = pair
    if near.kind != "cpu":
        pytest.skip("NumPy's memory is of the CPU device")
    array = np.arange(8.0)
    moved = na.to_device(na.as_tensor(array), far).sync()
    array[:] = 0
    assert moved.device is far and host(moved).tolist() == list(range(8))
    na.as_tensor(array).copy_from(moved).sync()
    assert array.tolist() == list(range(8))


def test_a_tensor_that_is_there_is_given_itself(pair: Pair) -> None:
    near, far = pair
    t, shared = na.ones(4).sync(), na.ones(4).sync().shared()
    assert na.to_device(t, near).sync() is t
    assert na.to_device(shared, near).sync() is shared
    assert isinstance(na.to_device(shared, far).sync(), na.Tensor)
    first, second = na.replicate(t, [near, far]).sync()
    assert first is t and second.device is far
    for part, copy in zip(na.scatter(t, [near] * 2).sync(), (False, False), strict=True):
        na.fill(part, 5).sync()
        assert not copy
    assert host(t).tolist() == [5] * 4  # views


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("extent", [0, 1, 2, 7])
def test_parts_are_array_splits_and_are_joined_again(pair: Pair, axis: int, extent: int) -> None:
    near, far = pair
    shape = (extent, 3) if axis == 0 else (3, extent)
    array = np.random.default_rng(extent).random(shape)
    places = [far, near, far]
    for source in (na.from_host(array).sync(), array):
        parts = na.scatter(source, places, axis).sync()
        assert [p.device for p in parts] == places
        for part, expected in zip(parts, np.array_split(array, 3, axis), strict=True):
            np.testing.assert_array_equal(host(part), expected)
        joined = na.gather_parts(parts, axis).sync()
        assert joined.device is far
        np.testing.assert_array_equal(host(joined), array)
        np.testing.assert_array_equal(host(na.gather_parts(parts, axis, near).sync()), array)


async def test_they_compose(pair: Pair) -> None:
    near, far = pair
    t = await na.ones(4)
    u = await na.to_device(t, far).then(lambda u: na.fill(u, 3))
    assert u.device is far and host(u).tolist() == [3] * 4
    one, two = await na.gather(na.to_device(t, far), na.to_device(t, near))
    assert (one.device, two.device) == (far, near)
    a, b = na.scatter(t, [near, far]).unzip()
    assert [x.device for x in (await a, await b)] == [near, far]
    shared = na.to_device(t, far).shared()
    assert (await shared) is (await shared)
    future = na.to_device(t, far).schedule(far.policy)
    assert repr(future).startswith("<DeviceFuture to_device((4,), ")
    await future


def test_memory_is_accounted_on_each_device(pair: Pair) -> None:
    near, far = pair

    def used() -> tuple[int, ...]:
        gc.collect()
        for device in pair:
            device.synchronize()
        return tuple(d.memory_stats().used_current for d in pair)

    t = na.ones(2**16).sync()
    before = used()
    moved = na.to_device(t, far).sync()
    assert used() == (before[0], before[1] + 2**18)
    moved = na.to_device(t[::2], far).sync()  # what it was packed in is returned
    assert used() == (before[0], before[1] + 2**17)
    del moved
    assert used() == before
    assert near.in_flight == far.in_flight == na.InFlight(0, 0)


def test_too_little_memory_changes_nothing(pair: Pair) -> None:
    near, far = pair
    t, pool = na.ones(2**12).sync(), far.pool
    far.pool = far.new_pool(max_bytes=2**12)
    try:
        with pytest.raises(OutOfDeviceMemoryError):
            na.to_device(t, far).sync()
        assert near.in_flight.ops == far.in_flight.ops == 0
    finally:
        far.pool = pool
    assert host(na.to_device(t, far).sync()).sum() == 2**12


def test_wrong_arguments_are_refused_with_what_to_write(pair: Pair) -> None:
    _near, far = pair
    t, u = na.ones(4).sync(), on(far, na.ones(4, np.int32))
    op = na.ones(4)
    with pytest.raises(OperationError, match=r"run it first, t = await op"):
        na.to_device(op, far)  # type: ignore[call-overload]
    with pytest.raises(CallerError, match="to_device takes a device, not str"):
        na.to_device(t, "cpu:1")  # type: ignore[arg-type]
    with pytest.raises(DTypeError):
        na.to_device(np.array(["a"]), far)
    with pytest.raises(OperationError, match=r"write p\.unpartition"):
        na.replicate(t.partition(2), pair)  # type: ignore[arg-type]
    for wrong in ([], far, [far, 3], "cpu"):
        with pytest.raises(CallerError, match="takes a list of devices, not"):
            na.replicate(t, wrong)  # type: ignore[arg-type]
    for axis in (1, -2, 0.5):
        with pytest.raises(ShapeError, match="write a whole number from -1 to 0"):
            na.scatter(t, pair, axis)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"write na\.replicate"):
        na.scatter(t[0], pair)
    with pytest.raises(DTypeError, match=r"convert them first.*astype"):
        na.gather_parts([t, u])
    with pytest.raises(OperationError, match="number 0 is the operation"):
        na.gather_parts([na.ones(2), t])  # type: ignore[list-item]
    with pytest.raises(ShapeError, match="of no tensors"):
        na.gather_parts([])
    with pytest.raises(CallerError, match="gather_parts takes a device"):
        na.gather_parts([t], device=1)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match=r"na\.convert"):
        u.copy_from(t)


def test_a_stream_of_another_device_is_refused(pair: Pair) -> None:
    near, far = pair
    t, u = na.ones(4).sync(), on(far, na.ones(4))
    for make in (
        lambda: na.to_device(t, far), lambda: u.copy_from(t), lambda: na.gather_parts([t], 0, far),
    ):  # fmt: skip
        with pytest.raises(DeviceMismatchError, match="Name no stream") as refused:
            make().sync_on(near.new_stream())
        assert near.label in str(refused.value) and far.label in str(refused.value)
        make().sync_on(far.new_stream())
    with pytest.raises(DeviceMismatchError, match="Behind another operation, await that first"):
        na.ones(4).then(lambda t: na.to_device(t, far)).sync()


def test_tensors_without_memory_are_refused(pair: Pair) -> None:
    _, far = pair
    t = na.ones(4).sync()
    t.take()
    with pytest.raises(MovedError):
        na.to_device(t, far).sync()
    with pytest.raises(StateError, match="has no memory"):
        na.to_device(na.meta(4).sync(), far).sync()


def test_a_graph_cannot_repeat_it(pair: Pair) -> None:
    near, far = pair
    t, u = na.ones(4).sync(), on(far, na.zeros(4))
    stream = far.new_stream()
    for make in (
        lambda: na.to_device(t, far), lambda: u.copy_from(t), lambda: na.gather_parts([t], 0, far),
        lambda: na.replicate(t, [near, far]),
    ):  # fmt: skip
        with pytest.raises(NotAGraphNodeError, match="graph"):
            make().graph_on(stream)
    graph = na.fill(u, 3).graph_on(stream)
    with pytest.raises(NotAGraphNodeError, match="Copy before the launch of the graph"):
        graph.update(u.copy_from(t))
    graph.launch().sync()
    assert host(u).tolist() == [3] * 4
    assert na.to_device(u, far).graph_on(stream).take_output() is u  # nothing is copied


def test_a_kernel_compiles_for_what_was_moved(pair: Pair) -> None:
    _, far = pair
    moved = na.to_device(na.zeros(8).sync(), far).sync()
    on(far, fresh()(moved))
    assert host(moved).tolist() == [1] * 8


@pytest.mark.parametrize("seed", [1, full(2)])
def test_random_copies_between_three_devices(
    python: str, python_env: dict[str, str], seed: int
) -> None:
    """In a process of its own, whose environment asks for three devices."""
    result = sessions.run_program(
        python, ["-m", "tests.stress.device_copies", "300", str(seed), "cpu"],
        {**os.environ, **python_env, "NUMBASYNC_CPU_DEVICES": "3"}, seconds=600,
    )  # fmt: skip
    assert (result.stdout, result.stderr) == ("300 copies between 3 devices\n", "")
