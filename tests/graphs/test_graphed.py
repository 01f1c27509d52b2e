"""Functions that replay."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import CallerError, NotAGraphNodeError, OperationError
from numbasync.graphs.graphed import Graphed
from numbasync.testing import counters
from tests.common import copy_to, fresh, saxpy, used
from tests.common import scaled_plus_one as step


async def test_each_call_replays_with_its_own_arguments(device: na.Device) -> None:
    calls = 0

    @na.graphed
    def replayed(x: na.Tensor) -> na.DeviceOp[na.Tensor]:
        nonlocal calls
        calls += 1
        return step(x)

    a, b = await na.full(8, 1), await na.full(8, 10)
    before = counters()
    first, second = await replayed(a), await replayed(b)
    third = await replayed(np.full(8, 100, np.float32))
    assert (counters() - before).replays == 3
    assert calls == 1
    assert [(await t.to_host())[0] for t in (first, second, third)] == [3, 21, 201]
    assert [(await t.to_host())[0] for t in (a, b)] == [1, 10]
    assert "1 captures" in repr(replayed)


async def test_other_shapes_dtypes_and_values_are_captured_apart(device: na.Device) -> None:
    replayed: Any = na.graphed(step)
    x, y = await na.ones(8), await na.ones(9)
    assert (await (await replayed(x)).to_host()).tolist() == [3] * 8
    assert (await (await replayed(y)).to_host()).tolist() == [3] * 9
    assert (await (await replayed(x, 5.0)).to_host()).tolist() == [6] * 8
    assert (await (await replayed(x, factor=5.0)).to_host()).tolist() == [6] * 8
    assert (await (await replayed(x, factor=0.0)).to_host()).tolist() == [1] * 8
    assert len(replayed.graphs) == 5
    assert replayed.__name__ == "scaled_plus_one"


async def test_views_and_shared_tensors_are_arguments(device: na.Device) -> None:
    replayed: Any = na.graphed(step)
    x = await na.from_host(np.arange(16, dtype=np.float32))
    for argument, want in (
        (x[::2], np.arange(0, 16, 2)),
        (x[8:], np.arange(8, 16)),
        (x[:8].shared(), np.arange(8)),
    ):
        out = await replayed(argument)
        np.testing.assert_array_equal(await out.to_host(), 2 * want + 1)
    assert len(replayed.graphs) == 1


async def test_results_of_every_form(device: na.Device) -> None:
    x = await na.ones(8)

    @na.graphed
    def forms(x: na.Tensor) -> na.DeviceOp[Any]:
        launched = na.zeros(8).then(lambda z: saxpy(z.partition(4), 2.0, x))
        return launched.map(lambda r: {"result": r, "list": [r.x, 7], "shared": r.x.shared()})

    for value in (1, 3):
        na.fill(x, value).sync()
        got = await forms(x)
        result = got["result"]
        assert type(result).__name__ == "saxpy"
        assert (await result.z.tensor.to_host()).tolist() == [2 * value] * 8
        assert result.z.tile == (4,)
        assert (await got["list"][0].to_host()).tolist() == [value] * 8
        assert got["list"][1] == 7
        assert (await got["shared"].to_host()).tolist() == [value] * 8


async def test_results_that_are_not_copied_are_overwritten(device: na.Device) -> None:
    replayed: Any = na.graphed(copies=False)(step)
    a, b = await na.full(8, 1), await na.full(8, 10)
    first = await replayed(a)
    assert (await first.to_host())[0] == 3
    second = await replayed(b)
    assert second is first
    assert (await first.to_host())[0] == 21


async def test_calls_overlap_as_if_they_shared_nothing(device: na.Device) -> None:
    replayed: Any = na.graphed(step)
    inputs = [await na.full(64, i) for i in range(40)]
    results = await na.gather(*(replayed(x) for x in inputs))
    for i, out in enumerate(results):
        assert (await out.to_host()).tolist() == [2 * i + 1] * 64


def test_threads_that_call_at_once(device: na.Device) -> None:
    replayed: Any = na.graphed(step)
    wrong = list[Any]()

    def call(base: int) -> None:
        try:
            with na.use_device(device):
                for i in range(base, base + 100):
                    got = replayed(np.full(256, i, np.float32)).to_host().sync()
                    if (got != 2 * i + 1).any():
                        wrong.append((i, got))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=call, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(replayed.graphs) == 1


async def test_the_first_calls_of_many_tasks_capture_once(device: na.Device) -> None:
    kernel, calls = fresh(), list[int]()

    @na.graphed
    def replayed(x: na.Tensor) -> na.DeviceOp[Any]:
        calls.append(1)
        return na.zeros(8).then(lambda z: na.zip(copy_to(z, x), kernel(z))).map(lambda r: r[1].z)

    inputs = [await na.full(8, i) for i in range(8)]
    outs = await na.gather(*(replayed(x) for x in inputs))
    assert [(await t.to_host())[0] for t in outs] == list(range(1, 9))
    assert len(calls) == 1


async def test_what_fails_to_be_captured_is_tried_again(device: na.Device) -> None:
    fails = True

    @na.graphed
    def sometimes(x: na.Tensor) -> na.DeviceOp[na.Tensor]:
        if fails:
            raise KeyError("not now")
        return step(x)

    x = await na.ones(8)
    for _ in range(2):
        with pytest.raises(KeyError, match="not now"):
            await sometimes(x)
    fails = False
    assert (await (await sometimes(x)).to_host()).tolist() == [3] * 8


async def test_wrong_arguments(device: na.Device) -> None:
    replayed: Any = na.graphed(step)
    x = await na.ones(8)
    with pytest.raises(OperationError, match="is an operation"):
        replayed(na.ones(8))
    with pytest.raises(CallerError, match="cannot remember"):
        replayed(x, [1, 2])
    with pytest.raises(OperationError, match="takes a function"):
        na.graphed(3)  # type: ignore[call-overload]
    with pytest.raises(CallerError, match="graphed keeps, is 0"):
        na.graphed(most=0)(step)
    with pytest.raises(OperationError, match="what not_an_op returns"):
        await na.graphed(not_an_op)(x)  # type: ignore[arg-type]
    with pytest.raises(NotAGraphNodeError, match="graph of its own"):
        replayed(x).graph_on(device.new_stream())
    with pytest.raises(NotAGraphNodeError):
        await na.graphed(lambda x: na.memcpy(np.zeros(8, np.float32), x))(x)

    class Owner:
        @na.graphed
        def method(self, x: na.Tensor) -> na.DeviceOp[na.Tensor]:
            return step(x)

    with pytest.raises(OperationError, match="is a method"):
        Owner().method(x)  # type: ignore[call-arg]


def not_an_op(x: na.Tensor) -> int:
    return 3


async def test_captures_that_are_not_used_go(device: na.Device) -> None:
    replayed: Any = na.graphed(most=2)(step)
    assert isinstance(replayed, Graphed)
    x = await na.ones(1000)
    for factor in (1.0, 2.0, 1.0, 3.0):  # 2.0 goes
        await replayed(x, factor)
    in_use = used(device)
    for factor in (4.0, 5.0, 6.0, 7.0, 8.0):
        out = await replayed(x, factor)
        assert (await out.to_host())[0] == factor + 1
    del out
    assert len(replayed.graphs) == 2
    assert used(device) == in_use
