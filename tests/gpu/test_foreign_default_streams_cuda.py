"""Default streams of Numba, CuPy, PyTorch and cuda.core as ours; streams of another GPU."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    CallerError,
    DeviceMismatchError,
)
from numbasync.testing import Gate, settle
from tests.common import add_one, compiled, waited
from tests.gpu.stream_libraries import (
    LIBRARIES,
    SECONDS,
    SIZE,
    Library,
    cupy_library,
    loaded,
    numba_library,
    twice,
)
from tests.tensor_cores.test_storing import kernel as numbered_kernel

pytestmark = [
    pytest.mark.cuda,
    # Numba finds small grids wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, device: na.Device) -> Library:
    return loaded(request.param, device)


def test_the_legacy_default_stream_is_one(device: na.Device, library: Library) -> None:
    ours = na.Stream.of(library.default())
    assert ours is na.Stream.of(cuda.default_stream()) is na.Stream.of(cuda.legacy_default_stream())
    assert ours is na.Stream.of(library.default(), device)
    assert ours.backend.handle_number == 1
    x = library.ones()
    t = na.as_tensor(x)
    library.add_one(x, library.default())
    twice(t).sync_on(library.default())
    twice[4, 256, library.default()](t).sync()
    na.spawn(twice(t).graph_on(library.default()).launch()).sync()
    op = twice[4, 256, 0](t)
    assert op.stream is None  # the policy's, as always
    op.sync()
    assert (library.host(x) == 32).all()


async def test_the_legacy_default_stream_is_awaited(device: na.Device, library: Library) -> None:
    x = library.ones()
    t = na.as_tensor(x)
    library.add_one(x, library.default())
    assert (await twice(t).schedule(library.default())).z is t
    assert await na.Stream.of(library.default()).done() is na.Stream.of(library.default())
    assert (library.host(x) == 4).all()
    await asyncio.to_thread(na.Stream.of(library.default()).synchronize)
    assert await asyncio.to_thread(na.Stream.of(library.default()).query)


@pytest.mark.isolated
async def test_the_legacy_default_stream_orders_blocking_ones(
    device: na.Device,
) -> None:
    numba_library(device)
    compiled()
    blocking, legacy, own = cuda.stream(), na.Stream.of(cuda.default_stream()), device.new_stream()
    z, y = await na.zeros(SIZE), await na.zeros(SIZE)
    device.synchronize()
    with Gate(na.Stream.of(blocking)):
        future = na.spawn(add_one(z), legacy)
        await asyncio.wait_for(waited(na.spawn(add_one(y), own)), SECONDS)
        await settle(device)
        assert own.query() and not legacy.query() and not future.done()
    await asyncio.wait_for(waited(future), SECONDS)
    assert (await z.to_host() == 1).all() and (await y.to_host() == 1).all()


def test_the_per_thread_default_stream_is_refused(device: na.Device) -> None:
    numba_library(device)
    stream, op = cuda.per_thread_default_stream(), na.value(3)
    for refused in (lambda: op.sync_on(stream), lambda: add_one[4, 256, stream]):
        with pytest.raises(CallerError, match="another stream on each thread"):
            refused()
    assert op.sync() == 3


@pytest.mark.cuda(devices=2)
def test_a_stream_of_another_gpu_is_refused(device: na.Device) -> None:
    cupy = pytest.importorskip("cupy")
    cupy_library(device)
    other = next(d for d in na.devices("cuda") if d is not device)
    z = na.zeros(SIZE).sync()
    with cupy.cuda.Device(other.ordinal):
        s = cupy.cuda.Stream()
    assert na.Stream.of(s).device is other
    with pytest.raises(DeviceMismatchError, match=device.label):
        na.Stream.of(s, device)
    with pytest.raises(DeviceMismatchError, match=other.label):
        add_one(z).sync_on(s)
    torch = pytest.importorskip("torch")
    theirs = torch.cuda.default_stream(other.ordinal)
    assert na.Stream.of(theirs).device is other
    with pytest.raises(DeviceMismatchError, match=device.label):
        na.Stream.of(theirs, device)
    with pytest.raises(DeviceMismatchError, match="cpu:0"), na.use_device("cpu"):
        na.Stream.of(cuda.default_stream())


@pytest.mark.cuda(min_cc=(9, 0))
@pytest.mark.isolated
async def test_tensor_maps_wait_for_no_default_stream(device: na.Device) -> None:
    """The descriptor arrives beside other libraries' work, before the launch that needs it."""
    numba_library(device)
    out = await na.full((129, 72), -1, np.float16)
    run = numbered_kernel(np.dtype(np.float16), 64, 1, 16)
    await run[1, 64](na.tensor_map(out, (16, 64), 128), 0, 0)
    views = [out[row:] for row in range(1, 33)]  # each has a descriptor of its own
    stream = device.new_stream()

    def launch_all() -> None:
        for view in views:
            run[1, 64](na.tensor_map(view, (16, 64), 128), 0, 0).sync_on(stream)

    with Gate(na.Stream.of(cuda.default_stream())):
        await asyncio.wait_for(asyncio.to_thread(launch_all), SECONDS)
