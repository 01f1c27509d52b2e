"""What tensors have of NumPy's arrays, beside NumPy doing the same; and what they refuse."""

from __future__ import annotations

import asyncio
import operator
import weakref
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    DTypeError,
    MovedError,
    NotAGraphNodeError,
    OperationError,
    ShapeError,
)
from numbasync.testing import counters
from tests.common import host

PAIR = np.dtype([("x", np.float32), ("n", np.int64)], align=True)
DTYPES = [np.dtype(d) for d in (np.bool_, np.int8, np.uint64, np.float16, np.float64, np.complex64)]


def elements(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 100, shape)
    made: Any = np.empty(shape, dtype)
    if made.dtype.names:
        made["x"], made["n"] = values, -values
    else:
        made[...] = values
    return made


def layouts(dtype: Any) -> list[tuple[na.Tensor, np.ndarray]]:
    """Tensors of every kind of layout, each with the array that it is to equal."""
    array, cube = elements((4, 6), dtype), elements((2, 3, 4), dtype)
    t = na.from_host(array).sync()
    keys: list[Any] = [(), np.s_[::2], np.s_[::-1, 1:5:3], np.s_[1], np.s_[2, 3], np.s_[:0]]
    found = [(t[key], array[key]) for key in keys]
    found += [(na.from_host(cube).sync()[:, None, 1:, ::-2], cube[:, None, 1:, ::-2])]
    if not array.dtype.names:
        pitched = na.empty_pitched((4, 6), dtype).sync()
        na.memcpy(pitched, array).sync()
        found += [(pitched, array), (pitched[1:, ::2], array[1:, ::2])]
    return found


@pytest.mark.parametrize("dtype", [np.dtype(np.complex64), PAIR], ids=["complex64", "pairs"])
def test_transposed_views_are_numpys(device: na.Device, dtype: np.dtype) -> None:
    for t, array in layouts(dtype):
        before = counters().allocations
        view = t.T
        assert counters().allocations == before and view.storage is t.storage
        assert view.shape == array.T.shape and view.dtype == dtype
        np.testing.assert_array_equal(host(view), array.T)
        assert view.T.same_elements(t)


def test_transposed_matrices_are_numpys(device: na.Device) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    t = na.from_host(array).sync()
    assert t.mT.shape == (2, 4, 3) and t.mT.storage is t.storage
    np.testing.assert_array_equal(host(t.mT), array.swapaxes(1, 2))
    assert t[0].mT.same_elements(t[0].T)
    with pytest.raises(ShapeError, match="two axes"):
        t[0, 0].mT  # noqa: B018


