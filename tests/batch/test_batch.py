"""Command batches on a device: results, transfers, kernels, and how a batch is run."""

from __future__ import annotations

import asyncio
import gc
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import numbasync as na
from numbasync.batch import Elementwise, Tuning
from numbasync.errors import BatchStateError, KernelError, NoResultError
from numbasync.testing import counters, gate, inject
from tests.lenders import lend
from tests.stress.random_batches import expressions
from tests.stress.trees import check

F32 = np.float32
X = np.random.default_rng(1).normal(0, 2, 1000).astype(F32)
Y = np.random.default_rng(2).normal(0, 2, 1000).astype(F32)


def computed(record: Callable[..., Any], *arrays: Any, fuse: bool = True) -> Any:
    """What a batch of one result gives."""
    b = na.CommandBatch(fuse=fuse)
    id = record(b, *map(b.upload, arrays))
    b.execute_sync()
    return b.read_sync(id)


def each_computed(records: Iterable[Callable[..., Any]], *arrays: Any) -> list[Any]:
    """What a batch of several results gives. Those that go through the same elements are computed
    by one kernel: on the CPU device, to compile kernels is what takes the time.
    """
    b = na.CommandBatch()
    inputs = list(map(b.upload, arrays))
    ids = [record(b, *inputs) for record in records]
    b.execute_sync()
    return list(map(b.read_sync, ids))


# --- one upload, one kernel, one download ---


async def test_a_chain_is_one_upload_one_kernel_and_one_download(device: na.Device) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    rectified = b.relu(x)
    scaled = b.scale(rectified, 2.0)
    y = b.add(scaled, x)
    assert (b.num_operations, b.num_buffers) == (3, 4)
    before = counters()
    await b.execute()
    assert counters().launches - before.launches == 1
    assert (b.transfers.uploads, b.transfers.downloads, b.kernels_launched) == (1, 0, 1)
    np.testing.assert_array_equal(await b.read(y), np.maximum(X, 0) * F32(2) + X)
    assert (b.transfers.uploads, b.transfers.downloads, b.kernels_launched) == (1, 1, 1)


def test_without_fusion_each_operation_is_a_kernel_with_the_same_result(device: na.Device) -> None:
    def chain(b: na.CommandBatch, x: Any, y: Any) -> Any:
        return b.sigmoid(b.relu(x) * 2 + y) * x - y

    fused, apart = computed(chain, X, Y), computed(chain, X, Y, fuse=False)
    np.testing.assert_array_equal(fused, apart)
    b = na.CommandBatch(fuse=False)
    y = chain(b, b.upload(X), b.upload(Y))
    b.execute_sync()
    assert b.kernels_launched == 6
    np.testing.assert_array_equal(b.read_sync(y), fused)


@pytest.mark.parametrize("n", [1, 255, 1023, 1024, 1025, 4096, 70001], ids="n={}".format)
def test_every_element_is_computed_once_and_nothing_else(device: na.Device, n: int) -> None:
    x = np.arange(n, dtype=np.int32)
    np.testing.assert_array_equal(computed(lambda b, x: x + 1, x), x + 1)


def test_a_sum_of_products_is_one_kernel(device: na.Device) -> None:
    for n in (1000, 9000, 300_001):
        a, c = (np.random.default_rng([n, k]).normal(0, 1, n).astype(F32) for k in (0, 1))
        b = na.CommandBatch()
        x, y = b.upload(a), b.upload(c)
        total = b.sum(x * y + x)
        twice = total * 2
        b.keep(total)
        b.execute_sync()
        assert b.kernels_launched == 1
        terms = (a * c + a).astype(np.float64)
        bound = n * 2.0**-53 * np.abs(terms).sum() + np.spacing(F32(abs(terms.sum())))
        assert abs(b.read_sync(total) - terms.sum()) <= bound
        assert b.read_sync(twice) == b.read_sync(total) * F32(2)
        assert b.kernels_launched == 1


