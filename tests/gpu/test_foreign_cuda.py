"""CuPy's and PyTorch's arrays in our kernels: no copy, kept, behind their library's work.

Another library's stream is held shut as one of ours, which it uses as an external stream. Its
kernels are loaded, and its memory is there, before any gate is shut.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import AliasError, LauncherError, OperationError
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, copy_to, saxpy
from tests.libraries import SIZE, Library, cupy_library, torch_library

pytestmark = [
    pytest.mark.cuda,
    # Numba finds small grids wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


# --- in place ------------------------------------------------------------------------


def test_arrays_are_inputs_and_outputs_without_a_copy(device: na.Device, library: Library) -> None:
    z, x = library.ones(), library.make(np.arange(SIZE, dtype=np.float32))
    before = counters()
    result = saxpy(z, 2.0, x).sync()
    assert result.z is z and result.x is x
    done = counters() - before
    assert done.launches == 1 and done.copies == done.allocations == 0
    np.testing.assert_array_equal(library.host(z), 1 + 2 * np.arange(SIZE))
    t = na.as_tensor(z)
    assert t.device is device and t.storage.memory.address == library.pointer(z)
    assert na.from_dlpack(z).storage is t.storage
    add_one(t.partition(128)).sync()
    add_one(t[::2]).sync()
    assert library.host(z)[:4].tolist() == [3, 4, 7, 8]


def test_layouts_and_types_arrive(device: na.Device, library: Library) -> None:
    base = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    x = library.make(base)
    for view, want in (
        (x, base),
        (x[1:, ::2], base[1:, ::2]),
        (x[0].T, base[0].T),
        (x[1, 2], base[1, 2]),
    ):
        np.testing.assert_array_equal(na.as_tensor(view).to_host().sync(), want)
    for dtype in "?bBhiqefdFD":
        array = np.arange(6).astype(dtype)
        got = na.as_tensor(library.make(array)).to_host().sync()
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)
    assert na.as_tensor(library.make(np.zeros((0, 3), np.float32))).shape == (0, 3)


def test_many_arguments_need_few_bridges(device: na.Device, library: Library) -> None:
    backend: Any = device.backend
    x = library.ones()
    for _ in range(200):
        add_one(x).async_on(device.policy.next_stream())
    device.synchronize()
    assert library.host(x)[0] == 201
    assert len(backend.bridges._all) < 20


# --- kept ----------------------------------------------------------------------------------


async def test_memory_is_not_returned_while_kernels_wait(
    device: na.Device, library: Library, stream: na.Stream, gate: Gate
) -> None:
    out = await na.zeros(SIZE)
    # Older than the blocks that are free below: a pool would take it before those.
    x = library.make(np.full(SIZE, 5, np.float32))
    address = library.pointer(x)
    poison = [library.ones() for _ in range(8)]
    del poison
    gate.close()
    copy_to(out, x).async_on(stream)
    del x
    gc.collect()
    await settle(device)
    poison = [library.make(np.full(SIZE, 66, np.float32)) for _ in range(8)]
    assert address not in [library.pointer(p) for p in poison]
    gate.open()
    await stream.done()
    assert ((await out.to_host()) == 5).all()


# --- behind the work of its library --------------------------------------------------------


@pytest.mark.parametrize("how", ["argument", "tensor", "older tensor", "download"])
async def test_work_waits_for_the_librarys_stream(
    device: na.Device, library: Library, stream: na.Stream, producer: na.Stream, shut: Gate,
    how: str,
) -> None:  # fmt: skip
    x, out = library.ones(), await na.zeros(SIZE)
    older = na.as_tensor(x)
    shut.close()
    host: Any = None
    with library.on(producer):
        x += 4
        if how == "argument":
            copy_to(out, x).async_on(stream)
        elif how == "download":
            host = older.to_host().async_on(stream)
        else:
            copy_to(out, older if how == "older tensor" else na.as_tensor(x)).async_on(stream)
    await settle(device)
    assert not stream.query()
    shut.open()
    await stream.done()
    assert ((host if host is not None else await out.to_host()) == 5).all()


async def test_work_waits_for_what_an_array_brought(
    device: na.Device, library: Library, stream: na.Stream, producer: na.Stream, shut: Gate
) -> None:
    x, out = library.ones(), [await na.zeros(SIZE) for _ in range(2)]
    shut.close()
    with library.on(producer):
        x += 4
        t = na.as_tensor(x)
        op = copy_to(out[1], x)
    # Now the library's current stream is another one, as it is on another thread.
    copy_to(out[0], t).async_on(stream)
    op.async_on(stream)
    await settle(device)
    assert not stream.query()
    shut.open()
    await stream.done()
    for each in out:
        assert ((await each.to_host()) == 5).all()


async def test_an_interface_naming_its_stream_is_awaited(
    device: na.Device, stream: na.Stream, producer: na.Stream, shut: Gate
) -> None:
    cuda.select_device(device.ordinal)
    x = cuda.to_device(np.ones(SIZE, np.float32))
    assert na.as_tensor(x).device is device
    handle = producer.__cuda_stream__()[1]

    class Named:
        __cuda_array_interface__ = {**x.__cuda_array_interface__, "stream": handle}

    out = await na.zeros(SIZE)
    copy_to(out, Named()).sync()
    external = cuda.external_stream(handle)
    add_one.kernel[4, 256, external](x)
    cuda.synchronize()
    t = na.as_tensor(Named())
    shut.close()
    add_one.kernel[4, 256, external](x)
    copy_to(out, t).async_on(stream)
    await settle(device)
    assert not stream.query()
    shut.open()
    await stream.done()
    assert ((await out.to_host()) == 3).all()


@pytest.mark.isolated
@pytest.mark.parametrize("how", ["argument", "tensor", "older tensor"])
async def test_work_waits_for_numbas_default_stream(
    device: na.Device, stream: na.Stream, how: str
) -> None:
    """Numba's arrays name no stream for work on its default stream."""
    cuda.select_device(device.ordinal)
    legacy = na.Stream.of(cuda.default_stream(), device)
    x = cuda.to_device(np.ones(SIZE, np.float32))
    out, older = await na.zeros(SIZE), na.as_tensor(x)
    assert x.__cuda_array_interface__["stream"] is None
    copy_to(out, older).sync()
    add_one.kernel[4, 256](x)
    cuda.synchronize()
    device.synchronize()
    with Gate(legacy):
        add_one.kernel[4, 256](x)
        given = x if how == "argument" else older if how == "older tensor" else na.as_tensor(x)
        copy_to(out, given).async_on(stream)
        await settle(device)
        assert not stream.query()
    await stream.done()
    assert ((await out.to_host()) == 3).all()


