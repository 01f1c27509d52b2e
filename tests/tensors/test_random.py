"""`numbasync.random`: states for Numba's generators, and Philox in kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.random import (
    init_xoroshiro128p_states_cpu,
    xoroshiro128p_dtype,
    xoroshiro128p_uniform_float32,
)

import numbasync as na
from numbasync.errors import DTypeError, LauncherError, ShapeError
from numbasync.random import (
    philox_4x32,
    philox_normal_float32,
    philox_normal_float64,
    philox_uint32,
    philox_uniform_float32,
    philox_uniform_float64,
)
from tests.common import host

# --- states -----------------------------------------------------------------------------


def numbas(n: int, seed: int, start: int = 0) -> np.ndarray:
    """The states that Numba makes on the host, before it uploads them."""
    made = np.zeros(n, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(made, np.uint64(seed & 2**64 - 1), start)
    return made


@pytest.mark.parametrize("seed", [0, 1, -1, 12345, 2**63, 2**64 - 1, 2**64 + 7])
def test_states_are_numbas(device: na.Device, seed: int) -> None:
    for n, start in ((0, 0), (1, 0), (2, 3), (129, 0), (1000, 5)):
        got = na.random_states(n, seed, subsequence_start=start).sync()
        assert got.dtype == xoroshiro128p_dtype and got.shape == (n,)
        assert host(got).tolist() == numbas(n, seed, start).tolist()


def test_far_states_are_the_same_ones(device: na.Device) -> None:
    """Numba would take 2**40 jumps to the first of these."""
    near = host(na.random_states(2**9 + 5, 3))
    far = host(na.random_states(1, 3, 2**40))
    again = host(na.random_states(3, 3, 2**40 - 2))
    assert again[2] == far[0] != near[0]
    assert (host(na.random_states(5, 3, 2**9)) == near[2**9 :]).all()


@na.launcher
@cuda.jit
def draw(z, states):
    i = cuda.grid(1)
    if i < z.shape[0]:
        for k in range(z.shape[1]):
            z[i, k] = xoroshiro128p_uniform_float32(states, i)


def test_states_are_drawn_from_by_kernels(device: na.Device) -> None:
    """Found from the code alone: what draws from states writes to them."""
    assert [p.is_output for p in draw.parameters] == [True, True]
    states = na.random_states(40, 7).sync()
    one, two = (na.zeros((20, 3)).sync() for _ in range(2))
    draw[1, 32](one, states[:20]).sync()
    draw[1, 32](two, states[:20]).sync()  # goes on where the first one ended
    whole = na.zeros((40, 6)).sync()
    fresh = draw[2, 32](whole, na.random_states(40, 7)).output().sync()[1]
    want = host(whole)
    np.testing.assert_array_equal(np.concatenate([host(one), host(two)], 1), want[:20])
    assert (host(states)[:20] == host(fresh)[:20]).all()
    assert (host(states)[20:] == numbas(40, 7)[20:]).all()
    assert states[2:30:3].shape == (10,) and states.partition(16).grid == (3,)
    assert (host(states[5::7]) == host(states)[5::7]).all() and host(states.dup())[3] == host(
        states
    )[3]
    assert 0 <= want.min() < 0.05 and 0.95 < want.max() < 1


def test_states_are_an_output() -> None:
    with pytest.raises(LauncherError, match="stores to states, which is declared na.KernelInput"):

        @na.launcher
        @cuda.jit
        def wrong(z: na.KernelOutput, states: na.KernelInput):
            z[0] = xoroshiro128p_uniform_float32(states, 0)


def test_wrong_states_are_refused() -> None:
    for n, seed, start in ((-1, 0, 0), (3, 0, -1)):
        with pytest.raises(ShapeError, match="write 0 or more"):
            na.random_states(n, seed, start)
    for wrong in ((2.5, 0), (3, None), (3, 1.0), ((3, 4), 0)):
        with pytest.raises(DTypeError, match="write a whole number"):
            na.random_states(*wrong)  # type: ignore[arg-type]


# --- Philox -----------------------------------------------------------------------------

KNOWN = [  # of Random123's kat_vectors: counter, key, words
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32-10 in Python's integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & 2**32 - 1, p0 >> 32 ^ c3 ^ k1, p0 & 2**32 - 1
        k0, k1 = k0 + 0x9E3779B9 & 2**32 - 1, k1 + 0xBB67AE85 & 2**32 - 1
    return c0, c1, c2, c3


def words(seed: int, index: int, block: int) -> tuple[int, ...]:
    halves = [(x & 2**32 - 1, x >> 32 & 2**32 - 1) for x in (block, index, seed)]
    return philox((*halves[0], *halves[1]), halves[2])


@na.launcher
@cuda.jit
def known(z: na.KernelOutput, counters: na.KernelInput, keys: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        c = counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3]
        w0, w1, w2, w3 = philox_4x32(c, (keys[i, 0], keys[i, 1]))
        z[i, 0] = w0
        z[i, 1] = w1
        z[i, 2] = w2
        z[i, 3] = w3


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_known_answers(device: na.Device, dtype: Any) -> None:
    """Random123's own vectors, in words of every kind: the lowest 32 bits count."""
    rng = np.random.default_rng(1)
    more = [tuple(rng.integers(0, 2**32, 6).tolist()) for _ in range(30)]
    cases = [(c, k) for c, k, _ in KNOWN] + [(m[:4], m[4:]) for m in more]
    assert [philox(c, k) for c, k in cases[:3]] == [w for *_, w in KNOWN]
    counters = np.array([c for c, _ in cases]).astype(np.uint32).astype(dtype)
    keys = np.array([k for _, k in cases]).astype(np.uint32).astype(dtype)
    z = known[2, 32](na.zeros((33, 4), np.uint32), counters, keys).output().sync()
    assert host(z).tolist() == [list(philox(c, k)) for c, k in cases]