# A warp has a row, or several; a block; a larger one; several blocks.
@pytest.mark.parametrize(
    ("shape", "names"),
    [((1, 5), "layer_norm"), ((7, 33), "softmax, layer_norm"), ((3, 600), "softmax"),
     ((2, 5000), "layer_norm"), ((2, 20000), "softmax")],
    ids=str,
)  # fmt: skip
def test_softmax_and_layer_norm(device: na.Device, shape: tuple[int, int], names: str) -> None:
    a = np.random.default_rng(5).normal(0, 3, shape).astype(F32)
    b = na.CommandBatch()
    x = b.upload(a)
    shares = b.softmax(x) if "softmax" in names else None
    normed = b.layer_norm(x, 3.0, 1.0) if "layer_norm" in names else None
    b.execute_sync()
    if shape[1] <= 16384:
        assert b.kernels_launched == 1, b.plan()
    wide = a.astype(np.float64)
    if shares is not None:
        e = np.exp(wide - wide.max(1, keepdims=True))
        # exp: 2 units, its argument one rounding of at most 16, the quotient one.
        np.testing.assert_allclose(
            b.read_sync(shares), e / e.sum(1, keepdims=True), rtol=24 * 2.0**-24, atol=1e-40
        )
    if normed is not None:
        d = wide - wide.mean(1, keepdims=True)
        want = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * 3 + 1
        # The mean is rounded, then the difference; five more operations on values of at most 20.
        np.testing.assert_allclose(b.read_sync(normed), want, rtol=0, atol=60 * 2.0**-23)


def test_composites_of_float16_are_computed_in_float32(device: na.Device) -> None:
    a = np.random.default_rng(5).normal(0, 3, (4, 100)).astype(np.float16)
    wide = a.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    have = computed(lambda b, x: b.softmax(x), a)
    assert have.dtype == np.float16
    np.testing.assert_allclose(have, want, rtol=2.0**-10, atol=2.0**-24)


# Every one with every axis, with every type, and every axis with every type. All together, and with
# all broadcasts, are run as plain Python, in test_batch_broadcasts.py, and by the soak of batches.
TYPES = [np.float32, np.int32, np.bool_, np.float16]
REDUCTIONS = [
    (name, (None, 0, 1, -1 if name == "sum" else 2)[(n + d) % 4], dtype)
    for n, name in enumerate(["sum", "mean", "max", "min", "argmax"])
    for d, dtype in enumerate(TYPES)
]


@pytest.mark.parametrize("axes", [(None,), (0,), (1,), (2, -1)])
def test_reductions(device: na.Device, axes: tuple[int | None, ...]) -> None:
    b = na.CommandBatch()
    whole = np.random.default_rng(3).integers(-3, 4, (5, 70, 40))
    arrays = {dtype: whole.astype(dtype) for dtype in TYPES}
    x, i, flags, half = map(b.upload, arrays.values())
    uploaded = dict(zip(TYPES, (x, i, flags, half), strict=True))
    met = b.where(flags, x + i, half)  # by which they are of one kernel
    cases = [case for case in REDUCTIONS if case[1] in axes]
    assert len(cases) == 5
    ids = [getattr(b, name)(uploaded[dtype], axis) for name, axis, dtype in cases]
    b.execute_sync()
    assert b.kernels_launched == 1
    np.testing.assert_array_equal(
        b.read_sync(met), np.where(whole != 0, whole + whole, whole).astype(np.float64)
    )
    for (name, axis, dtype), id in zip(cases, ids, strict=True):
        want, have = np.asarray(getattr(np, name)(arrays[dtype], axis=axis)), b.read_sync(id)
        shown = f"{name} along {axis} of {np.dtype(dtype)}"
        assert (have.dtype, have.shape) == (want.dtype, want.shape), shown
        if name == "mean" and dtype in (np.float32, np.float16):
            rtol = 2 * float(np.finfo(dtype).eps)
            np.testing.assert_allclose(have, want, rtol=rtol, atol=1e-7, err_msg=shown)
        else:
            np.testing.assert_array_equal(have, want, shown)


def test_results_meet_values_of_more_axes(device: na.Device) -> None:
    a, more = X[:60].reshape(3, 20), Y[:3].reshape(1, 1, 3)
    b = na.CommandBatch()
    y = b.max(b.upload(a), axis=1) + b.upload(more)
    b.execute_sync()
    assert b.kernels_launched == 1
    np.testing.assert_array_equal(b.read_sync(y), a.max(1) + more)


