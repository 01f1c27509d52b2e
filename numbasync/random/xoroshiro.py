"""States of xoroshiro128+ that lie 2**64 numbers apart, as `numba.cuda.random` makes them.

Numba takes the 128 steps of a jump for one state after the other, in code that it has to compile
first. A jump is linear in the 128 bits of a state, though. So it is a matrix, and the states behind
m known ones are the product of those with the matrix of m jumps, all at once.

The generator is by David Blackman and Sebastiano Vigna, https://prng.di.unimi.it; a first state
is one number of their splitmix64, twice.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

STATE = np.dtype([("s0", np.uint64), ("s1", np.uint64)], align=True)

# States, or the columns of a matrix, of shape (n, 2): bit b is bit b % 64 of word b // 64.
Bits: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

_MASK = 2**64 - 1
_JUMP = 0xD86B048B86AA9922_BEAC0467EBA5FACB  # which of the next 128 states add up to the jump


def states(n: int, seed: int, start: int = 0) -> np.ndarray[Any, Any]:
    """`n` states, a jump apart, of dtype `STATE`.

    Args:
        seed: the first state is the one of its lowest 64 bits, `start` jumps on.
        start: 0 or more.
    """
    made = np.full((max(n, 1), 2), _splitmix(seed & _MASK), np.uint64)
    jump = power = _jump()
    while start:
        if start & 1:
            made[:1] = _product(power, made[:1])
        start >>= 1
        power = _product(power, power)
    known, power = 1, jump
    while known < n:
        behind = min(known, n - known)
        made[known : known + behind] = _product(power, made[:behind])
        known += behind
        power = _product(power, power)
    return made[:n].view(STATE).reshape(n)


def _splitmix(seed: int) -> int:
    z = seed + 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def _jump() -> Bits:
    """The matrix of a jump: what becomes of the states of one bit."""
    made = np.zeros((128, 2), np.uint64)
    s0, s1 = np.zeros(128, np.uint64), np.zeros(128, np.uint64)
    s0[:64] = s1[64:] = np.uint64(1) << np.arange(64, dtype=np.uint64)
    for step in range(128):
        if _JUMP >> step & 1:
            made[:, 0] ^= s0
            made[:, 1] ^= s1
        mixed = s0 ^ s1
        s0 = _rotated(s0, 55) ^ mixed ^ mixed << np.uint64(14)
        s1 = _rotated(mixed, 36)
    return made


def _rotated(words: Bits, by: int) -> Bits:
    return words << np.uint64(by) | words >> np.uint64(64 - by)


def _product(matrix: Bits, columns: Bits) -> Bits:
    """The matrix times each column, modulo 2: a look-up for each byte of a column."""
    tables = np.zeros((16, 256, 2), np.uint64)  # of each byte's place, what each byte adds
    by_byte = matrix.reshape(16, 8, 1, 2)
    for bit in range(8):
        half = 1 << bit
        tables[:, half : 2 * half] = tables[:, :half] ^ by_byte[:, bit]
    bytes_of = np.ascontiguousarray(columns).astype("<u8", copy=False).view(np.uint8)
    made = np.zeros_like(columns)
    for place in range(16):
        made ^= tables[place][bytes_of[:, place]]
    return made
