"""Tensors: making, viewing, moving, copying; compared with NumPy doing the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numbasync as na
from numbasync.errors import (
    DTypeError,
    MovedError,
    OperationError,
    ShapeError,
    SharedStorageError,
    StateError,
)
from numbasync.testing import counters
from tests.common import host

DTYPES = [
    np.bool_, np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, np.float16,
    np.float32, np.float64, np.complex64, np.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
def test_constants(device: na.Device, dtype: type) -> None:
    for shape in ((), 3, (2, 0, 4), (5, 7)):
        for op, value in ((na.zeros, 0), (na.ones, 1)):
            got = host(op(shape, dtype))
            assert got.dtype == dtype and got.shape == np.empty(shape).shape
            assert (got == value).all()
    assert (host(na.full((3, 3), 0.1 if np.dtype(dtype).kind in "fc" else 7, dtype)) == np.full(
        (3, 3), 0.1 if np.dtype(dtype).kind in "fc" else 7, dtype)).all()  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
def test_there_and_back(device: na.Device, dtype: type) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 2**8, (17, 5, 3)).astype(dtype)
    got = host(na.from_host(array))
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_the_default_dtype_is_float32(device: na.Device) -> None:
    for op in (na.zeros(2), na.ones(2), na.full(2, 3), na.arange(2), na.eye(2), na.rand(2, 1),
               na.randn(2, seed=1), na.linspace(0, 1, 2), na.empty(2)):  # fmt: skip
        assert op.sync().dtype == np.float32


def test_sequences_are_numpys(device: na.Device) -> None:
    np.testing.assert_array_equal(host(na.arange(10)), np.arange(10, dtype=np.float32))
    np.testing.assert_array_equal(host(na.arange(3, 20, 4, np.int64)), np.arange(3, 20, 4))
    np.testing.assert_array_equal(host(na.arange(5, 0)), [])
    np.testing.assert_array_equal(
        host(na.arange(0.5, -2, -0.5, np.float64)), np.arange(0.5, -2, -0.5)
    )
    np.testing.assert_array_equal(host(na.linspace(1, 2, 5)), np.linspace(1, 2, 5, dtype="f4"))
    np.testing.assert_array_equal(host(na.linspace(1, 2, 1)), [1])
    np.testing.assert_array_equal(host(na.eye(3, 5)), np.eye(3, 5))
    with pytest.raises(ShapeError, match="step of 0"):
        na.arange(0, 5, 0)


def test_random_values_depend_on_the_seed_alone(device: na.Device) -> None:
    one, same, other = (host(na.rand((100, 10), s)) for s in (5, 5, 6))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any() and (one >= 0).all() and (one < 1).all()
    normal = host(na.randn(10_000, mean=3, std=2, seed=1))
    # 10,000 values: the mean has a standard error of 0.02, the deviation of 0.014.
    assert abs(normal.mean() - 3) < 0.1 and abs(normal.std() - 2) < 0.07
    with pytest.raises(DTypeError, match="float32 or float64"):
        na.rand(3, dtype=np.int32)


@given(data=st.data())
@settings(max_examples=40)
def test_views_are_numpys(device: na.Device, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=3, max_side=5))
    base = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    tensor, want = na.from_host(base).sync(), base
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(hnp.basic_indices(want.shape, allow_newaxis=True, allow_ellipsis=True))
        view = want[index]
        tensor, want = tensor[index], view if isinstance(view, np.ndarray) else np.array(view)
    assert tensor.shape == want.shape
    np.testing.assert_array_equal(host(tensor), want)
    np.testing.assert_array_equal(host(tensor.dup()), want)


def test_a_view_shares_its_storage(device: na.Device) -> None:
    z = na.zeros((4, 6)).sync()
    before = counters()
    view = z[1:3, ::2]
    assert (counters() - before).allocations == 0
    na.fill(view, 5).sync()
    want = np.zeros((4, 6), np.float32)
    want[1:3, ::2] = 5
    np.testing.assert_array_equal(host(z), want)
    assert not view.is_contiguous and view.storage is z.storage


def test_writing_through_views_of_any_layout(device: na.Device) -> None:
    z = na.zeros((4, 6)).sync()
    want = np.zeros((4, 6), np.float32)
    source = np.arange(12, dtype=np.float32).reshape(4, 3)
    na.memcpy(z[:, 1::2], source).sync()
    want[:, 1::2] = source
    np.testing.assert_array_equal(host(z), want)
    na.memcpy(z[::-1, ::2], z[:, 1::2]).sync()
    want[::-1, ::2] = want[:, 1::2].copy()
    np.testing.assert_array_equal(host(z), want)


@pytest.mark.parametrize("to", [np.float64, np.float32, np.int32, np.uint8, np.bool_, np.complex64])
@pytest.mark.parametrize("of", [np.float32, np.int64, np.bool_, np.uint8])
def test_convert_is_astype(device: na.Device, of: type, to: type) -> None:
    array = np.array([[0, 1, 2], [3, 100, 7]]).astype(of)
    got = host(na.convert(na.from_host(array).sync(), to))
    assert got.dtype == to
    np.testing.assert_array_equal(got, array.astype(to))


def test_complex_to_real_drops_the_imaginary_part(device: na.Device) -> None:
    t = na.from_host(np.array([1 + 2j, 3 - 4j], np.complex64)).sync()
    assert host(na.convert(t, np.float32)).tolist() == [1, 3]


def test_memcpy_in_every_direction(device: na.Device) -> None:
    a = np.arange(6, dtype=np.int32).reshape(2, 3)
    t = na.zeros((2, 3), np.int32).sync()
    assert na.memcpy(t, a).sync() is t
    u = na.zeros((2, 3), np.int32).sync()
    na.memcpy(u, t).sync()
    back = np.empty((2, 3), np.int32)
    assert na.memcpy(back, u).sync() is back
    np.testing.assert_array_equal(back, a)
    turned = np.empty((3, 2), np.int32).T
    na.memcpy(turned, u).sync()
    np.testing.assert_array_equal(turned, a)
    na.memcpy(t, u.shared()).sync()


def test_memcpy_refuses_when_it_is_built(device: na.Device) -> None:
    t = na.zeros((2, 3)).sync()
    before = counters()
    with pytest.raises(ShapeError, match=r"\(3, 2\) to shape \(2, 3\)"):
        na.memcpy(t, np.zeros((3, 2), np.float32))
    with pytest.raises(DTypeError, match="float64 to float32"):
        na.memcpy(t, np.zeros((2, 3)))
    with pytest.raises(OperationError, match=r"np\.copyto"):
        na.memcpy(np.zeros(3), np.zeros(3))
    with pytest.raises(OperationError, match="src of memcpy"):
        na.memcpy(t, 5)  # type: ignore[arg-type]
    assert counters() == before


def test_reshape_and_reinterpret(device: na.Device) -> None:
    t = na.from_host(np.arange(12, dtype=np.float32)).sync()
    assert host(t.reshape(3, 4))[2, 1] == 9
    assert t.reshape((2, -1)).shape == (2, 6)
    bits = host(t.reinterpret(np.uint32))
    np.testing.assert_array_equal(bits, np.arange(12, dtype=np.float32).view(np.uint32))
    with pytest.raises(ShapeError):
        t.reshape(5)
    with pytest.raises(ShapeError, match="without"):
        t[::2].reshape(2, 3)


def test_what_a_tensor_says_of_itself(device: na.Device) -> None:
    t = na.zeros((2, 3), np.int16).sync()
    assert (t.ndim, t.size, t.nbytes, t.strides, len(t)) == (2, 6, 12, (6, 2), 2)
    assert t.device is device and t.is_contiguous
    assert repr(t) == f"<Tensor (2, 3) int16 on {device.label}>"
    assert [row.shape for row in t] == [(3,), (3,)]
    with pytest.raises(ShapeError):
        len(t[0, 0])


def test_a_tensor_is_no_numpy_array(device: na.Device) -> None:
    t = na.zeros(3).sync()
    with pytest.raises(TypeError, match=r"await t\.to_host\(\)"):
        np.asarray(t)


def test_take_moves(device: na.Device) -> None:
    t = na.ones(3).sync()
    moved = t.take()
    assert host(moved).tolist() == [1, 1, 1]
    assert "moved" in repr(t) and t.shape == (3,)
    for use in (lambda: t.to_host().sync(), lambda: t[0], lambda: t.take(), lambda: t.dup().sync()):
        with pytest.raises(MovedError, match="moved by take"):
            use()


def test_shared_tensors_refuse_a_partition_while_held(device: na.Device) -> None:
    t = na.ones(8).sync()
    shared = t.shared()
    with pytest.raises(SharedStorageError, match="1 other"):
        shared.partition(4)
    del t
    view = shared[2:]
    with pytest.raises(SharedStorageError):
        shared.partition(4)
    del view
    assert shared.dup().sync().shape == (8,)
    with pytest.raises(ShapeError):
        shared.partition(0)
    owned = shared.partition(4)
    assert owned.grid == (2,)
    assert host(owned.unpartition()).tolist() == [1] * 8
    with pytest.raises(MovedError):
        shared.partition(4)
    with pytest.raises(MovedError):
        shared.to_host().sync()


def test_overlapping_views_are_copied_as_if_at_once(device: na.Device) -> None:
    n = 1 << 22  # more than a GPU has in flight at a time
    expected = np.arange(n, dtype=np.int32)
    t = na.from_host(expected).sync()
    for to, of in ((slice(1, None), slice(None, -1)), (slice(None, None, -1), slice(None))):
        expected[to] = expected[of].copy()
        na.memcpy(t[to], t[of]).sync()
        assert np.array_equal(host(t), expected)
    na.memcpy(t, t).sync()
    assert np.array_equal(host(t), expected)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(300, np.uint8), (-1, np.uint8), (2**70, np.int64), (np.nan, np.int32), (np.inf, np.int8),
     (1j, np.float32), ("a", np.float32), (None, np.float32)],
)  # fmt: skip
def test_values_that_are_no_element_are_refused(value: object, dtype: type) -> None:
    with pytest.raises(DTypeError, match="is no element of type"):
        na.full(2, value, dtype)


def test_values_are_converted_as_numpy_does(device: na.Device) -> None:
    assert host(na.full(2, 2.9, np.int32).sync()).tolist() == [2, 2]
    assert host(na.full(1, 1e300).sync())[0] == np.inf
    assert host(na.full(1, np.int64(7), np.uint8).sync())[0] == 7
    assert host(na.full(1, 2, bool).sync())[0]


def test_arguments_that_are_no_tensor_are_refused(device: na.Device) -> None:
    t = na.ones(4).sync()
    shared = t.shared()
    with pytest.raises(OperationError, match="shared"):
        na.fill(shared, 2)  # type: ignore[arg-type]
    for make in (na.dup, lambda x: na.convert(x, int), lambda x: na.fill(x, 1)):
        with pytest.raises(OperationError, match="from_host"):
            make(np.ones(3))  # type: ignore[arg-type]
    assert host(na.dup(shared).sync()).tolist() == host(na.convert(shared, int).sync()).tolist()
    frozen = np.ones(4, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(OperationError, match="read-only"):
        na.memcpy(frozen, t)
    na.memcpy(t, frozen).sync()
    for dtype in (None, np.longdouble, "S3", object, ">f4"):
        with pytest.raises(DTypeError):
            na.zeros(2, dtype)
    with pytest.raises(ShapeError):
        t.reshape(2.5)


def test_meta_has_a_shape_and_no_memory(device: na.Device) -> None:
    before = counters()
    t = na.meta((4, 4), np.int8).sync()
    assert (t.shape, t.dtype, t.device) == ((4, 4), np.int8, None)
    assert t[1:, 0].shape == (3,)
    with pytest.raises(StateError, match="no memory"):
        t.to_host().sync()
    assert (counters() - before).allocations == 0


@pytest.mark.parametrize("bad", [object(), "text", [1, "x"], np.array([object()])])
def test_what_cannot_be_uploaded_is_refused_at_once(device: na.Device, bad: Any) -> None:
    with pytest.raises(DTypeError):
        na.from_host(bad)


def test_values_that_are_no_number_are_refused(device: na.Device) -> None:
    with pytest.raises(DTypeError):
        na.full(3, "x")
    with pytest.raises(ShapeError):
        na.full(3, [1, 2])
    with pytest.raises(DTypeError):
        na.zeros(3, "U3")
    with pytest.raises(ShapeError):
        na.zeros((2, -1))
