"""`numba.cuda.random`, beside the same generator in Python's integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.random import (
    init_xoroshiro128p_state,
    xoroshiro128p_jump,
    xoroshiro128p_next,
    xoroshiro128p_normal_float32,
    xoroshiro128p_normal_float64,
    xoroshiro128p_type,
    xoroshiro128p_uniform_float32,
    xoroshiro128p_uniform_float64,
)

import numbasync as na
from tests.common import host

MASK = 2**64 - 1


class Xoroshiro:
    """xoroshiro128+ of Blackman and Vigna, seeded by their splitmix64."""

    def __init__(self, seed: int) -> None:
        z = seed + 0x9E3779B97F4A7C15 & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        self.s0 = self.s1 = z ^ z >> 31

    @staticmethod
    def _rotate(x: int, k: int) -> int:
        return (x << k | x >> 64 - k) & MASK

    def next(self) -> int:
        result = self.s0 + self.s1 & MASK
        mixed = self.s1 ^ self.s0
        self.s0 = self._rotate(self.s0, 55) ^ mixed ^ mixed << 14 & MASK
        self.s1 = self._rotate(mixed, 36)
        return result

    def jump(self) -> None:
        """Go 2**64 numbers ahead."""
        s0 = s1 = 0
        for word in (0xBEAC0467EBA5FACB, 0xD86B048B86AA9922):
            for b in range(64):
                if word >> b & 1:
                    s0 ^= self.s0
                    s1 ^= self.s1
                self.next()
        self.s0, self.s1 = s0, s1

    def uniform(self) -> float:
        return (self.next() >> 11) * 2.0**-53

    def uniform32(self) -> np.float32:
        return np.float32(self.uniform())

    def normal32(self) -> float:
        u, v = float(self.uniform32()), float(self.uniform32())
        return math.sqrt(-2 * math.log(u)) * math.cos(float(np.float32(2 * math.pi)) * v)

    def normal64(self) -> float:
        """Of two float32 numbers, as Numba's."""
        u, v = float(self.uniform32()), float(self.uniform32())
        return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)


def test_states_are_seeded_and_advanced(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def draw(z: na.KernelOutput, states: na.KernelOutput, seeds: na.KernelInput):
        own = cuda.local.array(1, xoroshiro128p_type)
        i = cuda.grid(1)
        init_xoroshiro128p_state(own, 0, seeds[i])
        for k in range(z.shape[1]):
            z[i, k] = xoroshiro128p_next(own, 0)
        states[i, 0] = own[0]["s0"]
        states[i, 1] = own[0]["s1"]

    seeds = np.array([0, 1, 2, 12345, 2**63, MASK], np.uint64)
    z, states = na.zeros((6, 20), np.uint64).sync(), na.zeros((6, 2), np.uint64).sync()
    draw[2, 3](z, states, seeds).sync()
    generators = [Xoroshiro(int(seed)) for seed in seeds]
    assert host(z).tolist() == [[g.next() for _ in range(20)] for g in generators]
    assert host(states).tolist() == [[g.s0, g.s1] for g in generators]


def test_jumps(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def jump(z: na.KernelOutput):
        own = cuda.local.array(1, xoroshiro128p_type)
        i = cuda.grid(1)
        init_xoroshiro128p_state(own, 0, 7)
        for _ in range(i):
            xoroshiro128p_jump(own, 0)
        z[i, 0] = own[0]["s0"]
        z[i, 1] = own[0]["s1"]

    z = na.zeros((3, 2), np.uint64).sync()
    jump[1, 3](z).sync()
    generator, want = Xoroshiro(7), []
    for _ in range(3):
        want.append([generator.s0, generator.s1])
        generator.jump()
    assert host(z).tolist() == want


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniform_numbers(device: na.Device, dtype: Any) -> None:
    uniform = {np.float32: xoroshiro128p_uniform_float32,
               np.float64: xoroshiro128p_uniform_float64}[dtype]  # fmt: skip

    @na.launcher
    @cuda.jit
    def draw(z: na.KernelOutput):
        own = cuda.shared.array(40, xoroshiro128p_type)
        i, t = cuda.grid(1), cuda.threadIdx.x
        init_xoroshiro128p_state(own, t, i)
        for k in range(z.shape[1]):
            z[i, k] = uniform(own, t)

    z = na.zeros((80, 9), np.float64).sync()
    draw[2, 40](z).sync()
    generators = [Xoroshiro(seed) for seed in range(80)]
    want = [[float(dtype(g.uniform())) for _ in range(9)] for g in generators]
    assert host(z).tolist() == want


def test_states_kept_between_launches(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def draw(z: na.KernelOutput, states: na.KernelOutput):
        own = cuda.local.array(1, xoroshiro128p_type)
        i = cuda.grid(1)
        own[0]["s0"] = states[i, 0]
        own[0]["s1"] = states[i, 1]
        z[i] = xoroshiro128p_uniform_float64(own, 0)
        states[i, 0] = own[0]["s0"]
        states[i, 1] = own[0]["s1"]

    generators = [Xoroshiro(seed) for seed in range(50)]
    start = np.array([[g.s0, g.s1] for g in generators], np.uint64)
    z, states = na.zeros(50, np.float64).sync(), na.from_host(start).sync()
    for _ in range(3):
        draw[2, 25](z, states).sync()
        assert host(z).tolist() == [g.uniform() for g in generators]


@pytest.mark.full
def test_normal_numbers(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def draw(z: na.KernelOutput, wide: na.KernelOutput):
        own = cuda.local.array(2, xoroshiro128p_type)
        i = cuda.grid(1)
        init_xoroshiro128p_state(own, 0, i)
        init_xoroshiro128p_state(own, 1, i)
        for k in range(z.shape[1]):
            z[i, k] = xoroshiro128p_normal_float32(own, 0)
            wide[i, k] = xoroshiro128p_normal_float64(own, 1)

    z, wide = na.zeros((64, 8)).sync(), na.zeros((64, 8), np.float64).sync()
    draw[2, 32](z, wide).sync()
    one, two = ([Xoroshiro(seed) for seed in range(64)] for _ in range(2))
    # The logarithm is a float32's in both, and so is the cosine of the first.
    want = [[g.normal32() for _ in range(8)] for g in one]
    np.testing.assert_allclose(host(z), want, rtol=4e-6, atol=4e-6)
    want = [[g.normal64() for _ in range(8)] for g in two]
    np.testing.assert_allclose(host(wide), want, rtol=1e-6, atol=1e-7)


@pytest.mark.full
def test_pi_by_random_points(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def inside(counts: na.KernelOutput, rounds):
        own = cuda.local.array(1, xoroshiro128p_type)
        i = cuda.grid(1)
        init_xoroshiro128p_state(own, 0, i)
        hits = 0
        for _ in range(rounds):
            x = xoroshiro128p_uniform_float32(own, 0) - np.float32(0.5)
            y = xoroshiro128p_uniform_float32(own, 0) - np.float32(0.5)
            if np.float64(x) * x + np.float64(y) * y < 0.25:
                hits += 1
        cuda.atomic.add(counts, 0, hits)

    counts = na.zeros(1, np.int64).sync()
    inside[4, 32](counts, 25).sync()
    want = 0
    for seed in range(128):
        g = Xoroshiro(seed)
        for _ in range(25):
            x, y = (float(g.uniform32() - np.float32(0.5)) for _ in range(2))
            want += x * x + y * y < 0.25
    assert host(counts).tolist() == [want]
