"""DLPack capsules and array interfaces: everything that a capsule can say, read or refused."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from numbasync.backend import array_protocols
from numbasync.errors import DTypeError, OperationError, ShapeError


class Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class Made:
    """An exporter of a capsule that was made field by field, of which it keeps the fields."""

    def __init__(
        self,
        array: np.ndarray,
        version: tuple[int, int] | None = None,
        flags: int = 0,
        name: bytes | None = None,
        **fields: Any,
    ) -> None:
        def integers(values: tuple[int, ...]) -> Any:
            return (ctypes.c_int64 * len(values))(*values)

        codes = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
        strides = tuple(s // array.itemsize for s in array.strides)
        tensor = Tensor(
            array.ctypes.data, 1, 0, array.ndim, codes[array.dtype.kind], array.itemsize * 8, 1,
            integers(array.shape), integers(strides), 0,
        )  # fmt: skip
        for field, value in fields.items():
            setattr(tensor, field, value)
        if version is None:
            self.whole: Any = Managed(tensor, None, None)
        else:
            self.whole = Versioned(*version, None, None, flags, tensor)
        self.name = name or (b"dltensor" if version is None else b"dltensor_versioned")
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return _new(ctypes.addressof(self.whole), self.name, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def read(obj: Any) -> np.ndarray:
    return array_protocols.numpy_of(array_protocols.read_dlpack(obj))


@pytest.mark.parametrize("version", [None, (1, 0), (1, 3)])
@pytest.mark.parametrize(
    "dtype", ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "F", "D"]
)
def test_every_type(dtype: str, version: Any) -> None:
    array = np.arange(6).astype(dtype).reshape(2, 3)
    for each in (array, array.T, array[::-1, ::2], array[0, :1].reshape(()), array[:, :0]):
        found = read(Made(each, version))
        assert found.dtype == each.dtype and found.flags.writeable
        np.testing.assert_array_equal(found, each)
        if each.size:
            assert found.ctypes.data == each.ctypes.data


def test_a_capsule_of_numpy() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::-2]
    found = read(array)
    assert found.ctypes.data == array.ctypes.data and found.strides == array.strides
    array.flags.writeable = False
    assert not read(array).flags.writeable


def test_strides_may_be_missing_and_data_begin_later() -> None:
    array = np.arange(6, dtype=np.int32)
    shape = (ctypes.c_int64 * 2)(2, 2)
    made = Made(array, ndim=2, shape=shape, strides=None, byte_offset=8)
    assert read(made).tolist() == [[2, 3], [4, 5]]


def test_an_array_of_nothing_may_have_no_address() -> None:
    assert read(Made(np.zeros((3, 0), np.float32), data=None)).shape == (3, 0)


def test_what_a_capsule_says_of_writing() -> None:
    array = np.zeros(3)
    assert array_protocols.read_dlpack(Made(array, (1, 0), array_protocols.READ_ONLY)).readonly
    assert not array_protocols.read_dlpack(Made(array, (1, 0))).readonly
    assert not array_protocols.read_dlpack(Made(array)).readonly


def _extents(*extents: int) -> Any:
    return (ctypes.c_int64 * len(extents))(*extents)


REFUSED: dict[str, tuple[Made, type, str]] = {
    "a negative extent": (Made(np.zeros(3), shape=_extents(-3)), ShapeError, r"shape is \(-3,\)"),
    "an empty axis and a negative one": (
        Made(np.zeros((3, 1)), shape=_extents(0, -1)), ShapeError, r"shape is \(0, -1\)",
    ),
    "too many bytes": (
        Made(np.zeros((3, 1)), shape=_extents(2**62, 2**62), strides=_extents(0, 0)), ShapeError,
        r"less than 2\^63 bytes",
    ),
    "beyond all memory": (
        Made(np.zeros(3), shape=_extents(2**40), strides=_extents(2**40)), ShapeError,
        "where no memory is",
    ),
    "no address": (Made(np.zeros(3), data=None), ShapeError, "where no memory is"),
    "axes below zero": (Made(np.zeros(3), ndim=-1), ShapeError, "array of -1 axes"),
    "a billion axes": (Made(np.zeros(3), ndim=10**9), ShapeError, "array of 1000000000 axes"),
    "no extents": (Made(np.zeros(3), shape=None), ShapeError, "array of 1 axes without"),
    "wide bfloat": (Made(np.zeros(3, np.int32), code=4), DTypeError, r"32 bits.*kind 4"),
    "float8": (Made(np.zeros(3, np.int8), code=10), DTypeError, "8 bits of DLPack's kind 10"),
    "int4": (Made(np.zeros(3, np.int8), bits=4), DTypeError, "4 bits of DLPack's kind 0"),
    "int24": (Made(np.zeros(3, np.int8), bits=24), DTypeError, "24 bits"),
    "vectors": (Made(np.zeros(3, np.float32), lanes=4), DTypeError, "4 together"),
    "a copy": (Made(np.zeros(3), (1, 0), 2), OperationError, "lends a copy"),
    "a new version": (Made(np.zeros(3), (2, 1)), OperationError, r"speaks DLPack 2\.1.*1\.x"),
    "a used capsule": (
        Made(np.zeros(3), name=b"used_dltensor"), OperationError, "no unused DLPack capsule",
    ),
    "not aligned": (Made(np.zeros(3), byte_offset=1), ShapeError, "no float64 can lie"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    made, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        read(made)


def test_a_capsule_is_held_and_then_given_back() -> None:
    class Array(np.ndarray):
        """One that can be watched."""

    array = np.arange(4.0).view(Array)
    alive = weakref.ref(array)
    export = array_protocols.read_dlpack(array)
    found = array_protocols.numpy_of(export)
    del array, export
    gc.collect()
    assert alive() is not None and found.tolist() == [0, 1, 2, 3]
    del found
    gc.collect()
    assert alive() is None


def test_an_interface_needs_no_strides_and_no_mask() -> None:
    array = np.arange(6, dtype=np.int32)
    said = {"shape": (2, 3), "typestr": "<i4", "data": (array.ctypes.data, True), "version": 2}
    export = array_protocols.read_interface(array, said)
    assert (export.strides, export.nbytes, export.readonly) == ((12, 4), 24, True)
    with pytest.raises(OperationError, match="is masked"):
        array_protocols.read_interface(array, {**said, "mask": array})


@pytest.mark.parametrize(
    ("obj", "at"),
    [(np.zeros(3), (1, 0)), (3, None), (np.ndarray, None), (np.float32(3), None)],
)
def test_places(obj: Any, at: Any) -> None:
    assert array_protocols.place(obj) == at


def test_places_have_names() -> None:
    names = [array_protocols.where(at) for at in ((1, 0), (3, 1), (2, 1), (13, 0), (2, -1), (7, 2))]
    host = "in host memory"
    assert names == [
        host, host, "on cuda:1", "on cuda:0", "on a GPU", "on device 2 of DLPack's kind 7",
    ]  # fmt: skip


def test_a_device_that_cannot_be_named_is_refused() -> None:
    class Meta(Made):
        def __dlpack_device__(self) -> tuple[int, int]:
            raise ValueError("Unknown device type meta")

    with pytest.raises(OperationError, match="Meta does not lend its memory: Unknown device"):
        array_protocols.place(Meta(np.zeros(3)))