def test_a_kernel_writes_through_a_transposed_view(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def count(z: na.KernelOutput, x: na.KernelInput):
        i, j = cuda.grid(2)
        if i < z.shape[0] and j < z.shape[1]:
            z[i, j] += 10 * i + j + x[i, j]

    x, z = elements((5, 3), np.float32), na.zeros((5, 3)).sync()
    count(z.T.partition((2, 2)), na.from_host(x).sync().T).sync()
    np.testing.assert_array_equal(host(z), 10 * np.arange(3) + np.arange(5)[:, None] + x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_astype_is_numpys(device: na.Device, dtype: np.dtype) -> None:
    for t, array in layouts(np.int16):
        got = t.astype(dtype).sync()
        assert got.dtype == dtype and got.is_contiguous and got.storage is not t.storage
        np.testing.assert_array_equal(host(got), array.astype(dtype))
    got = na.from_host([1.5, -2.5]).astype(np.int32).astype(dtype)
    np.testing.assert_array_equal(host(got), np.array([1, -2], np.int32).astype(dtype))
    with pytest.raises(DTypeError, match="cannot hold"):
        na.zeros(2, PAIR).sync().astype(dtype)


# --- one element ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, PAIR], ids=lambda d: "pairs" if d.names else str(d))
def test_item_is_numpys(device: na.Device, dtype: np.dtype) -> None:
    array = elements((4, 6), dtype)
    t = na.from_host(array).sync()

    async def main() -> list[Any]:
        one = await t[1, 2].item()
        two, three = await na.gather(t[1:2, 2:3].item(), t.T[2, 1].item())
        four, (five, name) = await na.zip(t[1, 2].item(), na.zip(t[1, 2].item(), na.value("a")))
        assert name == "a"
        shared = na.from_host(array[1, 2]).item().shared()
        return [
            one,
            two,
            three,
            four,
            five,
            await shared,
            await shared,
            await na.spawn(t[1, 2].item()),
        ]

    found = [*asyncio.run(main()), t[1, 2].item().sync(), na.from_host(array[1:2, 2]).item().sync()]
    want = array[1, 2].item()
    assert found == [want] * 10 and {type(x) for x in found} == {type(want)}


def test_item_is_of_one_element(device: na.Device) -> None:
    for shape in ((2,), (0,), (1, 2), (1, 0)):
        with pytest.raises(ShapeError, match=r"await t\[0, 0\].item\(\)"):
            na.zeros(shape).sync().item()
    with pytest.raises(ShapeError):
        na.zeros(3).item().sync()
    assert na.zeros((1, 1, 1)).item().sync() == 0.0
    t = na.zeros(1).sync()
    op = t.item()
    t.take()
    with pytest.raises(MovedError):
        op.sync()


def test_the_number_is_what_came_before_its_reading(device: na.Device, stream: na.Stream) -> None:
    t = na.zeros(()).sync()

    async def main() -> list[float]:
        seen = []
        for k in range(5):
            na.fill(t, k).async_on(stream)
            seen.append(await t.item())
        return seen

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_closures_do_not_get_the_number(device: na.Device, stream: na.Stream) -> None:
    """They are called before it is there."""
    seen: list[Any] = []
    one = na.ones(1).sync()
    for op in (
        one.item().map(seen.append),
        one.item().inspect(seen.append),
        one.item().then(na.value),
        na.value(one).then(lambda t: t.item()).map(seen.append),
        na.zip(one.item(), na.value(1)).map(seen.append),
    ):
        with pytest.raises(OperationError, match=r"x = await t.item\(\)"):
            op.sync()
    assert seen == []
    assert na.value(one).then(lambda t: t.item()).sync() == 1.0
    with pytest.raises(OperationError, match="async_on would get the number"):
        one.item().async_on(stream)
    stream.synchronize()
    with pytest.raises(NotAGraphNodeError, match="behind the replay"):
        one.item().graph()


# --- of the same kind -------------------------------------------------------------------


def test_of_the_same_shape_and_dtype(device: na.Device) -> None:
    for dtype in (np.complex64, np.int8):
        for t, array in layouts(dtype):
            for of in (
                t,
                t.shared(),
                array,
                *([t.partition((2,) * t.ndim)] if 0 < t.ndim < 4 else []),
            ):
                for made, want in (
                    (na.zeros_like(of), np.zeros_like(array)),
                    (na.ones_like(of), np.ones_like(array)),
                    (na.full_like(of, 7), np.full_like(array, 7)),
                    (na.full_like(of, 2.5, np.float64), np.full_like(array, 2.5, np.float64)),
                ):
                    got = made.sync()
                    assert got.dtype == want.dtype and got.is_contiguous
                    np.testing.assert_array_equal(host(got), want)
                like = na.empty_like(of, dtype=np.uint16).sync()
                assert like.shape == array.shape and like.dtype == np.uint16
    pairs = na.zeros(3, PAIR).sync()
    assert na.empty_like(pairs).sync().dtype == PAIR == na.zeros_like(pairs).sync().dtype
    assert host(na.value(pairs).then(na.zeros_like)).tolist() == [(0, 0)] * 3
    meta = na.meta((2, 3), np.int32).sync()
    assert na.ones_like(meta).sync().shape == (2, 3)


def test_wrong_likes_are_refused(device: na.Device) -> None:
    with pytest.raises(OperationError, match=r"op.then\(na.zeros_like\)"):
        na.zeros_like(na.zeros(3))
    for wrong in ([1, 2], 3.5, None):
        with pytest.raises(OperationError, match=r"na.ones\(shape"):
            na.ones_like(wrong)
    pairs = na.zeros(3, PAIR).sync()
    with pytest.raises(DTypeError):
        na.ones_like(pairs)
    with pytest.raises(DTypeError):
        na.full_like(np.zeros(3, np.int32), "a")


# --- joined -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (np.float32, np.float32), (np.int64, np.uint64), (np.int16, np.float16),
        (np.bool_, np.complex64), (PAIR, PAIR),
    ],
    ids=["same", "integers", "half", "complex", "pairs"],
)  # fmt: skip
def test_joined_as_numpy_joins(device: na.Device, one: Any, two: Any) -> None:
    """Of all layouts, along every axis; of types that differ, of a few: a GPU compiles each."""
    some = slice(None) if one == two == np.float32 else slice(2, 4)
    for (t, x), (u, y) in zip(layouts(one)[some], layouts(two)[some], strict=True):
        for axis in range(-x.ndim - 1, x.ndim + 1):
            got, want = na.stack([t, u, t], axis).sync(), np.stack([x, y, x], axis)
            assert got.dtype == want.dtype and got.is_contiguous
            np.testing.assert_array_equal(host(got), want)
        for axis in range(-x.ndim, x.ndim):
            rest = (slice(None),) * (axis % x.ndim)
            few, none = (*rest, slice(1)), (*rest, slice(0))
            got = na.concatenate((u, t[few], t, u[none]), axis)
            np.testing.assert_array_equal(host(got), np.concatenate((y, x[few], x, y[none]), axis))


