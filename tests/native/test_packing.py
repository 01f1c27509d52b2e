"""Arguments packed by the core, beside `struct`: numbers of every type, arrays of every rank."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numbasync as na
from numbasync import native
from tests.native.null_device import CudaArray, array_format, launches, layout_of, null_device

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
CODES = "?bBhHiIqQefd"


class Handle:
    def __init__(self, packed: bytes) -> None:
        self.packed = packed


class Index:
    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


_ends = [s * 2**n + d for n in (7, 8, 15, 16, 31, 32, 63, 64) for s in (-1, 1) for d in (-1, 0, 1)]
_numbers = st.one_of(
    st.integers(-(2**65), 2**65), st.sampled_from(_ends),
    st.floats(), st.floats(width=16), st.booleans(),
    st.sampled_from([65504.0, 65519.0, 65520.0, 3.4028235e38, 3.4028236e38, -1e39, -0.0]),
)  # fmt: skip
_values = st.one_of(
    _numbers,
    st.sampled_from([
        None, "a", b"", (), Fraction(1, 3), Index(200), Index(-1), np.float32(0.1), np.int8(-3),
        np.uint64(2**64 - 1), np.float16(1), np.bool_(True), np.int64(-(2**63)), 1j,
    ]),
)  # fmt: skip


def by_struct(code: str, value: Any) -> bytes | None:
    try:
        return struct.pack("=" + code, value)  # as the format of a record
    except (struct.error, OverflowError, TypeError):
        return None


def test_every_type_refuses_what_struct_refuses(null: na.Device) -> None:
    floats = [65504.0, 65519.0, 65520.0, 3.4028235e38, 3.4028236e38, -1e39, -0.0, float("inf")]
    for code in CODES:
        layout = layout_of([code])
        args = (7, (1, 1, 1), (1, 1, 1), 0, 9, layout.nbytes, layout.parts, ())
        for value in [*_ends, *floats, None, "a", np.float32(0.5), np.uint64(2**64 - 1), True]:
            record, wanted = native.core.LaunchRecord(*args), by_struct(code, value)
            if wanted is None:
                with pytest.raises(OverflowError):
                    record.run([value])
            else:
                assert record.run([value]) == 0
                assert launches()[-1].arguments == wanted, (code, value)


@settings(max_examples=400, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(CODES), _values), min_size=1, max_size=32))
def test_numbers_are_packed_as_struct_does(arguments: list[tuple[str, Any]]) -> None:
    with null_device():
        layout = layout_of([code for code, _ in arguments])
        record = native.core.LaunchRecord(
            7, (1, 2, 3), (4, 5, 6), 8, 9, layout.nbytes, layout.parts, ()
        )
        wanted = [by_struct(code, value) for code, value in arguments]
        values = [value for _, value in arguments]
        if None in wanted:
            with pytest.raises(OverflowError):
                record.run(values)
            assert not launches()
            return
        assert record.run(values) == 0
        (launch,) = launches()
    assert (launch.function, launch.stream, list(launch.extents)) == (7, 9, [1, 2, 3, 4, 5, 6, 8])
    buffer = bytearray(layout.nbytes)
    for (_, offset), part in zip(layout.parts, wanted, strict=True):
        buffer[offset : offset + len(part or b"")] = part or b""
    assert launch.arguments == bytes(buffer)


def test_arrays_of_every_rank_and_constants_are_packed(null: na.Device) -> None:
    codes = ["B", *(array_format(rank) for rank in range(5)), "", "h", "q", "i"]
    layout = layout_of(codes)
    arrays = [Handle(bytes([rank]) * (40 + 16 * rank)) for rank in range(5)]
    record = native.core.LaunchRecord(
        1, (1, 1, 1), (1, 1, 1), 0, 2, layout.nbytes, layout.parts, (2**40, -1)
    )
    for first in (1, 2):  # nothing of an earlier launch is left
        assert record.run([first, *arrays, None, -first]) == 0
        buffer = launches()[-1].arguments
        wanted: list[Any] = [first, *(a.packed for a in arrays), None, -first, 2**40, -1]
        for (code, offset), of, value in zip(layout.parts, codes, wanted, strict=True):
            packed = value if code == "s" else struct.pack(code, value) if code else b""
            assert buffer[offset : offset + struct.calcsize(of)][: len(packed)] == packed


def test_arrays_are_packed_for_the_other_compiler(null: na.Device) -> None:
    whole = np.zeros((6, 4, 8), np.float32)
    arrays = [
        whole,
        whole[::-2, 1:, ::3],
        whole[0, 0],
        whole[1, 2, 3, ...],
        np.zeros((0, 3), np.int8),
    ]
    parts = list[tuple[str, int]]()
    wanted = b""
    for a in arrays:
        parts.append(("m", len(wanted)))
        address, strides = a.ctypes.data, (s // a.itemsize for s in a.strides)
        fields = (address, address, 0, *a.shape, *strides)
        wanted += struct.pack(f"{len(fields)}q", *fields)
    record = native.core.LaunchRecord(1, (1, 1, 1), (1, 1, 1), 0, 2, len(wanted), parts, ())
    assert record.run([CudaArray(a) for a in arrays]) == 0
    assert launches()[-1].arguments == wanted


def test_records_refuse_what_they_have_no_room_for(null: na.Device) -> None:
    most = native.core.MOST_ARGUMENTS
    for count in (most, most + 1):
        layout = layout_of("i" * count)
        args = (1, (1, 1, 1), (1, 1, 1), 0, 2, layout.nbytes, layout.parts, ())
        if count > most:
            with pytest.raises(ValueError, match="33 arguments"):
                native.core.LaunchRecord(*args)
        else:
            assert native.core.LaunchRecord(*args).run(range(count)) == 0
    with pytest.raises(OverflowError):  # a constant that does not fit
        native.core.LaunchRecord(1, (1, 1, 1), (1, 1, 1), 0, 2, 4, [("b", 0)], (200,))
