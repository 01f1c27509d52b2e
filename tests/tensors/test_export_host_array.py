"""Memory of the CPU device in the hands of other libraries, by DLPack."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.backend.cpu.runtime.streams import CpuStream
from numbasync.errors import AliasError, ReentrancyError
from numbasync.testing import Gate
from tests.common import add_one, fresh, saxpy

pytestmark = pytest.mark.usefixtures("cpu")


class Old:
    """A consumer of before DLPack had versions, such as older PyTorch."""

    def __init__(self, tensor: na.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **how: Any) -> Any:
        return self.tensor.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


DTYPES = ["?", "b", "B", "h", "H", "i", "I", "l", "L", "e", "f", "d", "F", "D"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_lent_as_it_is(dtype: str) -> None:
    values = np.arange(5).astype(dtype)
    t = na.from_host(values).sync()
    for lent in (np.from_dlpack(t), np.from_dlpack(Old(t))):
        assert lent.dtype == values.dtype and lent.tolist() == values.tolist()
        assert lent.ctypes.data == t.storage.memory.address


def test_every_layout_is_lent_without_a_copy() -> None:
    values = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    t = na.from_host(values).sync()
    keys: tuple[Any, ...] = (
        ..., np.s_[1:, ::2, ::-2], np.s_[2], np.s_[1, 2, 3], np.s_[:, None, 2], np.s_[0:0],
    )  # fmt: skip
    for key in keys:
        np.testing.assert_array_equal(np.from_dlpack(t[key]), values[key])
    np.from_dlpack(t[1:, ::2, ::-2])[...] = -1
    values[1:, ::2, ::-2] = -1
    np.testing.assert_array_equal(t.to_host().sync(), values)


def test_what_the_consumer_asks_for() -> None:
    t = na.arange(4).sync()
    copied = np.from_dlpack(t, copy=True)
    copied[:] = 9
    assert np.from_dlpack(t, device="cpu", copy=False).tolist() == [0, 1, 2, 3]
    assert t.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="say None, not 7"):
        t.__dlpack__(stream=7)
    with pytest.raises(BufferError):
        t.__dlpack__(dl_device=(2, 0))
    assert t.__dlpack__(stream=-1)


def test_what_is_for_reading_only_stays_so() -> None:
    array = np.arange(3, dtype=np.float32)
    array.flags.writeable = False
    t = na.as_tensor(array)
    assert not np.from_dlpack(t).flags.writeable
    assert np.from_dlpack(na.ones(3).sync()).flags.writeable
    with pytest.raises(BufferError):  # there is no way to say so
        t.__dlpack__()


def test_the_memory_lives_as_long_as_its_consumer(cpu: na.Device) -> None:
    t = na.full(64, 3).sync()
    storage = weakref.ref(t.storage)
    array = np.from_dlpack(t)
    del t
    gc.collect()
    assert storage() is not None and (array == 3).all()
    again = na.as_tensor(array)
    assert again.storage is storage()
    with pytest.raises(AliasError, match="same storage"):
        saxpy(again, 1.0, na.as_tensor(array[1:]))
    del array, again
    gc.collect()
    assert storage() is None


@pytest.mark.parametrize("pending", ["writer", "reader", "overlapping", "elsewhere", "replay"])
def test_lending_waits_for_the_work_on_it(
    cpu: na.Device, pending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.zeros(8, np.float32)
    t = na.as_tensor(array)
    device = na.devices("cpu")[1] if pending == "elsewhere" else cpu
    stream = device.new_stream()
    gate = Gate(stream)
    graph = add_one(t).graph_on(stream) if pending == "replay" else None
    waited = []
    synchronize = CpuStream.synchronize

    def opening(self: CpuStream) -> None:
        waited.append(self)
        gate.open()
        synchronize(self)

    gate.close()
    try:
        if graph is not None:
            graph.launch().async_on(stream)
        elif pending == "reader":
            t.to_host().async_on(stream)
        elif pending == "overlapping":
            add_one(na.as_tensor(array[2:4])).async_on(stream)
        elif pending == "elsewhere":
            add_one(na.as_tensor(array, device)).async_on(stream)
        else:
            add_one(t).async_on(stream)
        monkeypatch.setattr(CpuStream, "synchronize", opening)
        seen = np.from_dlpack(t).copy()
    finally:
        gate.open()
    assert waited == [stream.backend]
    assert seen[2] == (0 if pending == "reader" else 1)


async def test_what_stands_in_line_comes_first() -> None:
    t = await na.zeros(4)
    future = na.spawn(fresh()(t))
    assert np.from_dlpack(t).tolist() == [1] * 4
    await future


def test_no_lending_while_an_operation_is_enqueued(cpu: na.Device) -> None:
    t = na.zeros(4).sync()
    with pytest.raises(ReentrancyError):
        add_one(t).map(lambda r: np.from_dlpack(r.z)).sync()
    with na.CudaGraph.scope(cpu.new_stream()) as s:
        s.record(add_one(t))
        with pytest.raises(ReentrancyError):
            np.from_dlpack(t)
    assert np.from_dlpack(t).tolist() == [1] * 4
