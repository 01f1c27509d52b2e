"""Collectives of several devices of this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.collective import all_gather, all_reduce, broadcast, reduce_scatter
from numbasync.errors import CallerError, DTypeError, NotAGraphNodeError, ShapeError
from tests.collective.ranks import part
from tests.common import full

COUNT = 2


@pytest.fixture
def devices() -> list[na.Device]:
    return na.devices("cpu")[:COUNT]


def parts_on(devices: list[na.Device], size: int, dtype: str = "float32") -> list[na.Tensor]:
    return [na.to_device(part(i, size, dtype), device).sync() for i, device in enumerate(devices)]


def elements(tensors: tuple[na.Tensor, ...], devices: list[na.Device]) -> list[Any]:
    assert [t.device for t in tensors] == devices
    return [t.to_host().sync_on(d.new_stream()) for t, d in zip(tensors, devices, strict=True)]


@pytest.mark.parametrize("size", [0, 1, 6, 100_000])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [("sum", "float32"), full("avg", "float64"), ("prod", "int32"), ("min", "uint8"),
     full("max", "int64"), full("sum", "complex64"), full("avg", "complex128"),
     ("prod", "complex128"), ("sum", "bool"), full("prod", "bool"), full("min", "bool"),
     ("max", "bool")],
)  # fmt: skip
def test_all_reduce(devices: list[na.Device], size: int, op: str, dtype: str) -> None:
    a, b = (part(i, size, dtype) for i in range(COUNT))
    expected = {
        "sum": lambda: a + b,
        "avg": lambda: (a + b) / 2,
        "prod": lambda: a * b,
        "min": lambda: np.minimum(a, b),
        "max": lambda: np.maximum(a, b),
    }[op]()
    got = elements(all_reduce(parts_on(devices, size, dtype), op).sync(), devices)
    # NumPy may round a product of complex numbers once less.
    tolerance = 1e-15 if (op, dtype) == ("prod", "complex128") else 0
    for array in got:
        np.testing.assert_allclose(array, expected, rtol=tolerance)


def test_all_reduce_in_place_and_to_given_tensors(devices: list[na.Device]) -> None:
    parts, out = parts_on(devices, 1000), parts_on(devices, 1000)
    total = part(0, 1000) + part(1, 1000)
    assert all_reduce(parts, out=out).sync() == tuple(out)
    for array in elements(tuple(out), devices):
        np.testing.assert_array_equal(array, total)
    all_reduce(parts, out=parts).sync()
    for array in elements(tuple(parts), devices):
        np.testing.assert_array_equal(array, total)
    with pytest.raises(ShapeError, match="cannot be written to"):
        all_reduce(parts, out=[t[:10] for t in out])
    with pytest.raises(CallerError, match="out has 1 tensors for 2 devices"):
        all_reduce(parts, out=out[:1])


def test_nan_is_the_least_and_the_greatest(devices: list[na.Device]) -> None:
    rows = np.array([[1, np.nan], [np.nan, 1]], np.float32)
    parts = [na.to_device(row, device).sync() for row, device in zip(rows, devices, strict=True)]
    for op in ("min", "max"):
        for array in elements(all_reduce(parts, op).sync(), devices):
            assert np.isnan(array).all()


def test_the_others(devices: list[na.Device]) -> None:
    arrays = [part(i, 12).reshape(6, 2) for i in range(COUNT)]
    parts = [na.to_device(a, d).sync() for a, d in zip(arrays, devices, strict=True)]
    whole = arrays[0] + arrays[1]
    got = elements(reduce_scatter(parts).sync(), devices)
    np.testing.assert_array_equal(np.concatenate(got), whole)
    for array in elements(all_gather(parts).sync(), devices):
        np.testing.assert_array_equal(array, np.concatenate(arrays))
    for array in elements(broadcast(parts, 1).sync(), devices):
        np.testing.assert_array_equal(array, arrays[1])


@pytest.mark.parametrize("dtype", ["bool", "complex64"])
def test_the_others_of_bool_and_complex(devices: list[na.Device], dtype: str) -> None:
    parts, arrays = parts_on(devices, 6, dtype), [part(i, 6, dtype) for i in range(COUNT)]
    got = elements(reduce_scatter(parts).sync(), devices)
    np.testing.assert_array_equal(np.concatenate(got), arrays[0] + arrays[1])
    for array in elements(all_gather(parts).sync(), devices):
        np.testing.assert_array_equal(array, np.concatenate(arrays))
    for array in elements(broadcast(parts, 1).sync(), devices):
        np.testing.assert_array_equal(array, arrays[1])


async def test_order_with_what_comes_before_and_after(devices: list[na.Device]) -> None:
    """Every part is read after its last write, and before the next one."""
    parts = parts_on(devices, 1000)
    for _ in range(20):
        for i, (t, device) in enumerate(zip(parts, devices, strict=True)):
            na.spawn(na.fill(t, i + 1), device.policy)
        reduced = na.spawn(all_reduce(parts))
        for t, device in zip(parts, devices, strict=True):
            na.spawn(na.fill(t, -1), device.policy)
        for array in elements(await reduced, devices):
            assert (array == 3).all()


def test_what_is_wrong_is_refused(devices: list[na.Device]) -> None:
    a, b = parts_on(devices, 6)
    with pytest.raises(CallerError, match="a list with one tensor a device"):
        all_reduce(a)  # type: ignore[call-overload]
    with pytest.raises(CallerError, match="no tensors"):
        all_reduce([])
    with pytest.raises(DTypeError, match="one tensor a device, not 3"):
        all_reduce([a, 3])  # type: ignore[list-item]
    with pytest.raises(ShapeError, match="whose shapes differ"):
        all_reduce([a, b[:3]])
    with pytest.raises(DTypeError, match="whose dtypes differ"):
        all_reduce([a, parts_on(devices, 6, "int32")[1]])
    with pytest.raises(ShapeError, match="not contiguous"):
        all_reduce([a[::2], b[::2]])
    with pytest.raises(CallerError, match="cpu:0 has several"):
        all_reduce([a, a])
    with pytest.raises(ShapeError, match=r"cuts the first axis of \(3,\) into 2 equal parts"):
        reduce_scatter([a[:3], b[:3]])
    with pytest.raises(CallerError, match="ranks 0 to 1, and not 2"):
        broadcast([a, b], 2)
    for op in ("min", "max"):
        with pytest.raises(DTypeError, match="of complex64 is not defined: .* have no order"):
            all_reduce(parts_on(devices, 6, "complex64"), op)
    with pytest.raises(DTypeError, match="avg of elements of bool is not"):
        all_reduce(parts_on(devices, 6, "bool"), "avg")
    rows = [na.to_device(np.zeros(3, "f4,i4"), d).sync() for d in devices]
    with pytest.raises(DTypeError, match="Reduce each field by itself"):
        all_reduce(rows)
    with pytest.raises(NotAGraphNodeError, match="runs on several devices"):
        all_reduce([a, b]).graph_on(devices[0].new_stream())
