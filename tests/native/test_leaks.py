"""Everything that a launch creates is freed: thousands of calls leave as many objects as before."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import layout, native
from numbasync.errors import AliasError, DriverError
from numbasync.testing import inject
from tests.common import add_one, saxpy, waited
from tests.native.null_device import library

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
TIMES = 200
SMALLEST = object.__basicsize__  # bytes that a call leaves behind, if it leaves anything
clear_caches: Callable[[], None] = getattr(
    sys, "_clear_internal_caches" if sys.version_info >= (3, 13) else "_clear_type_cache"
)
COUNTED = ("Submission", "Launch", "Storage", "Tensor", "_Enqueued", "LaunchResult", "Zip", "Then")
LARGE = itertools.count(2**40)  # references to small numbers are not counted from Python 3.12 on


def objects() -> Counter[str]:
    """The live objects of the classes that launches make, by class. What Python itself has kept is
    freed: its cache of methods keeps up to 4096 names, also those that ctypes, NumPy and asyncio
    make anew at each look-up, 55 bytes each.
    """
    clear_caches()
    gc.collect()
    return Counter(n for o in gc.get_objects() if (n := type(o).__name__) in COUNTED)


def wrong(_: Any) -> Any:
    raise ValueError("wrong")


def refused(call: Callable[[], Any], kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        call()


class Work:
    """Kinds of work on one device."""

    def __init__(self, device: na.Device) -> None:
        self.device = device
        self.stream, self.other = device.new_stream(), device.new_stream()
        self.z, self.x = (na.zeros(8).sync_on(self.stream) for _ in range(2))

    def launches(self) -> None:
        add_one(self.z).async_on(self.stream)

    def waits(self) -> None:
        saxpy(self.z, 1.0, self.x).sync_on(self.stream)

    def two_streams(self) -> None:
        add_one(self.z).async_on(self.stream)
        add_one(self.z).async_on(self.other)

    def zips(self) -> None:
        na.zip(*(add_one(self.z) for _ in range(3)), na.value(1)).async_on(self.stream)

    def chains(self) -> None:
        add_one(self.z).then(lambda r: saxpy(r.z, 2.0, self.x)).first().sync_on(self.stream)

    def views(self) -> None:
        add_one(self.z[2:6]).async_on(self.stream)
        add_one(self.z.partition(4)).async_on(self.stream)

    def fresh_tensors(self) -> None:
        add_one(na.zeros(8).async_on(self.stream)).async_on(self.stream)

    def dropped(self) -> None:
        add_one(self.z).suppress_warning()

    def aliases(self) -> None:
        refused(lambda: saxpy(self.z, 1.0, self.z).async_on(self.stream), AliasError)

    def errors_in_closures(self) -> None:
        refused(lambda: add_one(self.z).then(wrong).async_on(self.stream), ValueError)

    def awaits(self) -> None:
        async def main() -> None:
            for _ in range(10):
                await add_one(self.z)
            await na.gather(*(saxpy(self.z, 1.0, self.x) for _ in range(10)))
            await asyncio.gather(waited(add_one(self.z)), waited(add_one(self.z).first()))

        self.loop.run_until_complete(main())

    def cancelled(self) -> None:
        async def main() -> None:
            task = asyncio.ensure_future(waited(na.zip(add_one(self.z), add_one(self.x))))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.loop.run_until_complete(main())

    def kernels_that_fail(self) -> None:
        with inject(self.device, "kernel"):
            refused(lambda: add_one(self.z).sync_on(self.stream), na.errors.KernelError)

    def refused_by_the_driver(self) -> None:
        library().null_fail(1, 0)
        refused(lambda: add_one(self.z).async_on(self.stream), DriverError)
        refused(lambda: na.zip(add_one(self.z), add_one(self.z)).async_on(self.stream), DriverError)
        library().null_fail(0, 0)

    loop: asyncio.AbstractEventLoop


KINDS = [name for name, value in vars(Work).items() if callable(value) and name != "__init__"]


def places_that_grow(rounds: Callable[[], object]) -> str:
    """Where the memory was allocated that two more rounds leave behind."""
    tracemalloc.stop()
    tracemalloc.start(12)
    rounds()
    before = tracemalloc.take_snapshot()
    rounds()
    rounds()
    grown = tracemalloc.take_snapshot().compare_to(before, "traceback")
    return "\n\n".join(
        f"{place.size_diff} bytes\n" + "\n".join(place.traceback.format(5))
        for place in grown[:8]
        if place.size_diff > 0
    )


def leaves_nothing(device: na.Device, kind: str) -> None:
    # What compiles by itself on another thread would be measured too, and CPython may break it when
    # `gc.get_objects` sees its half-made tuples.
    device.backend.warm_up()
    work = Work(device)
    work.loop = asyncio.new_event_loop()
    try:
        call: Callable[[], None] = getattr(work, kind)
        times = TIMES // 10 if kind in ("awaits", "cancelled", "kernels_that_fail") else TIMES

        def rounds() -> tuple[Counter[str], int, list[int]]:
            for _ in range(times):
                call()
            # Whether a cancelled call has written one tensor, both or none depends on the moment;
            # each tensor keeps its latest writer.
            for tensor in (work.z, work.x):
                add_one(tensor).sync_on(work.stream)
            device.synchronize()
            references = [sys.getrefcount(o) for o in (work.z, work.x, work.z.storage, add_one)]
            return objects(), len(device.busy), references

        rounds()
        first = rounds()
        assert first[1] == 0, "no stream is at work"
        tracemalloc.start()
        sizes = []
        for _ in range(4):
            assert rounds() == first
            sizes.append(tracemalloc.get_traced_memory()[0])
        grown = [after - before for before, after in pairwise(sizes)]
        # Memos grow now and then; what a call leaves behind, each time.
        if min(grown) >= SMALLEST * times:
            pytest.fail(f"{grown} bytes in {times} calls\n{places_that_grow(rounds)}")
    finally:
        tracemalloc.stop()
        work.loop.close()


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_null_driver(null: na.Device, on: bool, kind: str) -> None:
    leaves_nothing(null, kind)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "refused_by_the_driver"])
def test_on_a_device(device: na.Device, kind: str) -> None:
    leaves_nothing(device, kind)


def test_records_are_freed_with_their_stream(null: na.Device) -> None:
    stream = null.new_stream()
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    (record,) = stream.backend.records.values()
    refs = sys.getrefcount(record)
    for _ in range(100):
        add_one(z).sync_on(stream)
        na.zip(add_one(z), add_one(z)).sync_on(stream)
    assert sys.getrefcount(record) == refs
    gone = weakref.ref(z.storage)
    null.synchronize()
    stream.backend.records.clear()
    del z
    gc.collect()
    assert gone() is None


def test_buffers_of_records_are_freed(null: na.Device) -> None:
    tracemalloc.start()
    for _ in range(100):
        native.core.LaunchRecord(1, (1, 1, 1), (1, 1, 1), 0, 2, 10_000, [("i", 0)], ())
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 20_000


def test_results_have_no_more_references_than_in_python(null: na.Device) -> None:
    stream, z, x = null.new_stream(), na.zeros(8).sync(), na.zeros(8).sync()
    a = np.float64(0.1234567)
    counts = []
    for on in (False, True):
        native.switch(on)
        result = None
        for _ in range(20):
            result = saxpy(z, a, x).sync_on(stream)
        held = (a, z, x, result, z.storage, z.storage.writer)
        counts.append([sys.getrefcount(o) for o in held])
        del held
        del result
    assert counts[0] == counts[1]


def test_fingerprints_are_freed_with_the_calls(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_numbers", LARGE)
    stream = null.new_stream()
    tensors = [na.zeros(n).sync_on(stream) for n in (40_961, 40_963)]  # of no other test

    def references() -> list[int]:
        for _ in range(20):
            for z in tensors:
                add_one(z).sync_on(stream)
        return [sys.getrefcount(z._fingerprint) for z in tensors]

    references()
    assert min(z._fingerprint for z in tensors) >= 2**40
    assert references() == references()
