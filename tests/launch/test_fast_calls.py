"""Which calls are enqueued on the fast path from the second one on, and what they still refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import layout
from numbasync.errors import AliasError, LaunchError
from numbasync.launch.call import Launch
from numbasync.layout import Layout
from numbasync.ops.op import Map
from numbasync.tensors.array_spec import array_key
from tests.common import only_fast_path


@na.launcher(preconditions=["x.shape == z.shape", "bias is None or bias.shape[0] == 1"])
@cuda.jit
def scaled(
    z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput, a: float, bias: na.KernelInput = None
):
    i = cuda.grid(1)
    if i < z.size:
        z[i] = a * x[i] + y[i]
        if bias is not None:
            z[i] += bias[0]


@na.launcher(preconditions=["n <= z.shape[0]"])
@cuda.jit
def counted(z: na.KernelOutput, n: int):
    i = cuda.grid(1)
    if i < n:
        z[i] = i


async def arrays(*sizes: int) -> list[na.Tensor]:
    return [await na.from_host(np.arange(n, dtype=np.float32)) for n in sizes]


async def test_preconditions_on_arrays_are_met_by_the_plan(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, x, y, one, two = await arrays(8, 8, 8, 1, 2)
    await scaled(z, x, y, 2.0)
    await scaled(z, x, y, 2.0, one)
    only_fast_path(monkeypatch, (Launch, "steps"))
    await scaled(z, x, y, 3.0)
    np.testing.assert_array_equal(await z.to_host(), 4.0 * np.arange(8))
    await scaled(z, x, y, 3.0, one)
    monkeypatch.undo()
    with pytest.raises(LaunchError, match=r"bias\.shape\[0\] == 1"):
        await scaled(z, x, y, 3.0, two)
    with pytest.raises(LaunchError, match=r"x\.shape == z\.shape"):
        await scaled(z, two, y, 3.0)


async def test_preconditions_on_numbers_are_checked_at_each_call(device: na.Device) -> None:
    (z,) = await arrays(8)
    for _ in range(2):
        await counted(z, 8)
        with pytest.raises(LaunchError, match=r"n <= z\.shape\[0\]"):
            await counted(z, 9)


async def test_what_was_compiled_only_has_met_no_precondition(device: na.Device) -> None:
    z, x, y = await arrays(8, 9, 8)
    await scaled.compile(z, x, y, 2.0)
    with pytest.raises(LaunchError, match=r"x\.shape == z\.shape"):
        await scaled(z, x, y, 2.0)


async def test_inputs_may_be_one_tensor(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    z, x = await arrays(8, 8)
    await scaled(z, x, x, 2.0)
    only_fast_path(monkeypatch, (Launch, "steps"))
    await scaled(z, x, x, 3.0)
    np.testing.assert_array_equal(await z.to_host(), 4.0 * np.arange(8))
    monkeypatch.undo()
    for args in ((z, z, x), (z, x, z), (z, z, z)):
        with pytest.raises(AliasError):
            await scaled(*args, 2.0)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (4,), (1, 4), (4, 1), (3, 4), (3, 0), (2, 3, 4)])
def test_a_key_says_whether_an_array_is_contiguous(shape: tuple[int, ...]) -> None:
    """Preconditions may ask for it, and a plan is found by the key."""
    plain = layout.contiguous_strides(shape, 4)
    other = tuple(reversed(layout.contiguous_strides(shape[::-1], 4)))
    for strides in (plain, other, tuple(2 * s for s in plain), (0,) * len(shape)):
        at = Layout(0, shape, strides)
        key = array_key(at, np.dtype(np.float32))
        assert (key.order == "C") == layout.is_contiguous(shape, strides, 4), strides


# --- map ---


async def test_a_map_of_a_launch(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    z, x, y = await arrays(8, 8, 8)
    await scaled(z, x, y, 2.0)
    only_fast_path(monkeypatch, (Launch, "steps"), (Map, "steps"))
    assert await scaled(z, x, y, 3.0).map(lambda r: (r.z, 5)) == (z, 5)
    assert scaled(z, x, y, 3.0).first().sync() is z
    stream = device.new_stream()
    assert scaled(z, x, y, 4.0).first().map(lambda t: t.shape).async_on(stream) == (8,)
    stream.synchronize()
    np.testing.assert_array_equal(await z.to_host(), 5.0 * np.arange(8))


async def test_a_chain_of_many_maps_has_no_depth(device: na.Device) -> None:
    z, x, y = await arrays(8, 8, 8)
    op: na.DeviceOp[Any] = scaled(z, x, y, 2.0).map(lambda r: 0)
    for _ in range(5000):
        op = op.map(lambda n: n + 1)
    assert await op == 5000


async def test_a_maps_error_leaves_the_launch_in_order(device: na.Device) -> None:
    z, x, y = await arrays(8, 8, 8)
    await scaled(z, x, y, 2.0)

    def wrong(_: Any) -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        scaled(z, x, y, 3.0).map(wrong).async_on(device.new_stream())
    with pytest.raises(ValueError, match="wrong"):
        scaled(z, x, y, 3.0).map(wrong).sync()
    with pytest.raises(ValueError, match="wrong"):
        await scaled(z, x, y, 3.0).map(wrong)
    with pytest.raises(ValueError, match="wrong"):
        await na.gather(scaled(z, x, y, 3.0).map(wrong), na.zeros(3))
    with pytest.raises(ValueError, match="wrong"):
        await na.zip(scaled(z, x, y, 3.0).map(wrong), na.zeros(3))
    np.testing.assert_array_equal(await z.to_host(), 4.0 * np.arange(8))


async def test_a_map_may_run_no_operation(device: na.Device) -> None:
    z, x, y = await arrays(8, 8, 8)
    await scaled(z, x, y, 2.0)
    with pytest.raises(na.errors.ReentrancyError):
        await scaled(z, x, y, 3.0).map(lambda r: na.zeros(3).sync())
    await na.zeros(3)


@na.launcher
@cuda.jit
def nothing():
    cuda.syncthreads()


def test_a_kernel_without_parameters(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        nothing[(1,), (1,)]().sync_on(stream)
    only_fast_path(monkeypatch, (Launch, "steps"))
    nothing[(1,), (1,)]().sync_on(stream)
