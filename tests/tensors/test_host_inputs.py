"""What programs have their numbers in: pandas, Arrow, buffers, times, masks, long doubles."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import DTypeError, LauncherError, OperationError
from tests.common import copy_to, host

NAT = np.iinfo(np.int64).min
NS = 1_577_836_800_000_000_000  # of 2020-01-01
TIMES = np.array(["2020-01-01", "NaT"], "M8[ns]")
FRAME = pd.DataFrame({"a": [1, 2], "b": [3.0, 4.0]})
MASKED = np.ma.array([1, 2], mask=[False, True])


@na.launcher
@cuda.jit
def add(z: na.KernelOutput, k):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += k


# Two int64, which must come out of a kernel that copies.
TWO: dict[str, Callable[[], Any]] = {
    "series": lambda: pd.Series([1, 2]),
    "column": lambda: FRAME["a"],
    "index": lambda: pd.Index([1, 2]),
    "with gaps": lambda: pd.Series([1, 0, 2])[::2],
    "memoryview": lambda: memoryview(array("q", [1, 2])),
    "read-only memoryview": lambda: memoryview(np.array([1, 2]).tobytes()).cast("q"),
    "array.array": lambda: array("q", [1, 2]),
    "arrow": lambda: pa.array([1, 2]),
    "chunked": lambda: pa.chunked_array([[1], [2]]),
    "an empty chunk": lambda: pa.chunked_array([[1, 2], []], pa.int64()),
    "timedelta64": lambda: np.array([1, 2], "m8[h]"),
    "datetime64": lambda: np.array([1, 2], "M8[s]")[::1],
    "arrow's timestamps": lambda: pa.array(np.array([1, 2], "M8[us]")),
    "pandas' times": lambda: pd.Series(np.array([1, 2], "m8[s]")),
    "nothing masked": lambda: np.ma.array([1, 2], mask=[False, False]),
    "no mask": lambda: np.ma.array([1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("make", TWO.values(), ids=TWO)
def test_numbers_are_numbers_wherever_they_are(device: na.Device, make: Callable[[], Any]) -> None:
    x = make()
    z = na.zeros(2, np.int64).sync()
    result = copy_to(z, x).sync()
    assert result.x is x and host(z).tolist() == [1, 2]
    t = na.from_host(x).sync()
    assert (t.dtype, host(t).tolist()) == (np.int64, [1, 2])
    # Arrow's memory, which the CPU device uses in place, is for reading only.
    with pytest.raises(LauncherError, match=r"z (is|may be) written.*(would be lost|reading only)"):
        copy_to(x, z).sync()


def test_other_types_of_numbers(device: na.Device) -> None:
    for x, dtype in (
        (pd.Series([True, False]), np.bool_), (FRAME["b"], np.float64), (FRAME, np.float64),
        (pa.array([True, False]), np.bool_), (memoryview(b"abcd").cast("f"), np.float32),
        (pa.chunked_array([[1.5]], pa.float32()), np.float32), (bytearray(b"ab"), np.uint8),
    ):  # fmt: skip
        t = na.from_host(x).sync()
        assert t.dtype == dtype
        np.testing.assert_array_equal(host(t), np.asarray(x))


def test_times_are_integers_and_nat_is_the_least(device: na.Device) -> None:
    assert host(na.from_host(TIMES).sync()).tolist() == [NS, NAT]
    assert host(na.from_host(pd.Series(TIMES)).sync()).tolist() == [NS, NAT]
    z = na.zeros(2, np.int64).sync()
    steps = (np.timedelta64(5, "s"), np.datetime64(7, "D"), np.int64(1))
    for k in steps:
        result = add(z, k).sync()
        assert result.k is k
    before = na.compile_count()
    add(z, np.timedelta64(-13, "ns")).sync()
    assert na.compile_count() == before and host(z).tolist() == [0, 0]
    na.memcpy(z, TIMES).sync()
    assert host(z).tolist() == [NS, NAT]
    na.fill(z, 0).sync()
    add(z, np.datetime64("NaT")).sync()
    assert host(z).tolist() == [NAT, NAT]


def test_a_buffer_is_a_tensor_in_its_memory() -> None:
    (cpu, *_) = na.devices("cpu")
    numbers, times = array("d", [1, 2]), np.array([1, 2], "M8[s]")
    records = np.zeros(2, [("a", "i4"), ("b", "f8")])
    with na.use_device(cpu):
        for x in (numbers, memoryview(numbers), times, records, np.ma.array(numbers, mask=False)):
            na.as_tensor(x)
        na.fill(na.as_tensor(numbers), 7).sync()
        na.fill(na.as_tensor(times), 7).sync()
        assert na.as_tensor(pd.Series([1, 2])[::1]).dtype == np.int64
        assert na.as_tensor(memoryview(b"ab")).is_readonly
        t = na.as_tensor(records)
        assert t.dtype == records.dtype
        records["b"] = 7
        assert (host(t) == records).all()
        with pytest.raises(OperationError, match=r"without a copy(.|\n)*await na\.from_host"):
            na.as_tensor(pa.chunked_array([[1], [2]]))
    assert list(numbers) == [7, 7] and times.tolist() == np.array([7, 7], "M8[s]").tolist()


def test_structures_of_another_library_are_used_in_place(device: na.Device) -> None:
    records = np.zeros(2, np.dtype([("a", "i4"), ("b", "f8")], align=True))
    records["b"] = 7
    x = records if device.kind == "cpu" else cuda.to_device(records)
    t = na.as_tensor(x)
    assert (t.dtype, t.strides) == (records.dtype, (16,)) and (host(t) == records).all()


# --- refused -------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "nullable": (pd.Series([1, 2], dtype="Int64"), DTypeError, r"type Int64.*\n.*x\.to_numpy"),
    "categories": (pd.Series(["a"], dtype="category"), DTypeError, r"category.*\n.*x\.to_numpy"),
    "time zones": (
        pd.Series(TIMES).dt.tz_localize("UTC"), DTypeError, r"ns, UTC.*\n.*x\.to_numpy"
    ),
    "objects": (pd.Series([1, None], dtype=object), DTypeError, "cannot hold object; use"),
    "strings": (pa.chunked_array([["a"]]), DTypeError, "cannot hold object; use"),
    "nulls": (pa.array([1, None]), DTypeError, r"1 nulls(.|\n)*x\.fill_null\(value\)"),
    "nulls in chunks": (pa.chunked_array([[1], [None]]), DTypeError, r"1 nulls(.|\n)*fill_null"),
    "masked": (MASKED, OperationError, r"masked elements(.|\n)*array\.filled\(value\)"),
    "masked records": (
        np.ma.array(np.zeros(2, [("a", "i4")]), mask=[(True,), (False,)]),
        OperationError, r"masked elements(.|\n)*filled",
    ),
    "one that is masked": (np.ma.masked, OperationError, "filled"),
    "long doubles": (
        np.zeros(2, np.longdouble), DTypeError, r"cannot hold(.|\n)*astype\(np\.float64\)"
    ),
    "complex long doubles": (np.zeros(2, np.clongdouble), DTypeError, "np.complex128"),
    "letters": (memoryview(b"ab").cast("c"), DTypeError, "cannot hold"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_is_no_plain_number_is_refused(
    device: na.Device, case: tuple[Any, type[Exception], str]
) -> None:
    x, error, text = case
    z = na.zeros(2, np.int64).sync()
    with pytest.raises(error, match=text):
        na.from_host(x)
    with pytest.raises(error, match=f"kernel copy_to: x: (.|\n)*{text}"):
        copy_to(z, x)
    with pytest.raises((OperationError, DTypeError)):
        na.as_tensor(x)


def test_masks_are_not_lost_on_other_ways(device: na.Device) -> None:
    z = na.zeros(2, np.int64).sync()
    b = na.CommandBatch()
    for way in (
        lambda: na.memcpy(z, MASKED), lambda: z.copy_from(MASKED), lambda: b.upload(MASKED),
        lambda: na.HostBuffer.from_array(MASKED), lambda: na.concatenate([z, MASKED]),
        lambda: na.full(2, np.ma.masked), lambda: na.fill(z, np.ma.masked),
        lambda: na.from_host([MASKED, MASKED]),
    ):  # fmt: skip
        with pytest.raises(OperationError, match=r"array\.filled\(value\)"):
            way()


def test_nothing_is_copied_below_a_mask(device: na.Device) -> None:
    ones = na.ones(2, np.int64).sync()
    with pytest.raises(OperationError, match=r"stay masked\.\nWrite array\.data"):
        na.memcpy(MASKED, ones)
    bare = np.ma.array([0, 0], mask=[False, False])
    assert na.memcpy(bare, ones).sync() is bare and bare.tolist() == [1, 1]


def test_numbers_that_kernels_do_not_have(device: na.Device) -> None:
    z = na.zeros(2, np.int64).sync()
    for k, text in (
        (np.longdouble(1), r"kernel add: k: .*\n.*np\.float64\(x\)"),
        (np.clongdouble(1), r"np\.complex128\(x\)"),
        ((1, np.longdouble(1)), r"np\.float64\(x\)"),
        ((np.timedelta64(1, "s"),), r"time in a tuple.*\n.*view\(np\.int64\)"),
    ):
        with pytest.raises(DTypeError, match=text):
            add(z, k)