def test_parts_of_every_kind_are_joined(device: na.Device) -> None:
    x = elements((4, 6), np.float32)
    t = na.from_host(x).sync()
    parts = [t, t.shared(), t.partition((2, 2)), x, x[::2], na.from_host(x), na.value(t).shared(),
             na.value(t.partition((4, 3))), na.zeros((2, 6), np.float64)]  # fmt: skip
    want = np.concatenate([x, x, x, x, x[::2], x, x, x, np.zeros((2, 6))])
    got = na.concatenate(parts).sync()
    assert got.dtype == np.float64 == want.dtype
    np.testing.assert_array_equal(host(got), want)
    np.testing.assert_array_equal(
        host(na.stack([na.ones(3), na.arange(3)], 1)), [[1, 0], [1, 1], [1, 2]]
    )
    alone = na.concatenate([t]).sync()
    assert alone.storage is not t.storage and (host(alone) == x).all()
    np.testing.assert_array_equal(
        host(na.concatenate([t, t]).partition((4, 3)).unpartition()), [*x, *x]
    )


def test_a_graph_joins_anew(device: na.Device, stream: na.Stream) -> None:
    t, u = na.zeros((2, 3)).sync(), na.ones((1, 3)).sync()
    graph = na.concatenate([t, u]).graph_on(stream)
    out = graph.take_output()
    na.fill(t, 5).sync()
    graph.launch().sync()
    np.testing.assert_array_equal(host(out), [[5] * 3, [5] * 3, [1] * 3])


