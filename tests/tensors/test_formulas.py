"""Tensors whose elements follow from a formula: the same bits on every device, and NumPy's."""

from __future__ import annotations

import hashlib
import statistics
import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import dtypes
from numbasync.backend import formulas
from numbasync.errors import DTypeError, ShapeError
from tests.common import host

SMALL, LARGE = 1000, 70_001  # elements; a GPU computes the large ones by a kernel, in any dtype
DTYPES = [
    "?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "bfloat16",
]  # fmt: skip


def dtype_of(name: str) -> np.dtype[Any]:
    return dtypes.of_name("bfloat16") if name == "bfloat16" else np.dtype(name)


def digest(op: na.DeviceOp[na.Tensor]) -> str:
    return hashlib.sha256(host(op).tobytes()).hexdigest()[:16]


def converted(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """In the dtype; to narrow integers by way of wide ones, where out of range is defined."""
    if dtype.kind in "iu" and values.dtype.kind == "f":
        values = values.astype(np.int64)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


@pytest.mark.parametrize("name", DTYPES)
def test_sequences_have_numpys_bits(device: na.Device, name: str) -> None:
    dtype = dtype_of(name)
    for n in (0, 1, SMALL, LARGE):
        steps = np.arange(n)
        for first, step in ((0, 1), (5, 3), (-3, 2)):
            kind = np.float64 if dtypes.is_float(dtype) else np.int64
            want = converted(first + step * steps.astype(kind), dtype)
            got = host(na.arange(first, first + n * step, step, dtype))
            assert got.dtype == dtype and got.tobytes() == want.tobytes(), (n, first, step)
        if name != "u8":  # of which NumPy defines no negative float
            want = converted(-0.7 + 0.3 * steps.astype(np.float64), dtype)
            got = host(na.arange(-0.7, -0.7 + (n - 0.5) * 0.3, 0.3, dtype))
            assert got.tobytes() == want.tobytes(), n
        want = converted(np.linspace(0.1, 77.7, n), dtype)
        assert host(na.linspace(0.1, 77.7, n, dtype)).tobytes() == want.tobytes(), n
    for shape in ((0, 3), (1, 1), (4, 7), (7, 4), (300, 200), (200, 300)):
        want = np.eye(*shape).astype(dtype)
        got = host(na.eye(*shape, dtype=dtype))
        assert got.shape == shape and got.tobytes() == want.tobytes()


def test_integers_are_exact_to_their_last_bit(device: na.Device) -> None:
    got = host(na.arange(2**53 + 1, 2**53 + 5, dtype=np.int64))
    assert got.tolist() == [2**53 + k for k in range(1, 5)]
    got = host(na.arange(2**64 - 3, 2**64, dtype=np.uint64))
    assert got.tolist() == [2**64 - 3, 2**64 - 2, 2**64 - 1]
    three: Any = np.int8(3)
    assert host(na.arange(three, -three, -2, np.int64)).tolist() == [3, 1, -1]
    low: Any = np.int8(-100)
    high: Any = np.int8(100)  # whose difference from it is no int8
    step: Any = np.uint8(50)
    assert host(na.arange(low, high, step, np.int64)).tolist() == [-100, -50, 0, 50]
    assert host(na.arange(2**64, 2**64 + 1, dtype=np.float64)).tolist() == [2.0**64]
    first: int
    dtype: Any
    for first, dtype in ((2**64, np.uint64), (-(2**63) - 1, np.int64), (2**64, "?")):
        with pytest.raises(DTypeError, match=r"start of arange is -?\d+, .*from -2\*\*63 to 2"):
            na.arange(first, first + 2, dtype=dtype)
    large = 10**400
    for start, stop, by in ((large, large + 2, 1), (0, large, 1), (0, 1, large)):
        for dtype in (np.int64, np.float64):
            with pytest.raises(DTypeError, match="arange is <an integer of about 400 d.*float64"):
                na.arange(start, stop, by, dtype)
    with pytest.raises(ShapeError, match=r"count of linspace is \(2, 3\): write a whole number"):
        na.linspace(0, 1, (2, 3))  # type: ignore[arg-type]


def test_linspace_ends_at_its_end(device: na.Device) -> None:
    for ends in ((1.0, 0.1), (2, 2), (0.0, 5e-324), (np.float32(0.1), 3), (0, 1j), (-np.inf, 1)):
        with np.errstate(all="ignore"):
            want = np.linspace(*ends, 7)  # type: ignore[call-overload]
        first, last = ends
        got = host(na.linspace(first, last, 7, dtype=want.dtype))  # type: ignore[arg-type]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 7, SMALL, LARGE])
def test_uniform_numbers_are_those_of_numpys_generator(
    device: na.Device, dtype: Any, n: int
) -> None:
    for seed in (0, 7, 2**80 + 1, np.random.SeedSequence(3)):
        want = np.random.Generator(np.random.Philox(seed)).random(n, dtype)
        got = host(na.rand(n, seed, dtype))  # type: ignore[arg-type]
        assert got.tobytes() == want.tobytes()
    assert host(na.rand((7, 0, 2), 1)).shape == (7, 0, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal_numbers_are_quantiles_of_numpys_words(device: na.Device, dtype: Any) -> None:
    n = 20_003
    words = np.random.Philox(11).random_raw(n).view(np.int64) >> 11
    of = statistics.NormalDist().inv_cdf
    # The probability of a positive number has lost bits: that of its mirror image has not.
    want = np.array(
        [-np.sign(s + 0.5) * of((2**52 - abs(s + 0.5)) / 2**53) for s in words.tolist()]
    )
    got = host(na.randn(n, seed=11, dtype=dtype))
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, rtol=2e-15 if dtype is np.float64 else 6.1e-8)
    moved = host(na.randn(n, -3, 0.5, 11, dtype))
    exact = host(na.randn(n, seed=11, dtype=np.float64)) * 0.5 + -3.0
    assert moved.tobytes() == exact.astype(dtype).tobytes()
    # Four standard errors of mean, variance, skewness and kurtosis.
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((want**power).mean() - moment) < 4 * (variance / n) ** 0.5


def test_the_ends_of_the_normal_distribution() -> None:
    """The words of the least and the greatest probability, and those around a half."""
    bits = np.array([2**63, 2**63 - 1, 0, 2**64 - 1], np.uint64)
    low, high, above, below = formulas.quantile(bits).tolist()
    assert -8.3 < low == -high < -8.29 and 0 < above == -below < 2e-16
    assert abs(low - statistics.NormalDist().inv_cdf(2.0**-54)) < 1e-14


# Of seed 5: SHA-256 of the bytes, which no device and no version of anything may change.
KNOWN = {
    ("rand", "f4", SMALL): "0b4d249bcbd9680f",
    ("rand", "f4", LARGE): "a8d65e8cede75de9",
    ("rand", "f8", SMALL): "eeee1a3f4b072553",
    ("rand", "f8", LARGE): "023301f94d0334a8",
    ("randn", "f4", SMALL): "a5e89aeef04ab0f1",
    ("randn", "f4", LARGE): "eba434b07abb4627",
    ("randn", "f8", SMALL): "9f1f90b76b147f93",
    ("randn", "f8", LARGE): "1ef6d47f310d66da",
}


@pytest.mark.parametrize(("name", "dtype", "n"), KNOWN)
def test_random_numbers_never_change(device: na.Device, name: str, dtype: str, n: int) -> None:
    made = na.rand if name == "rand" else na.randn
    got = host(made(n, seed=5, dtype=dtype))
    assert digest(made(n, seed=5, dtype=dtype)) == KNOWN[name, dtype, n]
    more = host(made((n + 1, 3), seed=5, dtype=dtype)).reshape(-1)
    assert got.tobytes() == more[:n].tobytes()  # a number depends on its position alone


def test_wrong_moments_are_refused() -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"mean": "x"}, {"std": 1j}, {"mean": None}, {"std": [1, 2]}, {"std": 10**400},
    )  # fmt: skip
    for wrong in wrongs:
        name = "".join(wrong)
        with pytest.raises(DTypeError, match=f"{name} of randn is .*: write a number that"):
            na.randn(3, **wrong)


