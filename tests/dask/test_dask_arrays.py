"""Kernels on the chunks of Dask arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import OperationError
from tests.common import add_one, saxpy

da = pytest.importorskip("dask.array", reason="needs the extra dask")


@pytest.fixture(autouse=True)
def in_this_thread() -> Any:
    from dask import config

    with config.set(scheduler="sync"):
        yield


def doubled(x: Any) -> na.DeviceOp[na.Tensor]:
    return na.zeros(x.shape).then(lambda z: saxpy(z, 2.0, x)).output()


def test_blocks_of_numpy(device: na.Device) -> None:
    values = np.arange(10, dtype=np.float32)
    x = na.dask.map_blocks(doubled, da.from_array(values, chunks=3), dtype=np.float32)
    assert x.dtype == np.float32 and x.chunks == ((3, 3, 3, 1),)
    np.testing.assert_array_equal((x + 1).compute(), 2 * values + 1)
    assert float(x.sum().compute()) == 90


def test_blocks_that_stay_on_the_device(device: na.Device) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    blocks = da.from_array(values, chunks=(3, 4))

    def upload(x: Any) -> na.DeviceOp[na.Tensor]:
        return na.from_host(np.ascontiguousarray(x))

    def plus_one(t: na.Tensor) -> na.DeviceOp[na.Tensor]:
        assert type(t) is na.Tensor
        return add_one(t.reshape(-1)).output().reshape(*t.shape)

    on_device = na.dask.map_blocks(upload, blocks, dtype=np.float32, on_device=True)
    whole = on_device.compute()
    assert type(whole) is na.Tensor
    np.testing.assert_array_equal(whole.to_host().sync(), values)
    x = na.dask.map_blocks(plus_one, on_device, dtype=np.float32)
    np.testing.assert_array_equal(x.compute(), values + 1)


def test_several_arrays_and_other_shapes(device: na.Device) -> None:
    x, y = (da.ones(8, chunks=4, dtype=np.float32) * n for n in (2, 3))

    def added(a: Any, b: Any) -> na.DeviceOp[na.Tensor]:
        return saxpy(na.from_host(b), 1.0, a).output()

    np.testing.assert_array_equal(
        na.dask.map_blocks(added, x, y, dtype="f4").compute(), np.full(8, 5)
    )

    def first(a: Any) -> na.DeviceOp[na.Tensor]:
        return na.from_host(a[:1].copy())

    short = na.dask.map_blocks(first, x, dtype="f4", chunks=(1,))
    assert short.compute().tolist() == [2, 2]


def test_what_is_no_operation_is_refused(device: na.Device) -> None:
    x = da.ones(4, chunks=2)
    with pytest.raises(OperationError, match="a function of a block, not int"):
        na.dask.map_blocks(3, x, dtype="f4")  # type: ignore[arg-type]
    with pytest.raises(OperationError, match="makes an operation, not ndarray"):
        na.dask.map_blocks(lambda block: block, x, dtype="f4").compute()
    with pytest.raises(OperationError, match="gives a tensor"):
        na.dask.map_blocks(lambda b: saxpy(na.zeros(2), 1.0, b), x, dtype="f4").compute()
