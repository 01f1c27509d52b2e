"""The host array of a download that the device has still to do is not uploaded: it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import StateError
from numbasync.testing import gate
from tests.common import saxpy

N = 8
LARGE = 1 << 18  # elements; copied by several threads
Op = na.DeviceOp[Any]


def computed(t: na.Tensor) -> Any:
    batch = na.CommandBatch(t.device)
    return batch.compute(batch.relu(batch.use(t)))


def uploaded_by_batch(array: Any, z: na.Tensor) -> Any:
    batch = na.CommandBatch(z.device)
    return batch.compute(batch.relu(batch.upload(array)))


def copied_out(t: na.Tensor) -> Op:
    return na.memcpy(np.zeros(t.shape, np.float32), t)


# Each gives a host array of the elements of a tensor, in the same operation.
DOWNLOADS: dict[str, Callable[[na.Tensor], Op]] = {
    "to_host": lambda t: t.to_host(),
    "by steps": lambda t: t[::-1].to_host(),
    "a view": lambda t: t.to_host().map(lambda a: a[::-1][:N]),
    "memcpy": copied_out,
    "copy_to": lambda t: t.copy_to(np.zeros(t.shape, np.float32)),
    "shared": lambda t: t.to_host().shared(),
    "zip": lambda t: na.zip(na.value(1), t.to_host()).last(),
    "inout": lambda t: saxpy(na.inout(np.zeros(t.shape, np.float32)), 1.0, t).map(lambda r: r.z),
    "compute": computed,
}
# Each uploads such an array.
UPLOADS: dict[str, Callable[[Any, na.Tensor], Op]] = {
    "from_host": lambda a, z: na.from_host(a),
    "memcpy": lambda a, z: na.memcpy(z, a),
    "in a view": lambda a, z: na.memcpy(z[::-1], a),
    "launch": lambda a, z: saxpy(z, 1.0, a),
    "behind a fill": lambda a, z: na.fill(z, 0).then(lambda _: na.from_host(a)),
    "batch": uploaded_by_batch,
    "concatenate": lambda a, z: na.concatenate([z, a]),
}


@pytest.fixture(autouse=True)
def loaded(device: na.Device) -> None:
    """Everything has run once: a GPU's module that is loaded behind a gate would wait for it."""
    t, z = na.full(N, 5).sync(), na.zeros(N).sync()
    for download in DOWNLOADS.values():
        download(t).sync()
    for upload in UPLOADS.values():
        upload(np.ones(N, np.float32), z).sync()


@pytest.mark.parametrize("download", DOWNLOADS)
def test_a_closure_may_not_upload_unfilled_arrays(
    device: na.Device, stream: na.Stream, download: str, core: bool
) -> None:
    t, z = na.full(N, 5).sync(), na.zeros(N).sync()
    for name, upload in UPLOADS.items():
        for _ in range(2):  # with a plan, too
            with gate(stream):
                op = DOWNLOADS[download](t).then(lambda a: upload(a, z))  # noqa: B023
                with pytest.raises(StateError, match=r"Await (it|that) first"):
                    op.async_on(stream)
            stream.synchronize()
        assert z.to_host().sync().tolist() == [0] * N, name
        upload(DOWNLOADS[download](t).sync(), z).sync()
        na.fill(z, 0).sync()


def test_an_argument_is_refused_by_its_name(
    device: na.Device, stream: na.Stream, core: bool
) -> None:
    t, z = na.full(N, 5).sync(), na.zeros(N).sync()
    message = r"(?s)kernel saxpy: x is .* pass the tensor"
    with gate(stream), pytest.raises(StateError, match=message):
        saxpy(z, 1.0, t.to_host()).async_on(stream)
    assert z.to_host().sync().tolist() == [0] * N
    saxpy(z, 1.0, t).sync()
    assert z.to_host().sync().tolist() == [5] * N


def test_an_unfilled_array_on_its_stream_is_refused(
    device: na.Device, stream: na.Stream, core: bool
) -> None:
    t, z = na.full(N, 5).sync(), na.zeros(N).sync()
    with gate(stream):
        array = t.to_host().async_on(stream)
        for upload in UPLOADS.values():
            with pytest.raises(StateError, match="Await it first"):
                upload(array, z).async_on(stream)
    stream.synchronize()
    assert na.from_host(array).async_on(stream).to_host().sync_on(stream).tolist() == [5] * N


@pytest.mark.parametrize("download", ["to_host", "by steps", "a view", "memcpy", "shared", "zip"])
def test_a_closure_may_not_compute_with_unfilled_arrays(
    device: na.Device, stream: na.Stream, download: str, core: bool
) -> None:
    t = na.full(N, 5).sync()
    computing: list[Callable[[Any], Any]] = [
        lambda a: a + 1, np.sum, lambda a: a[0], lambda a: a.astype(int),
    ]  # fmt: skip
    for change in computing:
        with (
            gate(stream),
            pytest.raises(StateError, match=r"map\(.*are not there yet(?s:.)*Await it first"),
        ):
            DOWNLOADS[download](t).map(change).async_on(stream)
        stream.synchronize()
    views: list[Callable[[Any], Any]] = [lambda a: a, lambda a: a[::2], lambda a: a.reshape(2, -1)]
    for change in views:
        got = DOWNLOADS[download](t).map(change).sync_on(stream)
        assert np.asarray(got).ravel()[0] == 5
    assert DOWNLOADS[download](t).map(lambda a: a.shape).sync_on(stream) == (N,)
    assert DOWNLOADS[download](t).map(lambda a: a[:0]).sync_on(stream).size == 0
    for together in (
        na.zip(t.to_host(), na.value(1)).map(lambda both: both[0] + both[1]),
        na.zip(na.zeros(N), t.to_host().map(np.sum)),  # enqueued on its fast path
    ):
        with pytest.raises(StateError, match="are not there yet"):
            together.sync_on(stream)
    known = na.value(np.arange(3)).map(np.sum)
    assert na.zip(t.to_host(), known).last().sync_on(stream) == 3


def test_large_ones_too(device: na.Device, stream: na.Stream, core: bool) -> None:
    t = na.full(LARGE, 5).sync()
    for download in (lambda t: t.to_host(), copied_out):
        with gate(stream), pytest.raises(StateError, match="Await it first"):
            download(t).then(lambda a: na.from_host(a)).async_on(stream)


async def test_another_devices_download_is_waited_for_too(device: na.Device, core: bool) -> None:
    (cpu, *others) = na.devices("cpu")
    far = others[0] if device is cpu else cpu
    there = far.new_stream()
    t, z = na.full(N, 5).sync_on(there), await na.zeros(N)
    shared = t.to_host().shared()
    with gate(there):
        first = na.spawn(shared, there)
        with pytest.raises(StateError, match="Await it first"):
            await shared.then(lambda a: saxpy(z, 1.0, a))
    await first
    await shared.then(lambda a: saxpy(z, 1.0, a))
    assert (await z.to_host()).tolist() == [5] * N


def test_own_arrays_are_uploaded_behind_a_download(
    device: na.Device, stream: na.Stream, core: bool
) -> None:
    t = na.full(N, 5).sync()
    own = np.arange(2 * N, dtype=np.float32)
    for array in (own[::2], own, np.frombuffer(bytes(4 * N), np.float32), own.view(np.uint8)):
        with gate(stream):
            got = na.zip(t.to_host(), copied_out(t)).then(lambda _: na.from_host(array))  # noqa: B023
            tensor = got.async_on(stream)
        assert (tensor.to_host().sync_on(stream) == array).all()
