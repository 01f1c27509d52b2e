"""Swizzles: how rows of a tile in shared memory are permuted, so that reading a column of 16-byte
chunks meets different banks.

With a swizzle of 128 bytes, a row has 128 bytes, and its chunk c is stored at chunk c ^ (r % 8) of
row r. With 64 bytes, c ^ (r // 2 % 4); with 32 bytes, c ^ (r // 4 % 2). In bytes from the start of
an aligned tile, bits 4 to 6 of an address are changed by its bits 7 to 9; fewer of them for the
narrower ones.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", and the CUDA driver
API, `cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

SWIZZLES = (0, 32, 64, 128)  # bytes of a row; 0: rows as they are


def mask(swizzle: int) -> int:
    """The bits of an address that the swizzle changes; the same bits, 3 higher, say how."""
    return max(swizzle - 16, 0)


def swizzled(address: int, swizzle: int) -> int:
    """The byte at which a tile holds what would be at `address`, from the start of the tile."""
    return address ^ ((address >> 3) & mask(swizzle))


def alignment(swizzle: int) -> int:
    """The alignment in bytes that a tile needs: the pattern's period; 128 without a swizzle, which
    is what copies by tensor maps need.
    """
    return max(8 * swizzle, 128)
