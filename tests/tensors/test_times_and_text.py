"""Times, and records with fields of times, bytes and text."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import dtypes
from numbasync.errors import DTypeError
from numbasync.testing import counters
from tests.common import host

LARGE = 100_000  # elements: more bytes than one thread copies


@na.launcher
@cuda.jit
def count_up(r: na.KernelOutput):
    i = cuda.grid(1)
    if i < r.shape[0]:
        r[i].n += 1


FIELDS: dict[str, Any] = {
    "bytes": ("S5", [b"abc", b"hello", b""]),
    "text": ("U3", ["ab", "\u03b1\u03b2\u03b3", ""]),
    "time": ("M8[s]", ["2020-01-01", "NaT", "1969-12-31T23:59:59"]),
    "span": ("m8[ns]", [1, -5, 2**62]),
    "nested": (
        [("day", "M8[D]"), ("name", "S2")],
        [("2020-01-01", b"ab"), ("NaT", b""), (1, b"c")],
    ),
}


def records(kind: str) -> np.ndarray:
    field, values = FIELDS[kind]
    made = np.zeros(3, np.dtype([("field", field), ("n", np.int32)], align=True))
    made["field"], made["n"] = np.array(values, field), [1, 2, 3]
    return made


@pytest.mark.parametrize("kind", FIELDS)
def test_records_are_made_copied_and_given_back(device: na.Device, kind: str) -> None:
    array = records(kind)
    t = na.from_host(array).sync()
    assert t.dtype == array.dtype and host(t).tolist() == array.tolist()
    assert host(na.zeros(3, array.dtype)).tolist() == np.zeros(3, array.dtype).tolist()
    assert na.zeros_like(array).sync().dtype == na.empty_like(t).sync().dtype == array.dtype
    assert host(t[::-2].dup())["field"].tolist() == array[::-2]["field"].tolist()
    out = np.zeros(3, array.dtype)
    assert t.copy_to(out).sync() is out and out.tolist() == array.tolist()
    assert na.memcpy(t, array[::-1].copy()).sync() is t
    assert host(na.concatenate([t, array])).tolist() == [*array[::-1].tolist(), *array.tolist()]


@pytest.mark.parametrize("kind", FIELDS)
def test_kernels_compute_with_the_other_fields(device: na.Device, kind: str) -> None:
    array = records(kind)
    got = host(count_up(na.from_host(array)).output())
    assert got["n"].tolist() == [2, 3, 4] and got["field"].tolist() == array["field"].tolist()


def test_times_are_whole_numbers_of_their_unit(device: na.Device) -> None:
    for dtype in ("M8[D]", "m8[ns]"):
        for op in (
            na.zeros(3, dtype), na.empty(3, dtype), na.full(3, 7, dtype),
            na.zeros_like(np.ones(3, dtype)), na.arange(3, dtype=dtype), na.meta(3, dtype),
        ):  # fmt: skip
            assert op.sync().dtype == np.int64
    for value in (np.datetime64("2020-01-01"), np.timedelta64(3, "s")):
        with pytest.raises(DTypeError, match=r"is a time, .*\n?.*astype\(dtype\)"):
            na.full(3, value, "M8[D]")


@pytest.mark.parametrize("n", [0, 3, LARGE])
def test_times_are_copied_to_arrays_of_times(device: na.Device, n: int) -> None:
    numbers = np.arange(n) - 2
    numbers[:1] = np.iinfo(np.int64).min  # NaT
    t = na.from_host(numbers).sync()
    for dtype in ("M8[D]", "M8[ns]", "m8[s]"):
        out, wide = np.zeros(n, dtype), np.zeros((n, 2), dtype)
        assert t.copy_to(out).sync() is out
        assert out.tobytes() == numbers.tobytes()
        na.memcpy(wide[:, 1], t).sync()
        assert wide[:, 1].tobytes() == numbers.tobytes() and not wide[:, 0].astype(np.int64).any()
        assert host(t.copy_from(out)).tobytes() == host(na.from_host(out)).tobytes()
    with pytest.raises(DTypeError, match="memcpy from float32 to int64"):
        na.zeros(3).sync().copy_to(np.zeros(3, "M8[s]"))


def test_an_awaited_copy_gives_the_array_of_times(device: na.Device) -> None:
    async def main() -> Any:
        out = np.zeros(LARGE, "M8[D]")
        assert (await (await na.ones(LARGE, np.int64)).copy_to(out)) is out
        return out[-1].item()

    assert na.run(main()) == datetime.date(1970, 1, 2)


WRONG: dict[str, tuple[Any, str]] = {
    "an object": ([("a", [("b", "O")]), ("c", "f4")], r"field 'a\.b' of object"),
    "nothing": ([("n", "i4"), ("raw", "V7")], r"field 'raw' of \|V7.*\n.*np\.uint8"),
    "several": ([("s", "S3", (2,)), ("n", "i4")], r"field 's' of \('S3', \(2,\)\)"),
    "times": ([("when", "M8[s]", (2,))], r"field 'when' of .*\n.*a field of it for each"),
    "order": ([("n", "i4"), ("x", ">f4")], r"field 'x' of >f4.*native byte order"),
    "long": ([("x", "g")], "field 'x' of float128.*at most 64 bits"),
    "short": ([("x", dtypes.of_name("bfloat16"))], r"field 'x' of bfloat16.*\n.*np\.uint16"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_field_that_cannot_be_is_named(device: na.Device, case: str) -> None:
    dtype, message = WRONG[case]
    before = counters().allocations
    for make in (lambda: na.zeros(3, dtype), lambda: na.from_host(np.zeros(3, dtype))):
        with pytest.raises(DTypeError, match="(?s)hold records with the " + message):
            make()
    assert counters().allocations == before


def test_records_are_refused_where_numbers_are_needed(device: na.Device) -> None:
    t = na.from_host(records("time")).sync()
    for make in (
        lambda: na.fill(t, 0), lambda: na.convert(t, np.float32), lambda: na.ones(3, t.dtype),
        lambda: t.reinterpret(t.dtype),
    ):  # fmt: skip
        with pytest.raises(
            DTypeError, match=r"hold .*'field'.* here: records are made.*x\[i\]\.field"
        ):
            make()
    for text in (np.zeros(2, "S3"), np.zeros(2, "U3"), np.zeros(2, "V3")):
        with pytest.raises(DTypeError, match=r"array\.view\(np\.uint8\)"):
            na.from_host(text)
