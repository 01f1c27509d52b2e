"""Our tensors in CuPy's and PyTorch's hands: no copy, kept, in order, and themselves again.

Another library's stream is held shut as one of ours, which it uses as an external stream.
"""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import AliasError, LauncherError
from numbasync.testing import Gate, settle
from tests.common import add_one, saxpy, used
from tests.lenders import ReadOnly
from tests.libraries import SIZE, Library, cupy_library, torch_library

pytestmark = [
    pytest.mark.cuda,
    # Numba finds small grids wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


def test_a_tensor_is_lent_and_returned_without_copies(device: na.Device, library: Library) -> None:
    t = na.arange(SIZE).sync()
    assert t.__dlpack_device__() == (2, device.ordinal)
    y = library.take(t)
    assert library.pointer(y) == t.storage.memory.address
    np.testing.assert_array_equal(library.host(y), np.arange(SIZE))
    view = t.reshape(32, 32)[1:, ::2]
    np.testing.assert_array_equal(library.host(library.take(view)), view.to_host().sync())
    y += 1
    again = na.as_tensor(y)
    assert again.storage is t.storage
    add_one(y).sync()
    np.testing.assert_array_equal(again.to_host().sync(), np.arange(SIZE) + 2)
    with pytest.raises(AliasError, match="same storage"):
        saxpy(t, 1.0, y)


def test_a_lent_tensor_lives_with_its_borrower(device: na.Device, library: Library) -> None:
    before = used(device)
    t = na.full(SIZE, 3).sync()
    y = library.take(t)
    del t
    assert used(device) > before
    others = [na.full(SIZE, 66).sync() for _ in range(8)]
    assert (library.host(y) == 3).all()
    del y, others
    device.synchronize()
    assert used(device) == before


def test_tensors_of_small_batches(device: na.Device, library: Library) -> None:
    """Kernels read and write what the host has; who asks for tensors gets the device's."""
    start = np.arange(SIZE, dtype=np.float32)
    for _ in range(2):
        b = na.CommandBatch()
        x = b.upload(start)
        y = x + 1
        b.compute_sync(y)
        for id, want in ((x, start), (y, start + 1)):
            found = library.take(b.tensor(id))
            assert library.pointer(found) == b.tensor(id).storage.memory.address
            np.testing.assert_array_equal(library.host(found), want)
    b = na.CommandBatch()
    x = b.upload(start)
    y = x + 1
    b.graph().replay_sync()
    for id, want in ((x, start), (y, start + 1)):
        np.testing.assert_array_equal(library.host(library.take(b.tensor(id))), want)


@pytest.mark.parametrize("pending", ["writer", "reader"])
async def test_a_borrower_waits_for_our_work(
    device: na.Device, library: Library, stream: na.Stream, gate: Gate, pending: str
) -> None:
    consumer = device.new_stream()
    t = await na.full(SIZE, 3)
    y = library.ones()
    gate.close()
    host = None
    if pending == "writer":
        add_one(t).async_on(stream)
    else:
        host = t.to_host().async_on(stream)
    with library.on(consumer):
        borrowed = library.take(t)
        y[:] = borrowed
        borrowed[2:6] += 1
    await settle(device)
    assert not consumer.backend.query()
    gate.open()
    await stream.done()
    consumer.backend.synchronize()
    want = 4 if pending == "writer" else 3
    assert (library.host(y) == want).all()
    assert host is None or (host == 3).all()
    assert (await t.to_host())[:3].tolist() == [want, want, want + 1]


async def test_a_borrower_may_ask_for_no_order(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    t = await na.zeros(SIZE)
    await add_one(t)
    t.__dlpack__(stream=-1)
    consumer = device.new_stream()
    gate.close()
    add_one(t).async_on(stream)
    t.__dlpack__(stream=-1, max_version=(1, 0))
    assert consumer.backend.query()
    t.__dlpack__(stream=consumer.__cuda_stream__()[1])
    assert not consumer.backend.query()
    gate.open()
    await stream.done()
    consumer.backend.synchronize()


async def test_an_array_passes_between_libraries_in_order(
    device: na.Device, producer: na.Stream, shut: Gate
) -> None:
    one, two = cupy_library(), torch_library()
    consumer = device.new_stream()
    x, out = one.ones(), two.ones()
    with one.on(producer):
        x += 0
    with two.on(consumer):
        out[:] = two.take(na.as_tensor(x))
    device.synchronize()
    shut.close()
    with one.on(producer):
        x += 4
        t = na.as_tensor(x)
    with two.on(consumer):
        out[:] = two.take(t)
    await settle(device)
    assert not consumer.backend.query()
    shut.open()
    consumer.backend.synchronize()
    assert (two.host(out) == 5).all()


async def test_the_interface_names_a_stream_behind_pending_work(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    t = await na.zeros(SIZE)
    hosts = [await t.to_host() for _ in range(2)]  # page-locked memory for both, used again
    hosts.clear()
    other = device.new_stream()
    second = Gate(other)
    gate.close()
    second.close()
    try:
        hosts = [t.to_host().async_on(s) for s in (stream, other)]
        handle = t.__cuda_array_interface__["stream"]
        bridge = cuda.external_stream(handle)
        assert handle not in [s.__cuda_stream__()[1] for s in (stream, other)]
        gate.open()
        await stream.done()
        assert other.backend.query() is False
    finally:
        second.open()
    await other.done()
    bridge.synchronize()
    assert t.__cuda_array_interface__["stream"] is None
    assert all((h == 0).all() for h in hosts)


def test_what_cannot_be_lent_is_refused(device: na.Device) -> None:
    t = na.zeros(SIZE).sync()
    for wrong in ({"copy": True}, {"dl_device": (1, 0)}, {"stream": 0}):
        with pytest.raises(BufferError):
            t.__dlpack__(**wrong)
    assert t.__dlpack__(dl_device=(2, device.ordinal), copy=False, max_version=(1, 1))
    assert na.zeros((0, 3)).sync().__dlpack__()
    moved = t.take()
    assert not hasattr(t, "__dlpack__") and hasattr(moved, "__dlpack__")
    assert not hasattr(na.meta(3).sync(), "__dlpack_device__")


def test_readonly_memory_stays_so_when_lent_on(device: na.Device) -> None:
    t = na.as_tensor(ReadOnly(cuda.to_device(np.ones(8, np.float32))))
    with pytest.raises(LauncherError, match="reading only"):
        add_one(t)
    assert t.__cuda_array_interface__["data"][1] is True
    with pytest.raises(BufferError, match="reading only"):
        t.__dlpack__()
    assert t.__dlpack__(max_version=(1, 0))
    assert not na.ones(8).sync().__cuda_array_interface__["data"][1]