def test_long_reductions_of_every_form(device: na.Device) -> None:
    a = np.random.default_rng(3).integers(-9, 10, (3, 40_000)).astype(np.int64)
    b = na.CommandBatch()
    x = b.upload(a)
    ids = {
        (name, axis): getattr(b, name)(x, axis)
        for name in ("sum", "max", "argmax") for axis in (None, 0, 1)
        if (name, axis) not in (("max", None), ("max", 1))  # others are in test_reductions
    }  # fmt: skip
    b.execute_sync()
    for (name, axis), id in ids.items():
        np.testing.assert_array_equal(b.read_sync(id), getattr(np, name)(a, axis=axis), str(name))


def test_a_reduction_gives_the_same_bits_each_time(device: na.Device) -> None:
    a = np.random.default_rng(3).normal(0, 1, 500_000).astype(np.float64)
    found = {computed(lambda b, x: b.sum(x), a).tobytes() for _ in range(4)}
    assert len(found) == 1


# --- numbers ---


def test_nan_and_infinities_propagate_as_in_numpy(device: na.Device) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1, -1, 0], F32)
    y = np.array([1, np.nan, np.inf, -np.inf, 0, np.nan], F32)
    with np.errstate(all="ignore"):
        elements: dict[str, tuple[Any, Any]] = {
            "maximum": (lambda b, p, q: b.maximum(p, q), np.maximum(x, y)),
            "minimum": (lambda b, p, q: b.minimum(p, q), np.minimum(x, y)),
            "relu": (lambda b, p, q: b.relu(p), np.maximum(x, 0)),
            "clamp": (lambda b, p, q: b.clamp(p, -1, 2), np.clip(x, -1, 2)),
            "div": (lambda b, p, q: p / q, x / y),
            "log": (lambda b, p, q: b.log(b.abs(p)), np.log(np.abs(x))),
            "sqrt": (lambda b, p, q: b.sqrt(p), np.sqrt(x)),
            "cast": (lambda b, p, q: b.cast(p, np.bool_), x.astype(np.bool_)),
        }
        reductions: dict[str, tuple[Any, Any]] = {
            "of both": (lambda b, p, q: b.min(b.maximum(p, q)), np.min(np.maximum(x, y))),
            "max": (lambda b, p, q: b.max(p), np.max(x)),
            "argmax": (lambda b, p, q: b.argmax(p), np.argmax(x)),
            "later NaN": (lambda b, p, q: b.argmax(q), np.argmax(y)),
        }
    for cases in (elements, reductions):
        found = each_computed((record for record, _ in cases.values()), x, y)
        for (name, (_, want)), have in zip(cases.items(), found, strict=True):
            np.testing.assert_array_equal(have, want, name)


def test_integers_wrap_and_divide_as_in_numpy(device: na.Device) -> None:
    for dtype in (np.int32, np.int64):
        ends = np.iinfo(dtype)
        x = np.array([ends.max, ends.min, 7, -7, 0, 5], dtype)
        y = np.array([ends.max, ends.min, 2, 2, 3, 0], dtype)
        with np.errstate(all="ignore"):
            elements: list[tuple[Any, Any]] = [
                (lambda b, p, q: p + q, x + y),
                (lambda b, p, q: p - q, x - y),
                (lambda b, p, q: p * q, x * y),
                (lambda b, p, q: p / q, x / y),
                (lambda b, p, q: -p, -x),
                (lambda b, p, q: abs(p), abs(x)),
                (lambda b, p, q: p**3, x**3),
                (lambda b, p, q: p ** b.abs(b.clamp(q, -9, 9)), x ** np.abs(np.clip(y, -9, 9))),
                # A compiler that takes it that nothing overflows computes these as if.
                (lambda b, p, q: p < p + q, x < x + y),
                (lambda b, p, q: p > p - q, x > x - y),
                (lambda b, p, q: p * 2 > p, x * dtype(2) > x),
            ]  # fmt: skip
            sums: list[tuple[Any, Any]] = [(lambda b, p, q: b.sum(p), np.sum(x))]
        for cases in (elements, sums):
            found = each_computed((record for record, _ in cases), x, y)
            for k, ((_, want), have) in enumerate(zip(cases, found, strict=True)):
                np.testing.assert_array_equal(have, want, f"{np.dtype(dtype)}, {k}")
                assert have.dtype == want.dtype


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_powers_and_dot_products(device: na.Device, dtype: Any) -> None:
    x = np.abs(X).astype(dtype)[:200] / dtype(2) + dtype(0.25)
    y = Y.astype(dtype)[:200] / dtype(2)
    # CUDA bounds pow of float32 at 9 units, of float64 at 2; NumPy's own is within 4.
    cases: list[tuple[Any, Any]] = [
        (lambda b, p, q: p**q, x**y),
        (lambda b, p, q: p**0.5, np.power(x, dtype(0.5))),
        (lambda b, p, q: p**3 - 1, x ** dtype(3) - dtype(1)),
        (lambda b, p, q: 2.0**q, dtype(2) ** y),
    ]
    *found, squares = each_computed([*(record for record, _ in cases), lambda b, p, q: q**2], x, y)
    np.testing.assert_array_equal(squares, y * y)
    for (_, want), have in zip(cases, found, strict=True):
        assert have.dtype == want.dtype
        ulps = 14 * np.spacing(np.maximum(np.abs(want), np.power(x, dtype(3)))).astype(np.float64)
        assert (np.abs(have.astype(np.float64) - want) <= ulps).all()
    wide = x.astype(np.float64) * y.astype(np.float64)
    have = computed(lambda b, p, q: b.dot(p, q), x, y)
    assert have.dtype == dtype and have.shape == ()
    # A product is rounded to its type (of float16, to float32), then the sum.
    eps = float(np.finfo(np.float32 if dtype == np.float16 else dtype).eps)
    bound = (200 * eps) * np.abs(wide).sum() + np.spacing(np.abs(dtype(wide.sum())))
    assert abs(float(have) - wide.sum()) <= bound


