"""States of xoroshiro128+ that lie 2**64 numbers apart, as `numba.cuda.random` makes them.

Numba computes the 128 steps of a jump for one state after the other, in code that it must compile
first. But a jump is linear in the 128 bits of a state, so it is a matrix over these bits. The m
states after m known ones are the product of the matrix of m jumps with the known ones, in one step.

The generator is by David Blackman and Sebastiano Vigna, https://prng.di.unimi.it; both words of the
first state are the same number of their splitmix64.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

STATE = np.dtype([("s0", np.uint64), ("s1", np.uint64)], align=True)

# States, or the columns of a matrix, of shape (n, 2): bit b is bit b % 64 of word b // 64.
Bits: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

_MASK = 2**64 - 1
_JUMP = 0xD86B048B86AA9922_BEAC0467EBA5FACB  # bit set of the next 128 states: their sum is the jump


def states(n: int, seed: int, start: int = 0) -> np.ndarray[Any, Any]:
    """`n` states, a jump apart, of dtype `STATE`.

    Args:
        seed: its lowest 64 bits determine the first state, which is then advanced `start` jumps.
        start: 0 or more.
    """
    bits = np.full((max(n, 1), 2), _splitmix(seed & _MASK), np.uint64)
    jump = power = _jump()
    while start:
        if start & 1:
            bits[:1] = _product(power, bits[:1])
        start >>= 1
        power = _product(power, power)
    known, power = 1, jump
    while known < n:
        count = min(known, n - known)
        bits[known : known + count] = _product(power, bits[:count])
        known += count
        power = _product(power, power)
    return bits[:n].view(STATE).reshape(n)


def _splitmix(seed: int) -> int:
    z = seed + 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def _jump() -> Bits:
    """The matrix of a jump: column b is the state that a jump makes of bit b alone."""
    columns = np.zeros((128, 2), np.uint64)
    s0, s1 = np.zeros(128, np.uint64), np.zeros(128, np.uint64)
    s0[:64] = s1[64:] = np.uint64(1) << np.arange(64, dtype=np.uint64)
    for step in range(128):
        if _JUMP >> step & 1:
            columns[:, 0] ^= s0
            columns[:, 1] ^= s1
        mixed = s0 ^ s1
        s0 = _rotated(s0, 55) ^ mixed ^ mixed << np.uint64(14)
        s1 = _rotated(mixed, 36)
    return columns


def _rotated(words: Bits, by: int) -> Bits:
    return words << np.uint64(by) | words >> np.uint64(64 - by)


def _product(matrix: Bits, columns: Bits) -> Bits:
    """The matrix times each column, modulo 2, by one table look-up per byte of a column."""
    tables = np.zeros(
        (16, 256, 2), np.uint64
    )  # [byte position, byte value]: the contribution to the product
    by_byte = matrix.reshape(16, 8, 1, 2)
    for bit in range(8):
        half = 1 << bit
        tables[:, half : 2 * half] = tables[:, :half] ^ by_byte[:, bit]
    bytes_of = np.ascontiguousarray(columns).astype("<u8", copy=False).view(np.uint8)
    product = np.zeros_like(columns)
    for place in range(16):
        product ^= tables[place][bytes_of[:, place]]
    return product
