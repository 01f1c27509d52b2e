"""What a kernel's parameters take besides tensors and numbers: defaults, None, NumPy arrays that
are written, tuples of arrays, structured scalars, arrays of no axes.
"""

from __future__ import annotations

import asyncio
import enum

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    AliasError,
    DTypeError,
    LauncherError,
    NotAGraphNodeError,
    OperationError,
    StateError,
)
from tests.common import host, saxpy, saxpy2d, visit_tile

RECORD = np.dtype([("a", "f4"), ("b", "i4")])


# --- defaults, keyword-only parameters, None ---


@na.launcher
@cuda.jit
def optional(z, a=2.0, x=None, *, b: na.KernelInput | None = None, c=10):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += a * c
        if x is not None:
            z[i] += x[i]
        if b is not None:
            z[i] += 100 * b[i]


def test_what_is_left_out_is_the_default(device: na.Device) -> None:
    x = na.ones(8).sync()
    for args, named, adds in (
        ((), {}, 20), ((3,), {}, 30), ((), {"c": 1}, 2), ((2.0, x), {}, 21),
        ((), {"b": x}, 120), ((), {"x": x, "b": x, "a": 0.0}, 101), ((1.0, None), {"b": None}, 10),
    ):  # fmt: skip
        for _ in range(2):  # the second call is one of a form that is known
            z = na.zeros(8).sync()
            result = optional(z, *args, **named).sync()
            assert (host(z) == adds).all(), (args, named)
            assert result.x is named.get("x", args[1] if len(args) > 1 else None)
    z = na.zeros(8).sync()
    optional(z.partition(4), b=na.value(x)).sync()
    assert (host(z) == 120).all()
    graph = optional(z, b=x).graph()
    graph.launch().sync()
    assert (host(z) == 240).all()


def test_each_combination_is_a_variant_of_its_own(device: na.Device) -> None:
    x = na.ones(8).sync()
    optional.compile(x, 1.0, None, b=None).sync()
    before = na.compile_count()
    for _ in range(2):
        optional(na.zeros(8).sync(), 1.0).sync()
    assert na.compile_count() == before


def test_arguments_that_fit_no_parameter(device: na.Device) -> None:
    z = na.zeros(8).sync()
    for args, named, said in (
        ((), {}, "z is missing"),
        ((z, 1.0, None, z), {}, "4 arguments came without a name"),
        ((z, 1.0, None, z, 10), {}, "5 arguments came without a name"),
        ((z,), {"d": 1}, "there is no parameter d"),
        ((None,), {}, r"z cannot be NoneType.*\n.*if z is not None"),
        ((z, None), {}, r"a cannot be NoneType"),
        ((z,), {"c": None}, r"c cannot be NoneType"),
    ):
        with pytest.raises(LauncherError, match=said):
            optional(*args, **named)


# --- na.inout ---


def test_a_numpy_array_is_an_output(device: na.Device) -> None:
    x = np.arange(100, dtype=np.float32)
    wide = np.zeros((100, 3), np.float32)
    pinned = na.pinned(100)
    for z in (np.zeros(100, np.float32), wide[:, 1], wide[::-1, 2], pinned):
        z[...] = 1
        result = saxpy(na.inout(z), 2.0, x).sync()
        assert result.z is z
        assert saxpy(na.inout(z).partition(32), 1.0, x).output().sync() is z
        saxpy[1, 128](na.inout(z).partition_prefix(128), 0.0, x).sync()
        np.testing.assert_array_equal(z, 1 + 3 * x)
    assert not wide[:, 0].any()
    tiles = np.zeros(70, np.int32)
    visit_tile(na.inout(tiles).partition(32).map(2)).sync()
    assert (tiles == 1).all()
    empty = np.zeros(0, np.float32)
    assert saxpy(na.inout(empty), 1.0, empty).sync().z is empty


async def test_a_large_array_is_there_when_awaited(device: na.Device) -> None:
    z = np.zeros(1 << 20, np.float32)
    x = np.ones_like(z)
    for n in (1, 2):
        await saxpy(na.inout(z), 1.0, x)
        assert (z == n).all()
    others = [np.zeros(64, np.float32) for _ in range(8)]
    await asyncio.gather(*(na.spawn(saxpy(na.inout(o), 1.0, x[:64])) for o in others))
    assert all((o == 1).all() for o in others)


def test_an_array_still_unwritten_is_not_read(device: na.Device, stream: na.Stream) -> None:
    z, out, x = (np.zeros(8, np.float32) for _ in range(3))
    for follow in (
        lambda r: saxpy(na.inout(r.z), 1.0, x),
        lambda r: saxpy(na.inout(r.z[2:]), 1.0, x[2:]),
        lambda r: saxpy(na.inout(out), 1.0, r.z),
    ):
        with pytest.raises(StateError, match=r"(.|\n)*na.inout when it is done.*\n.*from_host"):
            saxpy(na.inout(z), 1.0, x).then(follow).sync()
    saxpy(na.inout(z), 1.0, x).async_on(stream)
    stream.synchronize()
    saxpy(na.inout(z), 1.0, x).sync()
    # Page-locked arrays are ordered by the device.
    locked = na.HostBuffer.from_array(z)
    locked[:] = 0
    ones = np.ones(8, np.float32)
    saxpy(na.inout(locked), 1.0, ones).then(lambda r: saxpy(na.inout(r.z), 1.0, ones)).sync()
    assert (locked == 2).all()


