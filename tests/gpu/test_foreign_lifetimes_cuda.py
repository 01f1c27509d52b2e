"""Streams of Numba, CuPy, PyTorch and cuda.core as ours: who keeps whom alive, and handles that
come again.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from numba import cuda

import numbasync as na
from numbasync.testing import settle
from tests.common import add_one
from tests.gpu.stream_libraries import (
    LIBRARIES,
    SIZE,
    Library,
    Other,
    cupy_library,
    loaded,
)

pytestmark = [
    pytest.mark.cuda,
    # Numba finds small grids wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, device: na.Device) -> Library:
    return loaded(request.param, device)


async def test_their_stream_lives_as_long_as_our_work(device: na.Device, library: Library) -> None:
    # By a weak reference to ours, which holds theirs: not every library's streams take one, and
    # PyTorch's leave it behind when they go.
    s, z = library.stream(), await na.zeros(SIZE)
    ours = na.Stream.of(s)
    kind, there = type(s), weakref.ref(ours)
    number, release = ours.number, ours.backend.hold()
    try:
        add_one(z).async_on(s)
        del s, ours
        gc.collect()
        await settle(device)
        kept: Any = there()
        assert kept is not None and kept.number == number
        assert [type(owner) for owner in kept._owners.values()] == [kind]
        del kept
    finally:
        release()
    device.synchronize()
    assert (await z.to_host() == 1).all()
    na.fill(z, 1).sync()  # what it wrote last is on another stream
    gc.collect()
    assert there() is None
    again = library.stream()
    assert na.Stream.of(again).number > number  # also with the same handle
    add_one(z).sync_on(again)
    assert (await z.to_host() == 2).all()


def test_our_stream_keeps_the_owner_that_came_second(device: na.Device) -> None:
    cupy = pytest.importorskip("cupy")
    cupy_library(device)
    s = cupy.cuda.Stream()
    ours = na.Stream.of(Other(s))
    na.Stream.of(s)
    there = weakref.ref(s)
    del s
    gc.collect()
    assert there() is not None
    add_one(na.zeros(SIZE)).sync_on(ours)
    del ours
    gc.collect()
    assert there() is None


def test_a_handle_that_comes_again_is_another_stream(device: na.Device) -> None:
    cupy = pytest.importorskip("cupy")
    cupy_library(device)
    z, s = na.zeros(SIZE).sync(), cupy.cuda.Stream()
    number = s.ptr
    old = na.Stream.of(cuda.external_stream(number))  # does not own it
    add_one(z).sync_on(old)
    old.synchronize()
    del s  # destroyed
    gc.collect()
    kept = []
    for _ in range(200):
        kept.append(cupy.cuda.Stream())
        if kept[-1].ptr == number:
            break
    else:
        pytest.skip("the driver has given no handle twice")
    new = na.Stream.of(kept[-1])
    assert new is not old and new.backend.handle_number == number
    add_one(z).sync_on(new)
    assert (z.to_host().sync() == 2).all()


def test_streams_that_come_and_go_need_no_pages(
    device: na.Device, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = pytest.importorskip("numbasync.backend.cuda.completion_words")
    z, pages, page = na.zeros(SIZE).sync(), [], words.CompletionCounters._page
    monkeypatch.setattr(
        words.CompletionCounters, "_page", staticmethod(lambda: pages.append(1) or page())
    )
    for _ in range(200):
        add_one(z).sync_on(library.stream())
    assert len(pages) <= 1
    assert (z.to_host().sync() == 200).all()


def test_our_queue_is_ours_while_numba_has_it(device: na.Device) -> None:
    stream = device.new_stream()
    number, theirs = stream.backend.handle_number, stream.numba
    del stream
    gc.collect()
    others = [device.new_stream() for _ in range(8)]
    assert number not in [each.backend.handle_number for each in others]
    assert na.Stream.of(theirs).backend.handle_number == number
    del theirs
    gc.collect()
    # Dropped, and asked for by its handle: the queue itself, for the only one who has it.
    again = na.Stream.of(cuda.external_stream(number))
    assert type(again) is na.Stream
    others += [device.new_stream() for _ in range(8)]
    assert number not in [each.backend.handle_number for each in others]
