"""Where a swizzle puts the 16-byte chunks of a row, by the tables of the PTX ISA."""

from __future__ import annotations

import pytest

from numbasync.tensor_cores.swizzle import alignment, swizzled


@pytest.mark.parametrize(("swizzle", "rows_alike", "period"), [(128, 1, 8), (64, 2, 4), (32, 4, 2)])
def test_chunks_change_places_by_their_row(swizzle: int, rows_alike: int, period: int) -> None:
    for row in range(16):
        places = [swizzled(row * swizzle + 16 * c + 5, swizzle) for c in range(swizzle // 16)]
        chunks = [c ^ (row // rows_alike % period) for c in range(swizzle // 16)]
        assert places == [row * swizzle + 16 * c + 5 for c in chunks]
    assert alignment(swizzle) == 8 * swizzle


def test_without_a_swizzle_nothing_moves() -> None:
    assert [swizzled(k, 0) for k in range(2048)] == list(range(2048))
    assert alignment(0) == 128