def test_numbers_of_python_take_the_other_operands_type(device: na.Device) -> None:
    half = X.astype(np.float16)
    cases: list[tuple[Any, Any]] = [
        (lambda b, x: 2 * x + 1.5, 2 * half + 1.5),
        (lambda b, x: x * np.float32(2), half * np.float32(2)),
        (lambda b, x: np.float64(2) * x, np.float64(2) * half),
        (lambda b, x: b.where(x > 0, x, 0), np.where(half > 0, half, 0)),
        (lambda b, x: 1 / (x * x + 1), 1 / (half * half + 1)),
    ]
    found = each_computed((record for record, _ in cases), half)
    for (_, want), have in zip(cases, found, strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, want)


# Each example compiles some kernels, which takes the CPU device a second each. Many programs,
# and every broadcast, are run by test_batch_broadcasts.py, which compiles none, and by a soak.
@settings(
    max_examples=int(os.environ.get("NUMBASYNC_TREES", "2")), deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(record=expressions(most=5))
def test_random_expressions_are_what_numpy_computes(device: na.Device, record: Any) -> None:
    found: list[list[np.ndarray[Any, Any]]] = []
    for fuse in (True, True, False):  # the second of two is recorded and enqueued at once
        b = na.CommandBatch(fuse=fuse)
        values = record(b)
        b.execute_sync()
        found.append([b.read_sync(v.id) for v in values])
        parts = [check(value, have) for value, have in zip(values, found[-1], strict=True)]
        assert np.mean(parts) > 0.5, "most elements can be compared"
    for fused, again, apart in zip(*found, strict=True):
        np.testing.assert_array_equal(fused, again)
        np.testing.assert_array_equal(fused, apart)


# --- how it runs ---


async def test_a_batch_is_an_operation(device: na.Device) -> None:
    b = na.CommandBatch()
    y = b.upload(X) * 2
    host = await b.op().then(lambda results: results[y].to_host())
    np.testing.assert_array_equal(host, X * 2)
    np.testing.assert_array_equal(await b.read(y), X * 2)
    assert b.tensor(y).shape == X.shape


async def test_a_result_is_a_result_whatever_its_numbers_are(device: na.Device) -> None:
    t = await na.from_host(X)
    for factor in (1.0, 2.0):
        b = na.CommandBatch()
        x = b.upload(X)
        y, z = b.scale(x, factor), b.scale(b.use(t), factor)
        three = b.add(1, 2)
        results = await b.op()
        assert results[z].storage is not t.storage
        for id in (y, z):
            np.testing.assert_array_equal(await results[id].to_host(), X * F32(factor))
        assert y in results and x not in results and results.get(x) is None
        for id, why in ((x, r"did not write it.*\n.*b\.keep"), (three, r"a number.*\n.*b\.read")):
            with pytest.raises(NoResultError, match=why):
                results[id]


async def test_batches_run_side_by_side_and_read_in_order(device: na.Device) -> None:
    async def one(k: int) -> Any:
        b = na.CommandBatch()
        y = b.sum(b.upload(np.full(5000, k, F32)) * 2 + 1)
        await b.execute()
        return await b.read(y)

    assert await asyncio.gather(*map(one, range(12))) == [5000 * (2 * k + 1) for k in range(12)]


async def test_tensors_of_the_program_are_used_in_place(device: na.Device) -> None:
    t = await na.from_host(X.reshape(20, 50))
    b = na.CommandBatch()
    y = b.sum(b.use(t) * 2, axis=1)
    z = b.use(t[:, ::2]) + 1
    unused = b.use(t)
    await b.execute()
    np.testing.assert_array_equal(await b.read(unused), X.reshape(20, 50))
    assert b.transfers.uploads == 0
    np.testing.assert_allclose(
        await b.read(y), (X.reshape(20, 50) * 2).sum(1), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(await b.read(z), X.reshape(20, 50)[:, ::2] + 1)


def test_arrays_of_other_libraries_are_used_in_place(device: na.Device) -> None:
    t = na.as_tensor(lend(device, X))
    b = na.CommandBatch()
    y = b.use(t) + 1
    b.execute_sync()
    assert b.transfers.uploads == 0
    np.testing.assert_array_equal(b.read_sync(y), X + 1)


async def test_what_was_not_written_is_computed_when_it_is_read(device: na.Device) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    r = b.relu(x)
    y = r + 1
    await b.execute()
    assert b.kernels_launched == 1
    np.testing.assert_array_equal(await b.read(r), np.maximum(X, 0))
    assert (b.kernels_launched, b.transfers.uploads) == (2, 1)
    np.testing.assert_array_equal(await b.read(r), np.maximum(X, 0))
    assert b.kernels_launched == 2
    np.testing.assert_array_equal(await b.read(y), np.maximum(X, 0) + 1)
    np.testing.assert_array_equal(await b.read(x), X)


async def test_what_is_kept_is_written_with_the_rest(device: na.Device) -> None:
    b = na.CommandBatch()
    r = b.relu(b.upload(X))
    y = r + 1
    b.keep(r)
    await b.execute()
    np.testing.assert_array_equal(await b.read(r), np.maximum(X, 0))
    np.testing.assert_array_equal(await b.read(y), np.maximum(X, 0) + 1)
    assert b.kernels_launched == 1


def test_what_nobody_can_ask_for_is_not_computed(device: na.Device) -> None:
    b = na.CommandBatch()
    x, unused = b.upload(X), b.upload(Y)
    b.exp(unused)
    y = x + 1
    gc.collect()
    b.execute_sync()
    assert (b.kernels_launched, b.transfers.uploads) == (1, 1)
    assert "exp" not in b.plan().source()
    np.testing.assert_array_equal(b.read_sync(y), X + 1)
    np.testing.assert_array_equal(b.read_sync(unused), Y)


def test_equal_structures_share_kernels_whatever_the_numbers_are(device: na.Device) -> None:
    computed(lambda b, x: b.tanh(x * 2.0 + 0.25), X)
    before = na.compile_count()
    for n, factor in ((10, 3.0), (5000, 4.0)):
        have = computed(lambda b, x, f=factor: b.tanh(x * f + 0.5), np.zeros(n, F32))
        np.testing.assert_allclose(have, math.tanh(0.5), rtol=1e-6)
    assert na.compile_count() == before


async def test_many_tasks_compile_a_kernel_once(device: na.Device) -> None:
    async def one(k: float) -> Any:
        b = na.CommandBatch()
        y = b.log(b.abs(b.upload(X) * 7.0 - 0.375) + k) / b.upload(Y)
        await b.execute()
        return await b.read(y)

    before = na.compile_count()
    await asyncio.gather(*(one(k + 0.5) for k in range(8)))
    assert na.compile_count() - before <= 1  # none, if an earlier run has left it on disk


def test_what_failed_on_the_device_is_not_read(device: na.Device) -> None:
    def recorded() -> tuple[na.CommandBatch, na.BufferId]:
        b = na.CommandBatch()
        return b, b.upload(X) + 1

    b, y = recorded()
    z = y * 2
    with inject(device, "kernel"), pytest.raises(KernelError):
        b.execute_sync()
    for ask, id in ((b.read_sync, z), (b.tensor, z), (b.read_sync, y)):
        with pytest.raises(BatchStateError, match=r"failed on the device.*\n.*injected"):
            ask(id)
    b, y = recorded()
    b.execute_sync()  # its kernel is loaded before the gate is shut
    b, y = recorded()
    stream, other = device.new_stream(), device.new_stream()
    with inject(device, "kernel"), gate(stream):
        b.op().async_on(stream)
        reading = b.read_op(y).async_on(other)  # which waits for it
    for each in (stream, other):
        with pytest.raises(KernelError, match="injected"):
            each.synchronize()
    del reading
    b, y = recorded()
    g = b.graph()
    with inject(device, "kernel"), pytest.raises(KernelError):
        g.replay_sync()
    with pytest.raises(BatchStateError, match="failed"):
        b.read_sync(y)
    g.replay_sync()
    np.testing.assert_array_equal(b.read_sync(y), X + 1)


# --- users' functions ---


@na.elementwise
def soft_clip(x: Any, limit: Any) -> Any:
    """A function of a program."""
    return limit * math.tanh(x / limit)


@na.elementwise(dtype=np.bool_)
def is_near(a: Any, b: Any) -> Any:
    return abs(a - b) < 0.5


@na.elementwise
def no_such_thing(x: Any) -> Any:
    return x.there_is_no_such_method()


@na.elementwise
def of_itself(x: Any) -> Any:
    return of_itself(x - 1) if x > 0 else x


@na.elementwise
def remembering(x: Any) -> Any:
    global X
    X = x
    return x


@na.elementwise
def two_numbers(x: Any) -> Any:
    return x, x


def test_functions_of_a_program_fuse_like_the_others(device: na.Device) -> None:
    b = na.CommandBatch()
    x, y = b.upload(X), b.upload(Y)
    z = soft_clip(x * 2, 3.0) + y
    near = is_near(x, y)
    total = b.sum(b.where(near, 1, 0))
    b.execute_sync()
    assert b.kernels_launched == 1
    want = F32(3) * np.tanh(X * 2 / F32(3)) + Y
    assert z.dtype == F32
    np.testing.assert_allclose(b.read_sync(z), want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(b.read_sync(near), np.abs(X - Y) < 0.5)
    assert b.read_sync(total) == (np.abs(X - Y) < 0.5).sum()


def named(name: str, number: float) -> Elementwise:
    def function(x: Any) -> Any:
        return x + number

    function.__name__ = name
    return na.elementwise(function)


def test_functions_may_have_any_names(device: na.Device) -> None:
    # Of other functions, of what kernels are written with, and none; f_2 is no second f.
    names = ["f_2", "f", "f", "larger", "element", "a0", "v0", "np", "<lambda>", "f" * 300]
    b = na.CommandBatch(tuning=Tuning(elements=1))
    x = b.upload(X)
    ids = [named(name, k)(b.maximum(x, 0)) for k, name in enumerate(names)]
    b.execute_sync()
    for k, id in enumerate(ids):
        np.testing.assert_array_equal(b.read_sync(id), np.maximum(X, 0) + F32(k), names[k])
    sums = na.CommandBatch()
    total = sums.sum(named("j", 1)(sums.upload(np.zeros(9, F32))))
    sums.execute_sync()
    assert sums.read_sync(total) == 9


@pytest.mark.parametrize("wrong", [no_such_thing, of_itself, remembering, two_numbers], ids=repr)
async def test_a_function_that_does_not_compile_changes_nothing(
    device: na.Device, wrong: Elementwise
) -> None:
    b = na.CommandBatch()
    y = wrong(b.upload(X) * 2)
    before, bytes_before = counters(), device.memory_stats().used_current
    with pytest.raises(na.errors.KernelCompileError, match=wrong.name):
        await b.execute()
    after = counters()
    assert (after.launches, after.copies) == (before.launches, before.copies)
    assert device.memory_stats().used_current == bytes_before
    assert b.transfers.uploads == 0
    with pytest.raises(BatchStateError, match=r"failed, and .*record another one\.\n.*kernel"):
        b.read(y)