def test_what_cannot_be_joined_is_refused(device: na.Device) -> None:
    t = na.zeros((2, 3)).sync()
    for wrong in (t, na.zeros(3), None, {1: t}, (t for _ in range(2))):
        with pytest.raises(OperationError, match=r"takes a list of tensors.*\n.*\[t, u\]"):
            na.concatenate(wrong)  # type: ignore[arg-type]
    with pytest.raises(OperationError, match="number 1 is no tensor, but int"):
        na.stack([t, 3, na.zeros(3)])  # the lazy one is dropped without a warning
    for join, parts, axis, message in (
        (na.concatenate, [], 0, "write at least one"),
        (na.concatenate, [t, t], 2, "axis 2, of 2 axes: write one from -2 to 1"),
        (na.stack, [t, t], -4, "axis -4, of 3 axes"),
        (na.stack, [t, t], 1.5, "write a whole number"),
        (na.concatenate, [t, t], None, r"reshape\(-1\)"),
        (na.concatenate, [t, t.T], 0, r"number 1 has the shape \(3, 2\), and number 0 \(2, 3\)"),
        (na.concatenate, [t, t[0]], 0, "they must agree but in axis 0"),
        (na.stack, [t, t[:1]], 0, "they must agree\\."),
        (na.stack, [t, t[0]], 0, "they must agree\\."),
        (na.concatenate, [t[0, 0]], 0, "Write stack, which gives it one"),
    ):
        with pytest.raises(ShapeError, match=message):
            join(parts, axis)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"number 1 has the shape \(4,\)"):
        na.stack([na.zeros(3), na.zeros(4)]).sync()  # known only when it is run
    with pytest.raises(OperationError, match=r"op.output\(\)"):
        na.concatenate([t, na.value(3)]).sync()
    with pytest.raises(DTypeError, match="no common type"):
        na.stack([na.zeros(2, PAIR).sync(), np.zeros(2)])
    with pytest.raises(DTypeError, match="cannot hold"):
        na.stack([np.zeros(2, object)])


# --- refused ----------------------------------------------------------------------------

BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.matmul, operator.and_, operator.or_, operator.xor, operator.lt,
    operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip


@pytest.mark.parametrize("f", BINARY, ids=lambda f: f.__name__)
def test_operators_are_refused(device: na.Device, f: Any) -> None:
    t, u = na.zeros(3).sync(), na.zeros(3).sync()
    for other in (u, u.shared(), 2, 2.0, 1j, True, np.zeros(3), np.float32(1), [1, 2, 3]):
        for one in (t, t.shared()):
            for args in ((one, other), (other, one)):
                with pytest.raises(OperationError, match="b = na.CommandBatch"):
                    f(*args)


def test_what_would_need_the_elements_is_refused(device: na.Device) -> None:
    t: Any = na.ones(()).sync()
    for f in (
        operator.neg,
        operator.invert,
        abs,
        lambda t: sum(t[None]),
        lambda t: max([t, t[None]]),
    ):
        with pytest.raises(OperationError, match="b = na.CommandBatch"):
            f(t)
    for f in (float, int, complex):
        with pytest.raises(TypeError, match=r"x = await t.item\(\)"):
            f(t)
    for f in (bool, operator.not_, lambda t: t or 1):
        for one in (t, na.zeros(0).sync(), t.shared()):
            with pytest.raises(OperationError, match="`t is not None`"):
                f(one)
    with pytest.raises(OperationError, match=r"na.fill\(t\[key\], number\)"):
        na.zeros(3).sync()[1] = 2  # type: ignore[index]


def test_tensors_are_known_by_identity(device: na.Device) -> None:
    """So that they can be kept: only an answer that would mislead is refused."""
    t: Any = na.zeros(3).sync()
    u, s = na.zeros(3).sync(), t.shared()
    assert len({t, u, s, t}) == 3 and {t: 1, u: 2}[u] == 2
    kept = weakref.WeakKeyDictionary({t: "t", u: "u"})
    assert kept[t] == "t" and kept[u] == "u" and t in kept
    assert t in [t, u] and [t, u].index(t) == 0
    for other in (None, "t", (1,), {}, object(), Ellipsis):
        assert t != other and other != t and s != other
    x: Any = na.CommandBatch().use(t)
    for f in (operator.add, operator.eq):  # the id says what it takes
        for args in ((t, x), (x, t)):
            with pytest.raises(OperationError, match="takes ids of this batch"):
                f(*args)
    assert len(t) == 3 and [r.shape for r in na.zeros((2, 4)).sync()] == [(4,), (4,)]
