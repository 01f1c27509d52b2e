"""Algorithms of more elements than an int32 counts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from tests.common import host

N = 2**31 + 9  # of int8


@pytest.fixture
def whole_memory(device: na.Device) -> Iterator[None]:
    """A pool of all the GPU has: that of a test run is a part of it for each process."""
    before, device.pool = device.pool, device.new_pool()
    yield
    device.pool = before


@pytest.mark.full
@pytest.mark.cuda(min_memory=48 * 2**30)
@pytest.mark.usefixtures("whole_memory")
def test_more_elements_than_an_int32_counts() -> None:
    x = na.zeros(N, np.int8).sync()
    na.fill(x[N - 5 :], 3).sync()
    na.fill(x[2:3], -1).sync()
    assert host(algorithms.sum(x)) == 14
    assert (host(algorithms.argmax(x)), host(algorithms.argmin(x))) == (N - 5, 2)
    assert host(algorithms.count_nonzero(x)) == 6
    last, places = algorithms.topk(x, 2).sync()
    assert (host(last).tolist(), host(places).tolist()) == ([3, 3], [N - 5, N - 4])
    assert host(algorithms.sort(x).sync()[-6:]).tolist() == [0, 3, 3, 3, 3, 3]
    wanted = algorithms.select(x, x.astype(np.bool_)).sync()
    assert host(wanted).tolist() == [-1, 3, 3, 3, 3, 3]
    most = algorithms.scan(x, "max").sync()
    assert (host(most[:3]).tolist(), host(most[N - 6 :]).tolist()) == ([0, 0, 0], [0] + [3] * 5)
    sums = algorithms.cumsum(x).sync()
    assert host(sums[N - 6 :]).tolist() == [-1, 2, 5, 8, 11, 14]
