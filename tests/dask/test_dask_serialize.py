"""Tensors as Dask sends them: headers and frames, without a cluster."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dask.sizeof import sizeof

import numbasync as na
from numbasync.errors import MovedError
from tests.common import add_one, host, put

protocol = pytest.importorskip("distributed.protocol", reason="needs the extra dask")
serialize = pytest.importorskip("numbasync.dask.serialize")
RECORD = np.dtype([("a", "i4"), ("b", "f8", (2,))])
DTYPES = [
    *"?bBhHiIqQefdFD", RECORD, np.dtype([("x", "u1"), ("y", "f4")], align=True),
    np.dtype(ml_dtypes.bfloat16),
]  # fmt: skip


def again(value: Any, **options: Any) -> Any:
    header, frames = protocol.serialize(value, on_error="raise", **options)
    assert "is-collection" in header or header["serializer"] == "dask"
    return protocol.deserialize(header, [bytearray(f) for f in frames])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_through(device: na.Device, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    count = 6 * np.dtype(dtype).itemsize
    values = rng.integers(0, 2, count, np.uint8).view(dtype).reshape(2, 3)
    t = put(values)
    found = again(t)
    assert found.device is na.default_device() and found.dtype == t.dtype
    assert host(found).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    "key", [np.s_[:, ::2, ::-1], np.s_[1, 1, 1], np.s_[0:0], np.s_[1:], np.s_[..., None, 1]]
)
def test_views_come_through(device: na.Device, key: Any) -> None:
    values = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    found = again(put(values)[key])
    assert found.is_contiguous
    np.testing.assert_array_equal(host(found), values[key])


def test_pitched_rows_and_transposed_axes_come_through(device: na.Device) -> None:
    t = na.empty_pitched((3, 5)).sync()
    na.fill(t, 7).sync()
    assert (host(again(t)) == 7).all() and again(t).is_contiguous
    values = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(host(again(put(values).T)), values.T)


def test_tensors_without_memory_come_through(device: na.Device) -> None:
    meta = again(na.meta((2, 3), np.int8).sync())
    assert (meta.device, meta.shape, meta.dtype) == (None, (2, 3), np.int8)
    assert again(na.zeros((0, 3)).sync()).shape == (0, 3)
    assert again(na.meta((0, 3)).sync()).device is None


def test_frames_on_the_cpu_device_are_tensors(cpu: na.Device) -> None:
    t = na.arange(1 << 16).sync()
    header, (frame,) = protocol.serialize(t)
    na.fill(t, 5).sync()
    assert (np.frombuffer(frame, np.float32) == 5).all()
    found = protocol.deserialize(header, [frame])
    na.fill(t, 6).sync()
    assert (host(found) == 5).all(), "what is received is the receiver's own"


def test_a_readonly_frame_is_received(device: na.Device) -> None:
    header, frames = protocol.serialize(na.ones(8).sync())
    found = protocol.deserialize(header, [bytes(f) for f in frames])
    assert host(add_one(found).then(lambda r: na.value(r.z)).sync()).tolist() == [2] * 8


def test_the_latest_work_is_in_the_frame(device: na.Device) -> None:
    t = na.zeros(8).sync()
    add_one(t).async_on(device.new_stream())
    assert host(again(t)).tolist() == [1] * 8


def test_a_tensor_comes_back_on_the_current_device(device: na.Device) -> None:
    other = next(d for d in na.devices() if d is not device)
    header, frames = protocol.serialize(na.ones(3).sync())
    with na.use_device(other):
        assert protocol.deserialize(header, frames).device is other


def test_a_moved_tensor_is_refused(device: na.Device) -> None:
    t = na.zeros(8).sync()
    t.take()
    with pytest.raises(MovedError):
        serialize.dask_dumps(t)


def test_what_holds_tensors_comes_through(device: na.Device) -> None:
    t = na.arange(8).sync()
    one, two = again([t, {"u": t[2:]}])
    assert host(one).tolist() == list(range(8)) and host(two["u"]).tolist() == list(range(2, 8))
    for value in (t.shared(), t.partition(4), add_one(t).sync()):
        header, frames = protocol.serialize(value, on_error="raise")
        found = protocol.deserialize(header, [bytearray(f) for f in frames])
        assert type(found) is type(value)


def test_classes_are_pickled_as_before() -> None:
    for kind in (na.Tensor, na.SharedTensor, na.Launcher, na.DeviceOp):
        assert pickle.loads(pickle.dumps(kind)) is kind


def test_dask_counts_the_bytes_of_tensors(device: na.Device) -> None:
    t = na.zeros(10_000).sync()
    for holder in (t, t.shared(), t.partition(100), add_one(t).sync()):
        assert t.nbytes <= sizeof(holder) <= t.nbytes + 4000
    assert sizeof(na.meta(10_000).sync()) < 4000


def test_host_memory_is_not_for_gpu_families(cpu: na.Device) -> None:
    for t in (na.zeros(3).sync(), na.zeros(0).sync(), na.meta(3).sync()):
        header, _ = protocol.serialize(t, serializers=("cuda", "dask"))
        assert header["serializer"] == "dask"