def test_large_formulas_use_no_thread_of_the_program(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[threading.Thread]()
    for kind in (formulas.Floats, formulas.Uniform, formulas.Normal, formulas.Diagonal):

        def write(self: Any, out: Any, inner: Any = kind.write) -> None:
            threads.append(threading.current_thread())
            inner(self, out)

        monkeypatch.setattr(kind, "write", write)

    async def main() -> None:
        await na.gather(na.arange(LARGE), na.rand(LARGE), na.randn(LARGE), na.eye(300))

    na.run(main())
    assert threading.main_thread() not in threads
    assert len(threads) == (4 if device.kind == "cpu" else 0)


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_a_graph_computes_them_again(device: na.Device, n: int) -> None:
    stream = device.new_stream()
    op = na.zip(na.rand(n, 5), na.arange(n, dtype=np.int32), na.eye(3, n))
    graph = op.graph_on(stream)
    made = graph.take_output()
    assert made is not None
    want = [host(na.rand(n, 5)), np.arange(n, dtype=np.int32), np.eye(3, n, dtype=np.float32)]
    for _ in range(2):
        for tensor in made:
            na.fill(tensor, 9).sync()
        graph.launch().sync()
        for tensor, expected in zip(made, want, strict=True):
            np.testing.assert_array_equal(host(tensor), expected)
