"""Launches whose arguments lie on several devices: refused with what to write, or moved."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import DeviceMismatchError, LauncherError, NotAGraphNodeError
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, copy_to, saxpy

Pair = tuple[na.Device, na.Device]


@na.launcher(move_inputs=True)
@cuda.jit
def total(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput, pair):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += x[i] + 10 * y[i] + 100 * pair[0][i]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two CPU devices, the first of them current."""
    near, far = na.devices("cpu")[:2]
    with na.use_device(near):
        yield near, far


def on(device: na.Device, value: float, n: int = 8) -> na.Tensor:
    return na.full(n, value).sync_on(device.new_stream())


def host(t: na.Tensor) -> list[float]:
    assert t.device is not None
    found: list[float] = t.to_host().sync_on(t.device.new_stream()).tolist()
    return found


def test_inputs_elsewhere_are_refused_with_their_copy(pair: Pair) -> None:
    near, far = pair
    z, x = on(near, 1), on(far, 2)
    saxpy(z, 1.0, z.dup().sync()).sync()
    before = counters()
    for argument in (x, x.shared()):
        with pytest.raises(DeviceMismatchError) as refused:
            saxpy(z, 1.0, argument).sync()
        assert str(refused.value) == (
            "kernel saxpy: x is <Tensor (8,) float32 on cpu:1>, but the launch goes to cpu:0.\n"
            "Copy what it reads: x = await na.to_device(x, na.devices('cpu')[0])\n"
            "A kernel of @na.launcher(move_inputs=True) does so by itself."
        )
    with pytest.raises(DeviceMismatchError, match="x is"):
        saxpy(na.zeros(8), 1.0, x).sync_on(near.new_stream())  # before `zeros` runs
    assert counters() == before
    saxpy(z, 1.0, na.to_device(x, near).sync()).sync()
    assert host(z) == [4] * 8


def test_a_launch_elsewhere_says_where_to_run_it(pair: Pair) -> None:
    near, far = pair
    z, x = on(far, 1), on(near, 2)
    with pytest.raises(DeviceMismatchError) as refused:
        saxpy(z, 1.0, x).sync_on(near.new_stream())
    assert "z is <Tensor (8,) float32 on cpu:1>" in str(refused.value)
    assert (
        "Copy what it reads, and name no stream: x = await na.to_device(x, na.devices('cpu')[1])"
    ) in str(refused.value)
    with pytest.raises(DeviceMismatchError, match="Name no stream, and it runs on cpu:1"):
        add_one(z).sync_on(near.new_stream())
    with pytest.raises(DeviceMismatchError, match="writes to memory of one device"):
        na.launcher(lambda_of_two)(z, x).sync()


def lambda_of_two(z: na.KernelOutput, w: na.KernelOutput) -> None:  # type: ignore[valid-type]
    z[0] = w[0] = 1


async def test_inputs_are_moved_where_the_kernel_says_so(pair: Pair) -> None:
    near, far = pair
    for home, other in (pair, pair[::-1]):
        z, x, y = on(home, 1), on(other, 2), on(home, 3)
        # Without a stream, the launch goes to the device of its output, whichever is current.
        out = await total(z, x, y, (on(other, 4), 5))
        assert out.z is z and out.x is x and host(z) == [1 + 2 + 30 + 400] * 8
        total(z, x.shared(), x, (x, 5)).sync_on(home.new_stream())
        assert host(z) == [433 + 2 + 20 + 200] * 8
        assert host(x) == [2] * 8 and x.device is other
    assert (near, far) == pair


async def test_arguments_of_one_device_take_launches_there(pair: Pair) -> None:
    z, x = on(pair[1], 0), on(pair[1], 1)
    call = (z, x, x, (x, 0))
    await total(*call)  # the first launch; the next ones find its plan
    await total(*call)
    total(*call).sync()
    await na.gather(total(*call), total(*call))
    await na.spawn(total(*call))
    await asyncio.gather(total(*call), total(*call))
    await total.prepare(*call)()
    total.prepare(*call).sync()
    assert host(z) == [10 * 111] * 8


async def test_outputs_are_never_moved(pair: Pair) -> None:
    near, far = pair
    z, x = on(far, 1), on(near, 2)
    with pytest.raises(DeviceMismatchError, match="z is <Tensor"):
        total(z, x, x, (x, 1)).sync_on(near.new_stream())
    assert host(z) == [1] * 8


async def test_a_moved_input_is_that_of_the_moment(pair: Pair) -> None:
    near, far = pair
    z, x = on(far, 0), on(near, 1)
    await total(z, x, x, (x, 0))
    stream = far.new_stream()
    with Gate(stream):
        total(z, x, x, (x, 0)).async_on(stream)
        later = asyncio.ensure_future(na.fill(x, 7))
        for device in pair:
            await settle(device)
        assert not later.done()
    await later
    await stream.done()
    assert host(z) == [222] * 8 and host(x) == [7] * 8


def test_moved_inputs_with_arrays_operations_and_graphs(pair: Pair) -> None:
    near, far = pair
    z, x = on(far, 0), on(near, 1)
    ones = np.ones(8, np.float32)
    total(z, ones, x, (x, 0)).sync()
    total(z, na.from_host(ones), x, (ones, 0)).sync()
    assert host(z) == [222] * 8
    run = total.prepare(z, x, x, (x, 0))
    run.sync()
    assert host(z) == [333] * 8
    with pytest.raises(NotAGraphNodeError, match="Copy before the launch of the graph"):
        total(z, x, x, (x, 0)).graph_on(far.new_stream())
    y = na.to_device(x, far).sync()
    graph = total(z, y, y, (y, 0)).graph_on(far.new_stream())
    graph.launch().sync()
    assert host(z) == [444] * 8


def test_what_a_launcher_says_and_keeps_of_it() -> None:
    assert total.move_inputs and not saxpy.move_inputs and not copy_to.move_inputs
    assert pickle.loads(pickle.dumps(total)) is total
    tuned = na.autotune(total, [{"threads": 32}])
    assert "total" in tuned.name
    with pytest.raises(LauncherError, match="move_inputs=1 is no bool"):
        na.launcher(move_inputs=1)(total.py_func)  # type: ignore[arg-type]
