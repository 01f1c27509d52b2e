"""Sorts by CUB on a GPU, beside the kernels here."""

from __future__ import annotations

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms import cub
from numbasync.errors import CallerError
from tests.common import full, host

pytestmark = pytest.mark.cuda
pytest.importorskip("cuda.compute")


@pytest.mark.parametrize(
    ("dtype", "descending"),
    [
        ("int32", False),
        *(full(dtype, True) for dtype in ("bool", "int8", "uint64")),
    ],
)
def test_the_bits_are_those_of_kernels(
    device: na.Device, dtype: str, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = cub.LEAST + 7
    info = np.iinfo(np.uint8 if dtype == "bool" else dtype)
    x = np.random.default_rng(1).integers(info.min, info.max, n, info.dtype, endpoint=True)
    t = na.to_device((x > 99) if dtype == "bool" else x, device).sync()
    by_cub = host(algorithms.sort(t, descending=descending))
    assert any(kind.descending is descending for kind, _ in cub._sorters)
    monkeypatch.setattr(type(device.backend), "has_cub", False)
    np.testing.assert_array_equal(by_cub, host(algorithms.sort(t, descending=descending)))


def test_in_order_with_other_work(device: na.Device) -> None:
    """It sorts behind the work before it on its stream, and later work comes behind it."""
    x = np.random.default_rng(1).integers(-(2**31), 2**31, 2**22, np.int32)
    stream = device.new_stream()
    for _ in range(3):
        t = na.to_device(x, device).sync_on(stream)
        done = algorithms.sort(t).then(lambda z, t=t: na.fill(t, 0).map(lambda _: z))
        np.testing.assert_array_equal(done.to_host().sync_on(stream), np.sort(x))


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    from numbasync.backend.cuda import driver

    monkeypatch.setenv(driver.CUB, "0")
    assert not driver.has_cub.__wrapped__()
    monkeypatch.setenv(driver.CUB, "no")
    with pytest.raises(CallerError, match="NUMBASYNC_CUB='no': write 0"):
        driver.has_cub.__wrapped__()