def test_graphs_use_page_locked_memory_at_each_launch(device: na.Device) -> None:
    ones = na.ones(8).sync()
    locked = na.pinned(8)
    locked[:] = 0
    graph = saxpy(na.inout(locked), 1.0, ones).graph()
    for n in (1, 2):
        graph.launch().sync()
        assert (locked == n).all()
    with pytest.raises(NotAGraphNodeError, match="na.pinned"):
        saxpy(na.inout(np.zeros(8, np.float32)), 1.0, ones).graph()


def test_what_cannot_be_written_back_is_refused(device: na.Device) -> None:
    z, x = np.zeros(8, np.float32), np.ones(8, np.float32)
    t = na.zeros(8).sync()
    for kind, said, build in (
        (AliasError, "z, a na.inout, and x share", lambda: saxpy(na.inout(z), 1.0, z)),
        (LauncherError, "x is only read", lambda: saxpy(t, 1.0, na.inout(x))),
        (LauncherError, r"lost.*\nWrite na.inout\(array\)", lambda: saxpy(z, 1.0, x)),
        (LauncherError, "t is a na.Tile", lambda: visit_tile(na.inout(z))),
        (OperationError, "takes a NumPy array, not Tensor", lambda: na.inout(t)),  # type: ignore[arg-type]
        (OperationError, "read-only", lambda: na.inout(np.broadcast_to(x, (2, 8)))),
        (OperationError, "no tiles to map", lambda: na.inout(z).map(2)),
    ):
        with pytest.raises(kind, match=said):
            build()
    assert not z.any()


# --- tuples of arrays, structured scalars, arrays of no axes ---


@na.launcher
@cuda.jit
def total(z: na.KernelOutput, xs):
    i = cuda.grid(1)
    if i < z.shape[0]:
        for x in xs:
            z[i] += x[i]