@na.launcher
@cuda.jit
def numbers(
    bits: na.KernelOutput, u32: na.KernelOutput, u64: na.KernelOutput, n32: na.KernelOutput,
    n64: na.KernelOutput, seed, start,
):  # fmt: skip
    i = cuda.grid(1)
    if i < bits.shape[0]:
        for d in range(bits.shape[1]):
            bits[i, d] = philox_uint32(seed, start + i, d)
            u32[i, d] = philox_uniform_float32(seed, start + i, d)
            u64[i, d] = philox_uniform_float64(seed, start + i, d)
            n32[i, d] = philox_normal_float32(seed, start + i, d)
            n64[i, d] = philox_normal_float64(seed, start + i, d)


def drawn(seed: Any, start: int, shape: tuple[int, int]) -> list[np.ndarray]:
    made = [na.zeros(shape, d) for d in (np.uint32, "f4", "f8", "f4", "f8")]
    outputs = numbers[-(-shape[0] // 32), 32](*made, seed, start).output().sync()
    return [host(t) for t in outputs]


# Of seed 0, this index has a word 0 that is 0, whose logarithm must not be taken.
ZERO = 748_582_185


@pytest.mark.parametrize(
    ("seed", "start"), [(0, ZERO - 3), (-1, 2**32 - 3), (-(2**62) - 5, 2**40), (12345, -2)]
)
def test_numbers_are_of_their_words(device: na.Device, seed: Any, start: int) -> None:
    bits, u32, u64, n32, n64 = drawn(seed, start, (6, 9))
    assert bits[3, 0] == 0 or start + 3 != ZERO
    for i in range(6):
        w = [x for b in range(5) for x in words(int(seed), start + i, b)]
        assert bits[i].tolist() == w[:9]
        assert u32[i].tolist() == [(x >> 8) * 2.0**-24 for x in w[:9]]
        uniform = [(w[2 * d + 1] << 32 | w[2 * d]) >> 11 for d in range(10)]
        assert u64[i].tolist() == [x * 2.0**-53 for x in uniform[:9]]
        for d in range(9):
            part = math.sin if d % 2 else math.cos
            first, second = (float(np.float32(w[d // 2 * 2 + k])) * 2**-32 for k in (0, 1))
            u = float(np.float32(first + 2**-33))
            want = math.sqrt(-2 * math.log(u)) * part(2 * math.pi * (second - 0.5))
            assert abs(n32[i, d] - want) < 4e-6
            u, v = (uniform[d // 2 * 2] + 1) * 2.0**-53, uniform[d // 2 * 2 + 1] * 2.0**-53
            want = math.sqrt(-2 * math.log(u)) * part(2 * math.pi * (v - 0.5))
            assert abs(n64[i, d] - want) < 1e-14


def test_numbers_are_spread_as_they_should_be(device: na.Device) -> None:
    """64,000 of each: the bounds are 6 standard errors of the mean and of the variance."""
    _, u32, u64, n32, n64 = drawn(11, 0, (1000, 64))
    count = u32.size
    for u in (u32, u64):
        assert u.min() >= 0 and u.max() < 1 and len(np.unique(u)) > 0.99 * count
        assert abs(u.mean() - 0.5) < 6 / math.sqrt(12 * count)
        assert abs(u.var() - 1 / 12) < 6 / math.sqrt(180 * count)
    for n in (n32, n64):
        assert np.isfinite(n).all() and abs(n).max() < 6.8
        assert abs(n.mean()) < 6 / math.sqrt(count) and abs(n.var() - 1) < 6 * math.sqrt(2 / count)
        pairs = n.reshape(-1, 2)  # sine and cosine of one angle
        assert abs((pairs[:, 0] * pairs[:, 1]).mean()) < 6 / math.sqrt(count / 2)


def test_they_are_there_when_asked_for() -> None:
    assert na.random.philox_4x32 is philox_4x32 and {"random", "random_states"} <= set(dir(na))
