"""Tensors of bfloat16, a dtype that NumPy has from ml_dtypes: as tensors of other floats."""

from __future__ import annotations

import pickle
import subprocess
import sys
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numbasync as na
from numbasync import dtypes
from numbasync.backend import array_protocols
from numbasync.errors import DTypeError
from tests.common import host
from tests.lenders import Lent

BF16 = np.dtype(ml_dtypes.bfloat16)
# Halves between neighbours, beyond the range, tiny numbers, zeros of both signs, NaN.
VALUES = (
    0.0, -0.0, 1.0, 1.00390625, 1.01171875, -2.7, 255.0, 257.0, 3.3895e38, -np.inf, 1e-40, np.nan,
)  # fmt: skip


def same(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    is_nan = np.isnan(want)
    assert (np.isnan(got) == is_nan).all()
    assert got[~is_nan].tobytes() == want[~is_nan].tobytes()


@pytest.mark.parametrize("dtype", [BF16, ml_dtypes.bfloat16, "bfloat16"], ids=str)
def test_made_on_the_device(device: na.Device, dtype: Any) -> None:
    for shape in ((), 3, (2, 0, 4), (5, 7)):
        for op, value in ((na.zeros, 0), (na.ones, 1)):
            same(host(op(shape, dtype)), np.full(shape, value, BF16))
    same(host(na.full((3, 3), 0.1, dtype)), np.full((3, 3), 0.1, BF16))
    same(host(na.full(3, Fraction(1, 3), dtype)), np.full(3, 1 / 3, BF16))
    same(host(na.full(3, ml_dtypes.bfloat16(-3.25), dtype)), np.full(3, -3.25, BF16))
    same(host(na.arange(1, 3, 0.25, dtype)), np.arange(1, 3, 0.25).astype(BF16))
    same(host(na.linspace(0, 1, 5, dtype)), np.linspace(0, 1, 5).astype(BF16))
    same(host(na.eye(3, dtype=dtype)), np.eye(3).astype(BF16))
    assert na.empty(3, dtype).sync().dtype == BF16 and na.empty((2, 3), dtype).sync().nbytes == 12


def test_there_and_back_and_in_parts(device: na.Device) -> None:
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5).astype(BF16)
    t = na.from_host(array).sync()
    same(host(t), array)
    same(host(t[1:, ::2, ::-1]), array[1:, ::2, ::-1])
    same(host(t[1:, ::2].dup()), array[1:, ::2])
    same(host(t.reshape(-1)), array.reshape(-1))
    same(host(t.reinterpret(np.uint16)), array.view(np.uint16))
    same(host(t.reinterpret(np.uint16).reinterpret("bfloat16")), array)
    na.fill(t[:, 1], 7).sync()
    array[:, 1] = 7
    same(host(t), array)
    t[0].copy_from(array[2]).sync()
    same(host(t[0]), array[2])
    out = np.zeros((4, 5), BF16)
    same(t[1].copy_to(out).sync(), array[1])
    other = array[::-1].copy()
    same(host(na.from_host(array[::-1, :, ::2])), other[:, :, ::2])