@na.launcher
@cuda.jit
def spread(zs, x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        zs[0][i] = x[i]
        zs[1][0][i] = zs[2] * x[i]


def test_tuples_of_arrays(device: na.Device) -> None:
    assert [p.is_output for p in (*total.parameters, *spread.parameters)] == [1, 0, 1, 0]
    z, x, y = na.zeros(8).sync(), na.ones(8).sync(), np.full(8, 3, np.float32)
    xs = x, y
    assert total(z, xs).sync().xs is xs
    total(z, (x.shared(), x.partition(4))).sync()
    total(na.value(z), (x, x)).sync()
    assert (host(z) == 8).all()
    a, b = (na.zeros(8).sync() for _ in range(2))
    spread[1, 8]((a, (b,), 2.0), x).then(lambda r: total(z, (r.zs[0], r.zs[1][0]))).sync()
    assert (host(b) == 2).all()
    assert (host(z) == 11).all()
    graph = total(z, (a, b)).graph()
    graph.launch().sync()
    assert (host(z) == 14).all()


def test_tuples_of_what_operations_will_give(device: na.Device) -> None:
    z = na.zeros(8).sync()
    ones = na.ones(8).sync()
    total(z, na.zip(na.ones(8), na.value(ones))).sync()
    total(z, na.zip(na.ones(8), na.zip(na.ones(8), na.ones(8)).first())).sync()
    total(z, na.zip(optional(na.zeros(8)).first(), na.ones(8)).shared()).sync()
    assert (host(z) == 2 + 2 + 21).all()
    with pytest.raises(LauncherError, match="result of a launch"):
        total(z, optional(na.zeros(8)))


def test_tuples_that_are_refused(device: na.Device) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    for kind, said, build in (
        (AliasError, "same storage", lambda: total(z, (x, z))),
        (AliasError, "same storage", lambda: spread((x, (x,), 1.0), z)),
        (LauncherError, "zs is written", lambda: spread((x, (np.zeros(8),), 1.0), z)),
        (LauncherError, "xs cannot be str", lambda: total(z, (x, "a"))),
        (LauncherError, "result of a launch", lambda: optional(z, x=total.result((z, x)))),
    ):
        with pytest.raises(kind, match=said):
            build()


def test_streams_are_ordered_by_what_is_in_tuples(device: na.Device) -> None:
    a, b = device.new_stream(), device.new_stream()
    z, x = na.zeros(8).sync(), na.zeros(8).sync()
    total(z, (x, x)).sync()
    release = a.backend.hold()
    na.fill(x, 1).async_on(a)
    total(z, (x, x)).async_on(b)
    assert not b.backend.query()
    release()
    a.synchronize()
    b.synchronize()
    assert (host(z) == 2).all()


@na.launcher
@cuda.jit
def by_record(z: na.KernelOutput, r, s):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += (r.a + r["b"]) * s


@na.launcher
@cuda.jit
def by_element(z: na.KernelOutput, s):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += s[()]


class Flag(enum.IntEnum):
    NONE = 0
    TOO_LARGE = 2**70


class Large(enum.Enum):
    ONE = 2**70


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Weight(enum.Enum):
    LIGHT = 1.5


class Planet(enum.Enum):
    EARTH = 5.976e24, 6378140.0
    MARS = 6.421e23, 3397200.0


class Text(enum.Enum):
    A = "a"


class Mixed(enum.Enum):
    A = 1
    B = 1.5


@na.launcher
@cuda.jit
def by_colour(z: na.KernelOutput, colour, weight, pair, planet):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = (10 if colour is Colour.RED else 20) + weight.value
        if planet == Planet.MARS:
            z[i] += planet.value[1]
        if pair[0] == Colour.GREEN:
            z[i] += 100 * pair[1]


def test_members_of_enumerations_are_arguments(device: na.Device) -> None:
    z = na.zeros(8).sync()
    result = by_colour(z, Colour.RED, Weight.LIGHT, (Colour.GREEN, 3), Planet.MARS).sync()
    assert result.colour is Colour.RED
    assert (host(z) == 10 + 1.5 + 3397200 + 300).all()
    before = na.compile_count()
    by_colour(z, Colour.GREEN, Weight.LIGHT, (Colour.RED, 3), Planet.EARTH).sync()
    assert (host(z) == 20 + 1.5).all()
    assert na.compile_count() == before, "one variant for all members"


def test_enumerations_of_other_values_are_refused(device: na.Device) -> None:
    z = na.zeros(8).sync()
    with pytest.raises(LauncherError, match="kernel by_colour: colour cannot be Text"):
        by_colour(z, Text.A, Weight.LIGHT, (Colour.RED, 1), Planet.MARS)
    with pytest.raises(DTypeError, match="Mixed"):
        by_colour(z, Mixed.A, Weight.LIGHT, (Colour.RED, 1), Planet.MARS).sync()


@na.launcher
@cuda.jit
def plus_first(z: na.KernelOutput, t):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += t[0]


def test_integers_of_more_than_64_bits(device: na.Device) -> None:
    z = na.zeros(8, np.float64).sync()
    for build in (
        lambda n: plus_first(z, (n, 1)),
        lambda n: plus_first(z, ((n, 1), 1)),
        lambda n: spread((z, (z,), n), na.zeros(8)),
        lambda n: scaled(z, n),
    ):
        for n in (2**64, -(2**63) - 1, 10**400, Flag.TOO_LARGE, Large.ONE):
            with pytest.raises(DTypeError, match=r"kernel \w+: \w+ is .*more than 64 bits"):
                build(n)
    plus_first(z, (2**63, 1)).sync()
    assert (host(z) == 2.0**63).all()


def test_structured_scalars_and_arrays_of_no_axes(device: na.Device) -> None:
    z, s = na.zeros(8).sync(), np.array(2.0)
    records = np.array([(1, 2), (3, 4)], RECORD)
    for n, r in enumerate(records):
        result = by_record(z, r, s).sync()
        assert result.r is r
        assert result.s is s
        assert (host(z) == (6, 20)[n]).all()
    (recorded,) = records[:1].view(np.recarray)
    assert type(recorded) is np.record and recorded.dtype == records.dtype
    before = na.compile_count()
    assert by_record(z, recorded, 0).sync().r is recorded
    by_record(z, records[0], 0).sync()
    assert na.compile_count() - before <= 1, "the same type as of np.void"
    by_element(z, s).sync()  # here it is an array
    assert (host(z) == 22).all()
    assert [p.is_number for p in by_record.parameters] == [False, False, True]
    scaled(z, np.array(2, np.int64)).sync()
    assert (host(z) == 44).all()


@na.launcher
@cuda.jit
def scaled(z: na.KernelOutput, a: int):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] *= a


# --- launches over the axes that a kernel asks about: see tests/launch/test_axes.py ---


def test_rows_of_a_matrix_are_visited_once(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def add_to_rows(z: na.KernelOutput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            for j in range(z.shape[1]):
                z[i, j] += 1

    z = na.zeros((300, 20)).sync()
    add_to_rows(z).sync()
    assert (host(z) == 1).all()
    with pytest.raises(na.errors.LaunchError, match=r"threadIdx\.y.*same work"):
        add_to_rows(z.partition((4, 4))).sync()
    assert (host(z) == 1).all()
    saxpy2d(z, 1.0, z.dup().sync()).sync()
    assert (host(z) == 2).all()


def test_an_inout_gives_back_its_array_without_tuples(
    device: na.Device,
) -> None:
    z, days = np.zeros(4, np.float32), np.zeros(4, "M8[D]")
    with pytest.raises(AliasError, match="share memory of the host"):
        total(na.inout(z), (z, z))
    assert na.inout(days).given is days