async def test_overlapping_views_are_ordered_across_our_streams(
    device: na.Device, library: Library, stream: na.Stream, gate: Gate
) -> None:
    other = device.new_stream()
    x = library.ones()
    gate.close()
    na.fill(na.as_tensor(x[2:6]), 5).async_on(stream)
    add_one(x).async_on(other)
    await settle(device)
    assert not other.query()
    gate.open()
    await other.done()
    assert library.host(x)[:8].tolist() == [2, 2, 6, 6, 6, 6, 2, 2]


async def test_libraries_that_share_memory_share_the_record(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    one, two = cupy_library(), torch_library()
    x = one.ones()
    y = two.take(x)
    assert na.as_tensor(x).storage is na.as_tensor(y).storage
    with pytest.raises(AliasError):
        saxpy(x, 1.0, y)
    other = device.new_stream()
    for each in (x, y):
        add_one(each).sync()
    gate.close()
    add_one(x).async_on(stream)
    add_one(y).async_on(other)
    await settle(device)
    assert not other.query()
    gate.open()
    await other.done()
    assert (one.host(x) == 5).all()


# --- what a library refuses ---------------------------------------------------------------------


def test_what_pytorch_does_not_lend(device: na.Device) -> None:
    torch_library()
    torch = pytest.importorskip("torch")
    z = na.zeros(8).sync()
    weights = torch.ones(8, device="cuda", requires_grad=True)
    for refused in (lambda: na.as_tensor(weights), lambda: copy_to(z, weights)):
        with pytest.raises(OperationError, match=r"detach\(\)"):
            refused()
    copy_to(z, weights.detach()).sync()
    with pytest.raises(OperationError):
        na.as_tensor(torch.ones(8, device="cuda", dtype=torch.complex64).conj())


def test_pytorchs_host_tensors_are_uploaded(device: na.Device) -> None:
    torch_library()
    torch = pytest.importorskip("torch")
    z = na.zeros(8).sync()
    for x in (torch.arange(8.0), torch.arange(8.0).pin_memory()):
        result = copy_to(z, x).sync()
        assert result.x is x
        assert z.to_host().sync().tolist() == list(range(8))
        with pytest.raises(LauncherError, match="would be lost"):
            add_one(x).sync()
        t = na.as_tensor(x, na.devices("cpu")[0])
        assert t.storage.memory.address == x.data_ptr()
