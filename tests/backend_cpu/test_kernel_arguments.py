"""How arguments arrive in machine code: as Numba flattens them for a GPU, one part a slot."""

from __future__ import annotations

import ctypes
import enum
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from numbasync import dtypes
from numbasync.backend.cpu.kernel.arguments import call_of, launch_of
from numbasync.backend.cpu.kernel.memory import BlockMemory
from numbasync.backend.declared_signatures import type_of
from tests.backend_cpu.engines import key_of

pytestmark = pytest.mark.usefixtures("cpu")

CODE = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
    *[ctypes.c_int32] * 6, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip


class Colour(enum.IntEnum):
    RED = 3


class Size(enum.Enum):
    SMALL = 7
    LARGE = 9


class Weight(enum.Enum):
    LIGHT = 1.5


class Pair(NamedTuple):
    first: Any
    second: Any


def address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def called(
    arguments: Sequence[Any], count: int = 12, status: int = 0, kinds: Sequence[Any] = ()
) -> tuple[Any, bytes]:
    """What code is called with for these arguments: the numbers of the launch, and its slots.

    Args:
        kinds: Numba's types of the arguments, if they are not those of a launch.
    """
    seen: list[Any] = []

    def code(slots: int, memory: int, *numbers: int) -> int:
        seen.append((memory, numbers[:9]))
        seen.append(ctypes.string_at(slots, 8 * count))
        return status

    function = CODE(code)
    memory = BlockMemory(256)
    call = call_of(tuple(kinds) or tuple(type_of(key_of(a)) for a in arguments))
    launch = launch_of(address_of(function), (32, 4, 1), (7, 8, 9))
    assert call.run(ctypes.addressof(launch), 2, 5, memory.address, 64, *arguments) is None
    assert seen[0] == (memory.address, (2, 5, 32, 4, 1, 7, 8, 9, 64))
    return seen[0], seen[1]


def numbers(slots: bytes, kinds: str) -> list[Any]:
    return [struct.unpack_from(kind, slots, 8 * i)[0] for i, kind in enumerate(kinds)]


def test_an_array_is_its_address_extents_and_strides() -> None:
    x = np.arange(48, dtype=np.float32).reshape(6, 8)[::2, 1:7:3]
    _, slots = called([x])
    address = x.__array_interface__["data"][0]
    assert numbers(slots, "qqqqqqqqq")[2:] == [x.size, 4, address, *x.shape, *x.strides]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (-7, "q", -7),
        (2**63, "Q", 2**63),
        (2.5, "d", 2.5),
        (np.float32(2.5), "f", 2.5),
        (np.int8(-3), "b", -3),
        (np.uint16(65535), "H", 65535),
        (True, "b", 1),
        (np.float16(-1.5), "H", 0xBE00),
        (dtypes.of_name("bfloat16").type(-1.5), "H", 0xBFC0),
        (np.datetime64("1970-01-03", "D"), "q", 2),
        (np.timedelta64("NaT", "s"), "q", -(2**63)),
    ],
)
def test_numbers(value: Any, kind: str, expected: Any) -> None:
    assert numbers(called([value, 9.0])[1], kind + "d") == [expected, 9.0]


def test_tuples_and_complex_numbers_have_slots_for_parts() -> None:
    arguments = [Pair(1, 2.0), (np.int32(3), (4, np.float32(5))), 6 + 7j, np.complex64(8 - 9j), 10]
    assert numbers(called(arguments)[1], "qdiqfddffq") == [1, 2.0, 3, 4, 5, 6, 7, 8, -9, 10]


def test_an_array_in_a_tuple_beside_none() -> None:
    x = np.zeros(5, np.int16)
    _, slots = called([None, (x, 3), 4])
    assert numbers(slots, "q" * 10)[3:5] == [5, 2]
    assert numbers(slots, "q" * 10)[6:] == [5, 2, 3, 4]


def test_members_of_enums_are_their_values() -> None:
    arguments = [Colour.RED, Size.LARGE, Weight.LIGHT, (Size.SMALL, 4)]
    types = [numba.typeof(a) for a in arguments[:3]]
    pair = numba.types.BaseTuple.from_types([numba.typeof(Size.SMALL), numba.int64])
    assert numbers(called(arguments, kinds=[*types, pair])[1], "qqdqq") == [3, 9, 1.5, 7, 4]


def test_a_record_is_its_address() -> None:
    x = np.zeros(2, np.dtype([("a", np.int32), ("b", np.float64)]))
    x["a"], x["b"] = 3, 4.5
    record = x.view(np.recarray)[1]
    seen: list[bytes] = []

    def code(slots: int, *_: int) -> int:
        address = struct.unpack_from("q", ctypes.string_at(slots, 8))[0]
        seen.append(ctypes.string_at(address, 12))
        return 0

    function = CODE(code)
    call = call_of((numba.typeof(record),))
    launch = launch_of(address_of(function), (1, 1, 1), (1, 1, 1))
    call.run(ctypes.addressof(launch), 0, 1, BlockMemory(128).address, 0, record)
    assert seen == [struct.pack("<id", 3, 4.5)]


def test_a_status_raises() -> None:
    with pytest.raises(IndexError, match="stopped"):
        called([1], status=3)
