"""What is handed to other libraries, and what comes back: one record of use for one memory.

The CPU device lends as a GPU does here, to a library that notes what it is told.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.device import address_map
from numbasync.errors import AliasError
from numbasync.testing import Gate
from tests.common import add_one, fresh, saxpy
from tests.lenders import Lent


class Export:
    """What a device with streams for its consumers lends; `told`: what came with each request."""

    protocols = frozenset({"__cuda_array_interface__", "__dlpack__", "__dlpack_device__"})
    waits = False
    told: list[dict[str, Any]] = []

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def interface(self, after: Any, source: Any) -> dict[str, Any]:
        self.told.append({"after": after, "source": source})
        return {"data": (self._array.ctypes.data, False)}

    def dlpack_device(self) -> tuple[int, int]:
        return 1, 0

    def dlpack(self, after: Any, source: Any, *how: Any) -> Any:
        self.told.append({"after": after, "source": source, "how": how})
        return self._array.__dlpack__()


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[na.Device]:
    (device, *_) = na.devices("cpu")
    monkeypatch.setattr(
        type(device.backend), "lend", lambda self, array, memory, keep: Export(array.array)
    )
    Export.told = []
    with na.use_device(device):
        yield device


def told() -> dict[str, Any]:
    return Export.told[-1]


def test_a_consumer_comes_behind_writer_and_readers(cpu: na.Device) -> None:
    streams = [cpu.new_stream() for _ in range(3)]
    t = na.zeros(8).sync()
    with Gate(streams[0]), Gate(streams[1]):
        add_one(t).async_on(streams[0])
        na.zeros(8).async_on(streams[2])
        assert t.__dlpack__(stream=7).__class__.__name__ == "PyCapsule"
        assert told() == {
            "after": [streams[0].backend], "source": None, "how": (7, None, None, None)
        }  # fmt: skip
        t.to_host().async_on(streams[1])
        assert t[2:].__cuda_array_interface__["data"][0] == t.storage.memory.address + 8
        assert told()["after"] == [s.backend for s in streams[:2]]
        t.__dlpack__(stream=-1, max_version=(1, 0), dl_device=(1, 0), copy=False)
        assert told() == {"after": [], "source": None, "how": (-1, (1, 0), (1, 0), False)}
    cpu.synchronize()
    t.__dlpack__()
    assert told()["after"] == []
    assert t.__dlpack_device__() == (1, 0)


def test_a_consumer_comes_behind_those_who_overlap(cpu: na.Device) -> None:
    stream = cpu.new_stream()
    array = np.zeros(8, np.float32)
    t, part = na.as_tensor(array), na.as_tensor(array[2:4])
    with Gate(stream):
        add_one(part).async_on(stream)
        t.__dlpack__()
        assert told()["after"] == [stream.backend]
        assert told()["source"] is t.source


async def test_what_stands_in_line_is_submitted_first(cpu: na.Device) -> None:
    stream = cpu.new_stream()
    t = await na.zeros(8)
    with Gate(stream):
        future = na.spawn(fresh()(t), stream)
        assert hasattr(t, "__dlpack__") and not Export.told
        t.__dlpack__()
        assert told()["after"] == [stream.backend]
    await asyncio.wait_for(asyncio.ensure_future(_wait(future)), 300)


async def _wait(future: Any) -> Any:
    return await future


def test_a_returned_tensor_has_its_own_record(cpu: na.Device) -> None:
    t = na.arange(8).sync()
    t.__dlpack__()
    array = t.handle.array  # what a library makes of the capsule
    for back in (Lent(array), Lent(array[2:6]), Lent(array[::-1])):
        again = na.as_tensor(back)
        assert again.storage is t.storage
        np.testing.assert_array_equal(again.to_host().sync(), back.array)
        with pytest.raises(AliasError, match="same storage"):
            saxpy(t, 1.0, back).sync()
        with pytest.raises(AliasError, match="same storage"):
            saxpy(again[:2], 1.0, t[6:])
    assert na.as_tensor(Lent(np.zeros(8, np.float32))).storage is not t.storage


def test_a_returned_tensor_of_another_librarys_memory(cpu: na.Device) -> None:
    t = na.as_tensor(Lent(np.zeros(8, np.float32)))
    assert t.__dlpack__()
    assert na.as_tensor(Lent(t.handle.array)).storage is t.storage


def test_two_devices_with_one_memory_are_ordered(cpu: na.Device) -> None:
    other = next(d for d in na.devices("cpu") if d is not cpu)
    one, two = cpu.new_stream(), other.new_stream()
    array = np.zeros(8, np.float32)
    a, b = na.as_tensor(array), na.as_tensor(array, other)
    assert a.storage is not b.storage
    with Gate(one):
        na.fill(a, 5).async_on(one)
        add_one(b).async_on(two)
        cpu.backend.quiesce()
        other.backend.quiesce()
        assert not two.query()
    two.synchronize()
    assert array.tolist() == [6] * 8


def living() -> int:
    return sum(entry.ref() is not None for entry in address_map._entries.values())


def test_nothing_is_left_of_arrays_that_are_gone(cpu: na.Device) -> None:
    gc.collect()
    before = living()
    array = np.zeros(100, np.float32)
    tensors = [na.as_tensor(array[i:]) for i in range(50)]
    first = tensors[0].storage
    assert living() == before + 50
    del tensors
    gc.collect()
    assert living() == before + 1
    for _ in range(100):
        na.as_tensor(array[1:])
    assert len(first.links or ()) == 1 and not list(first.overlapping())