@pytest.mark.parametrize(
    "other",
    ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", BF16],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_converted_as_numpy_converts(device: na.Device, other: Any) -> None:
    dtype = np.dtype(other)
    plain = dtype.kind in "iu"
    values = np.array([0, 1, 100, 3.7, 17, 0.5] if plain else VALUES, np.float64)
    values = values.astype(BF16)
    same(host(na.convert(na.from_host(values).sync(), dtype)), values.astype(dtype))
    whole = np.array([0, 1, 2, 100, 127, 77]) if plain else np.array(VALUES)
    whole = whole.astype(dtype)
    if dtype.itemsize >= 2 and plain:
        whole = np.append(whole, np.array([257, 259, 1027, 32767], dtype))
    same(host(na.convert(na.from_host(whole).sync(), BF16)), whole.astype(BF16))
    strided = np.stack([values, values], 1)
    t = na.from_host(strided).sync()
    same(host(na.convert(t[:, 1], dtype)), values.astype(dtype))


def test_pinned_arrays(device: na.Device) -> None:
    buffer = na.pinned((4, 3), BF16)
    buffer[...] = np.arange(12).reshape(4, 3)
    t = na.from_host(buffer).sync()
    same(host(t), np.arange(12).reshape(4, 3).astype(BF16))
    t = na.full((4, 3), 5, BF16).sync()
    na.memcpy(buffer, t).sync()
    assert (np.asarray(buffer) == 5).all()
    same(np.asarray(na.HostBuffer.from_array(np.ones(3, BF16))), np.ones(3, BF16))


def test_the_rest_of_what_arrays_do(device: na.Device) -> None:
    t = na.ones((4, 6), BF16).sync()
    assert repr(t) == f"<Tensor (4, 6) bfloat16 on {device.label}>"
    assert t.partition((2, 3)).tensor is t
    same(host(pickle.loads(pickle.dumps(t))), np.ones((4, 6), BF16))
    same(host(na.zeros_like(t)), np.zeros((4, 6), BF16))
    same(host(na.full_like(np.ones(3), 2, dtype=BF16)), np.full(3, 2, BF16))
    same(
        host(na.empty_pitched((3, 4), BF16).then(lambda p: na.fill(p, 3))), np.full((3, 4), 3, BF16)
    )
    same(host(na.concatenate([t, t])), np.ones((8, 6), BF16))
    assert t.key != t.reinterpret(np.uint16).key and t.key == na.ones((2, 2), BF16).sync().key
    assert np.dtype(t.key.dtype) == BF16


def test_what_is_refused(device: na.Device) -> None:
    with pytest.raises(DTypeError, match=r"cannot hold.*\n.*field of bfloat16 as np\.uint16"):
        na.zeros(3, [("a", BF16), ("b", "f4")])
    with pytest.raises(DTypeError, match="float8"):
        na.zeros(3, ml_dtypes.float8_e4m3fn)
    with pytest.raises(DTypeError, match="cannot hold"):
        na.zeros(3, BF16.newbyteorder(">"))
    with pytest.raises(DTypeError, match="cannot hold"):
        na.zeros(3, "V2")
    with pytest.raises(DTypeError, match="no element of type bfloat16"):
        na.full(3, 1j, BF16)


# --- other libraries --------------------------------------------------------------------------


class AsTorch(Lent):
    """Bits of bfloat16 in a capsule that says so, as of PyTorch."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return array_protocols.retype(self.array.view(np.uint16).__dlpack__(), BF16)


def test_lent_by_dlpack_and_borrowed_again() -> None:
    """A capsule of bfloat16 is read as one of any other type, and its memory is used in place."""
    with na.use_device(na.devices("cpu")[0]):
        array = np.arange(12).astype(BF16).reshape(3, 4)
        t = na.as_tensor(AsTorch(array))
        assert t.dtype == BF16 and t.shape == (3, 4)
        na.fill(t[1:], 2).sync()
        assert (array[1:] == 2).all() and (array[0] == [0, 1, 2, 3]).all()
        same(host(na.from_host(AsTorch(array[:, ::2]))), array[:, ::2])
        for version in ({}, {"max_version": (1, 0)}):

            class Reader:
                def __dlpack__(self, version: Any = version, **how: Any) -> Any:
                    return t.__dlpack__(**version)

            export = array_protocols.read_dlpack(Reader())
            assert export.dtype == BF16 and export.low == array.ctypes.data
        same(array_protocols.numpy_of(export), array)
        assert na.as_tensor(t) is t
        same(host(na.as_tensor(np.ones(3, BF16))), np.ones(3, BF16))


def test_ml_dtypes_is_imported_for_a_bfloat16_only() -> None:
    program = (
        "import sys, numpy, numbasync as na\n"
        "from numbasync import dtypes\n"
        "na.zeros(3, 'int8')\n"
        "assert not dtypes.is_extension(numpy.dtype('f2')) and 'ml_dtypes' not in sys.modules\n"
        "print(na.zeros(3, 'bfloat16').sync().dtype)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "bfloat16\n", done.stderr
    assert dtypes.is_extension(BF16)
