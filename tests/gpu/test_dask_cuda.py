"""Tensors of a GPU as Dask sends them: through the host, and as frames in device memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from tests.common import add_one, host, put

pytestmark = pytest.mark.cuda
protocol = pytest.importorskip("distributed.protocol", reason="needs the extra dask")
serialize = pytest.importorskip("numbasync.dask.serialize")
RECORD = np.dtype([("a", "i4"), ("b", "f8")])


@pytest.mark.parametrize("dtype", ["?", "i2", "f8", "F"], ids=str)
def test_a_cuda_familys_frame_is_the_tensors_memory(device: na.Device, dtype: Any) -> None:
    values = np.arange(6 * np.dtype(dtype).itemsize, dtype=np.uint8) % 2
    t = put(values.view(dtype).reshape(2, 3))
    header, (frame,) = serialize.cuda_dumps(t)
    interface = frame.__cuda_array_interface__
    assert interface["data"][0] == t.__cuda_array_interface__["data"][0]
    assert (interface["typestr"], interface["shape"]) == ("|u1", (t.nbytes,))
    found = serialize.cuda_loads(header, [frame])
    assert (found.shape, found.dtype, found.device) == (t.shape, t.dtype, device)
    assert host(found).tobytes() == host(t).tobytes()


def test_views_are_sent_as_copies(device: na.Device) -> None:
    t = na.arange(8).sync()
    found = serialize.cuda_loads(*serialize.cuda_dumps(t[::2]))
    na.fill(t, 1).sync()
    assert host(found).tolist() == [0, 2, 4, 6]


def test_the_latest_work_is_in_the_frame(device: na.Device) -> None:
    t = na.zeros(1 << 20).sync()
    stream = device.new_stream()
    for _ in range(20):
        add_one(t).async_on(stream)
    _, (frame,) = serialize.cuda_dumps(t)
    assert stream.query(), "whoever sends the frame knows no streams"
    assert host(serialize.cuda_loads({**serialize._header(t)}, [frame]))[-1] == 20


def test_dask_chooses_the_family_that_it_is_given(device: na.Device) -> None:
    t = na.arange(8).sync()
    for family in ("cuda", "dask"):
        header, frames = protocol.serialize(t, serializers=(family, "pickle"))
        assert header["serializer"] == family
        assert host(protocol.deserialize(header, frames)).tolist() == list(range(8))
    records = put(np.zeros(3, RECORD))
    header, frames = protocol.serialize(records, serializers=("cuda", "dask"))
    assert header["serializer"] == "dask", "Dask takes the next family"
    assert host(protocol.deserialize(header, frames)).tolist() == [(0, 0.0)] * 3
