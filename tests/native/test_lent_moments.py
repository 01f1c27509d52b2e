"""What a launch of other libraries' arrays uses is taken away whenever Python code runs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.device import address_map, foreign_streams
from numbasync.errors import AliasError
from numbasync.tensors import quick_import
from tests.common import full
from tests.native.attribute_libraries import ArrayImpl, Buffer, of_numba
from tests.native.lending_library import Array, State
from tests.native.moments import Moments, overwrite
from tests.native.test_callers_launch import add as add_there
from tests.native.test_lent_arrays import add, ones

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


def take_away(arrays: list[Array]) -> None:
    """Give the arrays other memory, forget what is known of their kinds and addresses, and import
    them meanwhile.
    """
    again = [na.as_tensor(x) for x in arrays]
    for x in arrays:
        x.array = np.zeros(3)
    quick_import._kinds.clear()
    address_map._regroup(0, 2**64, None)
    overwrite()
    del again
    gc.collect()


def at_every_moment(
    stream: na.Stream, launch: Callable[[list[Any]], object], make: Callable[[], Any] = ones
) -> None:
    def at(moment: int) -> int:
        arrays = [make() for _ in range(2)]
        with Moments(lambda: take_away(arrays), moment) as moments, suppress(AliasError):
            launch(arrays)
        stream.synchronize()
        return moments.count

    count = [at(0) for _ in range(3)][-1]  # now nothing is compiled
    for moment in range(1, count + 1):
        at(moment)
    gc.collect()
    assert State.kept == {}


def test_on_a_stream_of_ours(null: na.Device) -> None:
    stream = null.new_stream()
    at_every_moment(stream, lambda arrays: add(*arrays, arrays[-1]).async_on(stream))


@full
@pytest.mark.parametrize("make", [Buffer, ArrayImpl, of_numba])
def test_arrays_that_python_reads(null: na.Device, make: Callable[[Any], Any]) -> None:
    stream = null.new_stream()
    at_every_moment(
        stream, lambda arrays: add(*arrays, arrays[-1]).async_on(stream),
        lambda: make(np.ones(8, np.float32)),
    )  # fmt: skip


def test_on_the_librarys_stream(null: na.Device) -> None:
    theirs = null.new_stream()
    State.stream = theirs.backend.handle_number
    foreign_streams._kept[null, State.stream] = theirs
    try:
        at_every_moment(theirs, lambda arrays: add_there(*arrays, 1.0).async_on())
    finally:
        foreign_streams._kept.clear()
        State.stream = 0
